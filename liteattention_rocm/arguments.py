"""Checks of one attention call's arguments, all made before anything is launched.

The same checks run on real tensors and, shapes permitting, on the fake tensors of torch.compile.
"""

import math
from dataclasses import dataclass

import torch

from .rounding import rounding_name

HEAD_DIM = 128
LAYOUTS = {"bshd": (0, 2, 1), "bhsd": (0, 1, 2)}  # where batch, head and row dimensions stand

MAX_HEADS = 65535  # workgroups along y of a grid
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


def _check_strided_bf16(name, tensor, shape_hint) -> None:
    _check_strided(name, tensor)
    if tensor.dtype != torch.bfloat16:
        raise TypeError(f"{name} must have dtype torch.bfloat16, got {tensor.dtype}")
    if tensor.dim() != 4:
        raise ValueError(f"{name} must have 4 dimensions {shape_hint}, got shape {tuple(tensor.shape)}")
    if tensor.shape[3] != HEAD_DIM:
        raise ValueError(
            f"{name} must have head dim {HEAD_DIM} as its last dimension {shape_hint}, "
            f"got {tensor.shape[3]}: {tuple(tensor.shape)}"
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
    if sizes.heads == 0:
        raise ValueError("q must have at least one head, got 0")
    if sizes.kv_heads == 0:
        raise ValueError("k must have at least one head, got 0")
    if sizes.heads % sizes.kv_heads != 0:
        raise ValueError(f"the heads of k ({sizes.kv_heads}) must divide the heads of q ({sizes.heads})")
    if sizes.seqlen_kv == 0:
        raise ValueError("k must have at least one row (seqlen_kv >= 1), got 0: nothing to attend to")
    if sizes.heads > MAX_HEADS:
        raise ValueError(f"q must have at most {MAX_HEADS} heads, got {sizes.heads}")
    for name, size in (("q", sizes.seqlen_q), ("k", sizes.seqlen_kv)):
        if size > MAX_LENGTH:
            raise ValueError(f"{name} must have at most {MAX_LENGTH} rows, got {size}")
    return sizes


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
