"""Which HIP library serves a tensor, and one launch on it.

ROCm tensors go to the HIP runtime that torch has loaded, CPU tensors to the simulator or to the library that
the environment variable LITEATTENTION_ROCM_HIP_LIBRARY names.
"""

import contextlib
import functools
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from . import _C, arguments, simulator, verdicts, views
from .rounding import ROUNDINGS, rounding_name

HIP_LIBRARY_VARIABLE = "LITEATTENTION_ROCM_HIP_LIBRARY"
# The dense HIP kernel that runs: "forward" (128 query rows a workgroup), "pingpong" (384), or "", which the
# plan chooses by shape and compute units. Read from the environment once, when this module is imported.
FAMILY_VARIABLE = "LITEATTENTION_ROCM_HIP_KERNEL"
DENSE_FAMILIES = ("pingpong", "forward")
AITER_EXACT_FAMILY = "aiter_exact"  # and the name of the variant that it is
forced_family = os.environ.get(FAMILY_VARIABLE, "")
if forced_family not in ("", *DENSE_FAMILIES):
    raise ValueError(f"{FAMILY_VARIABLE} must be forward, pingpong or empty, got {forced_family!r}")
# In how many pieces the HIP kernels take KV: 1, unsplit; 0, where the plan says that it pays; more, every
# query block in so many. Unset: 0, or 1 where the kernel is forced. Read once, too.
PIECES_VARIABLE = "LITEATTENTION_ROCM_HIP_PIECES"
_pieces = os.environ.get(PIECES_VARIABLE, "")
if _pieces and not (_pieces.isascii() and _pieces.isdigit() and int(_pieces) < 2**31):
    raise ValueError(f"{PIECES_VARIABLE} must be a number from 0 to 2147483647 or empty, got {_pieces!r}")
forced_pieces: int | None = int(_pieces) if _pieces else None
_SIMULATOR = str(simulator.path())
_ROCM = ""  # what _C.open_hip calls ROCm's runtime


@dataclass(frozen=True)
class Target:
    """A device that attention can run on: HIP library, device index there, and what a plan needs of it."""

    hip: int
    device: int
    architecture: str
    compute_units: int
    library: str | None = None  # path of the library that serves CPU tensors


def architecture_name(spelling: str) -> str:
    """The processor in a target: gfx942 of "gfx942:sramecc+:xnack-" or "amdgcn-amd-amdhsa--gfx942"."""
    return spelling.strip().lower().rsplit("--", 1)[-1].split(":", 1)[0]


def _supported() -> str:
    return (
        f"supported are ROCm devices with a code object here ({', '.join(_C.architectures())}: "
        "MI300X, MI300A, MI308X, MI325X) and CPU tensors, which run simulated"
    )


def target(device: torch.device) -> Target:
    """The target that serves tensors of a device.

    Raises:
        ValueError: neither a CPU nor a ROCm device.
        RuntimeError: no code object for its architecture, or no HIP library.
    """
    if device.type == "cpu":
        path = cpu_library()
        return cpu_target(path, cpu_compute_units(path))
    if device.type == "cuda":
        return _rocm_target(torch.cuda.current_device() if device.index is None else device.index)
    raise ValueError(f"q is on device {str(device)!r}; {_supported()}")


def cpu_compute_units(path: str) -> int:
    """Compute units of the library that serves CPU tensors. RuntimeError where it doesn't open."""
    _open_cpu_library(path)
    return simulator.compute_units(path)


def cpu_target(path: str, compute_units: int) -> Target:
    """The target of a library that serves CPU tensors."""
    return Target(_open_cpu_library(path), 0, simulator.ARCHITECTURE, compute_units, path)


def cpu_library() -> str:
    """Path of the HIP library that serves CPU tensors."""
    return _C.environment(HIP_LIBRARY_VARIABLE) or _SIMULATOR


def rocm_library() -> str:
    """Path of the HIP runtime that serves ROCm tensors. RuntimeError where there is none."""
    return _C.library_path(_C.open_hip(_ROCM))


@functools.cache
def _open_cpu_library(path: str) -> int:
    hip = _C.open_hip(path)
    _C.set_interrupt_check(hip)
    return hip


@functools.cache
def _rocm_target(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip is None:
        raise RuntimeError(f"q is on cuda:{index}, an NVIDIA device ({properties.name}); {_supported()}")
    architecture = architecture_name(properties.gcnArchName)
    if architecture not in _C.architectures():
        raise RuntimeError(
            f"q is on cuda:{index} ({properties.name}), whose architecture {architecture} has no code "
            f"object here; {_supported()}"
        )
    return Target(_C.open_hip(_ROCM), index, architecture, properties.multi_processor_count)


@functools.cache
def has_code_object(device: torch.device) -> bool:
    """Whether a device of type "cuda" is a ROCm device that a code object here was compiled for."""
    if torch.version.hip is None:
        return False
    properties = torch.cuda.get_device_properties(device)
    return architecture_name(properties.gcnArchName) in _C.architectures()


def kernel_symbol(family: str, rounding: str) -> str:
    """The code object's kernel of a rounding mode and a family: one of those here, or "skip_forward"."""
    return f"attention_{family}_{rounding}"


def permitted_family(where: Target, sizes, rounding: str, variant: str = "fast") -> str:
    """The dense family to launch: "" for the plan's own choice; another where one is forced or the
    self-test refused the plan's. Variant "aiter_exact" has one family.

    Raises:
        verdicts.RefusedVariant: every family of the variant failed the self-test in this rounding mode.
    """
    if variant == AITER_EXACT_FAMILY:
        verdicts.require(where, kernel_symbol(AITER_EXACT_FAMILY, rounding))
        return AITER_EXACT_FAMILY
    if not verdicts.refused(where):
        return forced_family
    if forced_family:
        verdicts.require(where, kernel_symbol(forced_family, rounding))
        return forced_family
    plan = _C.plan(
        sizes.batch, sizes.heads, sizes.kv_heads, sizes.seqlen_q, sizes.seqlen_kv, where.compute_units
    )
    for family in (plan["kernel"], *DENSE_FAMILIES):
        with contextlib.suppress(verdicts.RefusedVariant):
            verdicts.require(where, kernel_symbol(family, rounding))
            return family
    verdicts.require(where, kernel_symbol(plan["kernel"], rounding))
    return ""


def permitted_pieces(where: Target, family: str, rounding: str) -> int:
    """In how many pieces a launch of a family ("": of the plan's choice) may take KV, as `_C.plan` counts
    them: 1 for "aiter_exact", and where the self-test refused a kernel that splits or the merge.

    Raises:
        verdicts.RefusedVariant: a split is forced that the self-test refused.
    """
    if family == AITER_EXACT_FAMILY:
        return 1
    kernels = [*(f"{one}_split" for one in ([family] if family else DENSE_FAMILIES)), "merge"]
    return _pieces_with(where, [kernel_symbol(kernel, rounding) for kernel in kernels])


def permitted_skip_pieces(where: Target, schedule: str, rounding: str) -> int:
    """The same for a skipping launch on a schedule, "forward" or "pingpong"."""
    return _pieces_with(where, split_skip_kernels(schedule, rounding))


def split_skip_kernels(schedule: str, rounding: str) -> list[str]:
    """The code object's kernels of a skipping launch that splits KV."""
    kernels = [kernel_symbol(kernel, rounding) for kernel in (f"skip_{schedule}_split", "skip_merge")]
    return ["attention_skip_pieces", *kernels]


def planned_pieces() -> int:
    """In how many pieces launches take KV, as `_C.plan` counts them, whatever the self-test says."""
    return forced_pieces if forced_pieces is not None else 1 if forced_family else 0


def _pieces_with(where: Target, kernels) -> int:
    pieces = planned_pieces()
    if pieces == 1 or not verdicts.refused(where):
        return pieces
    try:
        for kernel in kernels:
            verdicts.require(where, kernel)
    except verdicts.RefusedVariant:
        if forced_pieces:
            raise
        return 1
    return pieces


def permitted_kernel(where: Target, call: arguments.Call) -> tuple[str, int]:
    """permitted_family and permitted_pieces of a call."""
    if call.variant != AITER_EXACT_FAMILY and not verdicts.refused(where):  # the usual case, at a glance
        if forced_pieces is not None:
            return forced_family, forced_pieces
        return forced_family, 1 if forced_family else 0
    family = permitted_family(where, call.sizes, call.rounding, call.variant)
    return family, permitted_pieces(where, family, call.rounding)


def prepare(device, rounding: str | None = None) -> None:
    """Loads the code object for a device, so that later calls upload nothing: call it before graph capture.

    Args:
        device: what torch.device accepts.
        rounding: also refuse the device if every kernel of this rounding mode failed the self-test on it.

    Raises:
        ValueError, RuntimeError: the device cannot run attention here; the sentence says which can.
    """
    where = target(torch.device(device))
    if rounding is not None:
        permitted_family(where, arguments.Sizes(1, 1, 1, 1, 1), rounding_name(rounding))
    _C.prepare(where.hip, where.device, where.architecture, where.compute_units)


@contextlib.contextmanager
def stream_for(where: Target, tensors: dict[str, torch.Tensor], written: Collection[str]) -> Iterator[int]:
    """The stream to launch on: torch's current one of the device, as an integer.

    A library that serves CPU tensors launches on its default stream, 0, and has the tensors registered
    meanwhile: under their names, read-only unless named in `written`.
    """
    if where.library is None:
        yield torch.cuda.current_stream(where.device).cuda_stream
        return
    with contextlib.ExitStack() as memory:
        for name, tensor in tensors.items():
            memory.enter_context(simulator.register(tensor, name, name in written, library=where.library))
        yield 0


def launch(where: Target, call: arguments.Call, q, k, v, out, lse) -> None:
    """Launches one forward call on the current stream, unless there is nothing to write.

    The arguments have passed their checks and the kernel can address `out`. Of q, k and v, what it cannot
    address is copied first. `lse` is None or empty where it is not wanted.
    """
    if call.empty:
        return
    family, pieces = permitted_kernel(where, call)
    query, key, value = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if call.addressable and not (query | key | value) % views.ALIGNMENT_BYTES:
        kept = where.hip, where.device, where.compute_units, family, pieces, out.stride()
        bound = call.bound.get(kept)
        if bound is None:
            bound = call.bound[kept] = _bind(where, call, family, pieces, q, k, v, out)
    else:
        q, k, v = (views.addressable(x, arguments.LAYOUTS[call.layout][2]) for x in (q, k, v))
        query, key, value = q.data_ptr(), k.data_ptr(), v.data_ptr()
        bound = _bind(where, call, family, pieces, q, k, v, out)
    stream = 0 if where.library is not None else torch.cuda.current_stream(where.device).cuda_stream
    log_sum = 0 if lse is None else lse.data_ptr()
    if bound.workspace_bytes:
        # Of the stream that the launch is on, so that it may be used again right after it.
        workspace = out.new_empty(bound.workspace_bytes, dtype=torch.uint8)
        bound.launch(query, key, value, out.data_ptr(), log_sum, workspace.data_ptr(), stream)
    else:
        bound.launch(query, key, value, out.data_ptr(), log_sum, 0, stream)


def _bind(where: Target, call: arguments.Call, family: str, pieces: int, q, k, v, out):
    """The launch of a call, complete but for addresses and stream."""
    sizes, dimensions = call.sizes, arguments.LAYOUTS[call.layout]
    return _C.BoundForward(
        where.hip,
        where.device,
        where.architecture,
        where.compute_units,
        sizes.batch,
        sizes.heads,
        sizes.kv_heads,
        sizes.seqlen_q,
        sizes.seqlen_kv,
        *(views.kernel_strides(x, dimensions) for x in (q, k, v, out)),
        call.scale,
        ROUNDINGS[call.rounding].value,
        family,
        pieces,
    )
