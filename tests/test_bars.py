"""What every kernel of the fast variant owes beside AITER's, for every kind of input, shape and mode.

Those of the variant "aiter_exact" have AITER's bits, see test_aiter_exact.py.
"""

import functools
import itertools
import os

import pytest
import torch

import liteattention_rocm
from attention_cases import ROUNDINGS, same_bits
from liteattention_rocm import agreement, aiter_kernel, reference, runtime, simulator
from liteattention_rocm.agreement import KINDS, Case
from liteattention_rocm.lite import lists

# Kernel and pieces of KV; "skip" with every tile listed.
ARRANGEMENTS = {
    "forward": ("forward", 1),
    "pingpong": ("pingpong", 1),
    "forward in pieces": ("forward", 3),
    "pingpong in pieces": ("pingpong", 3),
    "varlen": ("varlen", 1),
    "skip forward": ("skip forward", 1),
    "skip pingpong": ("skip pingpong", 1),
}
SHAPES = {
    "self": (256, 256),
    "cross": (200, 77),
    "odd": (257, 321),
    "few": (17, 193),  # AITER's host takes another kernel up to 128 rows; its code object computes these too
}
FINITE = [kind for kind in KINDS if not kind.startswith("special")]
PATTERNS = (0x7F80, 0xFF80, 0x7FC0, 0x7F81)  # ±Inf, NaN quiet and signalling


def case_of(kind: str, rounding: str, shape: str) -> Case:
    seqlen_q, seqlen_kv = SHAPES[shape]
    if kind.startswith("subnormal"):  # which take the simulator longer
        seqlen_q, seqlen_kv = min(seqlen_q, 136), min(seqlen_kv, 129)
    return Case(kind, rounding, seqlen_q, seqlen_kv)


@functools.cache
def expected(case: Case):
    """Of float64: (out, lse)."""
    return reference.attention(*case.inputs())


@functools.cache
def theirs(case: Case):
    """AITER's (out, lse)."""
    return aiter_kernel.forward(*case.inputs(), rounding=case.rounding, return_lse=True)


def ours(monkeypatch, arrangement: str, q, k, v, rounding: str):
    """One arrangement's (out, lse), and that its kernels ran and no other."""
    kernel, pieces = ARRANGEMENTS[arrangement]
    simulator.reset_statistics()
    if kernel == "varlen":
        assert q.shape[0] == 1
        rows, keys = q.shape[1], k.shape[1]
        bounds = [torch.tensor([0, n], dtype=torch.int32) for n in (rows, keys)]
        out, lse = liteattention_rocm.attention_varlen(
            q[0], k[0], v[0], *bounds, rows, keys, rounding=rounding, return_lse=True
        )
        answer = out[None], lse[None]
    elif kernel.startswith("skip"):
        shape = (*q.shape[:3:2], lists.query_tiles(q.shape[1]), lists.kv_tiles(k.shape[1]))
        read = lists.pack(torch.ones(shape, dtype=torch.bool))
        answer = torch.ops.liteattention_rocm.attention_skip(
            q, k, v, read, torch.zeros_like(read), threshold=-10.0, backward=False, rounding=rounding,
            return_lse=True, kernel=kernel.split()[1],
        )  # fmt: skip
    else:
        monkeypatch.setattr(runtime, "forced_family", kernel)
        monkeypatch.setattr(runtime, "forced_pieces", pieces)
        answer = liteattention_rocm.attention(q, k, v, rounding=rounding, return_lse=True)
    split = pieces > 1 and k.shape[1] > 64
    names = [f"attention_{kernel.replace(' ', '_')}{'_split' * split}_{rounding}"]
    names += [f"attention_merge_{rounding}"] * split
    assert sorted(simulator.statistics()["kernels"]) == sorted(names)
    return answer


def check_bars(monkeypatch, arrangement: str, case: Case) -> None:
    out, lse = ours(monkeypatch, arrangement, *case.inputs(), case.rounding)
    exact, exact_lse = expected(case)
    assert reference.rmse(out, exact) <= 1.02 * reference.rmse(theirs(case)[0], exact)
    assert ((lse.double() - exact_lse).abs() <= agreement.lse_allowance(exact_lse)).all()
    found = agreement.agreement(out, lse, *theirs(case))
    assert found.misplaced == 0 and found.lse_excess <= 1


CELLS = list(itertools.product(FINITE, SHAPES, ROUNDINGS))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_a_sample_of_the_cells(aiter, monkeypatch, arrangement):
    """Of each arrangement every other kind, with shapes and modes in turn."""
    turn = list(ARRANGEMENTS).index(arrangement)
    for number, kind in enumerate(FINITE[turn % 2 :: 2]):
        shape = list(SHAPES)[(turn + number) % len(SHAPES)]
        check_bars(monkeypatch, arrangement, case_of(kind, ROUNDINGS[(turn + number) % 3], shape))


@pytest.mark.full
@pytest.mark.parametrize(("kind", "shape", "rounding"), CELLS)
def test_every_cell(aiter, monkeypatch, kind, shape, rounding):
    for arrangement in ARRANGEMENTS:
        check_bars(monkeypatch, arrangement, case_of(kind, rounding, shape))


@pytest.mark.parametrize(
    "arrangement",
    [one if "skip" not in one else pytest.param(one, marks=pytest.mark.full) for one in ARRANGEMENTS],
)
def test_special_values_of_q_and_k_land_where_aiters_do(aiter, monkeypatch, arrangement):
    """One element at a time: NaN, infinite or finite as AITER's, infinities with their signs; LSE too."""
    turn = list(ARRANGEMENTS).index(arrangement)
    case = Case("N(0,1)", ROUNDINGS[turn % 3], 137, 150, seed=1)
    q, k, v = case.inputs()
    places = (("q", 0), ("q", 136), ("k", 0), ("k", 63), ("k", 149))
    for number, (name, row) in enumerate(places):
        inputs = {"q": q.clone(), "k": k.clone()}
        pattern = PATTERNS[(turn + number) % len(PATTERNS)]
        inputs[name].view(torch.int16)[0, row, 0, 77] = pattern - (pattern >> 15 << 16)
        out, lse = ours(monkeypatch, arrangement, *inputs.values(), v, case.rounding)
        peer, peer_lse = aiter_kernel.forward(*inputs.values(), v, rounding=case.rounding, return_lse=True)
        for one, other in ((out.float(), peer.float()), (lse, peer_lse)):
            assert torch.equal(one.isnan(), other.isnan()), (name, row)
            assert torch.equal(one.isposinf(), other.isposinf()), (name, row)
            assert torch.equal(one.isneginf(), other.isneginf()), (name, row)
        assert agreement.agreement(out, lse, peer, peer_lse).lse_excess <= 1


@pytest.fixture
def any_order(request):
    """Sets in which order the simulator delivers loads and takes waves and workgroups."""

    def restore():
        simulator.set_option("delivery", "early")
        simulator.set_option("threads", os.environ["LITEATTENTION_ROCM_SIM_THREADS"])

    def choose(delivery: str, threads: int):
        simulator.set_option("delivery", delivery)
        simulator.set_option("threads", threads)

    request.addfinalizer(restore)
    return choose


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_bits_do_not_depend_on_the_order(any_order, monkeypatch, arrangement):
    """Of loads, of the waves' turns, and of the machine's threads, which share the workgroups."""
    rounding = ROUNDINGS[list(ARRANGEMENTS).index(arrangement) % 3]
    inputs = Case("N(0,1)", rounding, 400, 150, heads=2, kv_heads=1, seed=2).inputs()
    answers = []
    for delivery, threads in (("early", 1), ("late", 2), ("random:1", 3), ("random:2", 1)):
        any_order(delivery, threads)
        answers.append(ours(monkeypatch, arrangement, *inputs, rounding))
    for out, lse in answers[1:]:
        assert same_bits(out, answers[0][0]) and torch.equal(lse, answers[0][1])
