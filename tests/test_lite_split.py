"""The skipping kernels that split KV, and what they leave for the merge, simulated."""

import math
import os
from pathlib import Path

import pytest
import torch

import lite_split
import liteattention_rocm
from attention_cases import same_bits
from lite_cases import inputs, random_list
from liteattention_rocm import _C, LiteAttention, reference, runtime, simulator, verdicts
from liteattention_rocm.lite import lists
from liteattention_rocm.lite.cost import QUERY_TILES_OF
from liteattention_rocm.lite.reference import step as reference_step
from test_lite_attention import GRANULARITY, granularity_inputs

SIMULATOR_THREADS = os.environ["LITEATTENTION_ROCM_SIM_THREADS"]
VOTE_ROUNDING = 1e-3  # as in test_lite_kernel.py
ROUNDINGS = ["rtne", pytest.param("rtna", marks=pytest.mark.full), "rtz"]


@pytest.fixture(params=QUERY_TILES_OF)
def schedule(request, monkeypatch):
    """Each of the schedules, for dense calls and for skipping ones."""
    monkeypatch.setattr(runtime, "forced_family", request.param)
    return request.param


def skip(q, k, v, kept, pieces, *, threshold=-6.0, backward=False, pinned=None, **options):
    """One call of the operator on the forced schedule; the written list comes back as bool."""
    read = lists.pack(kept)
    write = torch.zeros_like(read) if pinned is None else lists.pack(pinned.expand_as(kept))
    out, lse = torch.ops.liteattention_rocm.attention_skip(
        q, k, v, read, write, threshold=threshold, backward=backward, return_lse=True, pieces=pieces,
        kernel=runtime.forced_family, **options,
    )  # fmt: skip
    return out, lse, lists.unpack(write, kept.shape[-1])


def everything(q, k):
    shape = (q.shape[0], q.shape[2], lists.query_tiles(q.shape[1]), lists.kv_tiles(k.shape[1]))
    return torch.ones(shape, dtype=torch.bool)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_full_list_has_the_bits_of_the_dense_split(schedule, rounding, monkeypatch):
    for lengths, pieces in (((150, 449), 3), ((390, 130), 2), ((17, 65), 2)):
        q, k, v = inputs(1, 2, *lengths, noise=0.3)
        monkeypatch.setattr(runtime, "forced_pieces", pieces)
        expected, expected_lse = liteattention_rocm.attention(q, k, v, rounding=rounding, return_lse=True)
        out, lse, _ = skip(q, k, v, everything(q, k), pieces, rounding=rounding)
        assert same_bits(out, expected) and torch.equal(lse, expected_lse)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("lengths", "pieces"),
    [
        ((130, 449), 7),
        ((300, 1300), 4),
        *(pytest.param(*one, marks=pytest.mark.full) for one in (((300, 2200), 3), ((64, 128), 2))),
    ],
    ids=str,
)
def test_outputs_and_lists_against_the_reference(schedule, lengths, pieces, backward):
    q, k, v = inputs(2, 2, *lengths, noise=0.3, drift=600.0)
    kept = random_list(2, 2, *lengths)
    out, lse, written = skip(q, k, v, kept, pieces, backward=backward)
    whole, _, unsplit = skip(q, k, v, kept, 1, backward=backward)
    expected = reference_step(q, k, v, kept, threshold=-6.0, backward=backward)
    assert reference.rmse(out, expected.out) <= 1.02 * reference.rmse(whole, expected.out)
    assert (lse.double() - expected.lse).abs().max() < 1e-3
    assert not (written & ~kept).any() and not (unsplit & ~written).any()
    gathered, margin = lite_split.step(
        q, k, kept, merged=QUERY_TILES_OF[schedule], pieces=pieces, threshold=-6.0, backward=backward
    )
    different = written != gathered
    assert not (different & (margin > VOTE_ROUNDING)).any()
    assert different.float().mean() < 2e-3


def test_the_reference_keeps_more_than_the_unsplit_walk_and_drops_tiles():
    """The comparison above can fail: in each direction some votes are gathered, some dropped by the merge."""
    q, k, _ = inputs(1, 2, 150, 1300, noise=0.3, drift=600.0)
    kept = everything(q, k)
    for backward in (False, True):
        lists_of = {
            pieces: lite_split.step(q, k, kept, merged=1, pieces=pieces, threshold=-6.0, backward=backward)[0]
            for pieces in (1, 3)
        }
        assert not (lists_of[1] & ~lists_of[3]).any()
        assert lists_of[1].sum() < lists_of[3].sum() < kept.sum()
        ungated = torch.zeros_like(kept)
        for own in lite_split.shares(kept, 1, 3, backward):
            ungated |= (
                lite_split.step(q, k, own, merged=1, pieces=1, threshold=-6.0, backward=backward)[0] & own
            )
        assert lists_of[3].sum() < ungated.sum()


def test_any_number_of_tiles_and_pieces(schedule):
    """Lists of one tile, of fewer tiles than pieces, of none, which stands for tile 0."""
    q, k, v = inputs(1, 1, 260, 700)
    shape = everything(q, k).shape
    generator = torch.Generator().manual_seed(3)
    for number in (0, 1, 3):
        kept = torch.zeros(shape, dtype=torch.bool)
        for row in range(shape[2] if number else 0):
            kept[0, 0, row, torch.randperm(shape[3], generator=generator)[:number]] = True
        kept[0, 0, 1] = False
        only = kept.clone()
        only[..., 0] |= ~kept.any(-1)
        for backward in (False, True):
            whole, whole_lse, unsplit = skip(q, k, v, kept, 1, backward=backward)
            expected = reference_step(q, k, v, only, threshold=-6.0, backward=backward)
            for pieces in (2, 11):
                out, lse, written = skip(q, k, v, kept, pieces, backward=backward)
                assert reference.rmse(out, expected.out) <= 1.02 * reference.rmse(whole, expected.out)
                assert (lse - whole_lse).abs().max() < 1e-5
                assert not (written & ~only).any() and not (unsplit & ~written).any()
                if number == 0:
                    assert torch.equal(out, whole) and torch.equal(written, only)


@pytest.mark.parametrize("backward", [False, True])
def test_infinite_thresholds_and_pinned_tiles(schedule, backward):
    """−Inf leaves the list as it is; +Inf keeps the first visited tile, and what is pinned."""
    q, k, v = inputs(1, 2, 300, 2200)
    kept = random_list(1, 2, 300, 2200)
    assert torch.equal(skip(q, k, v, kept, 3, threshold=-math.inf, backward=backward)[2], kept)
    pinned = torch.zeros(35, dtype=torch.bool)
    pinned[[3, 33]] = True
    _, _, written = skip(q, k, v, kept, 3, threshold=math.inf, backward=backward, pinned=pinned)
    first = kept.shape[-1] - 1 - kept.flip(-1).int().argmax(-1) if backward else kept.int().argmax(-1)
    assert torch.equal(written, torch.nn.functional.one_hot(first, 35).bool() | pinned)


def test_not_a_number_keeps_its_tile(schedule):
    """Also in a piece that is negligible beside the ones before, where only a sum tells of it."""
    q = torch.zeros(1, 128, 1, 128).bfloat16()
    q[..., 0] = 16
    k, v = torch.zeros(1, 640, 1, 128).bfloat16(), torch.randn(1, 640, 1, 128).bfloat16()
    k[:, :64, :, 0] = 16
    plain = skip(q, k, v, everything(q, k), 5)[2]
    assert plain.sum() == 1
    k[0, 448:512] = math.nan
    for pieces in (1, 5):
        assert skip(q, k, v, everything(q, k), pieces)[2][..., 7].all()


@pytest.mark.parametrize("rows", [1, 15, 33, 113, 127])
def test_rows_that_do_not_exist_have_no_vote(schedule, rows):
    """Their scores are 0, far above those of the rows that do, in every piece."""
    q = torch.full((1, rows, 1, 128), 4.0).bfloat16()
    k = torch.full((1, 640, 1, 128), -4.0).bfloat16()
    k[:, :64] = -3
    v = torch.randn(1, 640, 1, 128).bfloat16()
    assert skip(q, k, v, everything(q, k), 3)[2].sum() == 1


def test_layouts_strides_heads_and_order(schedule):
    q, k, v = inputs(2, 4, 500, 333, noise=0.2)
    k, v = torch.stack([k[:, :, :2], v[:, :, :2]], 2).unbind(2)
    kept = random_list(2, 4, 500, 333)
    out, lse, written = skip(q, k, v, kept, 3)
    expected = reference_step(q, k, v, kept, threshold=-6.0)
    assert reference.rmse(out, expected.out) < 1.3e-3
    generator = torch.Generator().manual_seed(5)
    groups = -(-4 // QUERY_TILES_OF[schedule])
    order = (
        torch.stack([torch.randperm(groups, generator=generator) for _ in range(8)]).int().view(2, 4, groups)
    )
    ordered = skip(q, k, v, kept, 3, order=order)
    assert same_bits(ordered[0], out) and torch.equal(ordered[1], lse) and torch.equal(ordered[2], written)
    other = skip(*(t.transpose(1, 2) for t in (q, k, v)), kept, 3, layout="bhsd")
    assert same_bits(other[0].transpose(1, 2), out) and torch.equal(other[2], written)


def test_votes_that_count():
    """A wave of a piece leaves out what is negligible for its 32 rows beside what the piece saw before."""
    q, k, v = inputs(1, 2, 384, 2200)
    kept = everything(q, k)
    runs = {}
    for counts in (False, True):
        simulator.reset_statistics()
        read, write = lists.pack(kept), torch.zeros_like(lists.pack(kept))
        out, _ = torch.ops.liteattention_rocm.attention_skip(
            q, k, v, read, write, threshold=-3.0, backward=False, pieces=2, votes_count=counts
        )
        products = simulator.statistics()["kernels"]["attention_skip_forward_split_rtne"]["matrix"]
        runs[counts] = out, write, products
    assert torch.equal(runs[False][1], runs[True][1])
    assert runs[True][2] < 0.9 * runs[False][2]
    expected, _ = reference.attention(q, k, v)
    assert reference.rmse(runs[False][0], expected) < reference.rmse(runs[True][0], expected) < 0.1


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_same_bits_every_time(schedule, rounding):
    """Whatever the number of host threads, and whenever loads are delivered within their waits."""
    q, k, v = inputs(1, 2, 400, 449, noise=0.3)
    kept = random_list(1, 2, 400, 449)
    runs = []
    try:
        for threads in (1, 3):
            simulator.set_option("threads", threads)
            runs.append(skip(q, k, v, kept, 3, rounding=rounding))
    finally:
        simulator.set_option("threads", SIMULATOR_THREADS)
    for delivery in ("late", "random:3"):
        with simulator.checking("all", delivery=delivery):
            runs.append(skip(q, k, v, kept, 3, rounding=rounding))
    for out, lse, written in runs[1:]:
        assert (
            same_bits(out, runs[0][0]) and torch.equal(lse, runs[0][1]) and torch.equal(written, runs[0][2])
        )


@pytest.fixture
def small_device(monkeypatch, request):
    """A device of three compute units, and the plan's own choice of kernel and pieces."""
    simulator.set_option("compute_units", 3)
    request.addfinalizer(lambda: simulator.set_option("compute_units", 304))
    monkeypatch.setattr(runtime, "forced_family", "")
    monkeypatch.setattr(runtime, "forced_pieces", None)
    verdicts.forget()


def launched(call) -> dict[str, int]:
    """The attention launches of a call: workgroups by kernel."""
    simulator.reset_statistics()
    call()
    kernels = simulator.statistics()["kernels"]
    return {name: one["workgroups"] for name, one in kernels.items() if not name.endswith("order")}


def test_the_class_splits_as_the_plan_says(small_device):
    """The first call has the bits of dense attention, split alike; later plans are for what is left."""
    q, k, v = inputs(1, 1, 384 * 4 - 50, 1280, noise=0.2)
    dense = _C.plan(1, 1, 1, q.shape[1], 1280, 3)
    assert dense["kernel"] == "pingpong" and dense["pieces"] > 1 and dense["whole_blocks"] > 0
    expected = liteattention_rocm.attention(q, k, v)
    attention, unsplit = (LiteAttention(threshold=-6, break_even=0) for _ in range(2))
    results = []
    kernels = launched(lambda: results.append(attention(q, k, v)))
    plan = _C.skip_plan(1, 1, 1, q.shape[1], 1280, 3, "pingpong")
    assert kernels == {
        "attention_skip_pieces": plan["launches"][0]["grid"][0],
        "attention_skip_pingpong_split_rtne": plan["launches"][1]["grid"][0],
        "attention_skip_merge_rtne": plan["launches"][2]["grid"][0],
    }
    assert same_bits(results[0], expected)
    listed = [lists.unpack(attention._lists[attention._read], 20)]
    for step in range(1, 4):
        q, k, v = inputs(1, 1, 384 * 4 - 50, 1280, noise=0.2, drift=3.0 * step)
        before = listed[-1]
        out = attention(q, k, v)
        wanted = reference_step(q, k, v, before, threshold=-6.0, backward=step % 2 == 1)
        assert reference.rmse(out, wanted.out) < 6e-4
        listed.append(lists.unpack(attention._lists[attention._read], 20))
        different = wanted.kept & ~listed[-1]
        assert not (different & (wanted.margin > VOTE_ROUNDING)).any() and not (listed[-1] & ~before).any()
    assert listed[-1].float().mean() < 0.8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "forced_pieces", 1)
        assert set(launched(lambda: unsplit(q, k, v))) == {"attention_skip_pingpong_rtne"}


def test_kernels_that_failed_the_self_test_do_not_split(monkeypatch, tmp_path, small_device):
    monkeypatch.setenv(verdicts.FOLDER_VARIABLE, str(tmp_path))
    where = runtime.target(torch.device("cpu"))
    for kernel in ("skip_pingpong_split_rtz", "skip_merge_rtz", "skip_pieces"):
        verdicts.store(where, {f"attention_{kernel}": {"verdict": verdicts.FAIL, "worst": "a test"}})
        assert runtime.permitted_skip_pieces(where, "pingpong", "rtz") == 1
        assert runtime.permitted_skip_pieces(where, "forward", "rtne") == (kernel == "skip_pieces")
        monkeypatch.setattr(runtime, "forced_pieces", 2)
        with pytest.raises(verdicts.RefusedVariant, match=f"attention_{kernel} failed"):
            runtime.permitted_skip_pieces(where, "pingpong", "rtz")
        monkeypatch.setattr(runtime, "forced_pieces", None)
        options = {"threshold": -6.0, "backward": False, "rounding": "rtz", "kernel": "pingpong"}
        q, k, v = inputs(1, 1, 100, 200)
        read = torch.full((1, 1, 1, 1), 15, dtype=torch.int32)
        with pytest.raises(verdicts.RefusedVariant, match=f"attention_{kernel} failed"):
            torch.ops.liteattention_rocm.attention_skip(
                q, k, v, read, torch.zeros_like(read), pieces=2, **options
            )
        torch.ops.liteattention_rocm.attention_skip(q, k, v, read, torch.zeros_like(read), **options)
    verdicts.forget()


def test_refusals():
    q, k, v = inputs(1, 2, 100, 200)
    read, write = (torch.full((1, 2, 1, 1), 15, dtype=torch.int32) for _ in range(2))
    skipping = torch.ops.liteattention_rocm.attention_skip
    options = {"threshold": -10.0, "backward": True, "return_lse": True}
    with pytest.raises(ValueError, match="pieces must be from 0 to 2147483647, got -1"):
        skipping(q, k, v, read, write, pieces=-1, **options)
    with pytest.raises(ValueError, match="visited must be from 0 to the 4 KV tiles, got 5"):
        skipping(q, k, v, read, write, pieces=0, visited=5, **options)


@pytest.mark.full
@pytest.mark.parametrize("pattern", GRANULARITY)
def test_skip_rate_in_pieces(pattern, monkeypatch):
    """The table of docs/liteattention.md; a merge that dropped no vote would leave far fewer tiles out."""
    monkeypatch.setattr(runtime, "forced_family", "pingpong")
    page = (Path(__file__).parent.parent / "docs" / "liteattention.md").read_text()
    torch.manual_seed(0)
    q, k, v = granularity_inputs(pattern)
    rates = {}
    for pieces in (1, 2, 5):
        kept, rates[pieces] = everything(q, k), []
        for step in range(4):
            kept = skip(q, k, v, kept, pieces, backward=step % 2 == 1)[2]
            rates[pieces].append(100 * (1 - kept.float().mean().item()))
        name = f"{' '.join(pattern.split()[:2])}, {'unsplit' if pieces == 1 else f'{pieces} pieces'}"
        assert f"| {name} | {' | '.join(f'{rate:.1f} %' for rate in rates[pieces])} |" in page
    assert all(a - b < 3.5 for a, b in zip(rates[1], rates[5], strict=True))
