"""Matrix instructions in plain float32 arithmetic against float64, in the documented layouts."""

import numpy as np
import pytest
import torch

import oracles
from execute_kernels import LANES, POISON, f64, run, store, words

RANDOM = np.random.default_rng(5)
LANE = np.arange(LANES)


def to_bits(values, kind):
    """float32 values that the kind represents exactly, as 16-bit patterns."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def sample(shape, kind):
    """Values that survive the conversion to kind."""
    values = RANDOM.standard_normal(shape).astype(np.float32)
    if kind == "f16":
        return values.astype(np.float16).astype(np.float32)
    if kind == "bf16":
        return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    if kind == "i8":
        return RANDOM.integers(-128, 128, shape).astype(np.float32)
    if kind == "xf32":  # ten fraction bits
        return (values.view(np.uint32) & 0xFFFFE000).view(np.float32)
    return values


def operand_rows(matrix, kind, size):
    """Register rows of operand A [row, k], or of B given as [column, k]: each lane holds consecutive k."""
    depth = matrix.shape[1]
    per_lane = depth * size // LANES
    rows = []
    lane_values = [matrix[lane % size, per_lane * (lane // size) :][:per_lane] for lane in range(LANES)]
    lane_values = np.array(lane_values, np.float32)  # [lane, per_lane]
    if kind == "f32":
        return [lane_values[:, 0].copy()]
    if kind == "i8":
        packed = lane_values.astype(np.int8).view(np.uint32)  # [lane, per_lane / 4]
        return [packed[:, r].copy() for r in range(per_lane // 4)]
    bits = to_bits(lane_values, kind).astype(np.uint32)
    for r in range(per_lane // 2):
        rows.append(bits[:, 2 * r] | bits[:, 2 * r + 1] << 16)
    return rows


def result_position(size, register):
    """(row, column) arrays of a C or D register's lanes."""
    if size == 16:
        return 4 * (LANE // 16) + register, LANE % 16
    return 8 * (register // 4) + 4 * (LANE // 32) + register % 4, LANE % 32


SHAPES = [
    ("v_mfma_f32_16x16x16_bf16", 16, 16, "bf16"),
    ("v_mfma_f32_32x32x8_bf16", 32, 8, "bf16"),
    ("v_mfma_f32_16x16x16_f16", 16, 16, "f16"),
    ("v_mfma_f32_32x32x8_f16", 32, 8, "f16"),
    ("v_mfma_f32_16x16x4_f32", 16, 4, "f32"),
    ("v_mfma_f32_32x32x2_f32", 32, 2, "f32"),
    ("v_mfma_i32_16x16x32_i8", 16, 32, "i8"),
    ("v_mfma_i32_32x32x16_i8", 32, 16, "i8"),
]


@pytest.mark.parametrize("accumulators", [False, True], ids=["vgpr", "agpr"])
@pytest.mark.parametrize("mnemonic, size, depth, kind", SHAPES, ids=[shape[0] for shape in SHAPES])
def test_product(mnemonic, size, depth, kind, accumulators):
    a, b = sample((size, depth), kind), sample((size, depth), kind)
    registers = size * size // LANES
    inputs = operand_rows(a, kind, size) + operand_rows(b, kind, size)
    width = len(inputs) // 2
    span = lambda first, count: f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"  # noqa: E731
    operands = f"{span(10, width)}, {span(10 + width, width)}"
    file = "a" if accumulators else "v"
    # C is a constant first, then the result itself, then another tuple.
    body = f"""
 {mnemonic} {file}[32:{31 + registers}], {operands}, 1.0
 s_nop 15
 s_nop 15
 {mnemonic} {file}[32:{31 + registers}], {operands}, {file}[32:{31 + registers}]
 s_nop 15
 s_nop 15
 {mnemonic} {file}[64:{63 + registers}], {operands}, {file}[32:{31 + registers}]
 s_nop 15
 s_nop 15
 {store(*(f"{file}{32 + r}" for r in range(registers)), *(f"{file}{64 + r}" for r in range(registers)))}"""
    if kind == "i8":
        body = body.replace("1.0", "1")
    result = run(body, inputs, 2 * registers)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    bound = 2e-6 * (np.abs(a) @ np.abs(b).T + 1)
    for times, first in ((2, 0), (3, registers)):
        for r in range(registers):
            row, column = result_position(size, r)
            expected = 1 + times * exact[row, column]
            got = result[first + r]
            if kind == "i8":
                np.testing.assert_array_equal(got.view(np.int32), expected.astype(np.int32))
            else:
                assert (np.abs(got.view(np.float32) - expected) <= times * bound[row, column]).all()


@pytest.mark.parametrize("flush", [False, True], ids=["keep", "flush"])
def test_subnormals_and_special_values(flush):
    """The matrix core keeps subnormals in either mode; infinities and NaN come through."""
    a, b = np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    tiny = np.array([0x00010000], np.uint32).view(np.float32)[0]  # the smallest bf16
    a[0, 0], b[:, 0] = tiny, 1
    a[1, 0], a[2, 0], a[3, 0] = np.inf, np.nan, -np.inf
    a[3, 1], b[5, 1] = np.inf, 1
    inputs = operand_rows(a, "bf16", 16) + operand_rows(b, "bf16", 16)
    body = f"""
 v_mfma_f32_16x16x16_bf16 v[32:35], v[10:11], v[12:13], 0
 s_nop 15
 {store("v32", "v33", "v34", "v35")}"""
    result = run(body, inputs, 4, flush_denormals=flush).view(np.float32)
    assert (result[0][:16] == tiny).all()
    # 0 * infinity is NaN, in the columns whose B is not 0 there.
    assert np.isinf(result[1][:16]).all() and np.isnan(result[2][:16]).all()
    assert np.isnan(result[3][5]) and np.isnan(result[3][:16]).all()


def test_all_lanes_take_part_whatever_exec_says():
    a, b = sample((16, 16), "bf16"), sample((16, 16), "bf16")
    inputs = operand_rows(a, "bf16", 16) + operand_rows(b, "bf16", 16)
    body = f"""
 s_mov_b64 exec, 1
 s_nop 4
 v_mfma_f32_16x16x16_bf16 v[32:35], v[10:11], v[12:13], 0
 s_mov_b64 exec, -1
 s_nop 15
 {store("v32", "v33", "v34", "v35")}"""
    result = run(body, inputs, 4)
    assert (result != POISON).all()
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    for r in range(4):
        row, column = result_position(16, r)
        np.testing.assert_allclose(result[r].view(np.float32), exact[row, column], rtol=1e-4, atol=1e-5)


SMALL_FLOATS = {"fp8": torch.float8_e4m3fnuz, "bf8": torch.float8_e5m2fnuz}
BLOCK_SHAPES = [
    # mnemonic, size, blocks, elements of A in a lane, kinds of A and B
    ("v_mfma_f32_32x32x1_2b_f32", 32, 2, 1, "f32", "f32"),
    ("v_mfma_f32_16x16x1_4b_f32", 16, 4, 1, "f32", "f32"),
    ("v_mfma_f32_4x4x1_16b_f32", 4, 16, 1, "f32", "f32"),
    ("v_mfma_f32_32x32x4_2b_f16", 32, 2, 4, "f16", "f16"),
    ("v_mfma_f32_16x16x4_4b_f16", 16, 4, 4, "f16", "f16"),
    ("v_mfma_f32_32x32x4_2b_bf16", 32, 2, 4, "bf16", "bf16"),
    ("v_mfma_f32_16x16x4_4b_bf16", 16, 4, 4, "bf16", "bf16"),
    ("v_mfma_f32_4x4x4_16b_f16", 4, 16, 4, "f16", "f16"),
    ("v_mfma_f32_4x4x4_16b_bf16", 4, 16, 4, "bf16", "bf16"),
    ("v_mfma_i32_32x32x4_2b_i8", 32, 2, 4, "i8", "i8"),
    ("v_mfma_i32_16x16x4_4b_i8", 16, 4, 4, "i8", "i8"),
    ("v_mfma_i32_4x4x4_16b_i8", 4, 16, 4, "i8", "i8"),
    ("v_mfma_f32_16x16x8_xf32", 16, 1, 2, "xf32", "xf32"),
    ("v_mfma_f32_32x32x4_xf32", 32, 1, 2, "xf32", "xf32"),
    *(
        (f"v_mfma_f32_{shape}_{a}_{b}", size, 1, 8, a, b)
        for shape, size in (("16x16x32", 16), ("32x32x16", 32))
        for a in SMALL_FLOATS
        for b in SMALL_FLOATS
    ),
]
oracles.declare("float64", [shape[0] for shape in (*SHAPES, *BLOCK_SHAPES)])


def lane_elements(per_lane, kind):
    """Values of each lane's elements as float64 [64, per_lane], and the registers that hold them."""
    if kind in SMALL_FLOATS:
        codes = RANDOM.integers(0, 256, (LANES, per_lane), dtype=np.uint8)
        codes[codes == 0x80] = 0x81  # the only NaN
        values = torch.from_numpy(codes).view(SMALL_FLOATS[kind]).double().numpy()
        packed = codes.view(np.uint32)
    else:
        values = sample((LANES, per_lane), kind)
        if kind == "i8":
            packed = values.astype(np.int8).view(np.uint32)
        else:
            packed = (
                values.view(np.uint32) if kind in ("f32", "xf32") else to_bits(values, kind).view(np.uint32)
            )
    return values.astype(np.float64), [packed[:, r].copy() for r in range(packed.shape[1])]


@pytest.mark.parametrize("mnemonic, size, blocks, per_lane, kind_a, kind_b", BLOCK_SHAPES)
def test_blocks_and_small_floats(mnemonic, size, blocks, per_lane, kind_a, kind_b):
    (a, rows_a), (b, rows_b) = lane_elements(per_lane, kind_a), lane_elements(per_lane, kind_b)
    registers = size * size * blocks // LANES
    width = len(rows_a)
    span = [f"v[{10 + i * width}:{9 + (i + 1) * width}]" if width > 1 else f"v{10 + i}" for i in range(2)]
    body = f"""
 {mnemonic} v[32:{31 + registers}], {span[0]}, {span[1]}, {3 if kind_a == "i8" else 4.0}
 s_nop 15
 s_nop 15
 {store(*(f"v{32 + r}" for r in range(registers)))}"""
    result = run(body, rows_a + rows_b, registers)
    start = 3 if kind_a == "i8" else 4
    if blocks == 1:  # lanes of one row follow each other in k
        a = np.concatenate([a[i : i + size] for i in range(0, LANES, size)], axis=1)
        b = np.concatenate([b[i : i + size] for i in range(0, LANES, size)], axis=1)
    per_block = max(1, registers // blocks)
    for r in range(registers):
        if size == 4:
            block, row, column = LANE // 4, r, LANE % 4
        else:
            block = r // per_block
            row, column = result_position(size, r % per_block)
        left, right = a[block * size + row], b[block * size + column]
        expected = start + (left * right).sum(axis=1)
        if kind_a == "i8":
            np.testing.assert_array_equal(result[r].view(np.int32), expected.astype(np.int32))
        else:
            bound = 4e-6 * (start + np.abs(left * right).sum(axis=1))
            assert (np.abs(result[r].view(np.float32) - expected) <= bound).all(), r


@oracles.checked_by("float64", "v_mfma_f64_16x16x4_f64")
def test_float64_product():
    """Result register pair r: row 4 r + lane / 16."""
    a, b = RANDOM.standard_normal((16, 4)), RANDOM.standard_normal((4, 16))
    inputs = [*words(a.T.reshape(-1)), *words(b.reshape(-1))]
    body = f"""
 v_mfma_f64_16x16x4_f64 v[32:39], v[10:11], v[12:13], 1.0
 s_nop 15
 s_nop 15
 {store(*(f"v{32 + r}" for r in range(8)))}"""
    result = run(body, inputs, 8)
    expected = 1 + a @ b
    for r in range(4):
        got = f64(result[2 * r], result[2 * r + 1])
        np.testing.assert_allclose(got, expected[4 * r + LANE // 16, LANE % 16], rtol=1e-14, atol=1e-14)
