"""Which kernel serves a tensor: the HIP code object, Triton, or plain PyTorch.

ROCm devices with a code object here run it, and so do CPU tensors, simulated. Other GPUs run the Triton
kernel, if Triton is installed and serves them. The environment variable LITEATTENTION_ROCM_KERNEL forces one:
`hip`, `triton` or `reference`.
"""

import functools
import importlib.util
import logging
import os
from dataclasses import dataclass

import torch

from . import runtime

KERNEL_VARIABLE = "LITEATTENTION_ROCM_KERNEL"
KERNELS = ("hip", "triton", "reference")
TRITON_ARCHITECTURES = ("gfx90a", "gfx942", "gfx950")
TRITON_CAPABILITY = (8, 0)  # of NVIDIA devices: the first with bf16 matrix instructions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hip:
    """The embedded code object, through the HIP library of a target."""

    target: runtime.Target
    name = "hip"

    def launch(self, inputs, out, lse, sizes, *, layout, scale, rounding) -> None:
        runtime.launch(self.target, inputs, out, lse, sizes, layout=layout, scale=scale, rounding=rounding)


@dataclass(frozen=True)
class Triton:
    """The Triton kernel, compiled at its first use for the architecture."""

    architecture: str
    name = "triton"

    def launch(self, inputs, out, lse, sizes, *, layout, scale, rounding) -> None:
        from .triton import attention

        attention.forward(*inputs, out, lse, sizes, layout=layout, scale=scale, rounding=rounding)


@dataclass(frozen=True)
class Reference:
    """`reference.replica`: the kernel's rounding rules in plain PyTorch, all scores of a tile in memory."""

    name = "reference"

    def launch(self, inputs, out, lse, sizes, *, layout, scale, rounding) -> None:
        if sizes.empty:
            return
        from . import reference

        result, log_sum = reference.replica(*inputs, scale=scale, layout=layout, rounding=rounding)
        out.copy_(result)
        if lse.numel():
            lse.copy_(log_sum)


def serving(device: torch.device) -> Hip | Triton | Reference:
    """What serves tensors of a device.

    Raises:
        ValueError: a device type that nothing serves, or a value of LITEATTENTION_ROCM_KERNEL.
        RuntimeError: nothing that may serve the device is there; the sentence says what would.
    """
    forced = os.environ.get(KERNEL_VARIABLE) or None
    if forced is not None and forced not in KERNELS:
        raise ValueError(f"{KERNEL_VARIABLE} must be one of {', '.join(KERNELS)}, got {forced!r}")
    if forced == "reference":
        return Reference()
    if forced == "triton":
        return Triton(_triton_architecture(device))
    if forced == "hip" or device.type != "cuda" or runtime.has_code_object(device):
        return Hip(runtime.target(device))
    try:
        architecture = _triton_architecture(device)
    except RuntimeError as error:
        try:
            runtime.target(device)
        except RuntimeError as refusal:
            raise RuntimeError(f"{refusal}; {error}") from None
        raise
    _say_once(architecture)
    return Triton(architecture)


@functools.cache
def _say_once(architecture: str) -> None:
    logger.warning(
        "liteattention_rocm has no code object for %s: attention runs in its Triton kernel", architecture
    )


def _triton_architecture(device: torch.device) -> str:
    """The architecture that Triton serves a device as. RuntimeError where it doesn't, with the reason."""
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError("Triton, which could serve other GPUs, is not installed")
    if device.type == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise RuntimeError(
                "Triton runs CPU tensors in its interpreter only: set TRITON_INTERPRET=1 before Python starts"
            )
        return "interpreter"
    if device.type != "cuda":
        raise RuntimeError(f"Triton does not serve device {str(device)!r}")
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is None:
        capability = properties.major, properties.minor
        if capability < TRITON_CAPABILITY:
            raise RuntimeError(
                f"the Triton kernel needs compute capability 8.0, {properties.name} has "
                f"{capability[0]}.{capability[1]}"
            )
        return f"sm_{capability[0]}{capability[1]}"
    architecture = runtime.architecture_name(properties.gcnArchName)
    if architecture not in TRITON_ARCHITECTURES:
        raise RuntimeError(
            f"the Triton kernel serves {', '.join(TRITON_ARCHITECTURES)} and NVIDIA devices, not {architecture}"
        )
    return architecture
