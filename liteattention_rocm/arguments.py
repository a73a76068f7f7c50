"""Checks of one attention call's arguments, all made before anything is launched.

The same checks run on real tensors and, shapes permitting, on the fake tensors of torch.compile.
"""

import itertools
import math
from dataclasses import dataclass, field

import torch

from . import views
from .rounding import rounding_name

HEAD_DIM = 128
LAYOUTS = {"bshd": (0, 2, 1), "bhsd": (0, 1, 2)}  # where batch, head and row dimensions stand

VARIANTS = ("fast", "aiter_exact")

MAX_HEADS = 65535  # workgroups along y of a grid
MAX_SEQUENCES = 65535  # workgroups along z of a grid
MAX_LENGTH = 2**31 - 1 - 128  # rows are counted in int32, rounded up to a workgroup of 128


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call, independent of the layout."""

    batch: int
    heads: int
    kv_heads: int
    seqlen_q: int
    seqlen_kv: int

    @property
    def empty(self) -> bool:
        return self.batch == 0 or self.seqlen_q == 0

    def out_shape(self, layout: str) -> tuple[int, int, int, int]:
        if layout == "bshd":
            return self.batch, self.seqlen_q, self.heads, HEAD_DIM
        return self.batch, self.heads, self.seqlen_q, HEAD_DIM

    def lse_shape(self) -> tuple[int, int, int]:
        return self.batch, self.heads, self.seqlen_q


@dataclass(frozen=True, eq=False)
class Call:
    """What shapes, strides, dtypes, devices and options settle of a call, whatever its addresses are.

    Attributes:
        addressable: whether the kernel can address q, k and v with these strides.
        empty: whether there is nothing to write.
        bound: what a kernel keeps for calls like this one, by a key of its own.
    """

    sizes: Sizes
    layout: str
    scale: float
    rounding: str
    variant: str
    addressable: bool
    empty: bool
    bound: dict = field(default_factory=dict)


MAX_CALLS = 1024  # far more than a model has shapes
_calls: dict[tuple, Call] = {}


def check_call(q, k, v, scale, layout, rounding, variant="fast") -> Call:
    """The checks of options and inputs; for calls that differ in addresses alone the answer is kept.

    Raises:
        TypeError, ValueError: as check_options, check_variant and check_inputs.
    """
    key = None
    strided, bfloat16 = torch.strided, torch.bfloat16
    if (
        q.dtype is bfloat16 and k.dtype is bfloat16 and v.dtype is bfloat16
        and q.layout is strided and k.layout is strided and v.layout is strided
        and not (q.requires_grad or k.requires_grad or v.requires_grad)
    ):  # fmt: skip
        try:
            key = (
                q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(),
                q.device, k.device, v.device, scale, layout, rounding, variant,
            )  # fmt: skip
            if (call := _calls.get(key)) is not None:
                return call
        except RuntimeError:  # what a nested tensor answers when asked for its shape
            key = None
    rounding, scale = check_options(layout, rounding, scale)
    check_variant(variant, scale)
    sizes = check_inputs(q, k, v, layout)
    row_dim = LAYOUTS[layout][2]
    addressable = all(views.strides_run(x, row_dim) for x in (q, k, v))
    call = Call(sizes, layout, scale, rounding, variant, addressable, sizes.empty)
    if key is not None:
        if len(_calls) >= MAX_CALLS:
            _calls.clear()
        _calls[key] = call
    return call


def check_tensor_types(**tensors) -> None:
    """Raises TypeError for an argument that is no torch.Tensor, ValueError for one without strides."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        _check_strided(name, tensor)


def _check_strided(name, tensor) -> None:
    # The dispatcher would refuse these with a list of every backend's keys.
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
        raise ValueError(f"{name} must be a dense strided tensor, got {kind}")


def check_layout(layout) -> None:
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(map(repr, LAYOUTS))}, got {layout!r}")


def check_scale(scale) -> float:
    """The softmax scale as a float; None stands for 1/sqrt(128)."""
    if scale is None:
        return 1.0 / math.sqrt(HEAD_DIM)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale must be a finite number or None, got {scale!r} ({type(scale).__name__})")
    try:
        # The kernel multiplies in float32, and by log2(e) more.
        finite = abs(float(scale)) * math.log2(math.e) <= torch.finfo(torch.float32).max
    except OverflowError:
        finite = False
    if not finite:
        raise ValueError(f"scale · log2(e) must be finite in float32, got scale={scale!r}")
    return float(scale)


def check_variant(variant, scale: float) -> str:
    """The numerical variant. ValueError for other names, and for a scale that "aiter_exact" can't take."""
    if not isinstance(variant, str):
        raise TypeError(f"variant must be a string, got {variant!r}")
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(map(repr, VARIANTS))}, got {variant!r}")
    if variant == "aiter_exact" and not scale > 0:
        raise ValueError(
            f"scale must be above 0 for variant 'aiter_exact', got {scale!r}: AITER's kernel takes the "
            "maximum of the scores before it scales them"
        )
    return variant


def _check_strided_bf16(name, tensor, shape_hint, rank=4) -> None:
    _check_strided(name, tensor)
    if tensor.dtype != torch.bfloat16:
        raise TypeError(f"{name} must have dtype torch.bfloat16, got {tensor.dtype}")
    if tensor.dim() != rank:
        raise ValueError(f"{name} must have {rank} dimensions {shape_hint}, got shape {tuple(tensor.shape)}")
    if tensor.shape[-1] != HEAD_DIM:
        raise ValueError(
            f"{name} must have head dim {HEAD_DIM} as its last dimension {shape_hint}, "
            f"got {tensor.shape[-1]}: {tuple(tensor.shape)}"
        )


def _check_inference(name, tensor) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} requires grad, and attention here is for inference only: call it under torch.no_grad() "
            f"or pass {name}.detach()"
        )


def check_inputs(q, k, v, layout: str) -> Sizes:
    """Checks the three inputs against the kernel and each other.

    Raises:
        TypeError: a dtype other than bfloat16.
        ValueError: rank, head dim, layout, devices, batch, heads, lengths or requires_grad.
    """
    check_layout(layout)
    shape_hint = "[batch, seqlen, heads, 128]" if layout == "bshd" else "[batch, heads, seqlen, 128]"
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_strided_bf16(name, tensor, shape_hint)
        if tensor.device != q.device:
            raise ValueError(f"{name} must be on the device of q ({q.device}), got {tensor.device}")
        _check_inference(name, tensor)

    batch_dim, head_dim, row_dim = LAYOUTS[layout]
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape[batch_dim] != q.shape[batch_dim]:
            raise ValueError(
                f"{name} must have the batch size of q ({q.shape[batch_dim]}), got {tensor.shape[batch_dim]}"
            )
    if v.shape[head_dim] != k.shape[head_dim]:
        raise ValueError(f"v must have as many heads as k ({k.shape[head_dim]}), got {v.shape[head_dim]}")
    if v.shape[row_dim] != k.shape[row_dim]:
        raise ValueError(f"v must have as many rows as k ({k.shape[row_dim]}), got {v.shape[row_dim]}")
    sizes = Sizes(
        batch=q.shape[batch_dim],
        heads=q.shape[head_dim],
        kv_heads=k.shape[head_dim],
        seqlen_q=q.shape[row_dim],
        seqlen_kv=k.shape[row_dim],
    )
    _check_heads(sizes)
    if sizes.seqlen_kv == 0:
        raise ValueError("k must have at least one row (seqlen_kv >= 1), got 0: nothing to attend to")
    _check_lengths(sizes)
    return sizes


def _check_heads(sizes: Sizes) -> None:
    if sizes.heads == 0:
        raise ValueError("q must have at least one head, got 0")
    if sizes.kv_heads == 0:
        raise ValueError("k must have at least one head, got 0")
    if sizes.heads % sizes.kv_heads != 0:
        raise ValueError(f"the heads of k ({sizes.kv_heads}) must divide the heads of q ({sizes.heads})")
    if sizes.heads > MAX_HEADS:
        raise ValueError(f"q must have at most {MAX_HEADS} heads, got {sizes.heads}")


def _check_lengths(sizes: Sizes) -> None:
    for name, size in (("q", sizes.seqlen_q), ("k", sizes.seqlen_kv)):
        if size > MAX_LENGTH:
            raise ValueError(f"{name} must have at most {MAX_LENGTH} rows, got {size}")


def check_packed(q, k, v, cu_seqlens: dict, max_seqlens: dict) -> Sizes:
    """Checks the packed inputs, and of the sequences' lengths what needs no look at the device.

    Args:
        cu_seqlens: by the arguments' names, of q and of k.
        max_seqlens: likewise.

    Returns:
        The sizes as of one batch entry with the rows of all sequences.

    Raises:
        TypeError: a dtype, or a length that is no integer.
        ValueError: ranks, head dim, heads, devices, totals, numbers of sequences, or the largest lengths.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_strided_bf16(name, tensor, "[total, heads, 128]", rank=3)
        if tensor.device != q.device:
            raise ValueError(f"{name} must be on the device of q ({q.device}), got {tensor.device}")
        _check_inference(name, tensor)
    if v.shape[:2] != k.shape[:2]:
        raise ValueError(
            f"v must have the rows and heads of k {tuple(k.shape[:2])}, got {tuple(v.shape[:2])}"
        )
    sizes = Sizes(1, heads=q.shape[1], kv_heads=k.shape[1], seqlen_q=q.shape[0], seqlen_kv=k.shape[0])
    _check_heads(sizes)
    _check_lengths(sizes)
    entries = None
    for name, tensor in cu_seqlens.items():
        if tensor.dtype != torch.int32:
            raise TypeError(f"{name} must have dtype torch.int32, got {tensor.dtype}")
        if tensor.dim() != 1 or not 2 <= tensor.shape[0] <= MAX_SEQUENCES + 1:
            raise ValueError(
                f"{name} must have shape [sequences + 1], sequences from 1 to {MAX_SEQUENCES}, "
                f"got {tuple(tensor.shape)}"
            )
        if tensor.device != q.device:
            raise ValueError(f"{name} must be on the device of q ({q.device}), got {tensor.device}")
        if entries is not None and tensor.shape[0] != entries:
            raise ValueError(
                f"{name} must have as many entries as cu_seqlens_q ({entries}), got {tensor.shape[0]}"
            )
        entries = tensor.shape[0]
    for (name, length), total in zip(max_seqlens.items(), (sizes.seqlen_q, sizes.seqlen_kv), strict=True):
        if isinstance(length, bool) or not isinstance(length, (int, torch.SymInt)):
            raise TypeError(f"{name} must be an int, got {length!r} ({type(length).__name__})")
        if not 0 <= length <= total:
            raise ValueError(f"{name} must be from 0 to the total of {total} rows, got {length}")
    return sizes


def check_cumulative(name: str, lengths: list[int], total: int, longest: int) -> None:
    """Checks cumulative lengths known on the host; ValueError names the first entry that is wrong."""
    if lengths[0] != 0 or lengths[-1] != total:
        raise ValueError(
            f"{name} must run from 0 to the total of {total} rows, got {lengths[0]} to {lengths[-1]}"
        )
    for i, (begin, end) in enumerate(itertools.pairwise(lengths)):
        if not 0 <= end - begin <= longest:
            raise ValueError(
                f"{name}[{i}:{i + 2}] must step by 0 to the largest length of {longest}, got {begin}, {end}"
            )


def check_out(out, q, sizes: Sizes, layout: str) -> None:
    """Checks shape, dtype and device of `out`; ValueError or TypeError names what differs."""
    expected = sizes.out_shape(layout)
    _check_strided("out", out)
    if out.dtype != torch.bfloat16:
        raise TypeError(f"out must have dtype torch.bfloat16, got {out.dtype}")
    if out.dim() != 4 or any(size != wanted for size, wanted in zip(out.shape, expected, strict=True)):
        raise ValueError(f"out must have shape {tuple(expected)}, got {tuple(out.shape)}")
    if out.device != q.device:
        raise ValueError(f"out must be on the device of q ({q.device}), got {out.device}")
    _check_inference("out", out)


def check_options(layout, rounding, scale) -> tuple[str, float]:
    """Checks what is no tensor; returns the name of the rounding mode and the scale as a float."""
    check_layout(layout)
    return rounding_name(rounding), check_scale(scale)
