"""From traces of a few KV lengths to any length: in steady state everything grows equally per row."""

import functools
from dataclasses import dataclass

from .kernels import Kernel, Shape
from .parameters import ParameterSet, value
from .stages import Stage

# Doubling, so that the last pair is in steady state where the first is not yet. Every length has the
# remainder of the wanted one, so that the masked last tile is the same.
_LENGTHS = (1024, 2048, 4096)
_PERIOD = 128


def traced_lengths(seqlen_kv: int) -> list[int]:
    """KV lengths to trace for one: itself alone where it is short."""
    lengths = [length + seqlen_kv % _PERIOD for length in _LENGTHS]
    return lengths if seqlen_kv > lengths[-1] else [seqlen_kv]


class Steady:
    """What a CU does with its residents at a KV length, from the clock's answers at the traced lengths."""

    def __init__(self, lengths: list[int], answers: list[dict], seqlen_kv: int):
        self.lengths, self.answers, self.seqlen_kv = lengths, answers, seqlen_kv

    def per_row(self, read) -> float:
        """Growth per KV row of read(answer); of a single trace the mean."""
        if len(self.answers) == 1:
            return read(self.answers[0]) / self.lengths[0]
        return (read(self.answers[-1]) - read(self.answers[-2])) / (self.lengths[-1] - self.lengths[-2])

    def total(self, read) -> float:
        """read(answer) at the wanted length."""
        return read(self.answers[-1]) + self.per_row(read) * (self.seqlen_kv - self.lengths[-1])

    @property
    def clocks(self) -> float:
        return self.total(lambda answer: answer["clocks"])

    @property
    def drift(self) -> float:
        """Relative difference of the clocks per row between the last and the first pair of lengths."""
        if len(self.answers) < 3:
            return 0.0
        first, second, _ = self.answers
        early = (second["clocks"] - first["clocks"]) / (self.lengths[1] - self.lengths[0])
        return self.per_row(lambda answer: answer["clocks"]) / early - 1


class Traces:
    """Recordings of a kernel at the KV lengths that stand for a shape, of as many workgroups as a CU holds.

    `kernel` is a `Kernel` or any object with its attributes.
    """

    def __init__(self, kernel: Kernel, shape: Shape):
        self.kernel, self.shape = kernel, shape
        self.lengths = traced_lengths(shape.seqlen_kv)
        self.workgroups = kernel.workgroups(shape)  # of the kernel that doesn't split KV
        self.description = kernel.trace(1, 1, self.lengths[0], [0]).description()
        self.residents = min(self.description["workgroups_per_cu"], self.workgroups)
        rows = min(shape.seqlen_q, (self.residents + 1) * kernel.query_rows)
        chosen = self._chosen(rows)
        self.recordings = [kernel.trace(shape.heads, rows, length, chosen) for length in self.lengths]
        self._steady: dict[tuple, Steady] = {}

    def _chosen(self, seqlen_q: int) -> list[int]:
        # The k-th resident of a CU is the workgroup that comes k rounds of all CUs later.
        traced_tiles = -(-seqlen_q // self.kernel.query_rows)
        tiles = -(-self.shape.seqlen_q // self.kernel.query_rows)
        chosen = []
        for k in range(self.residents):
            later = k * int(value("device", "compute_units"))
            head = later // tiles % self.shape.heads
            chosen.append(head * traced_tiles + (min(k, traced_tiles - 1) if later < tiles else 0))
        return chosen

    @functools.cached_property
    def stages(self) -> "list[TracedStage]":
        """The parts of the launch: one, unless the kernel says otherwise."""
        if not hasattr(self.kernel, "stages"):
            return [TracedStage(Stage("all", self.kernel, self.shape, self.workgroups), self)]
        return [
            TracedStage(stage, self if stage.kernel is self.kernel else Traces(stage.kernel, stage.shape))
            for stage in self.kernel.stages(self.shape)
        ]

    @property
    def l2_miss_interval(self) -> int:
        """Of so many lines that a CU fetches for the first time, one has been fetched by no CU of its XCD."""
        if getattr(self.kernel, "private_lines", False):
            return 1
        xcds = int(value("device", "xcds"))
        tiles = -(-self.shape.seqlen_q // self.kernel.query_rows)
        resident = self.residents * int(value("device", "compute_units")) // xcds
        return max(1, min(resident, -(-tiles // xcds)))

    def parameters(self, parameter_set: ParameterSet, residents: int) -> dict[str, float]:
        """The clock's parameters for these traces."""
        derived = {"l2_miss_interval": self.l2_miss_interval, "residents": residents}
        return {**parameter_set.clock, **derived}

    def steady(self, parameter_set: ParameterSet, residents: int) -> Steady:
        """The clock's answers with the first `residents` workgroups on a CU."""
        key = (tuple(parameter_set.clock.items()), residents)
        if key not in self._steady:
            parameters = self.parameters(parameter_set, residents)
            answers = [recording.clock(parameters) for recording in self.recordings]
            self._steady[key] = Steady(self.lengths, answers, self.shape.seqlen_kv)
        return self._steady[key]


@dataclass(frozen=True)
class TracedStage:
    """A part of a launch with its traces."""

    stage: Stage
    traces: Traces
