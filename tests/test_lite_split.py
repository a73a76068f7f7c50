"""The skipping kernels that split KV, and what they leave for the merge, simulated."""

import pytest
import torch

import lite_split
import liteattention_rocm
from attention_cases import same_bits
from lite_cases import inputs, random_list
from liteattention_rocm import reference, runtime
from liteattention_rocm.lite import lists
from liteattention_rocm.lite.cost import QUERY_TILES_OF
from liteattention_rocm.lite.reference import step as reference_step

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
    ("lengths", "pieces"), [((300, 700), 3), ((130, 449), 7), ((64, 128), 2), ((300, 2200), 4)], ids=str
)
def test_outputs_and_lists_against_the_reference(schedule, lengths, pieces, backward):
    q, k, v = inputs(2, 2, *lengths, noise=0.3)
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
