"""The skipping kernels, simulated: walks, votes, bits of the output, instructions executed."""

import math

import pytest
import torch

import liteattention_rocm
from attention_cases import ROUNDINGS, same_bits
from lite_cases import backward_dense, inputs, random_list
from liteattention_rocm import reference, runtime, simulator
from liteattention_rocm.lite import lists, ops
from liteattention_rocm.lite.cost import SKIPPING_OVER_DENSE
from liteattention_rocm.lite.reference import step as reference_step

LENGTHS = [(1, 1), (239, 1), (799, 3), (113, 203), (1023, 1024), (64, 128), (130, 449), (300, 2200)]
# float32 scores and maxima against float64: scores of the cases here reach 100.
VOTE_ROUNDING = 1e-3


@pytest.fixture(autouse=True)
def _same_schedule_for_dense(monkeypatch):
    """Dense calls run attention_forward, whatever kernel a plan would choose."""
    monkeypatch.setattr(runtime, "forced_family", "forward")


@pytest.fixture(params=ops.QUERY_TILES_OF)
def schedule(request, monkeypatch):
    """Each of the schedules, for dense calls and for skipping ones."""
    monkeypatch.setattr(runtime, "forced_family", request.param)
    return request.param


def skip(q, k, v, kept, *, threshold=-10.0, backward=False, pinned=None, **options):
    """One call of the operator, on the forced schedule; the written list comes back as bool."""
    options.setdefault("kernel", runtime.forced_family)
    tiles = kept.shape[-1]
    read = lists.pack(kept)
    write = torch.zeros_like(read) if pinned is None else lists.pack(pinned.expand_as(kept))
    out, lse = torch.ops.liteattention_rocm.attention_skip(
        q, k, v, read, write, threshold=threshold, backward=backward, return_lse=True, **options
    )
    return out, lse, lists.unpack(write, tiles)


def everything(q, k):
    shape = (q.shape[0], q.shape[2], lists.query_tiles(q.shape[1]), lists.kv_tiles(k.shape[1]))
    return torch.ones(shape, dtype=torch.bool)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_with_everything_kept_the_bits_are_those_of_dense(lengths, rounding, schedule):
    """Walked forward, those of the dense kernel; backward, those of the dense kernel on reversed tiles."""
    q, k, v = (torch.randn(1, rows, 2, 128).bfloat16() for rows in (lengths[0], lengths[1], lengths[1]))
    q[..., -1] = 0
    k[..., -1] = 0
    for backward, dense in ((False, liteattention_rocm.attention), (True, backward_dense)):
        expected, expected_lse = dense(q, k, v, rounding=rounding, return_lse=True)
        out, lse, _ = skip(q, k, v, everything(q, k), backward=backward, rounding=rounding)
        assert same_bits(out, expected)
        assert torch.equal(lse, expected_lse)


def test_the_direction_of_the_walk_shows_in_the_bits():
    """The comparison above can fail."""
    q, k, v = (torch.randn(1, 300, 2, 128).bfloat16() for _ in range(3))
    q[..., -1] = 0
    k[..., -1] = 0
    assert not same_bits(liteattention_rocm.attention(q, k, v), backward_dense(q, k, v))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_outputs_and_lists_against_the_reference(lengths, backward, schedule):
    """Random lists over local attention, LSE within 1e-3. A query tile attends the tiles of its own list,
    whatever its neighbours in a workgroup make that visit."""
    q, k, v = inputs(2, 3, *lengths, noise=0.3)
    kept = random_list(2, 3, *lengths)
    out, lse, written = skip(q, k, v, kept, threshold=-6.0, backward=backward)
    expected = reference_step(q, k, v, kept, threshold=-6.0, backward=backward)
    assert reference.rmse(out, expected.out) < 1.3e-3
    assert (lse.double() - expected.lse).abs().max() < 1e-3
    different = written != expected.kept
    assert not (different & (expected.margin > VOTE_ROUNDING)).any()
    assert different.float().mean() < 1e-3
    assert not (written & ~kept).any(), "a dropped tile came back"
    assert written.any(-1).all()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("lengths", [(700, 449), (300, 2200), (390, 70)], ids=str)
def test_schedules_write_the_same_lists(lengths, backward):
    """Scores and maxima have the same bits in both, and so have votes."""
    q, k, v = inputs(1, 3, *lengths, noise=0.3)
    kept = random_list(1, 3, *lengths, share=0.4)
    for threshold in (-1.0, -6.0, -math.inf, math.inf):
        _, _, first = skip(q, k, v, kept, threshold=threshold, backward=backward, kernel="forward")
        _, _, second = skip(q, k, v, kept, threshold=threshold, backward=backward, kernel="pingpong")
        assert torch.equal(first, second)


def test_neighbours_do_not_show():
    """With the lists of others full or empty but for a tile, a query tile's bits and votes stay."""
    q, k, v = inputs(1, 1, 384, 700, noise=0.3)
    own = random_list(1, 1, 384, 700)
    out, lse, written = skip(q, k, v, own, threshold=-6.0, kernel="pingpong")
    for number in range(3):
        rows = slice(128 * number, 128 * (number + 1))
        for others in (torch.ones(11, dtype=torch.bool), torch.arange(11) == 10):
            kept = own.clone()
            kept[:, :, [n for n in range(3) if n != number]] = others
            again, lse_again, votes = skip(q, k, v, kept, threshold=-6.0, kernel="pingpong")
            assert same_bits(again[:, rows], out[:, rows])
            assert torch.equal(lse_again[..., rows], lse[..., rows])
            assert torch.equal(votes[:, :, number], written[:, :, number])


def test_votes_matter():
    """The lists of the test above hold kept and dropped tiles."""
    q, k, v = inputs(2, 3, 300, 2200, noise=0.3)
    _, _, written = skip(q, k, v, everything(q, k), threshold=-6.0)
    assert 0.1 < written.float().mean() < 0.9


@pytest.mark.parametrize("backward", [False, True])
def test_infinite_thresholds(backward, schedule):
    """−Inf leaves the list as it is; +Inf keeps the first visited tile."""
    lengths = (300, 2200)
    q, k, v = inputs(1, 2, *lengths)
    kept = random_list(1, 2, *lengths)
    assert torch.equal(skip(q, k, v, kept, threshold=-math.inf, backward=backward)[2], kept)
    _, _, written = skip(q, k, v, kept, threshold=math.inf, backward=backward)
    assert (written.sum(-1) == 1).all()
    first = kept.shape[-1] - 1 - kept.flip(-1).int().argmax(-1) if backward else kept.int().argmax(-1)
    assert torch.equal(written.int().argmax(-1), first)


def test_negligible_to_the_last_bit_is_kept_at_minus_infinity(schedule):
    """Also where scores are −Inf themselves, and P exactly 0."""
    q, k, v = (torch.randn(1, 128, 1, 128).bfloat16() for _ in range(3))
    q[..., 0], k[:, 64:, :, 0] = 2.0**64, -(2.0**64)
    kept = everything(q, k)
    assert (skip(q, k, v, kept, threshold=-math.inf)[2] == kept).all()
    assert skip(q, k, v, kept, threshold=-1e30)[2].sum() == 1


def test_not_a_number_keeps_its_tile(schedule):
    q, k, v = inputs(1, 1, 128, 640)
    k[0, 200] = math.nan
    _, _, written = skip(q, k, v, everything(q, k), threshold=-6.0)
    assert written[..., 3].all()


@pytest.mark.parametrize("rows", [1, 31, 33, 100, 127])
def test_rows_that_do_not_exist_have_no_vote(rows, schedule):
    """Their scores are 0, far above those of the rows that do."""
    q = torch.full((1, rows, 1, 128), 4.0).bfloat16()
    k = torch.full((1, 640, 1, 128), -4.0).bfloat16()
    k[:, :64] = -3
    v = torch.randn(1, 640, 1, 128).bfloat16()
    _, _, written = skip(q, k, v, everything(q, k), threshold=-6.0)
    assert written.sum() == 1


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("rows", [16, 100, 128, 129])
def test_nor_where_keys_are_infinite(rows, pieces, schedule):
    """0 · Inf is NaN, which keeps a tile for rows that do exist."""
    q = torch.rand(1, rows, 1, 128).bfloat16() + 1
    k = torch.randn(1, 320, 1, 128).bfloat16()
    k[:, 64:] = -math.inf
    v = torch.randn(1, 320, 1, 128).bfloat16()
    _, _, written = skip(q, k, v, everything(q, k), threshold=-6.0, pieces=pieces)
    assert written[..., 0].all() and written.sum() == written[..., 0].numel()


def test_head_h_with_h_hot_tiles_keeps_h_and_the_first(schedule):
    """Every query row looks at tiles 1 to h of head h and at nothing else."""
    heads, tiles = 6, 12
    q = torch.zeros(1, 256, heads, 128).bfloat16()
    q[..., 0] = 16
    k = torch.randn(1, tiles * 64, heads, 128).bfloat16() * 0.1
    for head in range(heads):
        k[:, 64 : 64 * (head + 1), head, 0] = 16
    v = torch.randn(1, tiles * 64, heads, 128).bfloat16()
    _, _, written = skip(q, k, v, everything(q, k), threshold=-10.0)
    assert torch.equal(written[0, 1:, 0].sum(-1), torch.arange(1, heads) + 1)
    _, _, again = skip(q, k, v, written, threshold=-10.0, backward=True)
    assert torch.equal(again[0, 1:, 0].sum(-1), torch.arange(1, heads))


def test_pinned_tiles_stay(schedule):
    q, k, v = inputs(1, 2, 200, 1000)
    pinned = torch.zeros(16, dtype=torch.bool)
    pinned[[3, 11]] = True
    _, _, written = skip(q, k, v, everything(q, k), threshold=math.inf, pinned=pinned)
    pinned[0] = True
    assert (written == pinned).all()


def test_any_number_of_tiles(schedule):
    """More than int16 can name."""
    rows = 64 * 32800 + 5
    q = torch.randn(1, 1, 1, 128).bfloat16()
    k = torch.zeros(1, rows, 1, 128, dtype=torch.bfloat16)
    v = torch.randn(1, 64, 1, 128).bfloat16().repeat(1, 32801, 1, 1)[:, :rows]
    kept = torch.zeros(1, 1, 1, 32801, dtype=torch.bool)
    kept[..., [0, 31, 32, 32767, 32768, 32800]] = True
    for backward in (False, True):
        out, lse, written = skip(q, k, v, kept, backward=backward)
        assert torch.equal(written, kept)
        assert abs(lse.item() - math.log(5 * 64 + 5)) < 1e-5
        visited = kept[0, 0, 0].repeat_interleave(64)[:rows]
        assert (out[0, 0, 0].float() - v[0, visited, 0].float().mean(0)).abs().max() < 2e-3


def test_a_list_without_tiles_is_walked_as_tile_0(schedule):
    """The class refuses such lists; the kernel stays within its memory."""
    q, k, v = inputs(1, 1, 100, 300)
    for backward in (False, True):
        out, _, written = skip(q, k, v, torch.zeros(1, 1, 1, 5, dtype=torch.bool), backward=backward)
        only = torch.zeros(1, 1, 1, 5, dtype=torch.bool)
        only[..., 0] = True
        assert same_bits(out, skip(q, k, v, only, backward=backward)[0])
        assert torch.equal(written, only)


def test_bits_behind_the_last_tile_are_ignored(schedule):
    q, k, v = inputs(1, 1, 100, 300)
    read = torch.full((1, 1, 1, 1), -1, dtype=torch.int32)
    for backward in (False, True):
        write = torch.zeros_like(read)
        out, _ = torch.ops.liteattention_rocm.attention_skip(
            q, k, v, read, write, threshold=-10.0, backward=backward, kernel=schedule
        )
        assert out.isfinite().all()
        assert write.item() & ~0b11111 == 0


@pytest.mark.parametrize("lengths", [(900, 400), (64, 64)], ids=str)
def test_order_of_workgroups_changes_nothing_but_the_order(lengths, schedule):
    q, k, v = inputs(2, 2, *lengths)
    kept = random_list(2, 2, *lengths, share=0.3)
    _, order = torch.ops.liteattention_rocm.skip_order(lists.pack(kept), ops.QUERY_TILES_OF[schedule])
    plain, ordered = skip(q, k, v, kept), skip(q, k, v, kept, order=order)
    assert same_bits(plain[0], ordered[0])
    assert torch.equal(plain[2], ordered[2])


@pytest.mark.parametrize(("query_tiles", "merged"), [(1, 1), (3, 2), (255, 1), (598, 3), (5000, 1), (70, 7)])
def test_query_tiles_by_work(query_tiles, merged):
    shape = (2, 2, query_tiles, 70)
    kept = torch.rand(shape) < torch.rand(*shape[:3], 1) / merged
    counts, order = torch.ops.liteattention_rocm.skip_order(lists.pack(kept), merged)
    groups = [kept[:, :, first : first + merged].any(2) for first in range(0, query_tiles, merged)]
    assert torch.equal(counts, torch.stack(groups, 2).sum(-1).int())
    assert torch.equal(lists.unpack(lists.union(lists.pack(kept), merged), 70), torch.stack(groups, 2))
    for first in range(0, len(groups), 4096):
        part = slice(first, first + 4096)
        expected = first + torch.argsort(counts[..., part], dim=-1, descending=True, stable=True)
        assert torch.equal(order[..., part], expected.int())


def instructions(call) -> dict:
    simulator.reset_statistics()
    call()
    (kernel,) = simulator.statistics()["kernels"].values()
    return kernel


def test_executed_instructions_fall_in_proportion(schedule):
    """Matrix products exactly; all of them but for outputs that a risen maximum rescales."""
    waves, products = {"forward": (8, 128), "pingpong": (8, 192)}[schedule]
    rows = 128 * {"forward": 2, "pingpong": 3}[schedule]
    q, k, v = (torch.randn(1, n, 1, 128).bfloat16() for n in (rows, 2048, 2048))
    k[:, 64:] *= 0.5  # the maximum of every row is in tile 0
    k[:, :64, :, 0], q[..., 0] = 16, 16
    tiles = 32
    executed = []
    # The out-of-phase walk is two tiles ahead: its start and its end cost the same from four tiles on.
    numbers = list(range(1, tiles + 1)) if schedule == "forward" else list(range(4, tiles + 1, 7))
    for number in numbers:
        kept = torch.zeros(1, 1, rows // 128, tiles, dtype=torch.bool)
        kept[..., torch.randperm(tiles - 1)[: number - 1] + 1] = True
        kept[..., 0] = True
        kernel = instructions(lambda kept=kept: skip(q, k, v, kept, threshold=-math.inf))
        assert kernel["matrix"] == waves * products * number
        executed.append(kernel["instructions"])
    per_tile = (executed[-1] - executed[0]) / (numbers[-1] - numbers[0])
    for number, one in zip(numbers, executed, strict=True):
        assert one == pytest.approx(executed[0] + (number - numbers[0]) * per_tile, rel=1e-3)


def test_break_even(schedule):
    """By executed instructions, the kernel it is made from loses against it from 6 or 10 % skipped on."""
    rows, skipped = (128, 6) if schedule == "forward" else (384, 10)
    q, k, v = (torch.randn(1, n, 1, 128).bfloat16() for n in (rows, 6400, 6400))
    for rounding in ROUNDINGS if schedule == "forward" else ROUNDINGS[:1]:
        dense = instructions(lambda r=rounding: liteattention_rocm.attention(q, k, v, rounding=r))
        kept = torch.ones(1, 1, rows // 128, 100, dtype=torch.bool)
        kept[..., :skipped] = False
        skipping = instructions(lambda r=rounding, kept=kept: skip(q, k, v, kept, rounding=r))
        assert skipping["instructions"] < dense["instructions"]


def modelled(kernel: str, shape=(1, 4, 32760, 32760)) -> dict[str, float]:
    """Clocks of a compute unit by parameter set, whatever clock and power make of them."""
    from liteattention_rocm.timing import Kernel, Shape, parameter_sets
    from liteattention_rocm.timing.steady import Traces

    traces = Traces(Kernel.parse(kernel), Shape(*shape))
    return {
        name: traces.steady(parameter_set, traces.residents).clocks
        for name, parameter_set in parameter_sets().items()
    }


@pytest.mark.parametrize(
    "kernel",
    [
        "forward:rtne",
        "pingpong:rtne",
        *(
            pytest.param(f"{schedule}:{rounding}", marks=pytest.mark.full)
            for schedule in ops.QUERY_TILES_OF
            for rounding in ROUNDINGS
            if rounding != "rtne"
        ),
    ],
)
def test_modelled_clocks_of_full_and_half_lists(kernel):
    """What the choice of kernels assumes; on the out-of-phase schedule at most 3 % over dense with everything
    listed, and at least 0.9 of what is ideal with half of it."""
    schedule, rounding = kernel.split(":")
    source = {"forward": "skip", "pingpong": "skip-pingpong"}[schedule]
    dense, full = modelled(kernel), modelled(f"{source}:{rounding}")
    half = modelled(f"{source}:{rounding}@0.5") if schedule == "pingpong" else None
    for name in dense:
        assert 0.9 < full[name] / dense[name] < SKIPPING_OVER_DENSE[schedule] + 0.005
        if half:
            assert full[name] / dense[name] <= 1.03
            assert dense[name] / 2 / half[name] >= 0.9


def test_a_wave_leaves_out_what_is_negligible_for_its_rows():
    """votes_count: within the error of the threshold, with fewer matrix products, and the same list."""
    q, k, v = inputs(1, 2, 384, 2200)
    kept = everything(q, k)
    plain = skip(q, k, v, kept, threshold=-3.0)
    base = instructions(lambda: skip(q, k, v, kept, threshold=-3.0))["matrix"]
    out, _, written = skip(q, k, v, kept, threshold=-3.0, votes_count=True)
    assert torch.equal(written, plain[2])
    assert not same_bits(out, plain[0])
    expected = reference_step(q, k, v, kept, threshold=-3.0, leaving_out_rows=32)
    assert reference.rmse(out, expected.out) < 3e-4 < reference.rmse(plain[0], expected.out) < 0.1
    less = instructions(lambda: skip(q, k, v, kept, threshold=-3.0, votes_count=True))["matrix"]
    assert less < 0.8 * base
    for threshold in (-math.inf, math.inf):
        out, _, _ = skip(q, k, v, kept, threshold=threshold, votes_count=True)
        assert same_bits(out, plain[0])


REFUSALS = {
    "threshold 0": ({"threshold": 0.0}, ValueError, "threshold must be below 0"),
    "threshold NaN": ({"threshold": math.nan}, ValueError, "threshold must be below 0"),
    "list dtype": ({"read": torch.int64}, TypeError, r"read_list must have dtype torch\.int32"),
    "list shape": ({"read": (1, 1, 2, 1)}, ValueError, r"read_list must have shape \(1, 1, 1, 1\)"),
    "written shape": ({"write": (1, 1, 1, 2)}, ValueError, "write_list must have shape"),
    "kernel": ({"kernel": "fast"}, ValueError, "kernel must be one of forward, pingpong, got 'fast'"),
    "votes": ({"kernel": "pingpong", "votes_count": True}, ValueError, "votes_count must be False"),
    "order shape": ({"order": (1, 1, 2)}, ValueError, "order must have shape"),
    "scale": ({"scale": math.inf}, ValueError, "scale"),
    "layout": ({"layout": "sbhd"}, ValueError, "layout must be one of"),
    "rounding": ({"rounding": "up"}, ValueError, "rounding must be one of"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case, monkeypatch):
    options, error, message = REFUSALS[case]
    monkeypatch.setattr(ops._C, "skip_forward", lambda *_: pytest.fail("a launch was made"))
    options = {"threshold": -1.0, "backward": False} | options
    tensors = {}
    for name in ("read", "write", "order"):
        given = options.pop(name, (1, 1, 1) if name == "order" else (1, 1, 1, 1))
        if isinstance(given, torch.dtype):
            tensors[name] = torch.ones(1, 1, 1, 1, dtype=given)
        else:
            tensors[name] = torch.ones(given, dtype=torch.int32)
    q = torch.zeros(1, 5, 1, 128, dtype=torch.bfloat16)
    with pytest.raises(error, match=message):
        torch.ops.liteattention_rocm.attention_skip(
            q, q, q, tensors["read"], tensors["write"], order=tensors["order"], **options
        )


def test_written_list_apart_from_the_read_one():
    q = torch.zeros(1, 5, 1, 128, dtype=torch.bfloat16)
    both = torch.ones(1, 1, 1, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="must not overlap"):
        torch.ops.liteattention_rocm.attention_skip(q, q, q, both, both, threshold=-1.0, backward=False)


def test_opcheck():
    q, k, v = inputs(1, 2, 100, 200)
    read, write = (torch.full((1, 2, 1, 1), 15, dtype=torch.int32) for _ in range(2))
    operators = torch.ops.liteattention_rocm
    options = {"threshold": -10.0, "backward": True, "return_lse": True}
    torch.library.opcheck(operators.attention_skip.default, (q, k, v, read, write), options)
    torch.library.opcheck(operators.attention_skip.default, (q, k, v, read, write), options | {"pieces": 2})
    torch.library.opcheck(operators.skip_order.default, (read,))


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_layouts_strides_and_grouped_heads(layout, schedule):
    q, k, v = inputs(2, 4, 200, 333, noise=0.2)
    k, v = torch.stack([k[:, :, :2], v[:, :, :2]], 2).unbind(2)
    kept = random_list(2, 4, 200, 333)
    expected = reference_step(q, k, v, kept, threshold=-6.0)
    if layout == "bhsd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out, _, written = skip(q, k, v, kept, threshold=-6.0, layout=layout)
    out = out.transpose(1, 2) if layout == "bhsd" else out
    assert reference.rmse(out, expected.out) < 1.3e-3
    assert not ((written != expected.kept) & (expected.margin > VOTE_ROUNDING)).any()
