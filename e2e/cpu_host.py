"""What SGLang 0.5.23's diffusion runtime lacks on a host without a GPU. Only the harness loads this."""

from __future__ import annotations

import os
import sys
import types

import torch

NORM_SCALE_SHIFT = "fused_norm_scale_shift_cpu"
RESIDUAL_NORM_SCALE_SHIFT = "fused_scale_residual_norm_scale_shift_cpu"


def prepare() -> None:
    """Lets SGLang's diffusion runtime import and run on this CPU; call before anything imports SGLang.

    The platform is named because SGLang otherwise looks for devices; torchvision's meta functions are left
    out because beside a CPU build of torch they refuse to register; the two fused operators that SGLang's Wan
    transformer takes from its own CPU kernel package are defined in PyTorch.
    """
    os.environ["SGLANG_DIFFUSION_PLATFORM_OVERRIDE"] = "cpu"
    sys.modules.setdefault(
        "torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations")
    )
    define_fused_operators()


def define_fused_operators() -> None:
    """Defines the ``sgl_kernel`` operators that are missing, for CPU tensors."""
    library = torch.library.Library("sgl_kernel", "FRAGMENT")
    missing = [
        (
            f"{NORM_SCALE_SHIFT}(Tensor x, Tensor? w, Tensor? b, Tensor scale, Tensor shift, str kind,"
            " float eps) -> Tensor",
            norm_scale_shift,
        ),
        (
            f"{RESIDUAL_NORM_SCALE_SHIFT}(Tensor r, Tensor x, Tensor? gate, Tensor? w, Tensor? b,"
            " Tensor scale, Tensor shift, str kind, float eps) -> (Tensor, Tensor)",
            residual_norm_scale_shift,
        ),
    ]
    for schema, implementation in missing:
        name = schema.partition("(")[0]
        if not hasattr(torch.ops.sgl_kernel, name):
            library.define(schema)
            library.impl(name, implementation, "CPU")
            _libraries.append(library)


_libraries: list[torch.library.Library] = []  # a collected library takes its operators with it


def norm_scale_shift(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    kind: str,
    eps: float,
) -> torch.Tensor:
    """``norm(x)·(1 + scale) + shift`` in float32, returned in the dtype of ``x`` [B, S, C].

    Args:
        kind: ``layer`` for layer normalisation, ``rms`` for root-mean-square normalisation over C.

    Raises:
        ValueError: another ``kind``.
    """
    wide = x.float()
    weight, bias = (None if t is None else t.float() for t in (weight, bias))
    if kind == "layer":
        normed = torch.nn.functional.layer_norm(wide, wide.shape[-1:], weight, bias, eps)
    elif kind == "rms":
        normed = torch.nn.functional.rms_norm(wide, wide.shape[-1:], weight, eps)
    else:
        raise ValueError(f"kind={kind!r} (allowed: layer, rms)")
    return (normed * (1 + scale.float()) + shift.float()).to(x.dtype)


def residual_norm_scale_shift(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    kind: str,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`norm_scale_shift` of ``residual + x·gate`` (gate None: 1); returns it and that sum."""
    total = (residual.float() + x.float() * (1 if gate is None else gate.float())).to(residual.dtype)
    return norm_scale_shift(total, weight, bias, scale, shift, kind, eps), total
