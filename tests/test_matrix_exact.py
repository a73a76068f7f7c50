"""The matrix core's arithmetic, bit for bit against MMA-Sim's model of CDNA3 (PyPI's `mmasim`)."""

import contextlib
import ctypes
import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from mmasim.amd import MFMA

import device_compiler
from liteattention_rocm import simulator
from matrix_cases import BF16, CASES, F16, draw

SHAPES = {16: "16x16x16", 32: "32x32x8"}
POISON = 0x7FC0DEAD
ROOT = Path(__file__).resolve().parent.parent

# One wave a workgroup. MODE flushes subnormal float32 numbers and rounds toward zero, and no lane is active:
# neither may matter. {c} is the operand, {d} the first register of the result.
KERNEL = """
.text
.globl product
.p2align 8
.type product,@function
product:
  s_load_dwordx8 s[4:11], s[0:1], 0x0
  v_lshlrev_b32_e32 v0, 2, v0
  v_lshl_add_u32 v1, s2, 9, v0
  v_lshl_add_u32 v2, s2, {tile_shift}, v0
  s_waitcnt lgkmcnt(0)
  global_load_dword v4, v1, s[4:5]
  global_load_dword v5, v1, s[4:5] offset:256
  global_load_dword v6, v1, s[6:7]
  global_load_dword v7, v1, s[6:7] offset:256
{loads}
  s_waitcnt vmcnt(0)
  s_mov_b64 s[12:13], exec
  s_mov_b64 exec, 0
  s_nop 4
  v_mfma_f32_{shape}_{format} v[{d}:{d_last}], v[4:5], v[6:7], {c}
  s_mov_b64 exec, s[12:13]
  s_nop 15
{stores}
  s_endpgm
.size product, .-product
.rodata
.p2align 6
.amdhsa_kernel product
  .amdhsa_kernarg_size 32
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_float_denorm_mode_32 0
  .amdhsa_float_round_mode_32 3
  .amdhsa_next_free_vgpr 64
  .amdhsa_next_free_sgpr 16
  .amdhsa_accum_offset 64
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: product
    .symbol: product.kd
    .kernarg_segment_size: 32
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 16
    .vgpr_count: 64
    .max_flat_workgroup_size: 64
    .args:
{arguments}
.end_amdgpu_metadata
"""


def kernel(form, size, *, d=40, c=None):
    """The code object of one product: C in v[16:...] unless `c` says otherwise, D from v`d` on."""
    registers = size * size // 64
    argument = "      - {{.offset: {}, .size: 8, .value_kind: global_buffer, .address_space: global}}"
    lines = {
        "loads": "global_load_dword v{r}, v2, s[8:9] offset:{o}",
        "stores": "global_store_dword v2, v{r}, s[10:11] offset:{o}",
    }
    first = {"loads": 16, "stores": d}
    blocks = {
        name: "\n".join("  " + line.format(r=first[name] + i, o=256 * i) for i in range(registers))
        for name, line in lines.items()
    }
    return device_compiler.assemble(
        KERNEL.format(
            shape=SHAPES[size],
            format=form.name,
            c=c or f"v[16:{15 + registers}]",
            d=d,
            d_last=d + registers - 1,
            tile_shift=(registers * 256).bit_length() - 1,
            arguments="\n".join(argument.format(8 * i) for i in range(4)),
            **blocks,
        )
    )


def operand_registers(values):
    """[waves, row or column, k] to the two registers of A or B, [waves, 2, 64]."""
    waves, size, depth = values.shape
    pairs = np.ascontiguousarray(values).view(np.uint32).reshape(waves, size, depth // 4, 2)
    return np.ascontiguousarray(pairs.transpose(0, 3, 2, 1)).reshape(waves, 2, 64)


def positions(size):
    """Row and column that each register and lane of C and D holds."""
    register, lane = np.meshgrid(np.arange(size * size // 64), np.arange(64), indexing="ij")
    row = 4 * (lane // 16) + register if size == 16 else 8 * (register // 4) + 4 * (lane // 32) + register % 4
    return row, lane % size


def simulate(image, a, b, c):
    """D[wave, row, column] of a launch with one wave a workgroup."""
    waves, size = c.shape[:2]
    row, column = positions(size)
    operands = [operand_registers(a), operand_registers(b), np.ascontiguousarray(c[:, row, column])]
    d = np.full_like(operands[2], POISON)
    module = simulator.Module(image)
    with contextlib.ExitStack() as stack:
        for array in (*operands, d):
            stack.enter_context(simulator.register(array))
        addresses = [array.ctypes.data for array in (*operands, d)]
        module.launch("product", (waves, 1, 1), (64, 1, 1), struct.pack("<4Q", *addresses))
    result = np.empty_like(c)
    result[:, row, column] = d
    return result


def model(form, a, b, c):
    """D of MMA-Sim."""
    waves, size, depth = a.shape
    operation = MFMA("CDNA3", f"f32_{SHAPES[size]}_{form.name}")
    dtype = torch.bfloat16 if form == BF16 else torch.float16
    a, b = (torch.from_numpy(x.view(np.int16)).view(dtype) for x in (a, b))
    shape = (waves, size, size, depth)
    c = torch.from_numpy(c.view(np.int32)).view(torch.float32).clone()
    d = operation.dpa(a[:, :, None].expand(shape).contiguous(), b[:, None].expand(shape).contiguous(), c)
    return d.view(torch.int32).numpy().view(np.uint32)


def same(got, expected):
    different = np.argwhere(got != expected)
    shown = [
        f"{tuple(map(int, i))}: {got[tuple(i)]:#010x}, not {expected[tuple(i)]:#010x}" for i in different[:5]
    ]
    assert not len(different), f"{len(different)} of {got.size} differ: {shown}"


@pytest.fixture(scope="module")
def exact():
    simulator.set_option("matrix", "exact")
    yield
    simulator.set_option("matrix", os.environ.get("LITEATTENTION_ROCM_SIM_MATRIX", "float32"))


COMBINATIONS = [
    pytest.param(form, size, case, id=f"{SHAPES[size]}-{form.name}-{case}")
    for form in (BF16, F16)
    for size in SHAPES
    for case in CASES
    if not (form == F16 and case == "overflow")  # no product of f16 comes near 2^128
]
COUNTS = [1_000, pytest.param(20_000, marks=pytest.mark.full)]


@pytest.mark.parametrize("products", COUNTS)
@pytest.mark.parametrize(("form", "size", "case"), COMBINATIONS)
def test_equals_mma_sim(exact, form, size, case, products):
    a, b, c = draw(case, form, size, waves=-(-products // size**2))
    same(simulate(kernel(form, size), a, b, c), model(form, a, b, c))


@pytest.mark.parametrize("form", [BF16, F16], ids=lambda form: form.name)
@pytest.mark.parametrize("size", SHAPES)
def test_cases_hold_what_they_are_named_for(form, size):
    """Shares of results, so that no case passes on easy numbers alone."""

    def results(case):
        return model(form, *draw(case, form, size, waves=4)).view(np.float32)

    def subnormal(x):
        return (x != 0) & (np.abs(x) < 2.0**-126)

    special = results("infinities_and_nan")
    assert np.isnan(special).mean() > 0.02 and (special == np.inf).any() and (special == -np.inf).any()
    assert np.isfinite(special).mean() > 0.3
    assert subnormal(results("subnormal_results")).mean() > 0.3
    assert (results("zeros") == 0).mean() > 0.05
    assert 0.1 < (results("cancellation") == 0).mean() < 0.9
    a, b, _ = draw("subnormal_operands", form, size, waves=4)
    for x in (a, b):
        assert (((x & form.infinity) == 0) & ((x & 0x7FFF) != 0)).mean() > 0.2
    if form == BF16:
        large = results("overflow")
        assert np.isinf(large).mean() > 0.1 and np.isfinite(large).mean() > 0.05
        tiny = results("subnormal_results")
        assert ((tiny == 0) & np.signbit(tiny)).any()  # a negative sum that rounds to zero keeps its sign


@pytest.mark.parametrize("size", SHAPES)
def test_differs_from_float32_sums(exact, size):
    """What the arithmetic is for: other sums of the same products end in other bits."""
    a, b, c = draw("ordinary", BF16, size, waves=16)
    image = kernel(BF16, size)
    got = simulate(image, a, b, c)
    simulator.set_option("matrix", "float32")
    try:
        plain = simulate(image, a, b, c)
    finally:
        simulator.set_option("matrix", "exact")
    assert 0.001 < (got != plain).mean() < 0.5
    np.testing.assert_allclose(got.view(np.float32), plain.view(np.float32), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", [BF16, F16], ids=lambda form: form.name)
@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize(
    ("registers", "constant"),
    [
        ({"d": 16}, None),  # D is C
        ({"c": "1.0"}, 0x3F800000),
        ({"c": "-4.0"}, 0xC0800000),
        ({"c": "0"}, 0),
    ],
    ids=["in place", "1.0", "-4.0", "0"],
)
@pytest.mark.parametrize("case", ["wide_exponents", "infinities_and_nan"])
def test_registers_of_c(exact, form, size, registers, constant, case):
    a, b, c = draw(case, form, size, waves=2)
    if constant is not None:
        c = np.full_like(c, constant)
    same(simulate(kernel(form, size, **registers), a, b, c), model(form, a, b, c))


@pytest.fixture(scope="module", params=["portable", "vector"])
def compiled(request, tmp_path_factory):
    """The arithmetic alone, at -O2: without vector instructions, as other processors run it, or with them."""
    library = tmp_path_factory.mktemp("exact") / "exact_product.so"
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC"]
    command += ["-DGFX942_PORTABLE"] * (request.param == "portable")
    command += [f"-I{ROOT / 'csrc/simulator'}", str(ROOT / "tests/exact_product.cpp")]
    subprocess.run([*command, "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).exact_products
    function.argtypes = [ctypes.c_bool, ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 4]
    function.restype = None
    return function


@pytest.mark.parametrize(("form", "size", "case"), COMBINATIONS)
def test_compiled_otherwise(compiled, form, size, case):
    a, b, c = draw(case, form, size, waves=1024 // size**2, seed=1)
    row, column = positions(size)
    operands = [operand_registers(a), operand_registers(b), np.ascontiguousarray(c[:, row, column])]
    d = np.full_like(operands[2], POISON)
    compiled(form == BF16, size, len(a), d.ctypes.data, *(x.ctypes.data for x in operands))
    result = np.empty_like(c)
    result[:, row, column] = d
    same(result, model(form, a, b, c))
