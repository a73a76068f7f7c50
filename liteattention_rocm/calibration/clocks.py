"""The sustained clock of a device under a kernel, and the clocks of the forward kernel's phases."""

import math
import statistics
import struct
from dataclasses import dataclass

import torch

from .. import _C, aiter_kernel, ops
from ..checking.problems import Operands, Problem, arguments_of
from ..timing.kernels import Shape
from .hip import Device
from .microbenchmarks import Measured

_STAMPS = 64  # workgroups of calibrate_stamp: some on every XCD
_SAMPLERS, _SAMPLES = 8, 20_000  # a sample every 127 · 64 clocks and some: 0.1 s
_STEP = 32
_STAMP_WORDS = 3  # core clock, reference clock, XCD
PHASES = ("deposit and fetch", "scores", "softmax", "accumulate")
_PHASE_WORDS, _WAVES, _QUERY_ROWS, _KV_ROWS = 8, 4, 128, 64
_DRAWN_HEADS = 2  # random heads; the rest of a workload repeats them


@dataclass(frozen=True)
class Workload:
    """A kernel that keeps a device busy: `launch()` puts one launch on the current stream.

    name: "ours:rtz", "aiter:rtz" and their like. shape: as for `profile`, layout "bshd".
    """

    name: str
    shape: Shape
    launch: object

    @classmethod
    def make(cls, device: Device, name: str, shape: Shape) -> "Workload":
        """Allocates random inputs on the device.

        Raises:
            ValueError: no such kernel.
            FileNotFoundError: AITER's code objects are missing.
        """
        source, _, rounding = name.partition(":")
        if source not in ("ours", "aiter") or rounding not in ("rtne", "rtna", "rtz"):
            raise ValueError(f"workload must be ours: or aiter: with rtne, rtna or rtz, got {name!r}")
        generator = torch.Generator().manual_seed(0)

        def tensor(rows):
            drawn = torch.randn(1, rows, _DRAWN_HEADS, 128, generator=generator).bfloat16()
            repeats = -(-shape.heads // _DRAWN_HEADS)
            full = drawn.to(device.torch_device).repeat(shape.batch, 1, repeats, 1)
            return full[:, :, : shape.heads].contiguous()

        q, k, v = tensor(shape.seqlen_q), tensor(shape.seqlen_kv), tensor(shape.seqlen_kv)
        out = torch.empty_like(q)
        if source == "ours":
            return cls(name, shape, lambda: ops.attention(q, k, v, out=out, rounding=rounding))
        code_object = (aiter_kernel.find() / aiter_kernel.file_name(rounding)).read_bytes()
        kernel = aiter_kernel.kernel_name(code_object)
        module = device.module(code_object)
        lse = torch.empty(shape.batch, shape.heads, shape.seqlen_q, device=device.torch_device)
        packed = aiter_kernel.pack_arguments(q, k, v, out, lse)
        grid = (-(-shape.seqlen_q // aiter_kernel.QUERY_ROWS_PER_WORKGROUP), shape.heads, shape.batch)
        block = (aiter_kernel.THREADS_PER_WORKGROUP, 1, 1)
        return cls(name, shape, lambda: module.launch(kernel, grid, block, packed, (q, k, v, out, lse)))


class Stamps:
    """Records of calibrate_stamp: one launch each, on the current stream."""

    def __init__(self, device: Device, module):
        self._device, self._module, self._records = device, module, []

    def take(self) -> None:
        records = torch.full((_STAMPS, _STAMP_WORDS), -1, dtype=torch.int64, device=self._device.torch_device)
        packed = struct.pack("<Q", records.data_ptr())
        self._module.launch("calibrate_stamp", (_STAMPS, 1, 1), (64, 1, 1), packed, (records,))
        self._records.append(records)

    def by_xcd(self) -> list[dict[int, tuple[int, int]]]:
        """Per stamp: {XCD: (core clock, reference clock)}."""
        self._device.synchronize()
        return [
            {xcd: (core, reference) for core, reference, xcd in records.tolist() if core >= 0}
            for records in self._records
        ]


def sustained(device: Device, workload: Workload, seconds: float, warm_up: float) -> dict:
    """Clock and time per launch while the device does nothing but `workload`.

    The clocks of each XCD are read before and behind the launches, on the same stream. On hardware, eight
    waves on another stream read them too, for about the first tenth of a second: their samples say how steady
    the clock was then. No longer, because such a wave may keep a workgroup of the workload off its CU, and a
    launch then ends with a tail.

    Args:
        seconds, warm_up: how long to launch for, about, and for how long before that; 0: once, and never.

    Returns:
        {"ghz": {value, low, high} over the XCDs, "milliseconds" per launch by events, "launches", "shape",
        "reference_by_events_ghz": of the constant clock, "during": {value, low, high, samples} or None}
    """
    module = device.module(_C.calibration_code_object(device.target.architecture))
    if seconds:  # the first launch also loads the kernel
        workload.launch()
        device.synchronize()
    once = device.elapsed_ms(workload.launch)
    for _ in range(math.ceil(warm_up * 1000 / once)):
        workload.launch()
    launches = max(1, math.ceil(seconds * 1000 / once))
    stamps = Stamps(device, module)
    samples, finish = _start_samples(device, module)

    def work():
        stamps.take()
        for _ in range(launches):
            workload.launch()
        stamps.take()

    milliseconds = device.elapsed_ms(work) / launches
    before, after = stamps.by_xcd()
    finish()
    clocks = [
        (after[xcd][0] - core) / (after[xcd][1] - reference) * device.reference_ghz
        for xcd, (core, reference) in before.items()
        if xcd in after and after[xcd][1] > reference
    ]
    if not clocks:
        raise RuntimeError(f"no XCD gave a clock before and behind {workload.name}")
    total = launches * milliseconds * 1e6
    reference = statistics.median(after[xcd][1] - before[xcd][1] for xcd in before if xcd in after)
    window = max(r for _, r in before.values()), min(r for _, r in after.values())
    shape = workload.shape
    return {
        "ghz": Measured(statistics.median(clocks), min(clocks), max(clocks)).json(),
        "milliseconds": milliseconds,
        "launches": launches,
        "shape": [shape.batch, shape.heads, shape.seqlen_q, shape.seqlen_kv],
        "reference_by_events_ghz": reference / total,
        "during": _within(samples.cpu(), *window, device.reference_ghz),
    }


def _start_samples(device: Device, module):
    """Launches calibrate_samples beside what follows; the records, and how to wait for them."""
    count = _SAMPLES if not device.simulated else 16
    shape = (_SAMPLERS, count, _STAMP_WORDS)
    records = torch.full(shape, -1, dtype=torch.int64, device=device.torch_device)
    packed = struct.pack("<Qi4x", records.data_ptr(), count)

    def launch():
        module.launch("calibrate_samples", (_SAMPLERS, 1, 1), (64, 1, 1), packed, (records,))

    if device.torch_device.type == "cpu":  # one launch after the other
        launch()
        return records, lambda: None
    with device.current():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            launch()
    return records, side.synchronize


def _within(samples: torch.Tensor, begin: int, end: int, reference_ghz: float) -> dict | None:
    """Clocks between neighbouring samples that lie in a window of the reference clock."""
    clocks = []
    for sampler in samples.tolist():
        inside = [(core, ticks) for core, ticks, _ in sampler if core >= 0 and begin <= ticks <= end]
        # Steps of some hundred microseconds; the reference clock counts 10 ns.
        for (core0, reference0), (core1, reference1) in zip(
            inside[::_STEP], inside[_STEP::_STEP], strict=False
        ):
            clocks.append((core1 - core0) / (reference1 - reference0) * reference_ghz)
    if len(clocks) < _SAMPLERS:
        return None
    return Measured(statistics.median(clocks), min(clocks), max(clocks)).json() | {"samples": len(clocks)}


def phases(device: Device, rounding: str, heads: int, seqlen_q: int, seqlen_kv: int) -> dict:
    """Core clocks that a wave of the forward kernel spends in each phase, per tile of 64 KV rows.

    The instrumented kernel is the shipped one with the clock read at its four phase boundaries. What that
    costs each time is `stamp_clocks` of the calibration, and part of every number here.

    Returns:
        {"phases": {name: {value, low, high} over the waves}, "kernel_clocks": of a wave, "tiles", "shape"}
    """
    problem = Problem(seqlen_q, seqlen_kv, heads=heads, kv_heads=heads, lse=False)
    drawn = Operands.draw(problem)
    tensors = [t.to(device.torch_device) for t in (drawn.q, drawn.k, drawn.v, drawn.out, drawn.lse)]
    operands = Operands(problem, *tensors)
    grid = (-(-seqlen_q // _QUERY_ROWS), heads, 1)
    waves = math.prod(grid) * _WAVES
    records = torch.full((waves, _PHASE_WORDS), -1, dtype=torch.int32, device=device.torch_device)
    packed = arguments_of(operands) + struct.pack("<Q", records.data_ptr())
    module = device.module(_C.calibration_code_object(device.target.architecture))
    block = (64 * _WAVES, 1, 1)
    for _ in range(1 if device.simulated else 3):
        module.launch(f"calibrate_phases_{rounding}", grid, block, packed, (*tensors, records))
    device.synchronize()
    rows = [row for row in records.cpu().tolist() if any(word != -1 for word in row)]
    if not rows:
        raise RuntimeError("calibrate_phases left no clocks")
    tiles = -(-seqlen_kv // _KV_ROWS)
    per_phase = {}
    for i, name in enumerate(PHASES):
        clocks = [(row[i] & 0xFFFFFFFF) / tiles for row in rows]
        per_phase[name] = Measured(statistics.median(clocks), min(clocks), max(clocks)).json()
    begin, end = len(PHASES) + 1, len(PHASES) + 2
    return {
        "phases": per_phase,
        "kernel_clocks": statistics.median((row[end] - row[begin]) & 0xFFFFFFFF for row in rows),
        "tiles": tiles,
        "shape": [1, heads, seqlen_q, seqlen_kv],
    }
