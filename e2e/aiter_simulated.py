"""SGLang's ``aiter`` backend on a host without a GPU: AITER's code object in the gfx942 simulator."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch
from sglang.multimodal_gen.runtime.layers.attention.backends.attention_backend import (
    AttentionImpl,
    AttentionMetadata,
)
from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum
from sglang.multimodal_gen.runtime.server_args import get_global_server_args

from liteattention_rocm import aiter_kernel
from sglang_integration.backend import HEAD_SIZE, MetadataFreeBackend
from sglang_integration.plugin import hook_backend_choice

# AITER takes its assembly path above this query length; below, another kernel that has no code object here.
SHORT_QUERY = 128


def register() -> None:
    """Has the CPU platform answer ``--attention-backend aiter`` with this module's backend.

    Raises:
        FileNotFoundError: AITER's code objects are not unpacked.
    """
    aiter_kernel.find()
    hook_backend_choice(choose_backend)


def choose_backend(
    original: Callable[..., str],
    platform: type,
    selected_backend: enum.Enum | None,
    head_size: int,
    dtype: torch.dtype,
) -> str:
    """The class path for AITER's name; every other question goes on.

    Raises:
        ValueError: a layer that AITER's assembly kernel for head size 128 doesn't serve.
    """
    if selected_backend is not AttentionBackendEnum.AITER:
        return original(platform, selected_backend, head_size, dtype)
    if head_size != HEAD_SIZE or dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"AITER's simulated kernel serves bfloat16 heads of {HEAD_SIZE}, not {dtype} of {head_size}"
        )
    return f"{__name__}.{AiterSimulatedBackend.__name__}"


def configured_rounding() -> str:
    """``rounding`` of ``--attention-backend-config``; without it ``rtz``, which SGLang passes to AITER."""
    return (get_global_server_args().attention_backend_config or {}).get("rounding", "rtz")


class AiterSimulatedBackend(MetadataFreeBackend):
    """Backend ``aiter``; ``--attention-backend-config rounding=…`` picks its code object (``rtz``)."""

    @staticmethod
    def get_enum() -> AttentionBackendEnum:
        return AttentionBackendEnum.AITER

    @staticmethod
    def get_impl_cls() -> type[AiterSimulatedImpl]:
        return AiterSimulatedImpl


class AiterSimulatedImpl(AttentionImpl):
    """One layer, as SGLang's AITER backend would launch it: scale 1/√128, whatever the layer's own is.

    Raises:
        ValueError: a causal layer or another softmax scale.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        softmax_scale: float,
        causal: bool = False,
        **extra_impl_args: Any,
    ) -> None:
        if causal or abs(softmax_scale - head_size**-0.5) > 1e-9:
            raise ValueError(f"AITER's simulated kernel is not causal and scales by 1/√{head_size}")
        self.rounding = configured_rounding()

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_metadata: AttentionMetadata | None = None,
    ) -> torch.Tensor:
        """Attention of ``query`` [B, Sq, H, 128] over [B, Skv, H, 128].

        Raises:
            ValueError: a query no longer than 128 rows, which AITER gives to another kernel.
        """
        if query.shape[1] <= SHORT_QUERY:
            raise ValueError(
                f"query length {query.shape[1]}: AITER's assembly kernel serves more than {SHORT_QUERY}; "
                "choose more frames or a larger height or width"
            )
        return aiter_kernel.forward(query, key, value, rounding=self.rounding, layout="bshd")
