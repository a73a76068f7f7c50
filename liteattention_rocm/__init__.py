"""Attention for video diffusion on AMD MI300X (gfx942).

`attention` runs bf16 attention with head dim 128 on ROCm tensors, and on CPU tensors in a simulated
MI300X that executes the very same code object. GPUs without a code object here run it in Triton.
"""

import importlib as _importlib
import importlib.util as _importlib_util

from .rounding import RoundMode

__all__ = ["LiteAttention", "RoundMode", "attention", "attention_varlen", "prepare"]

_failure = None  # why torch or the compiled module does not load: `doctor` must run all the same

if _importlib_util.find_spec("torch") is not None:
    try:
        from .dispatch import prepare
        from .lite import LiteAttention
        from .ops import attention
        from .varlen import attention_varlen
    except (ImportError, OSError) as error:
        _failure = error


class _NotLoaded:
    """Stands for the compiled module where that does not load: whoever uses it gets a RuntimeError."""

    def __init__(self, error):
        self._error = error

    def __getattr__(self, name):
        raise RuntimeError(
            f"the compiled module does not load: {self._error}; `liteattention-rocm doctor` says more"
        ) from self._error


def __getattr__(name):
    if name == "_C":  # commands import it at their top, and the command line imports all commands
        try:
            return _importlib.import_module("._C", __name__)
        except (ImportError, OSError) as error:
            return _NotLoaded(error)
    if name == "__version__":
        from importlib.metadata import version

        return version("liteattention_rocm")
    if name in __all__ and _failure is not None:
        raise ImportError(
            f"liteattention_rocm.{name} does not load: {_failure}; `liteattention-rocm doctor` says more"
        ) from _failure
    if name in __all__:
        raise ImportError(
            f"liteattention_rocm.{name} needs PyTorch, which is not installed: install its ROCm build on "
            "an MI300X, any build for the simulated one"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
