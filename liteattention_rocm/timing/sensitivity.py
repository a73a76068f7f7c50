"""What moves what: each parameter of the clock changed alone, on AITER's three modes."""

from dataclasses import replace

from . import device
from .kernels import KERNELS, Shape
from .parameters import DOCUMENTED, parameter_sets
from .steady import Traces

_SHAPE = Shape(1, 16, 32768, 32768)
_MODES = ("rtz", "rtna", "rtne")
_SIZES = (
    "fetch_bytes",
    "l1_bytes",
    "l1_ways",
    "dispatch_interval",
)  # no time or rate that could be twice another
_POWER = (
    ("energy_exponent", 0.55),
    ("energy_exponent", 0.67),
    ("matrix_16x16x16", 9.0),
    ("matrix_16x16x16", 30.0),
    ("matrix_32x32x8_per_flop", 1.0),
    ("transcendental", 4.0),
)


def _variants() -> list[tuple[str, float]]:
    changed = []
    for name, number in parameter_sets()[DOCUMENTED].clock.items():
        if name not in _SIZES:
            changed.append(
                (name, number / 2 if name.endswith("per_clock") else 2 * number if number else 1.0)
            )
    return changed


def sensitivity() -> dict:
    """Steady state and mode ratios under one changed parameter at a time.

    Returns:
        {"clock": rows, "power": rows}. A row of "clock" has parameter, value, `clocks_per_tile` of AITER
        rtz under D0, and the clocks of the other modes over them; one of "power" has the modes' times over
        rtz's under A.
    """
    traces = {mode: Traces(KERNELS[f"aiter:{mode}"], _SHAPE) for mode in _MODES}
    documented, powered = (parameter_sets()[name] for name in (DOCUMENTED, "A"))
    rows = []
    for name, number in [("documented", 0.0), *_variants()]:
        clock = {**documented.clock, **({} if name == "documented" else {name: number})}
        variant = replace(documented, name=f"{name}={number}", clock=clock)
        clocks = {
            mode: one.steady(variant, 1).per_row(lambda answer: answer["clocks"]) * one.kernel.kv_rows
            for mode, one in traces.items()
        }
        rows.append(
            {
                "parameter": name,
                "value": number,
                "clocks_per_tile": clocks["rtz"],
                **{f"{mode}_over_rtz": clocks[mode] / clocks["rtz"] for mode in _MODES[1:]},
            }
        )
    power = []
    for name, number in [("A", 0.0), *_POWER]:
        variant = replace(powered, energy={**powered.energy, **({} if name == "A" else {name: number})})
        # Far below the peak clock, where the power law holds alone.
        times = {mode: device.time_ms(one, variant, 1e-3) for mode, one in traces.items()}
        power.append(
            {
                "parameter": name,
                "value": number,
                **{f"{mode}_over_rtz": times[mode] / times["rtz"] for mode in _MODES[1:]},
            }
        )
    return {"modelled": True, "clock": rows, "power": power}
