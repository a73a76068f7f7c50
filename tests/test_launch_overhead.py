"""What a call costs from Python to hipModuleLaunchKernel, and that the short way there checks as much."""

import json

import pytest
import torch

import liteattention_rocm
from liteattention_rocm import _C, arguments, cli, simulator
from liteattention_rocm.commands import launch_overhead

BAR_US = 15.0
# What torch.library.define and impl take on a machine that the bar is meant for. Where they take longer, the
# machine is slower or busy, and the bar moves with them.
LIBRARY_US = 3.5


def inputs(seqlen_q=5, seqlen_kv=7):
    return [torch.randn(1, rows, 2, 128).bfloat16() for rows in (seqlen_q, seqlen_kv, seqlen_kv)]


def test_a_launch_takes_15_microseconds():
    tries = []
    for _ in range(4):
        found = launch_overhead.split()
        tries.append(found)
        bar = BAR_US * max(1.0, found["torch.library"] / LIBRARY_US)
        if found["attention"] <= bar and found["attention(out=)"] <= bar:
            break
    else:
        pytest.fail(f"above {BAR_US} microseconds: {tries}")
    parts = ("torch.library", "checks", "kernel choice", "output", "launch")
    assert all(found[part] > 0 for part in parts)
    assert sum(found[part] for part in parts) < 1.5 * found["attention"]
    assert found["custom_op"] > found["torch.library"]


def test_command(capsys):
    assert cli.main(["speed", "--launch"]) == 0
    out = capsys.readouterr().out
    assert "median microseconds" in out and "torch.library" in out
    assert cli.main(["speed", "--launch", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attention"] > 0
    q, k, v = inputs()
    assert liteattention_rocm.attention(q, k, v).isfinite().all()  # launches execute again


def test_a_launch_that_executes_nothing_is_counted_and_validated():
    q, k, v = inputs()
    out = torch.full_like(q, 7)
    module = simulator.Module(_C.code_object("gfx942"))
    with launch_overhead.nothing_executed():
        simulator.reset_statistics()
        liteattention_rocm.attention(q, k, v, out=out, rounding="rtz")
        with pytest.raises(simulator.SimulatorError, match="block 1025x1x1"):
            module.launch("attention_forward_rtz", (1, 1, 1), (1025, 1, 1), b"")
    statistics = simulator.statistics()
    (kernel,) = statistics["kernels"].values()
    assert kernel["launches"] == 1 and kernel["instructions"] == 0
    assert statistics["hip_calls"]["hipModuleLaunchKernel"] == 2
    assert (out == 7).all()
    with pytest.raises(simulator.SimulatorError, match="execute is '2', allowed: 0, 1"):
        simulator.set_option("execute", "2")


# The answer that is kept for a shape must not cover for an argument that differs from it.


def test_every_property_that_matters_is_looked_at_again():
    q, k, v = inputs()
    liteattention_rocm.attention(q, k, v)
    for wrong, error in (
        ((q.float(), k, v), TypeError),
        ((q, k.half(), v), TypeError),
        ((q, k, v.to("meta")), ValueError),
        ((q, k, v[:, :-1]), ValueError),
        ((q, k[:, :, :1], v), ValueError),
        ((q[..., :64], k, v), ValueError),
        ((q.clone().requires_grad_(), k, v), ValueError),
        ((q.to_sparse(), k, v), ValueError),
    ):
        with pytest.raises(error):
            liteattention_rocm.attention(*wrong)
    with torch.no_grad():
        liteattention_rocm.attention(q.clone().requires_grad_(), k, v)
    for options in ({"layout": "sbhd"}, {"rounding": "up"}, {"scale": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(options))):
            liteattention_rocm.attention(q, k, v, **options)
    for options in ({"scale": True}, {"rounding": 1}, {"return_lse": 1}):
        with pytest.raises(TypeError, match=next(iter(options))):
            liteattention_rocm.attention(q, k, v, **options)


def test_options_of_one_shape_are_told_apart():
    q, k, v = inputs()
    by_options = [
        liteattention_rocm.attention(q, k, v, **options)
        for options in ({}, {"rounding": "rtz"}, {"scale": 1.0}, {"scale": -1.0}, {"layout": "bshd"})
    ]
    assert torch.equal(by_options[0], by_options[4])
    for i in range(4):
        for j in range(i):
            assert not torch.equal(by_options[i], by_options[j]), (i, j)


def test_strides_of_one_shape_are_told_apart():
    """Contiguous, a slice of a fused projection, transposed memory, and an address that is not aligned."""
    q, k, v = inputs(5, 5)
    expected = liteattention_rocm.attention(q, k, v)
    fused = torch.stack([q, k, v], dim=3)  # [B, S, H, 3, D]
    assert torch.equal(liteattention_rocm.attention(*fused.unbind(3)), expected)
    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(liteattention_rocm.attention(*transposed), expected)
    shifted = torch.zeros(v.numel() + 1, dtype=v.dtype)[1:].view(v.shape).copy_(v)
    assert shifted.data_ptr() % 16
    assert torch.equal(liteattention_rocm.attention(q, k, shifted), expected)
    out = torch.zeros(q.numel() + 1, dtype=q.dtype)[1:].view(q.shape)
    for _ in range(2):
        assert torch.equal(liteattention_rocm.attention(q, k, v, out=out), expected)
    for name, place in (("q", q), ("k", k), ("v", v), ("q", fused[:, :, :, 0])):
        inside = fused.unbind(3) if place.data_ptr() == fused.data_ptr() else (q, k, v)
        for return_lse in (False, True):
            with pytest.raises(ValueError, match=f"must not overlap an input, but shares memory with {name}"):
                liteattention_rocm.attention(*inside, out=place, return_lse=return_lse)
    places = torch.stack([*fused.unbind(3), torch.zeros_like(q)], dim=3).unbind(3)  # between rows of inputs
    liteattention_rocm.attention(*places[:3], out=places[3])
    assert torch.equal(places[3], expected)


def test_a_place_is_checked_after_others_of_its_shape():
    q, k, v = inputs()
    liteattention_rocm.attention(q, k, v, out=torch.empty_like(q))
    for out, error in (
        (torch.empty_like(q, dtype=torch.float32), TypeError),
        (torch.empty(1, 5, 2, 64, dtype=torch.bfloat16), ValueError),
        (torch.empty(1, 1, 2, 128, dtype=torch.bfloat16).expand(1, 5, 2, 128), ValueError),
        (torch.empty_like(q).requires_grad_(), ValueError),
        (torch.empty_like(q, device="meta"), ValueError),
    ):
        for return_lse in (False, True):
            with pytest.raises(error, match=r"^out "):
                liteattention_rocm.attention(q, k, v, out=out, return_lse=return_lse)


def test_kept_answers_are_bounded(monkeypatch):
    monkeypatch.setattr(arguments, "MAX_CALLS", 8)
    arguments._calls.clear()
    with launch_overhead.nothing_executed():
        for rows in range(1, 30):
            liteattention_rocm.attention(*inputs(rows))
            assert len(arguments._calls) <= 8
