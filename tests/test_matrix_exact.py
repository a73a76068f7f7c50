"""The matrix core's arithmetic, bit for bit against MMA-Sim's model of CDNA3 (PyPI's `mmasim`)."""

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from mmasim.amd import MFMA

import matrix_kernels
import oracles
from liteattention_rocm import simulator
from matrix_cases import BF16, CASES, F16, draw
from matrix_kernels import POISON, Instruction

pytestmark = pytest.mark.usefixtures("exact_matrices")
ROOT = Path(__file__).resolve().parent.parent
SIZES = (16, 32)

oracles.declare(
    "mmasim", [f"v_mfma_f32_{n}x{n}x{256 // n}_{form.name}" for n in SIZES for form in (BF16, F16)]
)


def instruction(form, size):
    return Instruction(f"f32_{size}x{size}x{256 // size}_{form.name}")


oracles.declare(
    "mmasim", [f"v_mfma_{instruction(form, size).mnemonic}" for form in (BF16, F16) for size in SIZES]
)


def simulate(image, form, size, a, b, c):
    """D[wave, row, column] of a launch with one wave a workgroup."""
    return matrix_kernels.simulate(instruction(form, size), image, a[:, None], b[:, None], c[:, None])[:, 0]


def model(form, a, b, c):
    """D of MMA-Sim."""
    waves, size, depth = a.shape
    operation = MFMA("CDNA3", instruction(form, size).mnemonic)
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


COMBINATIONS = [
    pytest.param(form, size, case, id=f"{size}-{form.name}-{case}")
    for form in (BF16, F16)
    for size in SIZES
    for case in CASES
    if not (form == F16 and case == "overflow")  # no product of f16 comes near 2^128
]
COUNTS = [1_000, pytest.param(20_000, marks=pytest.mark.full)]


@pytest.mark.parametrize("products", COUNTS)
@pytest.mark.parametrize(("form", "size", "case"), COMBINATIONS)
def test_equals_mma_sim(form, size, case, products):
    a, b, c = draw(case, form, size, waves=-(-products // size**2))
    image = matrix_kernels.assemble(instruction(form, size))
    same(simulate(image, form, size, a, b, c), model(form, a, b, c))


@pytest.mark.parametrize("form", [BF16, F16], ids=lambda form: form.name)
@pytest.mark.parametrize("size", SIZES)
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


@pytest.mark.parametrize("size", SIZES)
def test_differs_from_float32_sums(size):
    """What the arithmetic is for: other sums of the same products end in other bits."""
    a, b, c = draw("ordinary", BF16, size, waves=16)
    image = matrix_kernels.assemble(instruction(BF16, size))
    got = simulate(image, BF16, size, a, b, c)
    simulator.set_option("matrix", "float32")
    try:
        plain = simulate(image, BF16, size, a, b, c)
    finally:
        simulator.set_option("matrix", "exact")
    assert 0.001 < (got != plain).mean() < 0.5
    np.testing.assert_allclose(got.view(np.float32), plain.view(np.float32), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", [BF16, F16], ids=lambda form: form.name)
@pytest.mark.parametrize("size", SIZES)
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
def test_registers_of_c(form, size, registers, constant, case):
    a, b, c = draw(case, form, size, waves=2)
    if constant is not None:
        c = np.full_like(c, constant)
    image = matrix_kernels.assemble(instruction(form, size), **registers)
    same(simulate(image, form, size, a, b, c), model(form, a, b, c))


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
    layout = instruction(form, size)
    operands = [matrix_kernels.operand_rows(layout, x[:, None]) for x in (a, b)]
    operands.append(matrix_kernels.result_rows(layout, c[:, None]))
    d = np.full_like(operands[2], POISON)
    compiled(form == BF16, size, len(a), d.ctypes.data, *(x.ctypes.data for x in operands))
    _, row, column = matrix_kernels.positions(layout)
    result = np.empty_like(c)
    result[:, row, column] = d
    same(result, model(form, a, b, c))
