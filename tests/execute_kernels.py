"""One-wave kernels in gfx942 assembly: rows of 64 dwords in, rows of 64 dwords out.

A body finds its inputs in v10, v11, ... and the lane's number times 4 in v1; s[4:5] and s[6:7] are the
input's and the output's address. `store` writes a register as the next output row.
"""

import contextlib
import struct

import numpy as np
import torch

import device_compiler
from liteattention_rocm import simulator

LANES = 64
POISON = 0xA5A5A5A5
NAME = "kernel"
_MAX_INPUTS = 16  # a 13-bit offset reaches no further
# What `run` checks; None: whatever the options say. Bodies here are about results and leave out wait states.
checks: str | None = "waits"


_recordings: list[list[bytes]] = []


@contextlib.contextmanager
def recorded():
    """A list of the code objects that `assemble` makes within."""
    images: list[bytes] = []
    _recordings.append(images)
    try:
        yield images
    finally:
        _recordings.remove(images)


def store(*registers) -> str:
    """Lines that write registers, "v20" or "a3", as the next output rows."""
    lines = []
    for register in registers:
        lines.append(f"global_store_dword v1, {register}, s[6:7]")
        lines.append("s_add_u32 s6, s6, 256\n s_addc_u32 s7, s7, 0")
    return "\n".join(lines)


def assemble(
    body: str, *, inputs: int = 0, lds: int = 0, scratch: int = 0, flush_denormals: bool = False
) -> bytes:
    """The code object of a kernel that loads `inputs` rows and then runs `body`."""
    loads = "\n".join(f"global_load_dword v{10 + i}, v1, s[4:5] offset:{256 * i}" for i in range(inputs))
    image = device_compiler.assemble(f"""
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.text
.globl {NAME}
.p2align 8
.type {NAME},@function
{NAME}:
 s_load_dwordx4 s[4:7], s[0:1], 0x0
 v_and_b32 v0, 0x3ff, v0
 v_lshlrev_b32 v1, 2, v0
 s_waitcnt lgkmcnt(0)
 {loads}
 s_waitcnt vmcnt(0)
 {body}
 s_endpgm
.rodata
.p2align 6
.amdhsa_kernel {NAME}
 .amdhsa_group_segment_fixed_size {lds}
 .amdhsa_private_segment_fixed_size {scratch}
 .amdhsa_enable_private_segment {int(scratch > 0)}
 .amdhsa_kernarg_size 24
 .amdhsa_user_sgpr_count 2
 .amdhsa_user_sgpr_kernarg_segment_ptr 1
 .amdhsa_next_free_vgpr 512
 .amdhsa_accum_offset 256
 .amdhsa_next_free_sgpr 96
 .amdhsa_float_denorm_mode_32 {0 if flush_denormals else 3}
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: {NAME}
    .symbol: {NAME}.kd
    .kernarg_segment_size: 24
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: {scratch}
    .kernarg_segment_align: 8
    .wavefront_size: 64
    .sgpr_count: 96
    .vgpr_count: 512
    .max_flat_workgroup_size: 1024
    .args:
      - {{.size: 8, .offset: 0, .value_kind: global_buffer, .address_space: global}}
      - {{.size: 8, .offset: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.size: 8, .offset: 16, .value_kind: global_buffer, .address_space: global}}
...
.end_amdgpu_metadata
""")
    for images in _recordings:
        images.append(image)
    return image


def run(
    body: str, inputs=(), outputs: int = 1, *, threads: int = LANES, extra=None, preload=True, **options
) -> np.ndarray:
    """Runs a body on input rows (arrays of 64 elements of at most 32 bits).

    Args:
        preload: whether v10 and on hold the inputs; if not, the body loads them itself.
        extra: a writable uint8 array, whose address is the third kernel argument.
        options: see `assemble`.

    Returns:
        uint32 [outputs, 64], POISON where nothing was written.
    """
    assert len(inputs) <= _MAX_INPUTS or not preload
    rows = np.zeros((max(len(inputs), 1), LANES), np.uint32)
    for row, values in zip(rows, inputs, strict=False):
        values = np.broadcast_to(values, LANES)
        row[:] = values.view(np.uint32) if values.dtype.itemsize == 4 else values
    out = np.full((outputs, LANES), POISON, np.uint32)
    module = simulator.Module(assemble(body, inputs=len(inputs) * preload, **options))
    tensors = [torch.from_numpy(array.view(np.int32)) for array in (rows, out)]
    if extra is not None:
        tensors.append(torch.from_numpy(extra))
    names = ("input", "output", "extra")
    pointers = [tensor.data_ptr() for tensor in tensors]
    arguments = struct.pack("<3Q", *(pointers + [0] * (3 - len(pointers))))
    registered = [simulator.register(t, n, n != "input") for t, n in zip(tensors, names, strict=False)]
    try:
        for memory in registered:
            memory.__enter__()
        with simulator.checking(checks) if checks else contextlib.nullcontext():
            module.launch(NAME, (1, 1, 1), (threads, 1, 1), arguments)
    finally:
        for memory in reversed(registered):
            memory.__exit__(None, None, None)
    return out


def each(lines, inputs, result="v20", **options) -> np.ndarray:
    """The result register after each of `lines`, which all start from the same inputs: uint32 [len, 64]."""
    body = "\n".join(
        f"v_mov_b32 {result}, {POISON:#x}\n s_nop 4\n {line}\n s_nop 15\n {store(result)}" for line in lines
    )
    return run(body, inputs, len(lines), **options)


def f32(row) -> np.ndarray:
    """uint32 as float32."""
    return np.ascontiguousarray(row).view(np.float32)


def f64(low, high) -> np.ndarray:
    """Two rows as float64."""
    return (low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)).view(np.float64)


def words(values) -> tuple[np.ndarray, np.ndarray]:
    """64-bit elements as two rows of dwords."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    return (bits & np.uint64(0xFFFFFFFF)).astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)


def assert_same_floats(actual, expected, what=""):
    """Equal bits, but any NaN equals any other."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    nan = np.isnan(actual) & np.isnan(expected)
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[actual.dtype.itemsize]
    same = (actual.view(bits) == expected.view(bits)) | nan
    assert same.all(), (
        f"{what}: lane {np.argmin(same)}: {actual[~same][0]!r}, expected {expected[~same][0]!r}"
    )
