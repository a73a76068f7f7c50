"""One kernel on one shape: steady state, stalls, counters, and time as an interval over the ensemble."""

from . import device
from .counters import counters
from .kernels import Kernel, Shape
from .parameters import DOCUMENTED, ParameterSet, ensemble, parameter_sets, value
from .steady import Steady, Traces

_SIMDS, _CLOCKS_PER_SLOT = 4, 4
_FLOP_PER_PAIR = 4 * 128  # of one query row and one KV row


def _utilisation(steady: Steady) -> dict[str, float]:
    clocks = steady.per_row(lambda answer: answer["clocks"])
    slots = clocks * _SIMDS / _CLOCKS_PER_SLOT
    return {
        "mfma": steady.per_row(lambda answer: answer["matrix_slots"]) / slots,
        "valu_port": steady.per_row(lambda answer: answer["vector_slots"]) / slots,
        "lds": steady.per_row(lambda answer: answer["lds_clocks"]) / clocks,
        "l1": steady.per_row(lambda answer: answer["l1_clocks"]) / clocks,
    }


def _stalls(steady: Steady, tile_rows: int, waves: int, top: int) -> list[dict]:
    """The instructions at which waves lose most, in clocks per tile and wave."""
    last = {one["index"]: one for one in steady.answers[-1]["instructions"]}
    before = {}
    rows = steady.lengths[-1]
    if len(steady.answers) > 1:
        before = {one["index"]: one for one in steady.answers[-2]["instructions"]}
        rows -= steady.lengths[-2]
    scale = tile_rows / rows / waves * _CLOCKS_PER_SLOT
    result = []
    for index, one in last.items():
        earlier = before.get(index, {"stalls": {}, "issues": 0})
        reasons = {
            reason: (slots - earlier["stalls"].get(reason, 0)) * scale
            for reason, slots in one["stalls"].items()
        }
        reasons = {reason: clocks for reason, clocks in reasons.items() if clocks > 0}
        if reasons:
            result.append(
                {
                    "address": one["address"],
                    "text": one["text"],
                    "clocks_per_tile": sum(reasons.values()),
                    "reasons": dict(sorted(reasons.items(), key=lambda item: -item[1])),
                    "issues_per_tile": (one["issues"] - earlier["issues"]) * tile_rows / rows / waves,
                }
            )
    return sorted(result, key=lambda one: -one["clocks_per_tile"])[:top]


def _reason_totals(steady: Steady, tile_rows: int, waves: int) -> dict[str, float]:
    totals: dict[str, float] = {}
    for one in _stalls(steady, tile_rows, waves, 1 << 30):
        for reason, clocks in one["reasons"].items():
            totals[reason] = totals.get(reason, 0.0) + clocks
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def _counters(traces: Traces, parameter_set: ParameterSet) -> dict[str, int]:
    totals: dict[str, int] = {}
    for one in traces.stages:
        residents, waves = one.traces.residents, one.traces.description["waves_per_workgroup"]
        steady = one.traces.steady(parameter_set, residents)
        for name, count in counters(steady, residents, one.stage.workgroups, waves).items():
            totals[name] = totals.get(name, 0) + count
    return totals


def _in_set(traces: Traces, parameter_set: ParameterSet) -> dict:
    steady = traces.steady(parameter_set, traces.residents)
    milliseconds = device.time_ms(traces, parameter_set)
    longest = max(device.phases(traces, parameter_set), key=lambda phase: phase.clocks)
    listed = getattr(traces.kernel, "listed", 1.0)  # of the KV tiles: no FLOP for the others
    return {
        "clocks_per_tile": steady.per_row(lambda answer: answer["clocks"]) * traces.kernel.kv_rows,
        "flop_per_clock": listed
        * _FLOP_PER_PAIR
        * traces.kernel.query_rows
        * traces.residents
        / steady.per_row(lambda answer: answer["clocks"]),
        "clocks_per_round": steady.clocks,
        "drift": steady.drift,
        "utilisation": _utilisation(steady),
        "sustained_clock_ghz": device.clock_ghz(longest, parameter_set, parameter_set.reference_clock_ghz),
        "time_ms": milliseconds,
        "tflops": listed * traces.shape.flop / milliseconds * 1e-9,
    }


def interval(values: dict[str, float], residuals: dict[str, float]) -> dict:
    """The hull over the ensemble, each member widened by its residual; `prediction`: it is narrow enough."""
    widen = value("claims", "interval_residuals")
    low = min(values[name] * (1 - widen * residuals[name]) for name in ensemble())
    high = max(values[name] * (1 + widen * residuals[name]) for name in ensemble())
    half_width = (high - low) / (high + low)
    return {
        "low": low,
        "high": high,
        "half_width": half_width,
        "prediction": half_width <= value("claims", "prediction_half_width"),
    }


def _residual(parameter_set: ParameterSet, calibrated: bool) -> float:
    """Of a time: the set's own, and for a kernel that calibration has not seen what transfer adds."""
    if calibrated:
        return parameter_set.residual
    return max(
        parameter_set.residual, value("claims", "transfer_residual") / value("claims", "interval_residuals")
    )


def profile(kernel: Kernel, shape: Shape, *, top: int = 12, traces: Traces | None = None) -> dict:
    """What the model says of one kernel on one shape.

    Args:
        top: so many instructions are listed with their stalls.
        traces: of this kernel and shape, if they exist already.

    Returns:
        A dict that json can write. Times are milliseconds, clocks those of a CU; everything is modelled.

    Raises:
        FileNotFoundError: AITER's code objects are missing.
        SimulatorError: the kernel failed in the simulator.
    """
    traces = traces or Traces(kernel, shape)
    sets = parameter_sets()
    results = {name: _in_set(traces, parameter_set) for name, parameter_set in sets.items()}
    documented = traces.steady(sets[DOCUMENTED], traces.residents)
    waves = traces.residents * traces.description["waves_per_workgroup"]
    residuals = {name: _residual(parameter_set, kernel.calibrated) for name, parameter_set in sets.items()}
    return {
        "modelled": True,
        "name": kernel.name,
        "kernel": traces.description["kernel"],
        "calibrated": kernel.calibrated,
        "resources": {
            "vgprs": traces.description["vgprs"],
            "lds_bytes": traces.description["lds_bytes"],
            "waves_per_workgroup": traces.description["waves_per_workgroup"],
            "workgroups_per_cu": traces.description["workgroups_per_cu"],
            "resident_workgroups": traces.residents,
        },
        "traced_kv_lengths": traces.lengths,
        "kv_rows_per_tile": kernel.kv_rows,
        "query_rows_per_workgroup": kernel.query_rows,
        "device": device.rounds(traces),
        "stages": [
            {
                "name": one.stage.name,
                "kernel": one.traces.description["kernel"],
                "workgroups": one.stage.workgroups,
                "kv_rows": one.stage.shape.seqlen_kv,
                "time_ms": {
                    name: device.stage_ms(one, parameter_set) for name, parameter_set in sets.items()
                },
            }
            for one in traces.stages
        ],
        "memory_bound_ms": device.memory_bound_ms(traces),
        "sets": results,
        "time_ms": interval({name: result["time_ms"] for name, result in results.items()}, residuals),
        "documented_ms": results[DOCUMENTED]["time_ms"],
        "stall_set": DOCUMENTED,
        "stall_reasons": _reason_totals(documented, kernel.kv_rows, waves),
        "stalls": _stalls(documented, kernel.kv_rows, waves, top),
        "counters": _counters(traces, sets[DOCUMENTED]),
    }


def ratio(first: dict, second: dict) -> dict:
    """Time of the second profile over the first one's: above 1 the first is faster.

    Two modes of one kernel share their errors: the interval is widened by the sets' residuals of mode ratios.
    Otherwise it is widened by what transfer to a new kernel costs. `faster` names the winner only where every
    member agrees and the gap exceeds the claim.
    """
    sets = parameter_sets()
    values = {name: second["sets"][name]["time_ms"] / first["sets"][name]["time_ms"] for name in sets}
    same = first["name"].split(":")[0] == second["name"].split(":")[0]
    residuals = {
        name: parameter_set.mode_residual if same else _residual(parameter_set, False)
        for name, parameter_set in sets.items()
    }
    answer = interval(values, residuals)
    gap = value("claims", "ordering_gap")
    members = [values[name] for name in ensemble()]
    faster = None
    if min(members) > 1 + gap:
        faster = first["name"]
    elif max(members) < 1 / (1 + gap):
        faster = second["name"]
    return {
        "modelled": True,
        "of": f"time of {second['name']} / time of {first['name']}",
        "sets": values,
        **answer,
        "documented": values[DOCUMENTED],
        "faster": faster,
    }
