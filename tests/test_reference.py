"""The references themselves: rounding against an independent definition, attention against SDPA."""

import math
from fractions import Fraction

import pytest
import torch

from attention_cases import LAYOUTS, ROUNDINGS, Case, bits
from liteattention_rocm import RoundMode, reference


def random_floats(count=4096):
    """Random float32 bit patterns without NaN, and the ties between neighbouring bfloat16 values."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randint(-(2**31), 2**31 - 1, (count,), generator=generator)
    ties = patterns[: count // 4] & ~0xFFFF | 0x8000
    values = torch.cat([patterns, ties]).to(torch.int32).view(torch.float32)
    return values[~values.isnan()]


def test_rtne_is_torchs_conversion():
    values = random_floats()
    assert torch.equal(bits(reference.round_to_bfloat16(values, "rtne")), bits(values.to(torch.bfloat16)))


@pytest.mark.parametrize("rounding", ["rtna", "rtz"])
def test_rounding_against_its_definition(rounding):
    """The nearer neighbour in exact arithmetic, ties away from zero; or the one nearer to zero."""
    values = random_floats(1024)
    values = values[values.abs() < 3e38]
    rounded = reference.round_to_bfloat16(values, rounding)
    for value, result in zip(values.tolist(), rounded.tolist(), strict=True):
        _, exponent = math.frexp(value)
        ulp = Fraction(2) ** (
            max(exponent, -125) - 8
        )  # bfloat16 has 8 significant bits, subnormals below 2^-126
        steps = Fraction(abs(value)) / ulp
        whole = math.floor(steps) if rounding == "rtz" else math.floor(steps + Fraction(1, 2))
        assert Fraction(abs(result)) == whole * ulp
        assert math.copysign(1, result) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("rounding", "quiet", "negative", "payload_below"),
    [("rtne", 0x7FFF, 0x7FFF, 0x7FFF), ("rtna", 0x7FFF, 0x7FFF, 0x7FFF), ("rtz", 0x7FC0, 0xFFC1, 0x7F80)],
)
def test_nan(rounding, quiet, negative, payload_below):
    """AITER's rule; in rtz a NaN whose payload lies in the lower half becomes an infinity."""
    patterns = torch.tensor([0x7FC00000, 0xFFC10000 - 2**32, 0x7F800001], dtype=torch.int32)
    rounded = (
        bits(reference.round_to_bfloat16(patterns.view(torch.float32), rounding)).to(torch.int32) & 0xFFFF
    )
    assert rounded.tolist() == [quiet, negative, payload_below]


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_infinities_and_zeros_stay(rounding):
    values = torch.tensor([math.inf, -math.inf, 0.0, -0.0])
    rounded = reference.round_to_bfloat16(values, RoundMode[rounding])
    assert torch.equal(bits(rounded), bits(values.to(torch.bfloat16)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scale", [None, 0.2])
def test_attention_is_sdpa(layout, scale):
    q, k, v = Case(20, 37, layout=layout, heads=4, kv_heads=2).inputs()
    out, lse = reference.attention(q, k, v, scale=scale, layout=layout)
    heads_first = (t.double() if layout == "bhsd" else t.double().transpose(1, 2) for t in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*heads_first, scale=scale, enable_gqa=True)
    expected = expected if layout == "bhsd" else expected.transpose(1, 2)
    assert torch.allclose(out, expected, rtol=1e-12, atol=1e-14)
    # exp(lse) is the denominator that turns exp(score) into the probability of the softmax.
    ones, _ = reference.attention(q, k, torch.ones_like(v), scale=scale, layout=layout)
    assert torch.allclose(ones, torch.ones_like(ones), rtol=1e-12)
    row = q[0, 3, 1] if layout == "bshd" else q[0, 1, 3]
    keys = k[0, :, 0] if layout == "bshd" else k[0, 0]
    scores = keys.double() @ row.double() * (1 / math.sqrt(128) if scale is None else scale)
    assert lse[0, 1, 3].item() == pytest.approx(math.log(math.fsum(scores.exp().tolist())), rel=1e-12)


@pytest.mark.parametrize(
    ("rounding", "low", "high"), [("rtne", 2.1e-4, 2.4e-4), ("rtna", 2.1e-4, 2.4e-4), ("rtz", 5e-4, 6.04e-4)]
)
def test_replica_is_as_accurate_as_its_roundings_allow(rounding, low, high):
    """AITER's: 2.22e-4, and 6.04e-4 in rtz, where P = 2^fma(S, c, −m·c) loses the exact 1 at S = m."""
    q, k, v = Case(384, 256, rounding, heads=4, kv_heads=4).inputs()
    out, _ = reference.replica(q, k, v, rounding=rounding)
    assert low < reference.rmse(out, reference.attention(q, k, v)[0]) < high


def test_replica_of_a_negative_scale():
    q, k, v = Case(20, 100).inputs()
    out, lse = reference.replica(q, k, v, scale=-0.1)
    expected, expected_lse = reference.attention(q, k, v, scale=-0.1)
    assert reference.rmse(out, expected) < 1e-3
    assert torch.allclose(lse.double(), expected_lse, atol=5e-6)
