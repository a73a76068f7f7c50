"""Clocks of instructions and accesses, by the kernels of csrc/device/calibration_microbenchmarks.hpp."""

import statistics
import struct
from dataclasses import dataclass

import torch

from .. import _C
from ..timing.parameters import document
from .hip import Device

_COPIES = 320 - 64  # LRA_LONG_RUN − LRA_SHORT_RUN
_WORKGROUPS = 8  # one per XCD, each alone on its CU
_SLOT = 4  # clocks
_BURST = 8  # instructions of one copy, where there are several
_LINKS, _LINE_WORDS = 4096, 32  # of calibrate_l2_latency: 512 KiB, more than L1 and less than L2
_MEMORY_WORDS = _LINKS * _LINE_WORDS
_RECORD_WORDS = 4  # core and reference clock at begin and end

# Kernels and the waves of their workgroups.
KERNELS = {
    "vector": 4,
    "stamp_pair": 4,
    "transcendental": 4,
    "integer_product": 4,
    "straddle": 4,
    "matrix_16x16x16": 4,
    "matrix_16x16x16_dependent": 4,
    "matrix_32x32x8": 4,
    "matrix_then_vector": 4,
    "matrix_then_vector_two_waves": 8,
    "matrix_then_packed": 4,
    "barrier": 4,
    "branch_taken": 4,
    "branch_not_taken": 4,
    "lds_read_b128": 16,
    "lds_latency": 1,
    "l1_read_b128": 16,
    "l1_latency": 1,
    "scalar_latency": 1,
    "l2_latency": 1,
}


@dataclass(frozen=True)
class Measured:
    """A number with the lowest and the highest that repetitions gave."""

    value: float
    low: float
    high: float

    def json(self) -> dict:
        return {"value": round(self.value, 4), "low": round(self.low, 4), "high": round(self.high, 4)}


def run(device: Device, passes: int, repeats: int) -> dict[str, list[float]]:
    """Core clocks per copy of the code of every kernel, one number per repetition and workgroup.

    Args:
        passes: runs of which the last counts; those before fill the caches.
        repeats: launches.
    """
    module = device.module(_C.calibration_code_object(device.target.architecture))
    zeros = torch.zeros(_MEMORY_WORDS, dtype=torch.int32, device=device.torch_device)
    links = torch.zeros(_LINKS, _LINE_WORDS, dtype=torch.int32)
    links[:, 0] = (torch.arange(_LINKS) + 1) % _LINKS * (4 * _LINE_WORDS)
    links = links.flatten().to(device.torch_device)
    answers = {}
    for name, waves in KERNELS.items():
        memory = links if name == "l2_latency" else zeros
        answers[name] = [
            clocks for _ in range(repeats) for clocks in _launch(device, module, name, waves, memory, passes)
        ]
    return answers


def _launch(device: Device, module, name: str, waves: int, memory, passes: int) -> list[float]:
    shape = (_WORKGROUPS, waves, 2, _RECORD_WORDS)
    records = torch.full(shape, -1, dtype=torch.int64, device=device.torch_device)
    packed = struct.pack("<2Q2i", records.data_ptr(), memory.data_ptr(), passes, _LINKS)
    block = (64 * waves, 1, 1)
    module.launch(f"calibrate_{name}", (_WORKGROUPS, 1, 1), block, packed, (records, memory))
    device.synchronize()
    clocks = []
    for group in records.cpu():
        if (group < 0).any():
            continue  # of a timed simulated launch only what one CU holds has run
        short, long = (group[:, run, 2].max() - group[:, run, 0].min() for run in range(2))
        clocks.append((long - short).item() / _COPIES)
    if not clocks:
        raise RuntimeError(f"calibrate_{name} left no clocks")
    return clocks


def _bytes_per_clock(waves: int):
    return lambda clocks: waves * _BURST * 1024 / clocks


def derive(per_copy: dict[str, float]) -> dict[str, float]:
    """The clock's parameters, and `*_passes` of the matrix core, from clocks per copy of each kernel."""
    slots = {name: clocks / _SLOT for name, clocks in per_copy.items()}
    passes = slots["matrix_16x16x16"] / 4
    after = slots["matrix_then_vector_two_waves"] / 2 - _BURST
    alone = slots["matrix_then_vector"] - _BURST
    lds = _bytes_per_clock(KERNELS["lds_read_b128"])(per_copy["lds_read_b128"])
    l1 = _bytes_per_clock(KERNELS["l1_read_b128"])(per_copy["l1_read_b128"])
    # A hop of a chain is the latency, the access's own transfer of 64 dwords, and the slot of the wait.
    return {
        "transcendental_slots": slots["transcendental"] / _BURST,
        "double_rate_slots": slots["integer_product"] / _BURST,
        "fetch_straddle_slots": (slots["straddle"] - 9) / 2,
        "matrix_16x16x16_passes": passes,
        "matrix_32x32x8_passes": slots["matrix_32x32x8"] / 2,
        "accumulator_slots": slots["matrix_16x16x16_dependent"] - passes,
        "valu_after_matrix_slots": after,
        # One wave alone sees whichever is longer, two waves hide what blocks only one of them.
        "matrix_bubble_slots": alone - 1 if alone > after + 0.25 else 0.0,
        "packed_after_matrix_slots": slots["matrix_then_packed"] - passes - 1,
        "barrier_slots": slots["barrier"],
        "branch_taken_slots": slots["branch_taken"],
        "branch_not_taken_slots": slots["branch_not_taken"] - 1,
        "lds_bytes_per_clock": lds,
        "lds_latency": per_copy["lds_latency"] - 256 / lds - _SLOT,
        "l1_bytes_per_clock": l1,
        "l1_latency": per_copy["l1_latency"] - 256 / l1 - _SLOT,
        "l2_latency": per_copy["l2_latency"] - 128 / 64 - _SLOT,
        "scalar_memory_latency": per_copy["scalar_latency"] - _SLOT,
    }


def summarise(answers: dict[str, list[float]]) -> dict[str, Measured]:
    """`derive` of the medians; low and high come from all lowest and all highest clocks."""
    middle = derive({name: statistics.median(clocks) for name, clocks in answers.items()})
    ends = [derive({name: pick(clocks) for name, clocks in answers.items()}) for pick in (min, max)]
    return {
        name: Measured(value, *(f([value, *(end[name] for end in ends)]) for f in (min, max)))
        for name, value in middle.items()
    }


def units() -> dict[str, str]:
    """Of what `derive` gives."""
    passes = {f"{name}_passes": "slots of 4 clk" for name in ("matrix_16x16x16", "matrix_32x32x8")}
    return {name: entry["unit"] for name, entry in document()["clock"].items()} | passes
