"""The torch operators `liteattention_rocm::attention_skip` and `liteattention_rocm::skip_order`."""

import math

import torch

from .. import _C, arguments, dispatch, runtime, verdicts, views
from ..ops import _new_lse
from ..rounding import ROUNDINGS
from . import lists
from .cost import QUERY_TILES_OF

NAME = "liteattention_rocm::attention_skip"

torch.library.define(
    NAME,
    "(Tensor q, Tensor k, Tensor v, Tensor read_list, Tensor(a!) write_list, *, float threshold, "
    "bool backward, bool votes_count=False, float? scale=None, str layout='bshd', str rounding='rtne', "
    "bool return_lse=False, Tensor? order=None, str kernel='forward', int pieces=1, int visited=0) "
    "-> (Tensor out, Tensor lse)",
)


ORDER = "liteattention_rocm::skip_order"
ORDERED_TILES = 4096  # kOrderedTiles of csrc/device/skip_arguments.hpp
torch.library.define(ORDER, "(Tensor list, int merged=1) -> (Tensor counts, Tensor order)")


def check_threshold(threshold) -> float:
    """A threshold in log2 units as a float.

    Raises:
        TypeError: no number.
        ValueError: neither below 0 nor infinite.
    """
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
        raise TypeError(f"threshold must be a number, got {threshold!r} ({type(threshold).__name__})")
    if not (threshold < 0 or threshold == math.inf):
        raise ValueError(f"threshold must be below 0 (log2 units) or infinite, got {threshold!r}")
    return float(threshold)


def list_shape(sizes) -> tuple[int, int, int, int]:
    """[batch, heads, query tiles, words] of the lists of one call."""
    tiles = lists.kv_tiles(sizes.seqlen_kv)
    return sizes.batch, sizes.heads, lists.query_tiles(sizes.seqlen_q), lists.words(tiles)


def _check_list(name, tensor, shape, q) -> None:
    if tensor.dtype != torch.int32:
        raise TypeError(f"{name} must have dtype torch.int32, got {tensor.dtype}")
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")
    if tensor.device != q.device:
        raise ValueError(f"{name} must be on the device of q ({q.device}), got {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")


def check_kernel(kernel) -> None:
    """ValueError unless it names a schedule."""
    if kernel not in QUERY_TILES_OF:
        raise ValueError(f"kernel must be one of {', '.join(QUERY_TILES_OF)}, got {kernel!r}")


def workspace_bytes(sizes, target, kernel: str, pieces: int, visited: int) -> int:
    """What a call on a target needs for its pieces."""
    if pieces == 1:
        return 0
    shape = sizes.batch, sizes.heads, sizes.kv_heads, sizes.seqlen_q, sizes.seqlen_kv
    return _C.skip_plan(*shape, target.compute_units, kernel, pieces, visited)["workspace_bytes"]


def groups(query_tiles: int, merged: int) -> int:
    """Workgroups of a head."""
    return -(-query_tiles // merged)


def _check(
    q, k, v, read_list, write_list, threshold, votes_count, scale, layout, rounding, order, kernel, pieces,
    visited,
):  # fmt: skip
    rounding, scale = arguments.check_options(layout, rounding, scale)
    threshold = check_threshold(threshold)
    sizes = arguments.check_inputs(q, k, v, layout)
    shape = list_shape(sizes)
    _check_list("read_list", read_list, shape, q)
    _check_list("write_list", write_list, shape, q)
    check_kernel(kernel)
    if votes_count and kernel != "forward":
        raise ValueError(f"votes_count must be False with the kernel {kernel}: its waves take 48 rows")
    if not 0 <= pieces < 1 << 31:
        raise ValueError(f"pieces must be from 0 to 2147483647, got {pieces}")
    if not 0 <= visited <= lists.kv_tiles(sizes.seqlen_kv):
        tiles = lists.kv_tiles(sizes.seqlen_kv)
        raise ValueError(f"visited must be from 0 to the {tiles} KV tiles, got {visited}")
    if order is not None:
        _check_list("order", order, (*shape[:2], groups(shape[2], QUERY_TILES_OF[kernel])), q)
    return sizes, scale, rounding, threshold


@torch.library.impl(NAME, "default")
def _attention_skip(
    q,
    k,
    v,
    read_list,
    write_list,
    *,
    threshold,
    backward,
    votes_count=False,
    scale=None,
    layout="bshd",
    rounding="rtne",
    return_lse=False,
    order=None,
    kernel="forward",
    pieces=1,
    visited=0,
):
    sizes, scale, rounding, threshold = _check(
        q, k, v, read_list, write_list, threshold, votes_count, scale, layout, rounding, order, kernel,
        pieces, visited,
    )  # fmt: skip
    if views.share_memory(read_list, write_list):
        raise ValueError("write_list must not overlap read_list")
    server = dispatch.serving(q.device)
    out = q.new_empty(sizes.out_shape(layout))
    lse = _new_lse(q, sizes, return_lse)
    if sizes.empty:
        return out, lse
    if server.name != "hip":
        server.skip_launch(
            (q, k, v), out, lse, sizes, read_list, write_list, threshold=threshold, backward=backward,
            layout=layout, scale=scale, rounding=rounding,
        )  # fmt: skip
        return out, lse
    target = server.target
    verdicts.require(target, runtime.kernel_symbol(f"skip_{kernel}", rounding))
    needed = workspace_bytes(sizes, target, kernel, pieces, visited)
    if needed:
        for name in runtime.split_skip_kernels(kernel, rounding):
            verdicts.require(target, name)
    # On the stream of the launches, as torch allocates.
    workspace = q.new_empty(needed, dtype=torch.uint8)
    dimensions = arguments.LAYOUTS[layout]
    q, k, v = (views.addressable(tensor, dimensions[2]) for tensor in (q, k, v))
    tensors = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "read_list": read_list}
    tensors |= {"write_list": write_list, "workspace": workspace} | (
        {} if order is None else {"order": order}
    )
    with runtime.stream_for(target, tensors, ("out", "lse", "write_list", "workspace")) as stream:
        _C.skip_forward(
            target.hip,
            target.device,
            target.architecture,
            target.compute_units,
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            lse.data_ptr() if lse.numel() else 0,
            sizes.batch,
            sizes.heads,
            sizes.kv_heads,
            sizes.seqlen_q,
            sizes.seqlen_kv,
            *(views.kernel_strides(tensor, dimensions) for tensor in (q, k, v, out)),
            scale,
            ROUNDINGS[rounding].value,
            stream,
            read_list.data_ptr(),
            write_list.data_ptr(),
            0 if order is None else order.data_ptr(),
            threshold,
            backward,
            votes_count,
            kernel,
            pieces,
            visited,
            workspace.data_ptr() if workspace.numel() else 0,
            workspace.numel(),
        )
    return out, lse


@torch.library.register_fake(NAME)
def _attention_skip_fake(
    q,
    k,
    v,
    read_list,
    write_list,
    *,
    threshold,
    backward,
    votes_count=False,
    scale=None,
    layout="bshd",
    rounding="rtne",
    return_lse=False,
    order=None,
    kernel="forward",
    pieces=1,
    visited=0,
):
    sizes, *_ = _check(
        q, k, v, read_list, write_list, threshold, votes_count, scale, layout, rounding, order, kernel,
        pieces, visited,
    )  # fmt: skip
    return q.new_empty(sizes.out_shape(layout)), _new_lse(q, sizes, return_lse)


@torch.library.impl(ORDER, "default")
def _skip_order(list, merged=1):
    """int32 [batch, heads, query tiles, words] → tiles that any of `merged` consecutive query tiles lists,
    and these groups of each head by falling count: int32 [batch, heads, groups] both; the last group may be
    smaller."""
    counts, order = _skip_order_fake(list, merged)
    batch, heads, query_tiles, words = list.shape
    if counts.numel() == 0:
        return counts, order
    kernel = dispatch.serving(list.device)
    if kernel.name != "hip":
        counts.copy_(lists.count(lists.union(list, merged)))
        for first in range(0, counts.shape[2], ORDERED_TILES):
            part = slice(first, first + ORDERED_TILES)
            order[..., part] = first + counts[..., part].argsort(dim=-1, descending=True, stable=True)
        return counts, order
    target = kernel.target
    verdicts.require(target, "attention_skip_order")
    list = list.contiguous()
    tensors = {"list": list, "counts": counts, "order": order}
    with runtime.stream_for(target, tensors, ("counts", "order")) as stream:
        _C.skip_order(
            target.hip,
            target.device,
            target.architecture,
            target.compute_units,
            list.data_ptr(),
            counts.data_ptr(),
            order.data_ptr(),
            batch * heads,
            query_tiles,
            words,
            stream,
            merged,
        )
    return counts, order


@torch.library.register_fake(ORDER)
def _skip_order_fake(list, merged=1):
    if list.dtype != torch.int32:
        raise TypeError(f"list must have dtype torch.int32, got {list.dtype}")
    if list.dim() != 4:
        raise ValueError(
            f"list must have 4 dimensions [batch, heads, query tiles, words], got {tuple(list.shape)}"
        )
    if merged < 1:
        raise ValueError(f"merged must be at least 1, got {merged}")
    shape = (*list.shape[:2], groups(list.shape[2], merged))
    return list.new_empty(shape), list.new_empty(shape)
