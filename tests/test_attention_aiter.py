"""AITER's own code objects in the simulator: the accuracy they are known for, and how ours compares."""

import pytest
import torch

import liteattention_rocm
from attention_cases import ROUNDINGS, Case, same_bits
from liteattention_rocm import reference, simulator


@pytest.mark.parametrize(("rounding", "known"), [("rtne", 2.22e-4), ("rtna", 2.22e-4), ("rtz", 6.04e-4)])
def test_known_rmse_at_384x256(aiter, rounding, known):
    q, k, v = Case(384, 256, rounding, batch=2, heads=4, kv_heads=4).inputs()
    out = aiter.forward(q, k, v, rounding=rounding)
    assert reference.rmse(out, reference.attention(q, k, v)[0]) == pytest.approx(known, rel=0.03)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), [(1, 1), (1, 300), (65, 31), (257, 33), (300, 513)])
def test_lengths_layouts_strides_and_lse(aiter, layout, seqlen_q, seqlen_kv):
    case = Case(seqlen_q, seqlen_kv, "rtne", layout, heads=4, kv_heads=2)
    q, k, v = case.inputs()
    out, lse = aiter.forward(q, k, v, rounding="rtne", layout=layout, return_lse=True)
    expected, expected_lse = reference.attention(q, k, v, layout=layout)
    replica, _ = reference.replica(q, k, v, layout=layout, tile=32)
    assert reference.rmse(out, expected) <= 1.05 * reference.rmse(replica, expected)
    assert (lse.double() - expected_lse).abs().max() < 1e-5


def test_scale_reaches_the_kernel(aiter):
    q, k, v = Case(130, 70, seed=1).inputs()
    out = aiter.forward(q, k, v, rounding="rtne", scale=0.3)
    expected, _ = reference.attention(q, k, v, scale=0.3)
    replica, _ = reference.replica(q, k, v, scale=0.3, tile=32)
    assert reference.rmse(out, expected) <= 1.05 * reference.rmse(replica, expected)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_ours_agrees_with_aiter(aiter, rounding):
    """The kernels differ by less than either differs from float64, but for the orders of their sums."""
    q, k, v = Case(300, 500, rounding, seed=2).inputs()
    ours = liteattention_rocm.attention(q, k, v, rounding=rounding)
    theirs = aiter.forward(q, k, v, rounding=rounding)
    expected, _ = reference.attention(q, k, v)
    assert reference.rmse(ours, theirs) <= reference.rmse(theirs, expected)
    assert reference.rmse(ours, expected) <= 1.05 * reference.rmse(theirs, expected)


def test_the_default_rounding_is_rtz(aiter):
    q, k, v = Case(40, 40, seed=3).inputs()
    assert same_bits(aiter.forward(q, k, v), aiter.forward(q, k, v, rounding="rtz"))


def test_statistics_name_aiters_kernel(aiter):
    q, k, v = Case(256, 64, batch=1, heads=2, kv_heads=2).inputs()
    simulator.reset_statistics()
    aiter.forward(q, k, v, rounding="rtz")
    kernels = simulator.statistics()["kernels"]
    (name,) = kernels
    assert "fmha_fwd_hd128_bf16" in name
    assert kernels[name]["launches"] == 1
    assert kernels[name]["workgroups"] == 2
    assert kernels[name]["matrix"] > 0


def test_missing_files_are_explained(tmp_path):
    from liteattention_rocm import aiter_kernel

    with pytest.raises(FileNotFoundError, match=r"python tools/fetch_aiter\.py"):
        aiter_kernel.find(tmp_path)
    q, k, v = Case(2, 2).inputs()
    with pytest.raises(FileNotFoundError, match=r"python tools/fetch_aiter\.py"):
        aiter_kernel.forward(q, k, v, directory=tmp_path)


def test_refusals(aiter):
    q, k, v = Case(2, 2).inputs()
    with pytest.raises(TypeError, match=r"q must have dtype torch\.bfloat16, got torch\.float32"):
        aiter.forward(q.float(), k, v)
    far = torch.empty(0, dtype=torch.bfloat16).new_empty(1).expand(2, 2, 3, 128)
    with pytest.raises(ValueError, match=r"batch size of q"):
        aiter.forward(q, far[:1], v)
