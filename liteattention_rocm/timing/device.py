"""The device around the compute unit: rounds of workgroups over CUs and XCDs, power, memory bandwidth."""

from dataclasses import dataclass

from .parameters import ParameterSet, value
from .steady import Steady, TracedStage, Traces


@dataclass(frozen=True)
class Phase:
    """A stretch of a launch. clocks: its length. power: energy per clock, mean over the device's CUs."""

    clocks: float
    power: float


def energy(steady: Steady, parameter_set: ParameterSet) -> float:
    """Of a CU's resident workgroups together, in VALU operations of a wave."""
    unit = parameter_set.energy
    wide = 2 * unit["matrix_16x16x16"] * unit["matrix_32x32x8_per_flop"]  # twice the FLOPs
    return (
        unit["vector"] * steady.total(lambda answer: answer["executed"]["vector"])
        + unit["transcendental"] * steady.total(lambda answer: answer["executed"]["transcendental"])
        + unit["matrix_16x16x16"]
        * steady.total(lambda answer: answer["mfma_16x16x16"] + answer["mfma_other"])
        + wide * steady.total(lambda answer: answer["mfma_32x32x8"])
    )


def phases(traces: Traces, parameter_set: ParameterSet) -> list[Phase]:
    """Of every stage the rounds of the XCD that has most workgroups: full ones, then the tail."""
    return [phase for one in traces.stages for phase in stage_phases(one, parameter_set)]


def stage_phases(one: TracedStage, parameter_set: ParameterSet) -> list[Phase]:
    """The phases of one stage."""
    traces = one.traces
    xcds = int(value("device", "xcds"))
    compute_units = int(value("device", "compute_units")) // xcds
    workgroups = -(-one.stage.workgroups // xcds)
    full, rest = divmod(workgroups, compute_units * traces.residents)
    result = []
    if full:
        steady = traces.steady(parameter_set, traces.residents)
        result.append(Phase(full * steady.clocks, energy(steady, parameter_set) / steady.clocks))
    if rest:
        residents = -(-rest // compute_units)
        steady = traces.steady(parameter_set, residents)
        share = rest / (compute_units * residents)
        share += (1 - share) * parameter_set.energy["idle_power"]
        result.append(Phase(steady.clocks, share * energy(steady, parameter_set) / steady.clocks))
    return result


def clock_ghz(phase: Phase, parameter_set: ParameterSet, reference_ghz: float) -> float:
    """Sustained clock: reference · power^-exponent, at most the device's peak."""
    limited = reference_ghz * phase.power ** -parameter_set.energy["energy_exponent"]
    return min(limited, value("device", "peak_clock"))


def _moving_ms(count: float) -> float:
    """Bytes over HBM at its peak."""
    return count / value("device", "hbm_bandwidth") * 1e-6


def memory_bound_ms(traces: Traces) -> float:
    """Least time of the tensors' bytes over HBM."""
    return _moving_ms(traces.shape.bytes_once)


def stage_ms(one: TracedStage, parameter_set: ParameterSet, reference_ghz: float | None = None) -> float:
    """Modelled time of one stage, milliseconds."""
    reference = parameter_set.reference_clock_ghz if reference_ghz is None else reference_ghz
    compute = sum(
        phase.clocks / clock_ghz(phase, parameter_set, reference) * 1e-6
        for phase in stage_phases(one, parameter_set)
    )
    stage = one.stage
    return (
        max(compute, _moving_ms(stage.least_bytes))
        + _moving_ms(stage.stored_bytes)
        + stage.launched * value("device", "launch_gap") * 1e-3
    )


def time_ms(traces: Traces, parameter_set: ParameterSet, reference_ghz: float | None = None) -> float:
    """Modelled time of a launch, milliseconds."""
    compute = sum(stage_ms(one, parameter_set, reference_ghz) for one in traces.stages)
    return max(compute, memory_bound_ms(traces))


def rounds(traces: Traces) -> dict:
    """Quantisation: the workgroups' work over the places of the device."""
    places = int(value("device", "compute_units")) * traces.residents
    whole = sum(
        -(-one.stage.workgroups // (places // traces.residents * one.traces.residents)) * one.stage.share
        for one in traces.stages
    )
    return {
        "workgroups": sum(one.stage.workgroups for one in traces.stages if one.stage.share),
        "slots": places,
        "rounds": traces.workgroups / places,
        "quantisation_efficiency": traces.workgroups / (places * whole),
    }
