"""What a calibration of a real device does to the ensemble.

Measured parameters of the clock replace every member's own, as finely as the clock resolves them, and each
member's reference clock and residuals are fitted again to the published times. Two kinds of members then
leave: those that no longer reproduce the published ratios of AITER's modes, and those whose sustained clock
under AITER's rtz kernel is not the measured one. The documented set D0 stays what it is.
"""

from dataclasses import dataclass, replace

from . import calibration as published_times
from . import device
from .kernels import KERNELS, Shape
from .parameters import DOCUMENTED, ParameterSet, ensemble, parameter_sets, value
from .steady import Traces

_LDS_READ_BYTES = 1024  # of a ds_read_b128 by a wave, and of a 16-byte load
_KEY = "aiter:rtz"
_PASSES = {"matrix_16x16x16_passes": 4, "matrix_32x32x8_passes": 8}
_PASSES_TOLERANCE = 0.05


@dataclass(frozen=True)
class Narrowed:
    """The sets that a calibration leaves.

    sets, members: for `parameters.use`. measured: the parameters that were replaced. predicted_ghz: clocks
    that the sets say AITER rtz has. dropped: {member: why}. clock_ghz: measured, or None. remarks: sentences
    on what does not fit the model.
    """

    source: str
    device: str
    sets: dict[str, ParameterSet]
    members: tuple[str, ...]
    measured: dict[str, float]
    predicted_ghz: dict[str, float]
    dropped: dict[str, str]
    clock_ghz: float | None
    remarks: tuple[str, ...]

    def json(self) -> dict:
        """For a report."""
        return {
            "source": self.source,
            "device": self.device,
            "measured": self.measured,
            "measured_clock_ghz": self.clock_ghz,
            "predicted_clock_ghz": self.predicted_ghz,
            "members": list(self.members),
            "dropped": self.dropped,
            "remarks": list(self.remarks),
        }


def resolved(name: str, measured: float) -> float:
    """A measured parameter as the clock can hold it: whole slots, whole clocks, whole clocks per access."""
    if name.endswith("_per_clock"):
        return _LDS_READ_BYTES / max(1, round(_LDS_READ_BYTES / measured))
    return float(max(0, round(measured)))


def narrow(document: dict) -> Narrowed:
    """The ensemble under a calibration, as `calibration.report.load` returns it. Takes half a minute.

    Raises:
        ValueError: no member is left; the sentence says why for each.
        FileNotFoundError: AITER's code objects, to which the members are fitted, are missing.
    """
    known = parameter_sets()[DOCUMENTED].clock
    measured = {
        name: resolved(name, one["value"]) for name, one in document["parameters"].items() if name in known
    }
    remarks = [
        f"{name} is {one['value']:.2f}, the model is built on {_PASSES[name]}"
        for name, one in document["parameters"].items()
        if name in _PASSES and abs(one["value"] / _PASSES[name] - 1) > _PASSES_TOLERANCE
    ]
    sets = {DOCUMENTED: parameter_sets()[DOCUMENTED]}
    for name in ensemble():
        sets[name] = refit(
            replace(parameter_sets()[name], clock={**parameter_sets()[name].clock, **measured})
        )
    sustained = document["sustained_clock"].get(_KEY)
    limit = value("claims", "member_mode_residual")
    dropped = {
        name: f"misses the published ratios of AITER's modes by {100 * sets[name].mode_residual:.1f} %"
        for name in ensemble()
        if sets[name].mode_residual > limit
    }
    predicted, clock = {}, None
    if sustained is None:
        remarks.append(f"the clock under {_KEY} was not measured: no member can leave for it")
    else:
        clock, low, high = (sustained["ghz"][key] for key in ("value", "low", "high"))
        traces = Traces(KERNELS[_KEY], Shape(*sustained["shape"]))
        for name in ensemble():
            phases = device.phases(traces, sets[name])
            predicted[name] = device.clock_ghz(phases[0], sets[name], sets[name].reference_clock_ghz)
            allowed = value("claims", "interval_residuals") * sets[name].residual
            if not low * (1 - allowed) <= predicted[name] <= high * (1 + allowed):
                dropped.setdefault(name, f"has a clock of {predicted[name]:.2f} GHz, measured is {clock:.2f}")
    members = tuple(name for name in ensemble() if name not in dropped)
    if not members:
        reasons = "; ".join(f"{name} {why}" for name, why in dropped.items())
        raise ValueError(f"no member of the ensemble describes this device: {reasons}")
    return Narrowed(
        document["source"],
        document["device"]["name"],
        sets,
        members,
        measured,
        predicted,
        dropped,
        clock,
        tuple(remarks),
    )


def refit(parameter_set: ParameterSet) -> ParameterSet:
    """The set with its reference clock fitted to the published times, and the residuals that leaves."""
    points = published_times.published()
    reference = published_times.fit(parameter_set, points)
    errors = published_times.relative_errors(parameter_set, reference, points)
    modes = [
        published_times.mode_ratio(parameter_set, reference, points, mode)["residual"]
        for mode in ("rtna", "rtne")
    ]
    return replace(
        parameter_set,
        reference_clock_ghz=reference,
        residual=published_times.rms(errors),
        mode_residual=max(modes),
    )
