"""The attention backend that SGLang's layers call, for self- and cross-attention."""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from sglang.multimodal_gen.runtime.layers.attention.backends.attention_backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
)
from sglang.multimodal_gen.runtime.layers.attention.backends.sdpa import SDPAImpl
from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum

import liteattention_rocm
from liteattention_rocm import dispatch
from sglang_integration import state
from sglang_integration.plugin import BACKEND_NAME
from sglang_integration.settings import configured_settings

HEAD_SIZE = 128
PLATFORM_VARIABLE = "SGLANG_DIFFUSION_PLATFORM_OVERRIDE"
AITER_MODULE = "sglang.multimodal_gen.runtime.layers.attention.backends.aiter"

logger = logging.getLogger(__name__)
_failures: list[str] = []  # why this process serves its layers with AITER


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
            allowed; the CPU, where nobody asked for it and there is a GPU.
        RuntimeError: neither a code object here nor Triton serves the device, there is no HIP library, or the
            kernel failed the self-test on it.
    """
    if head_size != HEAD_SIZE:
        raise ValueError(f"head size {head_size} is not served (allowed: {HEAD_SIZE})")
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"dtype {dtype} is not served (allowed: torch.bfloat16)")
    if device.type == "cpu" and torch.version.hip and torch.cuda.is_available() and not cpu_named():
        raise ValueError(
            "SGLang took the CPU for its platform although PyTorch sees a ROCm GPU, and every layer would be "
            "simulated: SGLang finds ROCm through the package amdsmi, which is missing or fails here "
            "(python -c 'import amdsmi; amdsmi.amdsmi_init()' says how). Mend it, or set "
            f"{PLATFORM_VARIABLE}=rocm; =cpu if the simulation is what you want"
        )
    settings = configured_settings()
    if settings.fallback == "aiter":
        aiter_layer()
    liteattention_rocm.prepare(device, rounding=settings.rounding)


def cpu_named() -> bool:
    """Whether the environment has SGLang take the CPU."""
    return os.environ.get(PLATFORM_VARIABLE, "").strip().lower() == "cpu"


def aiter_layer() -> type[AttentionImpl]:
    """The layers of SGLang's AITER backend. ValueError where they can't be imported: then they don't help."""
    try:
        return importlib.import_module(AITER_MODULE).AITerImpl
    except Exception as error:
        raise ValueError(f"fallback=aiter needs SGLang's AITER backend: {error}") from error


def may_fall_back(error: RuntimeError) -> bool:
    """Whether the configuration has AITER serve what failed so; the first failure is logged, as the last."""
    if configured_settings().fallback != "aiter" or isinstance(
        error, torch.OutOfMemoryError | NotImplementedError
    ):
        return False
    if not _failures:
        _failures.append(str(error))
        logger.error("%s gives way to AITER in this process: %s", BACKEND_NAME, error)
    return True


@torch.compiler.assume_constant_result
def serves_packed(device: torch.device) -> bool:
    """Whether our kernel for packed sequences serves a device; Triton has none."""
    return dispatch.serving(device).name != "triton"


class MetadataFreeBackend(AttentionBackend):
    """A backend whose layers need nothing but query, key and value."""

    accept_output_buffer = False

    @staticmethod
    def get_metadata_cls() -> type[AttentionMetadata]:
        return AttentionMetadata

    @classmethod
    def get_builder_cls(cls) -> type:
        raise NotImplementedError(f"{cls.get_enum().name.lower()} takes no attention metadata")


class LiteAttentionBackend(MetadataFreeBackend):
    """Attention backend ``liteattention_rocm``: bfloat16 attention, head size 128, on gfx942."""

    @staticmethod
    def get_enum() -> AttentionBackendEnum:
        return AttentionBackendEnum[BACKEND_NAME.upper()]

    @staticmethod
    def get_impl_cls() -> type[LiteAttentionImpl]:
        return LiteAttentionImpl

    @classmethod
    def supports_ring_rotation(cls) -> bool:
        """The kernel returns the log-sum-exp by which a ring's partial outputs are merged."""
        return True


class LiteAttentionImpl(AttentionImpl):
    """One attention layer, self or cross.

    SGLang selects backends by head size and dtype alone. What only the layer or the call reveals, causal
    attention and float16 tensors, goes to SGLang's torch SDPA, and the log says so once.

    Tiles are skipped, where the configuration asks for it, in a layer that SGLang calls a self-attention,
    within a denoising loop.

    Args:
        num_heads: query heads on this rank.
        head_size: channels of one head.
        softmax_scale: factor on the scores before the softmax.
        causal: whether a query sees only keys up to its own position.
        num_kv_heads: key and value heads on this rank; they divide ``num_heads``.
        prefix: the layer's name in the model, followed by ``.impl``.
        is_cross_attention: the layer's own word; a layer that doesn't say never skips.

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
        is_cross_attention: bool | None = None,
        **extra_impl_args: Any,
    ) -> None:
        if num_kv_heads is not None and num_heads % num_kv_heads != 0:
            raise ValueError(f"num_heads={num_heads} is not a multiple of num_kv_heads={num_kv_heads}")
        self.softmax_scale = softmax_scale
        self.causal = causal
        self.settings = configured_settings()
        self.name = prefix.removesuffix("impl").removesuffix(".")
        self.skips = self.settings.skipping and is_cross_attention is False and not causal
        if causal:
            warn_fallback("causal attention")
        self.layer_arguments = {
            "num_heads": num_heads,
            "head_size": head_size,
            "causal": causal,
            "softmax_scale": softmax_scale,
            "num_kv_heads": num_kv_heads,
            "prefix": prefix,
            "is_cross_attention": bool(is_cross_attention),
            **extra_impl_args,
        }
        self.sdpa = SDPAImpl(**self.layer_arguments)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_metadata: AttentionMetadata | None = None,
        *,
        return_softmax_lse: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Attention of ``query`` [B, Sq, H, 128] over ``key`` and ``value`` [B, Skv, Hkv, 128], any strides.

        Returns:
            The output [B, Sq, H, 128] in the query's dtype. With ``return_softmax_lse``, as SGLang's ring
            calls it, also the log-sum-exp of the scaled scores, float32 [B, H, Sq], natural logarithm.

        Raises:
            NotImplementedError: the log-sum-exp of a layer or of tensors that torch SDPA serves.
        """
        if return_softmax_lse:
            return self.partial_forward(query, key, value)
        if self.causal or query.dtype != torch.bfloat16:
            if not self.causal:
                warn_fallback(str(query.dtype))
            return self.sdpa.forward(query, key, value, attn_metadata)
        if self.settings.fallback != "none":
            return self.guarded(self.served_forward, "forward", query, key, value)
        return self.served_forward(query, key, value)

    def served_forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (self.skipping_forward if self.skips else self.dense_forward)(query, key, value)

    def forward_varlen(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        cu_seqlens: torch.Tensor,
        max_seqlen: int,
        cu_seqlens_host: tuple[int, ...] | None = None,
    ) -> torch.Tensor:
        """Attention within each of several packed sequences, in one launch. Nothing is skipped.

        Args:
            query: [T, H, 128].
            key, value: [T, Hkv, 128].
            cu_seqlens: [sequences + 1], row numbers from 0 to T.
            max_seqlen: rows of the longest sequence, padding apart.
            cu_seqlens_host: the same numbers as ``cu_seqlens``, where they are known.

        Returns:
            The output [T, H, 128] in the query's dtype.
        """
        lengths = {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen, "cu_seqlens_host": cu_seqlens_host}
        if self.causal or query.dtype != torch.bfloat16:
            return self.packed_elsewhere(query, key, value, **lengths)
        if self.settings.fallback != "none":
            return self.guarded(self.packed_forward, "forward_varlen", query, key, value, **lengths)
        return self.packed_forward(query, key, value, **lengths)

    def packed_elsewhere(self, query, key, value, **lengths) -> torch.Tensor:
        if not self.causal:
            warn_fallback(f"packed sequences of {query.dtype} on {query.device.type}")
        return self.sdpa.forward_varlen(query, key, value, **lengths)

    def packed_forward(self, query, key, value, *, cu_seqlens, max_seqlen, cu_seqlens_host) -> torch.Tensor:
        if not serves_packed(query.device):
            lengths = {"max_seqlen": max_seqlen, "cu_seqlens_host": cu_seqlens_host}
            return self.packed_elsewhere(query, key, value, cu_seqlens=cu_seqlens, **lengths)
        if cu_seqlens_host is not None:  # of padding too, which may be longer
            max_seqlen = max(end - begin for begin, end in itertools.pairwise(cu_seqlens_host))
        cu_seqlens = cu_seqlens.to(device=query.device, dtype=torch.int32)
        return liteattention_rocm.attention_varlen(
            query,
            key,
            value,
            cu_seqlens,
            cu_seqlens,
            max_seqlen,
            max_seqlen,
            scale=self.softmax_scale,
            rounding=self.settings.rounding,
        )

    @torch.compiler.disable
    def guarded(self, serve: Callable[..., torch.Tensor], method: str, *tensors, **options) -> torch.Tensor:
        """Our kernel, until a launch of it fails in this process; from then on SGLang's AITER backend.

        Never compiled: a compiled graph can't change its mind.
        """
        if not _failures or not self.default_scale:
            try:
                return serve(*tensors, **options)
            except RuntimeError as error:
                if not self.default_scale or not may_fall_back(error):
                    raise
        return getattr(self.aiter, method)(*tensors, **options)

    @property
    def default_scale(self) -> bool:
        """Whether the softmax scale is the one that SGLang's AITER backend always computes with."""
        return math.isclose(self.softmax_scale, HEAD_SIZE**-0.5, rel_tol=1e-6)

    @functools.cached_property
    def aiter(self) -> AttentionImpl:
        """The same layer in SGLang's AITER backend."""
        return aiter_layer()(**self.layer_arguments)

    def forward_ring_kv_chunk(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of a rank's queries [Tq, H, 128] over one chunk [Tkv, Hkv, 128] of the ring.

        Returns:
            The output [Tq, H, 128], normalised over the chunk, and the log-sum-exp, float32 [H, Tq].

        Raises:
            NotImplementedError: as :meth:`forward` where it is asked for the log-sum-exp.
        """
        out, lse = self.partial_forward(query[None], key[None], value[None])
        return out[0], lse[0]

    def partial_forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Dense attention over a part of the keys, and by how much it weighs among the others."""
        if self.causal or query.dtype != torch.bfloat16:
            reason = "causal attention" if self.causal else f"{query.dtype} (allowed: torch.bfloat16)"
            raise NotImplementedError(f"{BACKEND_NAME} serves no ring attention for {reason}: {self.name}")
        if self.skips:
            warn_ring_is_dense()
        return liteattention_rocm.attention(
            query,
            key,
            value,
            scale=self.softmax_scale,
            layout="bshd",
            rounding=self.settings.rounding,
            return_lse=True,
        )

    def dense_forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return liteattention_rocm.attention(
            query, key, value, scale=self.softmax_scale, layout="bshd", rounding=self.settings.rounding
        )

    @torch.compiler.disable
    def skipping_forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """With the lists of the denoising loop that SGLang is in; dense outside one.

        Never compiled: which lists a call takes is known only when it is made.
        """
        place = state.locate(self.settings)
        if place is None:
            return self.dense_forward(query, key, value)
        return place.run.attend(self, self.name, place, query, key, value, self.softmax_scale)


@functools.cache
def warn_fallback(what: str) -> None:
    """Says once per process that layers with ``what`` are not served by our kernel."""
    logger.warning("%s does not serve %s; these layers run in torch SDPA", BACKEND_NAME, what)


@functools.cache
def warn_ring_is_dense() -> None:
    """Says once per process that a threshold has no effect under ring attention."""
    logger.warning("%s skips nothing under ring attention: every chunk of it is dense", BACKEND_NAME)
