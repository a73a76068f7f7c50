"""AITER's own forward kernels, run in the simulator: the peer that results are compared with.

The code objects come from the `amd-aiter` wheel; `python tools/fetch_aiter.py` puts them into `.aiter/`.
"""

import contextlib
import functools
import os
import struct
from pathlib import Path

import torch

from . import arguments, simulator, views
from .code_object import parse
from .rounding import ROUNDINGS, rounding_name

DIRECTORY_VARIABLE = "LITEATTENTION_ROCM_AITER_HSA"
DEFAULT_DIRECTORY = ".aiter"
_FOLDERS = (
    "aiter_meta/hsa/gfx942/fmha_v3_fwd/MI300",
    "hsa/gfx942/fmha_v3_fwd/MI300",
    "gfx942/fmha_v3_fwd/MI300",
    "fmha_v3_fwd/MI300",
    "MI300",
    ".",
)
QUERY_ROWS_PER_WORKGROUP = 256
THREADS_PER_WORKGROUP = 512
_TUNING_OPTION = 5  # what AITER's host passes to its kernels without a causal mask
_ARGUMENT_BYTES = 656
_SLOT_BYTES = 16


def file_name(rounding) -> str:
    """Name of the code object of a rounding mode in AITER's wheel."""
    return f"fwd_hd128_bf16_{rounding_name(rounding)}.co"


def find(directory=None) -> Path:
    """The folder that holds AITER's three forward code objects for MI300.

    Args:
        directory: the folder itself, or one above it in AITER's wheel; else what the environment variable
            LITEATTENTION_ROCM_AITER_HSA names; else `.aiter` in the current folder.

    Raises:
        FileNotFoundError: they are not there; the sentence says how to get them.
    """
    root = Path(directory or os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)
    for folder in _FOLDERS:
        candidate = root / folder
        if all((candidate / file_name(rounding)).is_file() for rounding in ROUNDINGS):
            return candidate
    raise FileNotFoundError(
        f"AITER's code objects are not under {root}: run `python tools/fetch_aiter.py` in the repository, "
        f"or let {DIRECTORY_VARIABLE} name the folder that holds {file_name('rtz')}"
    )


def kernel_name(code_object: bytes) -> str:
    """The one kernel of one of AITER's code objects."""
    (kernel,) = parse(code_object).kernels
    return kernel.name


@functools.cache
def _module(file: Path) -> tuple[simulator.Module, str]:
    code_object = file.read_bytes()
    return simulator.Module(code_object), kernel_name(code_object)


def _pack(slots) -> bytes:
    """Kernel arguments from (struct format, value) pairs: a slot of 16 bytes each."""
    packed = bytearray(_ARGUMENT_BYTES)
    for index, (kind, value) in enumerate(slots):
        struct.pack_into("<" + kind, packed, index * _SLOT_BYTES, value)
    return bytes(packed)


def _addressable(tensor, row_dim: int):
    # The kernel bounds its accesses by rows × row stride, so rows may not lie on top of each other.
    expanded = tensor.shape[row_dim] > 1 and tensor.stride(row_dim) < arguments.HEAD_DIM
    return tensor.contiguous() if expanded else views.addressable(tensor, row_dim)


def _byte_strides(name, tensor, dimensions) -> dict[str, int]:
    batch, head, row = (stride * tensor.element_size() for stride in views.kernel_strides(tensor, dimensions))
    strides = {"batch": batch, "head": head, "row": row or arguments.HEAD_DIM * tensor.element_size()}
    for dimension, stride in strides.items():
        if stride >= 2**31:
            raise ValueError(
                f"{name} must have a {dimension} stride below 2^31 bytes for AITER's kernel, got {stride}"
            )
    return strides


def forward(q, k, v, *, rounding="rtz", scale=None, layout="bshd", return_lse=False, directory=None):
    """softmax(q kᵀ · scale) v by AITER's code object, simulated.

    Args:
        q, k, v, scale, layout, rounding, return_lse: as for `liteattention_rocm.attention`; CPU tensors
            only. The default rounding is what SGLang's AITER backend passes. A negative scale overflows in
            this kernel, whose running maximum is that of the unscaled scores.
        directory: where the code objects are, see `find`.

    Returns:
        bfloat16 of q's shape; with return_lse also float32 [batch, heads, seqlen_q], natural logarithm.

    Raises:
        TypeError, ValueError: as `liteattention_rocm.attention`, and a stride or span of 2^31 bytes or more.
        FileNotFoundError: the code objects are missing.
        SimulatorError: the kernel failed; the message says where.
    """
    arguments.check_tensor_types(q=q, k=k, v=v)
    rounding, scale = arguments.check_options(layout, rounding, scale)
    sizes = arguments.check_inputs(q, k, v, layout)
    if q.device.type != "cpu":
        raise ValueError(f"q must be a CPU tensor: AITER's code object runs in the simulator, got {q.device}")
    module, kernel = _module(find(directory).resolve() / file_name(rounding))
    dimensions = arguments.LAYOUTS[layout]
    q, k, v = (_addressable(tensor, dimensions[2]) for tensor in (q, k, v))
    out = q.new_empty(sizes.out_shape(layout))
    lse = q.new_empty(sizes.lse_shape(), dtype=torch.float32)
    if not sizes.empty:
        packed = _pack(_slots(q, k, v, out, lse, sizes, dimensions, scale, return_lse))
        grid = (-(-sizes.seqlen_q // QUERY_ROWS_PER_WORKGROUP), sizes.heads, sizes.batch)
        with contextlib.ExitStack() as memory:
            for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out), ("lse", lse)):
                memory.enter_context(simulator.register(tensor, name, name in ("out", "lse")))
            module.launch(kernel, grid, (THREADS_PER_WORKGROUP, 1, 1), packed)
    return (out, lse) if return_lse else out


def pack_arguments(q, k, v, out, lse) -> bytes:
    """The kernel's arguments for tensors in layout "bshd" that it can address, scale 1/sqrt(128), no lse.

    `lse` [batch, heads, seqlen_q] only lends its address.
    """
    sizes = arguments.check_inputs(q, k, v, "bshd")
    scale = arguments.HEAD_DIM**-0.5
    return _pack(_slots(q, k, v, out, lse, sizes, arguments.LAYOUTS["bshd"], scale, False))


def _slots(q, k, v, out, lse, sizes, dimensions, scale, return_lse):
    """The kernel's arguments in AITER's order (asm_mha_fwd's argument struct)."""
    of_q, of_k, of_v, of_out = (
        _byte_strides(name, tensor, dimensions)
        for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out))
    )
    return [
        *(("Q", tensor.data_ptr()) for tensor in (out, q, k, v, lse)),
        ("f", scale),
        ("i", sizes.seqlen_q),
        ("i", of_q["row"]),
        ("I", of_q["row"] * QUERY_ROWS_PER_WORKGROUP),
        ("i", of_q["head"]),
        ("i", of_q["batch"]),
        ("i", sizes.heads // sizes.kv_heads),
        *(("i", of_k[dimension]) for dimension in ("row", "head", "batch")),
        ("i", _TUNING_OPTION),
        ("i", int(return_lse)),
        ("i", sizes.seqlen_kv),
        ("i", arguments.HEAD_DIM),
        ("i", arguments.HEAD_DIM),
        ("i", sizes.heads),
        *(("i", of_v[dimension]) for dimension in ("row", "head", "batch")),
        *(("i", of_out[dimension]) for dimension in ("row", "head", "batch")),
        ("Q", 0),  # per-batch query lengths
        ("Q", 0),  # per-batch KV lengths
        ("i", sizes.seqlen_q * lse.element_size()),
    ]
