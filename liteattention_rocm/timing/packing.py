"""Kernel arguments, packed as the host code does, with the buffers that they point to.

`memory` closes what is registered with the simulator. torch is imported where it is needed: the command line
works without it.
"""

import math
import struct
from contextlib import ExitStack
from pathlib import Path

from .. import _C, simulator
from .shapes import HEAD_DIM

PARTIAL_ROWS, PARTIAL_BYTES = 16, 8704  # csrc/device/split_arguments.hpp
LIST_ROWS = 128  # query rows that have a list of their own
TILES_PER_WORD = 32  # csrc/device/skip_arguments.hpp
_THRESHOLD = -10.0


def image(path: Path | None) -> bytes:
    """The code object in a file, or the embedded one."""
    return path.read_bytes() if path else _C.code_object(simulator.ARCHITECTURE)


def forward_arguments(q, k, v, out) -> bytes:
    """Those of csrc/device/arguments.hpp, without LSE."""
    scale = HEAD_DIM**-0.5
    return struct.pack(
        "<5Q12q4i2fIi",
        *(t.data_ptr() for t in (q, k, v, out)),
        0,
        *(2 * t.stride(dimension) for t in (q, k, v, out) for dimension in (0, 2, 1)),
        q.shape[1],
        k.shape[1],
        q.shape[2],
        1,
        scale,
        scale * math.log2(math.e),
        0,
        0,
    )


def split_arguments(
    memory: ExitStack, query_tiles: int, whole: int, split: int, pieces: int, fragments: int
) -> bytes:
    """What csrc/device/split_arguments.hpp adds, with a workspace."""
    partials = _buffer(memory, "workspace", split * pieces * fragments * PARTIAL_BYTES)
    return struct.pack("<Q6i", partials, query_tiles, whole, split, pieces, fragments, 0)


def lists_of(seqlen_q: int, kv_tiles: int, listed: float, heads: int = 1):
    """Lists of one batch entry that name a share of the tiles, evenly spaced, and the next ones, empty."""
    import torch

    from ..lite import lists

    steps = torch.floor(torch.arange(kv_tiles + 1, dtype=torch.float64) * listed + 1e-9)
    kept = steps[1:] > steps[:-1]
    read = lists.pack(kept).expand(1, heads, lists.query_tiles(seqlen_q), -1).contiguous()
    return read, torch.zeros_like(read)


def list_arguments(memory: ExitStack, read, write) -> bytes:
    """What csrc/device/skip_arguments.hpp adds: lists that are walked forward at threshold −10."""
    for name, tensor in (("read_list", read), ("write_list", write)):
        memory.enter_context(simulator.register(tensor, name, name == "write_list"))
    return struct.pack("<3Qf3i", read.data_ptr(), write.data_ptr(), 0, _THRESHOLD, read.shape[-1], 0, 0)


def piece_arguments(
    memory: ExitStack, read, split: int, pieces: int, fragments: int, votes: int = 0
) -> bytes:
    """What csrc/device/skip_split_arguments.hpp adds to both, with a workspace.

    Every piece has the tiles of the read list's first rows in its share of the words; `votes` is each word of
    votes that waits.
    """
    import torch

    words, lists = read.shape[-1], fragments * PARTIAL_ROWS // LIST_ROWS
    first = torch.arange(pieces) * words // pieces
    last = torch.maximum(first, (torch.arange(pieces) + 1) * words // pieces - 1)
    fields = torch.stack([first, last, torch.ones_like(first), torch.full_like(first, pieces)], dim=1)
    list_pieces = _buffer(memory, "list_pieces", fields.int().repeat_interleave(split, 0))
    rows = read.flatten(0, 2)[:1].expand(pieces * split * lists, words)
    rows_of_votes = fragments + (fragments - 1) // (LIST_ROWS // PARTIAL_ROWS)
    waiting = torch.full((pieces * split * rows_of_votes, words), votes, dtype=torch.int32)
    return struct.pack(
        "<3Q2i",
        list_pieces,
        _buffer(memory, "piece_lists", rows.contiguous()),
        _buffer(memory, "votes", waiting),
        lists,
        0,
    )


def _buffer(memory: ExitStack, name: str, contents) -> int:
    """The address of a tensor, or of so many bytes of zeros, that the launch may write."""
    import torch

    if isinstance(contents, int):
        contents = torch.zeros(contents + 16, dtype=torch.uint8)
    memory.enter_context(simulator.register(contents, name, True))  # which also keeps it alive
    return contents.data_ptr()
