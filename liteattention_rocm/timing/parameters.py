"""The model's parameters: parameters.json beside this file, the only place that holds them."""

import contextlib
import contextvars
import functools
import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("parameters.json")
DOCUMENTED = "D0"


@functools.cache
def document() -> dict:
    """parameters.json: every parameter with value, unit, meaning and source; sets override some."""
    return json.loads(FILE.read_text())


def value(group: str, name: str) -> float:
    """One value outside the sets, e.g. value("device", "compute_units")."""
    return document()[group][name]["value"]


@dataclass(frozen=True)
class ParameterSet:
    """One set of parameters.

    clock, energy: see parameters.json. reference_clock_ghz: the one constant that is fitted to times.
    residual: rms of the relative error against those times. mode_residual: of the ratios of a kernel's
    rounding modes.
    """

    name: str
    meaning: str
    clock: dict[str, float]
    energy: dict[str, float]
    reference_clock_ghz: float
    residual: float
    mode_residual: float

    @property
    def constant_clock(self) -> bool:
        return self.energy["energy_exponent"] == 0


_in_use = contextvars.ContextVar("parameter sets in use", default=None)


@contextlib.contextmanager
def use(sets: dict[str, ParameterSet], members):
    """Replaces the sets and the ensemble's members within the `with` block."""
    token = _in_use.set((sets, tuple(members)))
    try:
        yield
    finally:
        _in_use.reset(token)


def parameter_sets() -> dict[str, ParameterSet]:
    """The sets by name: D0, then the members of the ensemble."""
    replaced = _in_use.get()
    return replaced[0] if replaced else _sets_of_file()


@functools.cache
def _sets_of_file() -> dict[str, ParameterSet]:
    sets = {}
    for name, entry in document()["sets"].items():
        values = {}
        for group in ("clock", "energy"):
            defaults = {key: parameter["value"] for key, parameter in document()[group].items()}
            values[group] = {**defaults, **entry.get(group, {})}
        sets[name] = ParameterSet(
            name,
            entry["meaning"],
            **values,
            reference_clock_ghz=entry["reference_clock_ghz"],
            residual=entry["residual"],
            mode_residual=entry["mode_residual"],
        )
    return sets


def ensemble() -> list[str]:
    """Names of the sets whose hull is the model's answer."""
    replaced = _in_use.get()
    return list(replaced[1] if replaced else document()["ensemble"])
