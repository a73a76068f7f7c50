"""The model against published times: AITER's three modes at nine shapes."""

import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path

from . import device
from .kernels import KERNELS, Shape
from .parameters import ParameterSet, ensemble, parameter_sets, value
from .steady import Traces

PUBLISHED = Path(__file__).with_name("published_times.json")
_MODES = ("rtz", "rtna", "rtne")


@dataclass(frozen=True)
class Point:
    """A published time, milliseconds."""

    shape: Shape
    rounding: str
    milliseconds: float

    @property
    def kernel(self) -> str:
        return f"aiter:{self.rounding}"


def published() -> list[Point]:
    """Every published time."""
    points = []
    for row in json.loads(PUBLISHED.read_text())["shapes"]:
        shape = Shape(row["batch"], row["heads"], row["seqlen"], row["seqlen"])
        points += [Point(shape, mode, shape.flop / row[mode] * 1e-9) for mode in _MODES]
    return points


@functools.cache
def traces_of(point: Point) -> Traces:
    return Traces(KERNELS[point.kernel], point.shape)


def fit(parameter_set: ParameterSet, points: list[Point]) -> float:
    """The reference clock, GHz, whose errors' logarithms have mean 0.

    The peak clock caps short phases, so the times are not proportional to it: a few steps of iteration.
    """
    reference = parameter_set.reference_clock_ghz
    for _ in range(30):
        errors = [
            math.log(device.time_ms(traces_of(point), parameter_set, reference) / point.milliseconds)
            for point in points
        ]
        step = math.exp(sum(errors) / len(errors))
        reference *= step
        if abs(step - 1) < 1e-9:
            break
    return reference


def relative_errors(parameter_set: ParameterSet, reference: float, points: list[Point]) -> list[float]:
    """Modelled over published time, minus 1."""
    return [
        device.time_ms(traces_of(point), parameter_set, reference) / point.milliseconds - 1
        for point in points
    ]


def rms(numbers: list[float]) -> float:
    return math.sqrt(sum(number * number for number in numbers) / len(numbers))


def calibrate() -> dict:
    """Fits each set's reference clock to all published times and says how well it does.

    Returns:
        {"sets": {name: {reference_clock_ghz, residual, held_out_residual, mode_ratios, errors}}, "points",
        "coverage", "half_width"}. `residual` is over all points, `held_out_residual` over each rounding
        mode with the clock fitted to the two others. Coverage and mean half width are those of the
        intervals over the ensemble, both held out.
    """
    points = published()
    sets, held_out = {}, {}
    for name, parameter_set in parameter_sets().items():
        reference = fit(parameter_set, points)
        errors = relative_errors(parameter_set, reference, points)
        held_out[name] = _hold_out_modes(parameter_set, points)
        sets[name] = {
            "reference_clock_ghz": reference,
            "residual": rms(errors),
            "held_out_residual": rms(
                [modelled / p.milliseconds - 1 for modelled, p in zip(held_out[name], points, strict=True)]
            ),
            "mode_ratios": {mode: mode_ratio(parameter_set, reference, points, mode) for mode in _MODES[1:]},
            "errors": errors,
        }
    widen = value("claims", "interval_residuals")
    rows = []
    for i, point in enumerate(points):
        low = min(held_out[name][i] * (1 - widen * sets[name]["residual"]) for name in ensemble())
        high = max(held_out[name][i] * (1 + widen * sets[name]["residual"]) for name in ensemble())
        rows.append(
            {
                "shape": [point.shape.batch, point.shape.heads, point.shape.seqlen_q],
                "rounding": point.rounding,
                "published_ms": point.milliseconds,
                "modelled_ms": {name: point.milliseconds * (1 + sets[name]["errors"][i]) for name in sets},
                "interval_ms": [low, high],
                "covered": low <= point.milliseconds <= high,
            }
        )
    return {
        "modelled": True,
        "sets": sets,
        "points": rows,
        "coverage": sum(row["covered"] for row in rows) / len(rows),
        "half_width": sum((h - low) / (h + low) for low, h in (row["interval_ms"] for row in rows))
        / len(rows),
    }


def _hold_out_modes(parameter_set: ParameterSet, points: list[Point]) -> list[float]:
    """Modelled times of each rounding mode with the clock fitted to the other two, in the points' order."""
    references = {
        mode: fit(parameter_set, [point for point in points if point.rounding != mode]) for mode in _MODES
    }
    return [device.time_ms(traces_of(p), parameter_set, references[p.rounding]) for p in points]


def mode_ratio(parameter_set: ParameterSet, reference: float, points: list[Point], mode: str) -> dict:
    """Mean over the shapes of a mode's time over rtz's, modelled and published."""
    of = {(point.shape, point.rounding): point for point in points}
    modelled, wanted = [], []
    for (shape, rounding), point in of.items():
        if rounding == mode:
            base = of[shape, "rtz"]
            modelled.append(
                device.time_ms(traces_of(point), parameter_set, reference)
                / device.time_ms(traces_of(base), parameter_set, reference)
            )
            wanted.append(point.milliseconds / base.milliseconds)
    return {
        "modelled": sum(modelled) / len(modelled),
        "published": sum(wanted) / len(wanted),
        "residual": rms([m / w - 1 for m, w in zip(modelled, wanted, strict=True)]),
    }
