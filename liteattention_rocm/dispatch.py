"""Which kernels serve a tensor: the HIP code object, Triton, or plain PyTorch.

ROCm devices with a code object here run it, and so do CPU tensors, simulated. Other GPUs run the Triton
kernels, if Triton is installed and serves them. The environment variable LITEATTENTION_ROCM_KERNEL forces
one: `hip`, `triton` or `reference`.
"""

import contextlib
import functools
import importlib.util
import logging
import os
from dataclasses import dataclass, replace

import torch

from . import _C, arguments, runtime, views
from .rounding import ROUNDINGS, rounding_name

KERNEL_VARIABLE = "LITEATTENTION_ROCM_KERNEL"
KERNELS = ("hip", "triton", "reference")
TRITON_ARCHITECTURES = ("gfx90a", "gfx942", "gfx950")
TRITON_CAPABILITY = (8, 0)  # of NVIDIA devices: the first with bf16 matrix instructions
MAX_GRID_BATCH = 65535  # programs along z of a grid

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hip:
    """The embedded code object, through the HIP library of a target."""

    target: runtime.Target
    name = "hip"

    def launch(self, call, q, k, v, out, lse) -> None:
        runtime.launch(self.target, call, q, k, v, out, lse)


@dataclass(frozen=True)
class Triton:
    """The Triton kernels, compiled at their first use for the architecture."""

    architecture: str
    name = "triton"

    def launch(self, call, q, k, v, out, lse) -> None:
        _require_fast(self, call.variant)
        from .triton import attention

        options = {"layout": call.layout, "scale": call.scale, "rounding": call.rounding}
        lse = out.new_empty(0, dtype=torch.float32) if lse is None else lse
        for tensors, part in _launches((q, k, v, out, lse), call.sizes, call.layout):
            with _current(out.device):
                attention.forward(*tensors, part, **options)

    def skip_launch(
        self, inputs, out, lse, sizes, read_list, write_list, *, threshold, backward, layout, scale, rounding
    ) -> None:
        """Over the tiles of read_list; votes are ORed into write_list and leave this call's output alone."""
        from .triton import attention

        options = {"layout": layout, "scale": scale, "rounding": rounding}
        for tensors, part in _launches((*inputs, out, lse, read_list, write_list), sizes, layout):
            *tensors, read, write = tensors
            with _current(out.device):
                attention.skip_forward(
                    *tensors, part, read, write, threshold=threshold, backward=backward, **options
                )


def _require_fast(kernel, variant: str) -> None:
    if variant != "fast":
        raise RuntimeError(
            f"variant {variant!r} runs in the HIP code object only, and kernel {kernel.name!r} serves q here"
        )


def _current(device: torch.device):
    """Makes a GPU current: Triton launches on the current device and its current stream."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _launches(tensors, sizes, layout: str):
    """(tensors, sizes) of each launch of a call. Of q, k and v, which lead, unaddressable ones are copied."""
    if sizes.empty:
        return
    row_dim = arguments.LAYOUTS[layout][2]
    tensors = (*(views.addressable(tensor, row_dim) for tensor in tensors[:3]), *tensors[3:])
    for first in range(0, sizes.batch, MAX_GRID_BATCH):
        batch = min(MAX_GRID_BATCH, sizes.batch - first)
        if batch == sizes.batch:
            yield tensors, sizes
        else:
            parts = [x.narrow(0, first, batch) if x.numel() else x for x in tensors]
            yield parts, replace(sizes, batch=batch)


@dataclass(frozen=True)
class Reference:
    """`reference.replica` and `lite.reference`: plain PyTorch, slow, for comparisons."""

    name = "reference"

    def launch(self, call, q, k, v, out, lse) -> None:
        _require_fast(self, call.variant)
        if call.sizes.empty:
            return
        from . import reference

        result, log_sum = reference.replica(
            q, k, v, scale=call.scale, layout=call.layout, rounding=call.rounding
        )
        out.copy_(result)
        if lse is not None and lse.numel():
            lse.copy_(log_sum)

    def skip_launch(
        self, inputs, out, lse, sizes, read_list, write_list, *, threshold, backward, layout, scale, rounding
    ) -> None:
        """As Triton.skip_launch; float64, of which the output alone is rounded."""
        if sizes.empty:
            return
        from . import reference
        from .lite import lists
        from .lite.reference import step

        visited = lists.unpack(read_list, lists.kv_tiles(sizes.seqlen_kv))
        visited[..., 0] |= ~visited.any(-1)  # a list without tiles is walked as tile 0
        result = step(*inputs, visited, threshold=threshold, backward=backward, scale=scale, layout=layout)
        out.copy_(reference.round_to_bfloat16(result.out.float(), rounding))
        write_list |= lists.pack(result.kept)
        if lse.numel():
            lse.copy_(result.lse)


def forced_kernel() -> str | None:
    """What LITEATTENTION_ROCM_KERNEL forces. ValueError for other than `hip`, `triton` or `reference`."""
    forced = _C.environment(KERNEL_VARIABLE) or None
    if forced is not None and forced not in KERNELS:
        raise ValueError(f"{KERNEL_VARIABLE} must be one of {', '.join(KERNELS)}, got {forced!r}")
    return forced


def serving(device: torch.device) -> Hip | Triton | Reference:
    """What serves tensors of a device.

    Raises:
        ValueError: a device type that nothing serves, or a value of LITEATTENTION_ROCM_KERNEL.
        RuntimeError: nothing that may serve the device is there; the sentence says what would.
    """
    forced = forced_kernel()
    kind = device.type
    if kind == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if forced == "reference":
        return Reference()
    if forced == "triton":
        return Triton(_triton_architecture(device))
    if kind == "cpu":
        path = runtime.cpu_library()
        return _cpu_hip(path, runtime.cpu_compute_units(path))
    if forced == "hip" or kind != "cuda" or runtime.has_code_object(device):
        return _hip(runtime.target(device))
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


def prepare(device, rounding=None) -> None:
    """Gets a device ready, so that a graph capture neither loads nor compiles.

    Where the HIP code object serves the device, loads it. Where the Triton kernel does, compiles it for the
    architecture, without and with skip lists; Triton specialises a kernel for arguments that are 1 or no
    multiple of 16, for a negative scale and for return_lse, and compiles such a one at its first call: run a
    call once before it is captured.

    Args:
        device: what torch.device accepts.
        rounding: a mode, where only its kernels are wanted. On a HIP target it also refuses a device on
            which every dense kernel of that mode that may be launched has failed the self-test.

    Raises:
        ValueError, RuntimeError: the device cannot run attention here; the sentence says which can.
    """
    device = torch.device(device)
    kernel = serving(device)
    if kernel.name == "hip":
        runtime.prepare(device, rounding)
    if kernel.name != "triton" or device.type == "cpu":
        return
    from .lite import lists

    modes = ROUNDINGS if rounding is None else [rounding_name(rounding)]
    options = {"layout": "bshd", "scale": arguments.check_scale(None)}
    q = torch.zeros(2, 256, 2, arguments.HEAD_DIM, dtype=torch.bfloat16, device=device)
    for seqlen_kv in (256, 2048):  # of the configurations for short and for long sequences
        k = q.new_zeros(2, seqlen_kv, *q.shape[2:])
        sizes = arguments.check_inputs(q, k, k, "bshd")
        for mode in modes:
            call = arguments.check_call(q, k, k, None, "bshd", mode)
            kernel.launch(call, q, k, k, torch.empty_like(q), None)
    lse = q.new_empty(0, dtype=torch.float32)
    read = lists.full((2, 2, 2), lists.kv_tiles(seqlen_kv), device)
    for mode in modes:
        for backward in (False, True):
            kernel.skip_launch(
                (q, k, k), torch.empty_like(q), lse, sizes, read, torch.zeros_like(read), threshold=-10.0,
                backward=backward, rounding=mode, **options,
            )  # fmt: skip


@functools.cache
def _cpu_hip(path: str, compute_units: int) -> Hip:
    return Hip(runtime.cpu_target(path, compute_units))


@functools.cache
def _hip(target: runtime.Target) -> Hip:
    return Hip(target)


@functools.cache
def _say_once(architecture: str) -> None:
    logger.warning(
        "liteattention_rocm has no code object for %s: attention runs in its Triton kernel", architecture
    )


@functools.cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def _triton_architecture(device: torch.device) -> str:
    """The architecture that Triton serves a device as. RuntimeError where it doesn't, with the reason."""
    if not _triton_is_installed():
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
            f"the Triton kernel serves {', '.join(TRITON_ARCHITECTURES)} and NVIDIA devices, "
            f"not {architecture}"
        )
    return architecture
