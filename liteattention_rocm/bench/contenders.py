"""What is compared: our kernels, AITER's, torch's SDPA and Modular MAX, each as a call of fixed inputs."""

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .. import _C, aiter_kernel, attention, dispatch
from ..arguments import HEAD_DIM
from ..rounding import RoundMode

AITER_DISTRIBUTIONS = ("amd-aiter", "aiter")
MAX_DISTRIBUTIONS = ("modular", "max")


@dataclass(frozen=True)
class Contender:
    """One way to compute attention of fixed q, k and v [batch, sequence, heads, 128].

    Attributes:
        name: "ours:rtz", "aiter:rtz", "aiter-file:rtz", "aiter_sage", "torch_sdpa" or "max".
        call: puts the work on the current stream and returns the output; where `own_stream`, returns when it
            is done.
        facts: versions and hashes, as the report prints them.
        rounding: the mode, where the contender has modes.
        own_stream: it runs on a stream that device events do not see, and is timed by the host's clock.
    """

    name: str
    call: Callable[[], torch.Tensor]
    facts: dict[str, str] = field(default_factory=dict)
    rounding: str | None = None
    own_stream: bool = False


def sentence(error: Exception) -> str:
    """An exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _version(distributions) -> str | None:
    for name in distributions:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def sha256(path: Path) -> str:
    """Of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _ours(q, k, v, rounding: str) -> Contender:
    kernel = dispatch.serving(q.device)
    facts = {"version": importlib.metadata.version("liteattention_rocm"), "kernel": kernel.name}
    if kernel.name == "hip":
        image = _C.code_object(kernel.target.architecture)
        sizes = (q.shape[0], q.shape[2], k.shape[2], q.shape[1], k.shape[1])
        facts["planned kernel"] = _C.plan(*sizes, kernel.target.compute_units)["kernel"]
        facts["code object sha256"] = hashlib.sha256(image).hexdigest()
    return Contender(f"ours:{rounding}", lambda: attention(q, k, v, rounding=rounding), facts, rounding)


def installed_aiter_files() -> Path | None:
    """The folder of code objects that the installed AITER loads, None where it is not found."""
    places = [os.environ.get("AITER_ASM_DIR")]
    spec = importlib.util.find_spec("aiter_meta")
    if spec is not None:
        places += [str(Path(place) / "hsa") for place in spec.submodule_search_locations or ()]
    spec = importlib.util.find_spec("aiter")
    if spec is not None:
        places += [str(Path(place).parent / "hsa") for place in spec.submodule_search_locations or ()]
    for place in places:
        try:
            if place:
                return aiter_kernel.find(place)
        except FileNotFoundError:
            continue
    return None


def _aiter(q, k, v, rounding: str) -> Contender:
    aiter = importlib.import_module("aiter")  # RuntimeError where there is no ROCm
    facts = {"version": _version(AITER_DISTRIBUTIONS) or "unknown"}
    folder = installed_aiter_files()
    facts["code object"] = "not found: set AITER_ASM_DIR"
    if folder is not None:
        file = folder / aiter_kernel.file_name(rounding)
        facts |= {"code object": str(file), "code object sha256": sha256(file)}
    if q.shape[1] <= 128:
        facts["note"] = "AITER runs its assembly kernels above 128 query rows only"
    mode = RoundMode[rounding].value

    def call():
        out = aiter.flash_attn_func(q, k, v, return_lse=False, how_v3_bf16_cvt=mode)
        return out[0] if isinstance(out, (tuple, list)) else out  # as the version has it

    return Contender(f"aiter:{rounding}", call, facts, rounding)


def _aiter_file(q, k, v, rounding: str, directory: Path) -> Contender:
    from ..calibration.hip import Device

    file = aiter_kernel.find(directory) / aiter_kernel.file_name(rounding)
    code_object = file.read_bytes()
    module, kernel = Device(q.device).module(code_object), aiter_kernel.kernel_name(code_object)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device=q.device)
    grid = (-(-q.shape[1] // aiter_kernel.QUERY_ROWS_PER_WORKGROUP), q.shape[2], q.shape[0])
    block = (aiter_kernel.THREADS_PER_WORKGROUP, 1, 1)

    def call():
        out = torch.empty_like(q)
        packed = aiter_kernel.pack_arguments(q, k, v, out, lse)
        module.launch(kernel, grid, block, packed, (q, k, v, out, lse))
        return out

    facts = {"code object": str(file), "code object sha256": sha256(file), "launched by": "this command"}
    return Contender(f"aiter-file:{rounding}", call, facts, rounding)


def _aiter_sage(q, k, v) -> Contender:
    sage = importlib.import_module("aiter.ops.triton.attention.fav3_sage").fav3_sage_wrapper_func
    facts = {"version": _version(AITER_DISTRIBUTIONS) or "unknown", "note": "quantises q, k and v itself"}
    return Contender("aiter_sage", lambda: sage(q, k, v), facts)


def _torch_sdpa(q, k, v) -> Contender:
    query, key, value = (x.transpose(1, 2) for x in (q, k, v))
    grouped = {"enable_gqa": True} if q.shape[2] != k.shape[2] else {}
    sdpa = torch.nn.functional.scaled_dot_product_attention
    facts = {"version": f"torch {torch.__version__}"}
    return Contender("torch_sdpa", lambda: sdpa(query, key, value, **grouped).transpose(1, 2), facts)


def _max(q, k, v) -> Contender:
    """Through MAX's graph API; its driver has its own stream."""
    driver, dtype = importlib.import_module("max.driver"), importlib.import_module("max.dtype")
    graph, kernels = importlib.import_module("max.graph"), importlib.import_module("max.nn.kernels")
    engine = importlib.import_module("max.engine")
    device = driver.Accelerator(q.device.index or 0)
    reference = graph.DeviceRef.GPU(q.device.index or 0)
    types = [graph.TensorType(dtype.DType.bfloat16, tuple(x.shape), reference) for x in (q, k, v)]
    with graph.Graph("attention", input_types=types) as made:
        inputs = [value.tensor for value in made.inputs]
        null_mask = kernels.MHAMaskVariant.NULL_MASK
        made.output(kernels.flash_attention_gpu(*inputs, mask_variant=null_mask, scale=HEAD_DIM**-0.5))
    model = engine.InferenceSession(devices=[device]).load(made)
    tensor = getattr(driver, "Buffer", None) or driver.Tensor  # the name since 26.1, and the one before
    operands = [tensor.from_dlpack(x) for x in (q, k, v)]

    def call():
        (out,) = model.execute(*operands)
        device.synchronize()
        return torch.from_dlpack(out)

    facts = {"version": _version(MAX_DISTRIBUTIONS) or "unknown", "note": "timed by the host's clock"}
    return Contender("max", call, facts, own_stream=True)


def contenders(q, k, v, roundings, aiter_hsa: Path | None = None) -> tuple[list[Contender], dict[str, str]]:
    """Everything that can compute softmax(q kᵀ/√128) v here.

    Args:
        q, k, v: bfloat16 [batch, sequence, heads, 128], contiguous, on one device.
        roundings: the modes of ours and of AITER's.
        aiter_hsa: a folder of AITER's code objects to launch beside the installed AITER.

    Returns:
        The contenders, ours first, and by name why others are absent. Nobody but ours is required.
    """
    makers = {f"ours:{rounding}": functools.partial(_ours, q, k, v, rounding) for rounding in roundings}
    for rounding in roundings:
        makers[f"aiter:{rounding}"] = functools.partial(_aiter, q, k, v, rounding)
        if aiter_hsa is not None:
            makers[f"aiter-file:{rounding}"] = functools.partial(_aiter_file, q, k, v, rounding, aiter_hsa)
    makers["aiter_sage"] = functools.partial(_aiter_sage, q, k, v)
    makers["torch_sdpa"] = functools.partial(_torch_sdpa, q, k, v)
    makers["max"] = functools.partial(_max, q, k, v)
    found, absent = [], {}
    for name, make in makers.items():
        try:
            found.append(make())
        except Exception as error:  # whatever another package raises must not end the comparison
            if name.startswith("ours") or (name.startswith("aiter-file") and aiter_hsa is not None):
                raise
            absent[name] = sentence(error)
    return found, absent
