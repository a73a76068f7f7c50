"""The device around the compute unit: rounds of workgroups over CUs and XCDs, power, memory bandwidth."""

from dataclasses import dataclass

from .parameters import ParameterSet, value
from .steady import Steady, Traces


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
    """Rounds of the XCD that has most workgroups: full ones, then the tail."""
    xcds = int(value("device", "xcds"))
    compute_units = int(value("device", "compute_units")) // xcds
    workgroups = -(-traces.workgroups // xcds)
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


def memory_bound_ms(traces: Traces) -> float:
    """Least time of the tensors' bytes over HBM."""
    return traces.shape.bytes_once / value("device", "hbm_bandwidth") * 1e-6


def time_ms(traces: Traces, parameter_set: ParameterSet, reference_ghz: float | None = None) -> float:
    """Modelled time of a launch, milliseconds."""
    reference = parameter_set.reference_clock_ghz if reference_ghz is None else reference_ghz
    compute = sum(
        phase.clocks / clock_ghz(phase, parameter_set, reference) * 1e-6
        for phase in phases(traces, parameter_set)
    )
    return max(compute, memory_bound_ms(traces))


def rounds(traces: Traces) -> dict:
    """Quantisation: workgroups over the slots of the device."""
    slots = int(value("device", "compute_units")) * traces.residents
    whole = -(-traces.workgroups // slots)
    return {
        "workgroups": traces.workgroups,
        "slots": slots,
        "rounds": traces.workgroups / slots,
        "quantisation_efficiency": traces.workgroups / (slots * whole),
    }
