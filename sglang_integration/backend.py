"""The attention backend that SGLang's layers call, for self- and cross-attention."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from sglang.multimodal_gen.runtime.layers.attention.backends.attention_backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
)
from sglang.multimodal_gen.runtime.layers.attention.backends.sdpa import SDPAImpl
from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum
from sglang.multimodal_gen.runtime.server_args import get_global_server_args

import liteattention_rocm
from sglang_integration.plugin import BACKEND_NAME

HEAD_SIZE = 128
ROUNDINGS = ("rtne", "rtna", "rtz")

logger = logging.getLogger(__name__)


def check_layer(head_size: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuses a layer that can't be served, before SGLang builds it.

    float16 passes here although the kernel is bfloat16: SGLang's denoising stage asks with float16 for
    metadata alone, and a layer that then computes in float16 is served by :class:`LiteAttentionImpl`'s
    fallback. The code object is loaded here too, and the configuration read: a run that can't work stops
    before its weights are loaded.

    Args:
        head_size: channels of one head.
        dtype: the layer's compute dtype.
        device: where SGLang's worker runs.

    Raises:
        ValueError: the head size, the dtype or ``--attention-backend-config``, naming the value and what is
            allowed.
        RuntimeError: the device has no code object here or no HIP library, or the kernel failed the self-test
            on it.
    """
    if head_size != HEAD_SIZE:
        raise ValueError(f"head size {head_size} is not served (allowed: {HEAD_SIZE})")
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"dtype {dtype} is not served (allowed: torch.bfloat16)")
    liteattention_rocm.prepare(device, rounding=configured_settings().rounding)


@dataclass(frozen=True)
class Settings:
    """What ``--attention-backend-config`` may set.

    Attributes:
        rounding: how P and O are rounded to bfloat16: ``rtne``, ``rtna`` or ``rtz``. The default is the mode
            that SGLang passes to AITER.
    """

    rounding: str = "rtz"

    def __post_init__(self) -> None:
        if self.rounding not in ROUNDINGS:
            raise ValueError(
                f"attention_backend_config: rounding={self.rounding!r} (allowed: {', '.join(ROUNDINGS)})"
            )

    @classmethod
    def parse(cls, config: Mapping[str, Any] | None, shared: bool = False) -> Settings:
        """Reads SGLang's parsed configuration, whichever of its forms (JSON, YAML, ``key=value``) it came in.

        Args:
            config: key to value; None is empty.
            shared: whether another backend may read the same configuration; then keys we don't know are left
                to it.

        Raises:
            ValueError: an unknown key (unless ``shared``) or a value that is not allowed, naming both.
        """
        config = dict(config or {})
        known = [field.name for field in fields(cls)]
        unknown = [key for key in config if key not in known]
        if unknown and not shared:
            raise ValueError(
                f"attention_backend_config: unknown key {unknown[0]!r} for {BACKEND_NAME} "
                f"(allowed: {', '.join(known)})"
            )
        return cls(**{key: config[key] for key in known if key in config})


def configured_settings() -> Settings:
    """The settings of SGLang's global server arguments.

    The configuration is one for all backends: where the arguments name another backend beside ours, its keys
    pass.
    """
    args = get_global_server_args()
    named = {args.attention_backend, *(args.component_attention_backends or {}).values()}
    for roles in (args.component_attention_backend_roles or {}).values():
        named.update(roles.values())
    return Settings.parse(args.attention_backend_config, shared=bool(named - {BACKEND_NAME, None}))


class LiteAttentionBackend(AttentionBackend):
    """Attention backend ``liteattention_rocm``: dense bfloat16 attention, head size 128, on gfx942."""

    accept_output_buffer = False

    @staticmethod
    def get_enum() -> AttentionBackendEnum:
        return AttentionBackendEnum[BACKEND_NAME.upper()]

    @staticmethod
    def get_impl_cls() -> type[LiteAttentionImpl]:
        return LiteAttentionImpl

    @staticmethod
    def get_metadata_cls() -> type[AttentionMetadata]:
        return AttentionMetadata

    @staticmethod
    def get_builder_cls() -> type:
        raise NotImplementedError(f"{BACKEND_NAME} takes no attention metadata")


class LiteAttentionImpl(AttentionImpl):
    """One attention layer, self or cross.

    SGLang selects backends by head size and dtype alone. What only the layer or the call reveals, causal
    attention and float16 tensors, goes to SGLang's torch SDPA, and the log says so once.

    Args:
        num_heads: query heads on this rank.
        head_size: channels of one head.
        softmax_scale: factor on the scores before the softmax.
        causal: whether a query sees only keys up to its own position.
        num_kv_heads: key and value heads on this rank; they divide ``num_heads``.
        prefix: the layer's name in the model.

    Raises:
        ValueError: heads that don't divide, or a refused ``--attention-backend-config``.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        softmax_scale: float,
        causal: bool = False,
        num_kv_heads: int | None = None,
        prefix: str = "",
        **extra_impl_args: Any,
    ) -> None:
        if num_kv_heads is not None and num_heads % num_kv_heads != 0:
            raise ValueError(f"num_heads={num_heads} is not a multiple of num_kv_heads={num_kv_heads}")
        self.softmax_scale = softmax_scale
        self.causal = causal
        self.rounding = configured_settings().rounding
        if causal:
            warn_fallback("causal attention")
        self.sdpa = SDPAImpl(
            num_heads=num_heads,
            head_size=head_size,
            causal=causal,
            softmax_scale=softmax_scale,
            num_kv_heads=num_kv_heads,
            prefix=prefix,
            **extra_impl_args,
        )

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_metadata: AttentionMetadata | None = None,
    ) -> torch.Tensor:
        """Attention of ``query`` [B, Sq, H, 128] over ``key`` and ``value`` [B, Skv, Hkv, 128], any strides.

        Returns:
            The output [B, Sq, H, 128] in the query's dtype.
        """
        if self.causal or query.dtype != torch.bfloat16:
            if not self.causal:
                warn_fallback(str(query.dtype))
            return self.sdpa.forward(query, key, value, attn_metadata)
        return liteattention_rocm.attention(
            query, key, value, scale=self.softmax_scale, layout="bshd", rounding=self.rounding
        )


@functools.cache
def warn_fallback(what: str) -> None:
    """Says once per process that layers with ``what`` are not served by our kernel."""
    logger.warning("%s does not serve %s; these layers run in torch SDPA", BACKEND_NAME, what)
