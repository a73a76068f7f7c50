"""What docs/kernel.md says of AITER's arithmetic decides bits: with one line changed, the kernel parts from
AITER's code object."""

from pathlib import Path

import pytest

import device_compiler
from liteattention_rocm import agreement, aiter_kernel, simulator
from liteattention_rocm.checking import problems

DEVICE = Path(__file__).parents[1] / "csrc" / "device"
SOURCE = (DEVICE / "aiter_exact.hip").read_text()
KERNEL = "attention_aiter_exact_{}"

# By name: the line, what takes its place, and a kind of input and rounding mode that shows it.
CHANGES = {
    "nothing": ("", "", "N(0,1)", "rtz"),
    "order of the products of S": (
        "    scores = isa::mfma_32x32x8_bf16(key.first, query.operands[step].first, scores);\n"
        "    scores = isa::mfma_32x32x8_bf16(key.second, query.operands[step].second, scores);\n",
        "    scores = isa::mfma_32x32x8_bf16(key.second, query.operands[step].second, scores);\n"
        "    scores = isa::mfma_32x32x8_bf16(key.first, query.operands[step].first, scores);\n",
        "N(0,1)",
        "rtz",
    ),
    "order of the products of O": (
        "      output[d] = isa::mfma_32x32x8_bf16(value.first, p[2 * run], output[d]);\n"
        "      output[d] = isa::mfma_32x32x8_bf16(value.second, p[2 * run + 1], output[d]);\n",
        "      output[d] = isa::mfma_32x32x8_bf16(value.second, p[2 * run + 1], output[d]);\n"
        "      output[d] = isa::mfma_32x32x8_bf16(value.first, p[2 * run], output[d]);\n",
        "N(0,1)",
        "rtz",
    ),
    "(S - m) * c": (
        "isa::exp2(__builtin_fmaf(scores[i], c, -offset))",
        "isa::exp2(c * (scores[i] - raised))",
        "N(0,1)",
        "rtz",
    ),
    "product and sum of the exponent": (
        "isa::exp2(__builtin_fmaf(scores[i], c, -offset))",
        "isa::exp2(c * scores[i] - offset)",
        "N(0,1)",
        "rtz",
    ),
    "shrink by a difference of products": (
        "isa::exp2(c * (maximum - raised))",
        "isa::exp2(c * maximum - c * raised)",
        "x16",
        "rtz",
    ),
    "order of the row sum": (
        "tile_sum = add(scores[i], tile_sum)",
        "tile_sum = add(scores[kRegisters + 1 - i], tile_sum)",
        "N(0,1)",
        "rtz",
    ),
    "row sum by fma": (
        "sum = add(tile_sum, multiply(shrink, sum))",
        "sum = __builtin_fmaf(shrink, sum, tile_sum)",
        "N(0,1)",
        "rtz",
    ),
    "P summed rounded": (
        "    settle(scores, shrink);\n",
        "    for (int i = 0; i < kRegisters; ++i)\n"
        "      scores[i] = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, scores[i]) & 0xFFFF0000);\n"
        "    settle(scores, shrink);\n",
        "N(0,1)",
        "rtz",
    ),
    "division": (
        "Float2{reciprocal, reciprocal} * Float2{output[d][at], output[d][at + 1]}",
        "Float2{output[d][at], output[d][at + 1]} / (sum == reciprocal ? 1.0f : sum)",
        "equal weights",
        "rtz",
    ),
    "float32 subnormals kept": (
        "isa::flush_float32_subnormals(arguments.scale)",
        "arguments.scale",
        "subnormal",
        "rtz",
    ),
    "no rescaling by 1": (
        "output[d][i] = shrink * output[d][i];",
        "output[d][i] = shrink == 1.0f ? output[d][i] : shrink * output[d][i];",
        "subnormal",
        "rtne",
    ),
    "order of NaN in the row sum": (
        "add(scores[i], tile_sum)",
        "add(tile_sum, scores[i])",
        "overflow",
        "rtz",
    ),
    "the lower lane's LSE": ("lane_half(lane) == 1 && row", "lane_half(lane) == 0 && row", "overflow", "rtz"),
    "the other half's sum second": (
        "add(isa::bpermute(half_swap_address, softmax.sum), softmax.sum)",
        "add(softmax.sum, isa::bpermute(half_swap_address, softmax.sum))",
        "overflow",
        "rtz",
    ),
    "no NaN rule": ("bf16::pack_output<kMode>(pair", "bf16::pack<kMode>(pair", "special Q and V", "rtna"),
}

LARGE = problems.Problem(300, 300, heads=4, kv_heads=4)
PROBLEMS = {  # where 70 query rows and 77 KV rows aren't enough
    "order of the products of O": LARGE,
    "shrink by a difference of products": LARGE,
    "division": problems.Problem(70, 83),  # 83 · rcp(83) < 1
}


def inputs(kind, problem):
    options = {"heads": problem.heads, "kv_heads": problem.heads, "seed": 1}
    base = kind if kind in agreement.KINDS else "N(0,1)"
    q, k, v = agreement.Case(base, "rtz", problem.seqlen_q, problem.seqlen_kv, **options).inputs()
    if kind == "overflow":
        return q * 2.0**63, k * 2.0**63, v
    if kind == "equal weights":
        return q, k * 0, v * 0 + 1
    return q, k, v


@pytest.mark.full
@pytest.mark.parametrize("name", CHANGES)
def test_each_line_decides_bits(aiter, name):
    line, other, kind, rounding = CHANGES[name]
    assert name == "nothing" or SOURCE.count(line) == 1
    source = SOURCE.replace(line, other) if line else SOURCE
    image = device_compiler.compile_hip(source, "-std=c++17", f"-I{DEVICE}")
    problem = PROBLEMS.get(name, problems.Problem(70, 77))
    operands = problems.Operands.draw(problem)
    for place, tensor in zip((operands.q, operands.k, operands.v), inputs(kind, problem), strict=True):
        place.copy_(tensor)
    problems.launch(simulator.Module(image), KERNEL.format(rounding), operands)
    out, lse = aiter_kernel.forward(operands.q, operands.k, operands.v, rounding=rounding, return_lse=True)
    found = agreement.agreement(operands.out, operands.lse, out, lse)
    same = (found.identical, found.identical_rows) == (found.elements, found.rows)
    assert same == (name == "nothing"), found
