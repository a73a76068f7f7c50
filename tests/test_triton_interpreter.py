"""The Triton kernels in Triton's interpreter, on the CPU, in one process for all cases."""

import math

import pytest
import torch

import triton_cases
from attention_cases import ROUNDINGS, Case
from triton_cases import Call

pytest.importorskip("triton", reason="Triton is not installed")

from liteattention_rocm import reference
from liteattention_rocm.triton import interpreter

# Each mode in both layouts, each length on either side; 4 query heads read 2 kv heads; V is strided.
LENGTHS = {
    ("rtne", "bshd"): (70, 130),
    ("rtne", "bhsd"): (1, 65),
    ("rtna", "bshd"): (65, 64),
    ("rtna", "bhsd"): (64, 1),
    ("rtz", "bshd"): (129, 63),
    ("rtz", "bhsd"): (2, 191),
}


def dense_calls() -> dict[str, Call]:
    calls = {}
    for (rounding, layout), (seqlen_q, seqlen_kv) in LENGTHS.items():
        case = Case(seqlen_q, seqlen_kv, rounding, layout, batch=1, heads=4, kv_heads=2)
        calls[str(case)] = Call(*case.inputs(), rounding, layout)
    for rounding in ROUNDINGS:
        calls[f"one of each-{rounding}"] = Call(*Case(1, 1, batch=2).inputs(), rounding)
    case = Case(66, 100, batch=2, heads=2, kv_heads=1)
    calls["negative scale"] = Call(*case.inputs(), scale=-0.13)
    calls["scale 0"] = Call(*case.inputs(), scale=0.0)
    q, k, v = case.inputs()
    calls["expanded"] = Call(q[:1].expand_as(q), k[:, :1].expand_as(k), v)
    # More columns than the configuration for short sequences takes.
    calls["long"] = Call(*Case(130, 1100, batch=1, heads=1, kv_heads=1).inputs())
    return calls


DENSE = [*dense_calls()]
SKIPPING = [*triton_cases.skipping_calls()]


@pytest.fixture(scope="module")
def calls():
    """Every case, run."""
    torch.manual_seed(0)
    calls = dense_calls() | triton_cases.skipping_calls()
    for rounding in ROUNDINGS:
        calls[f"halves-{rounding}"] = triton_cases.halves(rounding)
        calls[f"very negative-{rounding}"] = triton_cases.very_negative(rounding)
        calls[f"special-{rounding}"] = triton_cases.special(rounding)
    for call, made in zip(
        calls.values(), interpreter.run([call.launch() for call in calls.values()]), strict=True
    ):
        call.take(made)
    return calls


@pytest.mark.parametrize("name", DENSE)
def test_dense(calls, name):
    triton_cases.judge_dense(calls[name])
    if name.startswith("one of each"):
        assert torch.equal(calls[name].out, calls[name].v.expand_as(calls[name].out))


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_ties_are_rounded_as_the_mode_says(calls, rounding):
    triton_cases.judge_halves(calls[f"halves-{rounding}"])


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_very_negative_logits(calls, rounding):
    assert (calls[f"very negative-{rounding}"].out == 1).all()


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_inf_and_nan_land_where_the_hip_kernels_do(calls, rounding):
    triton_cases.judge_special(calls[f"special-{rounding}"])


@pytest.mark.parametrize("name", SKIPPING)
def test_skipping(calls, name):
    assert triton_cases.judge_skipping_call(name, calls[name]) == 0


@pytest.mark.parametrize("name", [name for name in SKIPPING if "none" not in name])
def test_lists_are_those_of_the_hip_kernel(calls, name):
    triton_cases.judge_against_hip(calls[name])


def test_the_judge_sees_a_wrong_scale():
    call = Call(*Case(70, 130, batch=1).inputs())
    out, lse = reference.replica(call.q, call.k, call.v, scale=call.scale * (1 + 1e-3))
    call.made = {"out": out, "lse": lse}
    with pytest.raises(AssertionError):
        triton_cases.judge_dense(call)


def test_a_launch_that_does_not_exist():
    with pytest.raises(ValueError, match="a launch must be one of forward, "):
        interpreter.run([("backward", {})])


def test_a_failure_tells_why():
    with pytest.raises(RuntimeError, match=r"missing .* required"):
        interpreter.run([("forward", {"q": torch.zeros(1), "scale": math.nan})])
