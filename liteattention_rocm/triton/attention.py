"""Launches of the Triton kernels on the tensors' device and torch's current stream."""

import functools
import math
from dataclasses import dataclass, replace

import torch

from .. import arguments
from . import kernels

KV_ROWS_PER_TILE = 64  # of a skip list
QUERY_ROWS_PER_LIST_ROW = 128
TILES_PER_WORD = 32
CHUNK = 1024  # tiles that the list kernels handle at a time
_SHORT_KV = 1024  # up to here a launch is a few tiles long, and small workgroups fill the device better
_LEAST_SCALE = 2.0**-149  # the least float32 above 0: −Inf, the score of what is masked, times 0 is NaN


@dataclass(frozen=True)
class Configuration:
    """How a kernel is compiled and launched.

    Attributes:
        query_rows: of a program.
        kv_rows: of a tile.
        warps, stages: Triton's num_warps and num_stages.
        descriptors: whether tiles are copied by tensor descriptors, where the tensors' strides allow it.
        fused: whether exponents are fused in rtne and rtna (rtz would show it in every output).
        registers: at most so many a thread, for a program more on each multiprocessor; None leaves it to the
            compiler. Only with descriptors: the addresses that they replace would be spilled.
    """

    query_rows: int
    kv_rows: int
    warps: int
    stages: int
    descriptors: bool = False
    fused: bool = False
    registers: int | None = None

    def options(self, described: bool = False) -> dict:
        """Triton's options for a launch with tensor descriptors, or without."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return options | ({"maxnreg": self.registers} if described and self.registers else {})


@dataclass(frozen=True)
class Configurations:
    """Of one architecture: for long KV, for short KV, and for skip lists, whose tiles are 64 KV rows."""

    long: Configuration
    short: Configuration
    listed: Configuration


# Chosen among the candidates of tools/gpu_baseline.py on an H200; the others are not measured.
_CONFIGURATIONS = {
    "sm_90": Configurations(
        long=Configuration(128, 128, 8, 3, descriptors=True),
        short=Configuration(64, 64, 4, 3, descriptors=True),
        listed=Configuration(128, 64, 8, 2, descriptors=True, registers=128),
    ),
    "gfx90a": Configurations(
        long=Configuration(128, 64, 4, 1),
        short=Configuration(64, 64, 4, 1),
        listed=Configuration(128, 64, 4, 1),
    ),
    "gfx942": Configurations(
        long=Configuration(128, 64, 4, 1),
        short=Configuration(128, 64, 4, 1),  # 64 query rows spill scalar registers
        listed=Configuration(128, 64, 4, 1),
    ),
    "gfx950": Configurations(
        long=Configuration(128, 64, 4, 2),
        short=Configuration(64, 64, 4, 2),
        listed=Configuration(128, 64, 4, 2),
    ),
}
_OTHER = Configurations(
    long=Configuration(128, 64, 8, 2), short=Configuration(64, 64, 4, 2), listed=Configuration(128, 64, 8, 2)
)


def configuration(architecture: str, seqlen_kv: int, listed: bool = False) -> Configuration:
    """How a launch is configured on an architecture: "gfx942", "sm_90", …"""
    chosen = _CONFIGURATIONS.get(architecture, _OTHER)
    if listed:
        return chosen.listed
    return chosen.short if seqlen_kv <= _SHORT_KV else chosen.long


@functools.cache
def architecture(device: torch.device) -> str:
    """The architecture that Triton compiles for on a device."""
    if device.type != "cuda":
        return "interpreter"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return properties.gcnArchName.split(":", 1)[0]
    return f"sm_{properties.major}{properties.minor}"


def _strides(tensor, dimensions) -> tuple[int, int, int]:
    return tuple(tensor.stride(d) for d in dimensions)


def _scalars(scale: float) -> dict:
    magnitude = abs(scale)
    return {
        "scale": magnitude,
        # As in csrc/host: a kv row is excluded by a score of -Inf, and -Inf · 0 would be NaN.
        "scale_log2e": max(magnitude * math.log2(math.e), _LEAST_SCALE),
    }


def _describable(tensor, dimensions) -> bool:
    """Whether the tensor copy engine can address a tensor: 16-byte strides, and no expanded dimension."""
    return tensor.data_ptr() % 16 == 0 and all(
        tensor.stride(d) > 0 and tensor.stride(d) % 8 == 0 for d in dimensions
    )


def _descriptor(tensor, row_dimension: int, kv_rows: int):
    from triton.tools.tensor_descriptor import TensorDescriptor

    block = [1, 1, 1, arguments.HEAD_DIM]
    block[row_dimension] = kv_rows
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


def launch_arguments(
    q, k, v, out, lse, sizes, *, layout, scale, lists=None, threshold=0.0, trace=None
) -> dict:
    """What `kernels.attention_forward` takes at run time, by name, with pointers to k and v.

    lists: indices, counts and votes of a listed walk.
    """
    dimensions = arguments.LAYOUTS[layout]
    indices, counts, votes = lists or (q, q, q)
    tiles = -(-sizes.seqlen_kv // KV_ROWS_PER_TILE)
    return {
        "query": q,
        "key": k,
        "value": v,
        "out": out,
        "lse": lse if lse.numel() else out,
        "indices": indices,
        "counts": counts,
        "votes": votes,
        "trace": out if trace is None else trace,
        **_scalars(scale),
        "threshold": threshold,
        **{
            f"{name}_{dimension}": stride
            for name, tensor in (("q", q), ("k", k), ("v", v), ("o", out))
            for dimension, stride in zip(("batch", "head", "row"), _strides(tensor, dimensions), strict=True)
        },
        "heads": sizes.heads,
        "heads_per_kv_head": sizes.heads // sizes.kv_heads,
        "rows": sizes.seqlen_q,
        "columns": sizes.seqlen_kv,
        "tiles": tiles,
        "words": -(-tiles // TILES_PER_WORD),
    }


def _launch(
    q, k, v, out, lse, sizes, *, layout, scale, rounding, chosen, lists=None, threshold=0.0, backward=False,
    trace=None,
):  # fmt: skip
    dimensions = arguments.LAYOUTS[layout]
    given = launch_arguments(
        q, k, v, out, lse, sizes, layout=layout, scale=scale, lists=lists, threshold=threshold, trace=trace
    )
    described = chosen.descriptors and all(_describable(tensor, dimensions) for tensor in (k, v))
    if described:
        for name in ("key", "value"):
            given[name] = _descriptor(given[name], dimensions[2], chosen.kv_rows)
    grid = (-(-sizes.seqlen_q // chosen.query_rows), sizes.heads, sizes.batch)
    kernels.attention_forward[grid](
        **given,
        ROUNDING=rounding,
        NEGATIVE=math.copysign(1.0, scale) < 0,
        LSE=lse.numel() > 0,
        LISTED=lists is not None,
        BACKWARD=backward,
        TALL=chosen.query_rows,
        WIDE=chosen.kv_rows,
        DESCRIBED=layout if described else "",
        FUSED=chosen.fused and rounding != "rtz",
        INTERPRETED=q.device.type == "cpu",
        TRACE=trace is not None,
        **chosen.options(described),
    )


def forward(q, k, v, out, lse, sizes, *, layout, scale, rounding) -> None:
    """softmax(q kᵀ · scale) v into `out`, and the log-sum-exp into `lse` unless it is empty.

    The arguments have passed `liteattention_rocm.arguments`; the last dimension of each tensor is contiguous.
    """
    chosen = configuration(architecture(q.device), sizes.seqlen_kv)
    _launch(q, k, v, out, lse, sizes, layout=layout, scale=scale, rounding=rounding, chosen=chosen)


def intermediates(q, k, v, out, lse, trace, sizes, *, layout, scale, rounding) -> None:
    """As forward, and the values between, of each KV tile of 64 rows, into `trace`.

    trace: float32, laid out as in csrc/device/observed.hip. The kernel is the one that forward launches, with
    stores behind what it computes.
    """
    # What a trace adds needs registers.
    chosen = replace(configuration(architecture(q.device), sizes.seqlen_kv, listed=True), registers=None)
    _launch(
        q, k, v, out, lse, sizes, layout=layout, scale=scale, rounding=rounding, chosen=chosen, trace=trace
    )


def skip_forward(
    q, k, v, out, lse, sizes, read_list, write_list, *, threshold, backward, layout, scale, rounding
) -> None:
    """As forward, over the tiles of `read_list`; votes are ORed into `write_list`.

    The lists are int32 [batch, heads, ceil(seqlen_q / 128), words], as `liteattention_rocm.lite` has them.
    Votes never change this call's output.
    """
    tiles = -(-sizes.seqlen_kv // KV_ROWS_PER_TILE)
    words = read_list.shape[-1]
    list_rows = read_list.numel() // words
    indices = torch.empty(list_rows * tiles, dtype=torch.int32, device=q.device)
    counts = torch.empty(list_rows, dtype=torch.int32, device=q.device)
    chosen = configuration(architecture(q.device), sizes.seqlen_kv, listed=True)
    splits = QUERY_ROWS_PER_LIST_ROW // chosen.query_rows
    # Zero where a program doesn't exist: the last rows may need fewer.
    votes = torch.zeros(list_rows * splits * (words + 1), dtype=torch.int32, device=q.device)
    whole = sizes.seqlen_kv // KV_ROWS_PER_TILE
    kernels.unpack_list[(list_rows,)](
        read_list, indices, counts, votes, tiles, words, whole,
        SPLITS=splits, BACKWARD=backward, CHUNK=CHUNK,
    )  # fmt: skip
    _launch(
        q, k, v, out, lse, sizes, layout=layout, scale=scale, rounding=rounding, chosen=chosen,
        lists=(indices, counts, votes), threshold=math.nan if threshold == -math.inf else threshold,
        backward=backward,
    )  # fmt: skip
    kernels.pack_list[(list_rows,)](
        indices, counts, votes, write_list, tiles, words, whole,
        SPLITS=splits, PARTIAL_FIRST=backward, CHUNK=CHUNK,
    )  # fmt: skip
