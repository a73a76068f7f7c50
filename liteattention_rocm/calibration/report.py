"""A calibration as one JSON document: how it is taken, written and read back."""

import contextlib
import json
from pathlib import Path

from .. import verdicts
from ..timing import device as device_model
from ..timing.kernels import KERNELS, Shape
from ..timing.parameters import parameter_sets, value
from ..timing.recording import Recording
from ..timing.steady import Traces
from . import clocks, microbenchmarks
from .hip import Device

SCHEMA = 1
HARDWARE, SIMULATOR = "hardware", "simulator"
KEY_WORKLOAD = "aiter:rtz"  # its clock tells the members of the ensemble apart
# Clocks of a dependent VALU instruction: what proves that s_memtime counts core clocks.
_VECTOR_CLOCKS, _VECTOR_TOLERANCE = 4.0, 0.05
_REFERENCE_TOLERANCE = 0.02
_LEAST_MILLISECONDS = 100
_RESIDENTS = 8  # at most so many workgroups of a simulated launch run on the one CU


def predicted_clock_ghz(parameter_set, shape: Shape, workload: str = KEY_WORKLOAD) -> float:
    """The sustained clock that a set says a workload has, in its full rounds."""
    phases = device_model.phases(Traces(KERNELS[workload], shape), parameter_set)
    return device_model.clock_ghz(phases[0], parameter_set, parameter_set.reference_clock_ghz)


@contextlib.contextmanager
def passing_time(device: Device, member: str, core_ghz: float):
    """Makes simulated launches pass the time of a parameter set; does nothing on hardware."""
    if not device.simulated:
        yield
        return
    parameters = {**parameter_sets()[member].clock, "l2_miss_interval": 0}
    compute_units = int(value("device", "compute_units"))  # the next workgroup of a CU comes so many later
    with Recording(range(0, _RESIDENTS * compute_units, compute_units)).active(parameters, core_ghz):
        yield


def measure(
    device: Device,
    workloads: list[str],
    shape: Shape,
    *,
    seconds: float,
    rounding: str = "rtz",
    say=lambda text: None,
) -> dict:
    """Takes every measurement.

    Args:
        workloads: whose sustained clock is read, one after the other.
        shape: of the workloads; where its workgroups fill all CUs evenly, no tail blurs the clock.
        seconds: for which each workload runs; half as long before that to warm up; 0: one launch, cold.
        rounding: of the instrumented kernel.
        say: called with what is being measured.

    Returns:
        The document, see docs/selftest.md.
    """
    hardware = not device.simulated and device.torch_device.type == "cuda"
    say("microbenchmarks")
    per_copy = microbenchmarks.run(device, *((4, 5) if hardware else (1, 1)))
    summary = microbenchmarks.summarise(per_copy)
    units = microbenchmarks.units()
    sustained = {}
    for name in workloads:
        say(f"sustained clock under {name}")
        workload = clocks.Workload.make(device, name, shape)
        sustained[name] = clocks.sustained(device, workload, seconds, seconds / 2)
    say("clocks per phase")
    phase_shape = (16, 4096, 4096) if hardware else (1, 128, 512)
    phases = clocks.phases(device, rounding, *phase_shape)
    identity = verdicts.identity(device.target)
    document = {
        "schema": SCHEMA,
        "source": HARDWARE if hardware else SIMULATOR,
        "device": {
            "name": device.name,
            "architecture": device.target.architecture,
            "compute_units": device.target.compute_units,
            "driver": identity["driver"],
            "hip_runtime": device.runtime_version,
            "reference_clock_ghz": device.reference_ghz,
        },
        "code_object": identity["code_object"],
        "clocks_per_vector_instruction": _median(per_copy["vector"]),
        "stamp_clocks": _median(per_copy["stamp_pair"]),
        "parameters": {name: one.json() | {"unit": units[name]} for name, one in summary.items()},
        "clocks_per_copy": {name: [min(c), _median(c), max(c)] for name, c in per_copy.items()},
        "sustained_clock": sustained,
        "phases": {f"attention_forward_{rounding}": phases},
    }
    document["problems"] = _problems(document)
    return document


def _median(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


def _problems(document: dict) -> list[str]:
    """What makes the numbers not what they are called."""
    problems = []
    vector = document["clocks_per_vector_instruction"]
    if abs(vector / _VECTOR_CLOCKS - 1) > _VECTOR_TOLERANCE:
        problems.append(
            f"a VALU instruction takes {vector:.2f} ticks of s_memtime, not {_VECTOR_CLOCKS:.0f}: "
            "it does not count core clocks here, so no number of clocks holds"
        )
    for name, one in document["sustained_clock"].items():
        if one["launches"] * one["milliseconds"] < _LEAST_MILLISECONDS:
            continue  # the events also see the launches of the stamps
        ratio = one["reference_by_events_ghz"] / document["device"]["reference_clock_ghz"]
        if abs(ratio - 1) > _REFERENCE_TOLERANCE:
            problems.append(
                f"s_memrealtime runs at {ratio:.3f} of the {document['device']['reference_clock_ghz']:g} GHz "
                f"that the runtime names, by the events around {name}"
            )
    return problems


class RefusedCalibration(ValueError):
    """A calibration that must not narrow the model."""


def load(path: Path, rehearsal: bool = False) -> dict:
    """Reads a calibration that may narrow the model.

    Args:
        rehearsal: take one from the simulator as well.

    Raises:
        RefusedCalibration: not a calibration of this schema, one with problems, or one from the simulator.
    """
    try:
        document = json.loads(Path(path).read_text())
    except (ValueError, UnicodeDecodeError) as error:
        raise RefusedCalibration(f"{path} is no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise RefusedCalibration(f"{path} is no calibration of schema {SCHEMA}")
    source = document.get("source")
    if source != HARDWARE and not (rehearsal and source == SIMULATOR):
        raise RefusedCalibration(
            f"{path} comes from {'the simulator' if source == SIMULATOR else repr(source)}: what is modelled "
            "narrows nothing; --rehearsal tries it all the same"
        )
    try:
        for one in document["parameters"].values():
            low, middle, high = (float(one[key]) for key in ("low", "value", "high"))
            if not low <= middle <= high:
                raise RefusedCalibration(f"{path}: {one} is not in order")
        sustained = document["sustained_clock"].get(KEY_WORKLOAD)
        if sustained is not None:
            float(sustained["ghz"]["value"]), Shape(*sustained["shape"])
        problems = list(document["problems"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, RefusedCalibration):
            raise
        raise RefusedCalibration(f"{path} is no calibration of schema {SCHEMA}: {error!r}") from None
    if problems:
        raise RefusedCalibration(f"{path}: {'; '.join(problems)}")
    return document
