"""Attention for video diffusion on AMD MI300X (gfx942).

`attention` runs bf16 attention with head dim 128 on ROCm tensors, and on CPU tensors in a simulated
MI300X that executes the very same code object. GPUs without a code object here run it in Triton.
"""

import importlib.util as _importlib_util

from .rounding import RoundMode

__all__ = ["LiteAttention", "RoundMode", "attention", "attention_varlen", "prepare"]

if _importlib_util.find_spec("torch") is not None:
    from .dispatch import prepare
    from .lite import LiteAttention
    from .ops import attention
    from .varlen import attention_varlen


def __getattr__(name):
    if name == "__version__":
        from importlib.metadata import version

        return version("liteattention_rocm")
    if name in __all__:
        raise ImportError(
            f"liteattention_rocm.{name} needs PyTorch, which is not installed: install its ROCm build on "
            "an MI300X, any build for the simulated one"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
