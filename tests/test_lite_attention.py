"""The LiteAttention class: its state from call to call."""

import contextlib
import logging
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import liteattention_rocm
from attention_cases import same_bits
from lite_cases import backward_dense, inputs
from liteattention_rocm import _C, LiteAttention, arguments, dispatch, reference, runtime, simulator, verdicts
from liteattention_rocm.lite import attention as lite_attention
from liteattention_rocm.lite import fallback, lists, ops
from liteattention_rocm.lite.cost import SKIPPING_OVER_DENSE, Costs, Listed
from liteattention_rocm.lite.reference import step as reference_step

LENGTHS = [(1, 1), (239, 1), (799, 3), (113, 203), (1023, 1024), (1024, 256), (256, 1024)]


@pytest.fixture(autouse=True)
def _dense_kernel_with_the_same_order_of_rounding(monkeypatch):
    """Dense calls run attention_forward, whatever kernel a plan would choose."""
    monkeypatch.setattr(runtime, "forced_family", "forward")


def lite(threshold=-6.0, **options):
    """Without the fallback, which short inputs would trigger."""
    return LiteAttention(threshold=threshold, **({"break_even": 0} | options))


def visited(attention) -> torch.Tensor:
    """What the next call visits, bool."""
    ranges = attention.read_list
    bits, tiles = lists.from_ranges(ranges, attention._phase)
    return lists.unpack(bits, tiles)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_every_written_list_is_valid(lengths):
    """Reading it back validates length, ranges and their order."""
    attention = lite()
    for call in range(4):
        attention(*inputs(1, 2, *lengths, drift=5.0 * call))
        shape = (1, 2, lists.query_tiles(lengths[0]), lists.kv_tiles(lengths[1]))
        assert visited(attention).shape == shape


def test_the_first_step_is_exact():
    q, k, v = inputs(1, 2, 300, 1000)
    expected, expected_lse = liteattention_rocm.attention(q, k, v, return_lse=True)
    out, lse = lite()(q, k, v, return_softmax_lse=True)
    assert same_bits(out, expected) and torch.equal(lse, expected_lse)
    inexact = lite(exact_first_step=False)(q, k, v)
    assert not same_bits(inexact, expected)
    assert (inexact.double() - expected.double()).abs().max() < 0.1


def test_steps_follow_the_reference():
    """Lists and outputs of ten steps of a drifting pattern; each list from the reference's own votes."""
    attention, exceptions = lite(), 0
    kept = torch.ones(1, 2, 3, 16, dtype=torch.bool)
    for step in range(10):
        q, k, v = inputs(1, 2, 300, 1000, noise=0.2, drift=3.0 * step)
        backward = step % 2 == 1
        out, lse = attention(q, k, v, return_softmax_lse=True)
        expected = reference_step(q, k, v, kept, threshold=-6.0, backward=backward)
        assert reference.rmse(out, expected.out) < 6e-4
        assert (lse.double() - expected.lse).abs().max() < 1e-3
        different = visited(attention) != expected.kept
        assert not (different & (expected.margin > 1e-3)).any()
        exceptions += int(different.sum())
        kept = visited(attention)
    assert exceptions <= 2
    assert 0.2 < 1 - kept.float().mean() < 0.9


# Per threshold: bound on the relative error of the output of any step against dense attention.
@pytest.mark.parametrize(("threshold", "bound"), [(-14.0, 0.004), (-10.0, 0.006), (-6.0, 0.02), (-3.0, 0.1)])
def test_error_on_a_drifting_model_stays_within_a_bound(threshold, bound):
    attention, errors, skipped = lite(threshold), [], []
    for step in range(10):
        q, k, v = inputs(1, 2, 384, 1536, noise=0.2, drift=6.0 * step)
        expected, _ = reference.attention(q, k, v)
        out = attention(q, k, v)
        errors.append(((out.double() - expected).norm() / expected.norm()).item())
        skipped.append(attention.calc_percentage())
    assert max(errors) < bound, errors
    assert skipped == sorted(skipped), "dropped tiles came back"
    assert skipped[0] == 0 and skipped[-1] > 0.2


def test_minus_infinity_changes_nothing():
    attention = lite(-math.inf)
    q, k, v = inputs(1, 2, 300, 1000)
    q[..., -1] = 0
    k[..., -1] = 0
    forward, backward = liteattention_rocm.attention(q, k, v), backward_dense(q, k, v)
    for call in range(4):
        assert same_bits(attention(q, k, v), backward if call % 2 else forward)
        assert visited(attention).all() and attention.calc_percentage() == 0


def test_plus_infinity_keeps_one_tile():
    attention = lite(math.inf)
    q, k, v = inputs(2, 2, 300, 1000)
    for _ in range(3):
        attention(q, k, v)
        assert (visited(attention).sum(-1) == 1).all()
    assert attention.calc_percentage() == 1 - 1 / 16


def test_must_skip_at_minus_infinity():
    attention = lite(-math.inf)
    q, k, v = inputs(1, 2, 300, 1000)
    must_skip = [100, 300, 640, 641]
    expected = ~lists.tiles_of_tokens("", must_skip, 1000)
    for _ in range(3):
        out = attention(q, k, v, must_skip_list=must_skip)
        assert (visited(attention) == expected).all()
        rows = expected.repeat_interleave(64)[:1000]
        wanted, _ = reference.attention(q, k[:, rows], v[:, rows])
        assert reference.rmse(out, wanted) < 6e-4
    assert must_skip == [100, 300, 640, 641]


def test_must_do_at_plus_infinity_for_ten_steps():
    attention = lite(math.inf)
    q, k, v = inputs(1, 2, 300, 1000)
    must_do = (130, 131, 640, 900)
    expected = lists.tiles_of_tokens("", must_do, 1000)
    for call in range(10):
        attention(q, k, v, must_do_list=must_do)
        first = torch.zeros(16, dtype=torch.bool)
        first[0] = call == 0
        assert (visited(attention) == expected | first).all()


def test_must_do_may_change_from_call_to_call():
    attention = lite(math.inf)
    q, k, v = inputs(1, 1, 100, 640)
    for tokens, tiles in (([64, 65], {0, 1}), ([128, 192], {1, 2}), (None, {1}), ([0, 1], {0, 1})):
        attention(q, k, v, must_do_list=tokens)
        assert set(visited(attention)[0, 0, 0].nonzero().flatten().tolist()) == tiles


def test_what_must_be_done_is_not_skipped():
    attention = lite(-math.inf)
    q, k, v = inputs(1, 1, 100, 640)
    attention(q, k, v, must_do_list=[64, 128], must_skip_list=[0, 320])
    assert visited(attention)[0, 0, 0].tolist() == [False, True, False, False, False] + [True] * 5
    with pytest.raises(ValueError, match="must_skip_list leaves none of the 10 KV tiles"):
        lite()(q, k, v, must_skip_list=[0, 640])


def test_batch_entries_and_heads_are_independent():
    """Each has the list it would have alone."""
    q, k, v = inputs(3, 2, 256, 1000, noise=0.3)
    together = lite()
    alone = [[lite() for _ in range(2)] for _ in range(3)]
    for _ in range(3):
        out = together(q, k, v)
        for entry in range(3):
            for head in range(2):
                part = tuple(t[entry : entry + 1, :, head : head + 1] for t in (q, k, v))
                assert same_bits(out[entry, :, head], alone[entry][head](*part)[0, :, 0])
                own = visited(alone[entry][head])[0, 0]
                assert torch.equal(visited(together)[entry, head], own)
    assert len({tuple(t.tolist()) for t in visited(together).flatten(0, 1).flatten(1)}) > 1


@pytest.mark.parametrize("change", ["rows of q", "rows of k", "heads", "batch"])
def test_lists_are_made_anew_for_another_shape(change):
    attention = lite()
    for _ in range(2):
        attention(*inputs(1, 2, 256, 1000))
    assert attention.step == 2 and attention.calc_percentage() > 0
    sizes = {"batch": 1, "heads": 2, "seqlen_q": 256, "seqlen_kv": 1000}
    sizes |= {"rows of q": {"seqlen_q": 255}, "rows of k": {"seqlen_kv": 999}}.get(
        change, {change: sizes.get(change, 0) + 1}
    )
    q, k, v = inputs(**sizes)
    out = attention(q, k, v)
    assert attention.step == 1 and attention.calc_percentage() == 0
    assert same_bits(out, liteattention_rocm.attention(q, k, v))


def test_reset():
    attention = lite()
    q, k, v = inputs(1, 2, 256, 1000)
    first = attention(q, k, v)
    lists_before = attention.read_list
    attention(q, k, v)
    attention.reset_skip_state()
    assert attention.step == 0 and attention.read_list is None and attention.write_list is None
    assert same_bits(attention(q, k, v), first)
    assert torch.equal(attention.read_list, lists_before)


def test_revival():
    attention = lite(revive_every=4)  # in a forward walk, which meets the hot tiles first
    q, k, v = inputs(1, 2, 256, 1000)
    shares = []
    for _ in range(9):
        attention(q, k, v)
        shares.append(attention.calc_percentage() > 0)
    assert shares == 2 * [False, True, True, True] + [False]


def test_disabled_is_dense():
    q, k, v = inputs(1, 2, 256, 1000)
    expected = liteattention_rocm.attention(q, k, v)
    attention = LiteAttention(enable_skipping=False)
    assert attention.is_dense
    for _ in range(3):
        assert same_bits(attention(q, k, v), expected)
    assert attention.read_list is None and attention.calc_percentage() == 0 and attention.step == 3
    attention.enable_skip_optimization()
    attention(q, k, v)
    attention.enable_skip_optimization(False)
    assert same_bits(attention(q, k, v), expected)
    assert attention.calc_percentage() == 0


def test_thresholds_by_step():
    attention = lite([-math.inf, math.inf, -6])
    q, k, v = inputs(1, 1, 256, 1000)
    assert attention.threshold == -math.inf
    attention(q, k, v)
    assert visited(attention).all() and attention.threshold == math.inf
    attention(q, k, v)
    assert (visited(attention).sum(-1) == 1).all() and attention.threshold == -6
    attention(q, k, v)
    assert attention.threshold == -6
    attention.set_threshold(-3)
    assert attention.threshold == -3


def test_a_list_of_the_callers():
    q, k, v = inputs(1, 2, 256, 1000)
    attention = lite(-math.inf)
    kept = torch.zeros(1, 2, 2, 16, dtype=torch.bool)
    kept[..., 3:9] = True
    attention.read_list = lists.to_ranges(lists.pack(kept), 16, 1)
    assert torch.equal(visited(attention), kept)
    attention(q, k, v)
    assert torch.equal(visited(attention), kept) and attention.calc_percentage() == 10 / 16
    attention(q, k, v)
    kept[..., 12] = True
    attention.read_list = lists.to_ranges(lists.pack(kept), 16, 1)
    attention(q, k, v)
    assert attention.calc_percentage() == 9 / 16 and attention.step == 3


def test_a_bad_list_is_refused_before_launch(monkeypatch):
    monkeypatch.setattr(ops._C, "skip_forward", lambda *_: pytest.fail("a launch was made"))
    attention = lite()
    ranges = lists.to_ranges(lists.full((1, 2, 2), 16), 16, 1)
    ranges[0, 1, 1, 0] = 0
    with pytest.raises(ValueError, match=r"row \(batch 0, head 1, query tile 1\) visits no tile"):
        attention.read_list = ranges
    attention.read_list = lists.to_ranges(lists.full((1, 2, 3), 16), 16, 1)
    with pytest.raises(ValueError, match=r"set for \(1, 2, 3, 16\) .* this call has \(1, 2, 2, 16\)"):
        attention(*inputs(1, 2, 256, 1000))


def uniform(rows=256):
    """Nothing can be skipped."""
    return tuple(torch.randn(1, rows, 1, 128).bfloat16() for _ in range(3))


def test_falls_back_to_dense_where_nothing_is_skipped(caplog, monkeypatch):
    monkeypatch.setattr(fallback, "_told", set())
    attention = LiteAttention(name="blocks.7", break_even=0.06)
    q, k, v = uniform()
    dense = liteattention_rocm.attention(q, k, v)
    with caplog.at_level(logging.INFO, "liteattention_rocm"):
        for _ in range(fallback.PATIENCE):
            assert not attention.is_dense
            attention(q, k, v)
        # The share of a call's list is known at the next call.
        for _ in range(fallback.PROBE_EVERY):
            assert same_bits(attention(q, k, v), dense)
            assert attention.is_dense
    (record,) = caplog.records
    assert "LiteAttention blocks.7: dense from now on, 0.0 % of the tiles can be skipped" in record.message
    local_inputs = inputs(1, 1, 256, 256, sharpness=24.0, width=60.0)
    attention(*local_inputs)  # the probe
    assert not attention.last_was_dense
    with caplog.at_level(logging.INFO, "liteattention_rocm"):
        attention(*local_inputs)
    assert "skipping again" in caplog.records[-1].message and not attention.is_dense
    assert attention.calc_percentage() > 0


def test_each_decision_to_fall_back_is_told_once_and_then_at_the_debug_level(caplog, monkeypatch):
    monkeypatch.setattr(fallback, "_told", set())
    layers = [fallback.Fallback(0.1, f"blocks.{number}") for number in range(3)]
    with caplog.at_level(logging.DEBUG, "liteattention_rocm"):
        for share in (*fallback.PATIENCE * [0.0], 0.5):
            for layer in layers:
                layer.observe(share)
    told = [(record.levelname, *record.getMessage().split(", ")[0].split(": ")) for record in caplog.records]
    names = [f"LiteAttention blocks.{number}" for number in range(3)]
    assert told == [
        (level, name, decision)
        for decision in ("dense from now on", "skipping again")
        for level, name in zip(("INFO", "DEBUG", "DEBUG"), names, strict=True)
    ]


GRANULARITIES = (16, 32, 64, 128, 192, 384)
GRANULARITY = ("a line of 1536 tokens", "6 frames of 16 × 16 tokens")


def granularity_inputs(pattern):
    """Attention local along the sequence, or in three dimensions: 2 heads."""
    if "frames" not in pattern:
        return inputs(1, 2, 1536, 1536, noise=0.2)
    frame, y, x = torch.meshgrid(torch.arange(6), torch.arange(16), torch.arange(16), indexing="ij")
    frequency = 2 * math.pi / 12 * 8 ** -torch.rand(2, 64)
    axis = torch.arange(64) % 3
    places = torch.stack([4 * frame.flatten(), y.flatten(), x.flatten()])[axis]  # [64, rows]
    phase = places.T[:, None] * frequency
    rotor = torch.cat([phase.cos(), phase.sin()], -1) * math.sqrt(60 * 128**0.5 / 64)
    q, k = ((rotor + 0.2 * torch.randn_like(rotor))[None].bfloat16() for _ in range(2))
    return q, k, torch.randn(1, 1536, 2, 128).bfloat16()


WAN = {"1.3B 480p": (12, 32760), "1.3B 720p": (12, 75600), "14B 480p": (40, 32760), "14B 720p": (40, 75600)}


def wan_costs(model) -> Costs:
    heads, rows = WAN[model]
    return Costs(arguments.Sizes(1, heads, heads, rows, rows), 304)


@pytest.mark.parametrize("model", WAN)
def test_break_even_is_modelled_by_shape(model):
    """On dense attention's schedule it is little: what the kernel costs, and the launch that prepares the
    pieces, where dense attention is split as well. The table of docs/liteattention.md."""
    costs, (heads, rows) = wan_costs(model), WAN[model]
    assert costs.dense_kernel == "pingpong"
    for kernel in ops.QUERY_TILES_OF:
        full = _C.plan(1, heads, heads, rows, rows, 304, kernel, 0)
        share = 1 - costs.dense / full["modelled_clocks"] / SKIPPING_OVER_DENSE[kernel]
        assert costs.break_even(kernel) == pytest.approx(share, abs=0.011)
        assert costs.break_even("pingpong") < 0.025
        unsplit = Costs(arguments.Sizes(1, heads, heads, rows, rows), 304, 1)
        expected = 1 - unsplit.dense / unsplit.clocks(kernel, Listed())
        assert unsplit.break_even(kernel) == pytest.approx(expected, abs=2e-3)
    page = (Path(__file__).parent.parent / "docs" / "liteattention.md").read_text()
    numbers = [f"{100 * costs.break_even(kernel):.0f} %" for kernel in ("pingpong", "forward")]
    assert f"| {model.replace(' ', ', ')} | {' | '.join(numbers)} |" in page
    small = Costs(arguments.Sizes(1, 2, 2, 300, 250), 304)
    assert small.dense_kernel == "forward" and 0 < small.break_even("forward") < 0.025
    assert Costs(arguments.Sizes(1, 2, 2, 300, 1000), 304).break_even("forward") > 0.4


@pytest.mark.parametrize("model", WAN)
def test_modelled_gain_of_splits(model):
    """The table of docs/liteattention.md."""
    heads, rows = WAN[model]
    cells = []
    for share in (1, 0.75, 0.5, 0.25):
        visited = round(share * lists.kv_tiles(rows))
        whole, split = (
            _C.skip_plan(1, heads, heads, rows, rows, 304, "pingpong", pieces, visited) for pieces in (1, 0)
        )
        gain = whole["modelled_clocks"] / split["modelled_clocks"]
        cells.append(f"{gain:.2f} ({split['split_blocks']} × {split['pieces']})")
        assert gain >= 1
    page = (Path(__file__).parent.parent / "docs" / "liteattention.md").read_text()
    assert f"| {model.replace(' ', ', ')} | {' | '.join(cells)} |" in page


def test_the_schedule_follows_the_lists():
    """The union of three lists decides for the out-of-phase kernel, unless it is far denser than they are."""
    costs, both = wan_costs("1.3B 480p"), list(ops.QUERY_TILES_OF)
    assert costs.fastest(Listed(), both) == "pingpong"
    assert costs.fastest(Listed(0.4, 0.5), both) == "pingpong"
    assert costs.fastest(Listed(0.2, 0.6), both) == "forward"
    assert costs.fastest(Listed(0.4, 0.5), ["forward"]) == "forward"
    at = 1 - costs.break_even("pingpong")
    assert costs.clocks("pingpong", Listed(0.0, at)) == pytest.approx(costs.dense)


@pytest.fixture
def two_compute_units(monkeypatch):
    """On which a small grid is large, and the plan free to choose."""
    monkeypatch.setattr(runtime, "forced_family", "")
    simulator.set_option("compute_units", "2")
    yield
    simulator.set_option("compute_units", "304")


def launched(call) -> list[str]:
    simulator.reset_statistics()
    call()
    names = simulator.statistics()["kernels"]
    return [name for name in names if name != "attention_skip_order"]


def test_calls_take_the_schedule_of_dense_attention(two_compute_units):
    """The first call has dense attention's bits; then it skips."""
    q, k, v = inputs(1, 3, 1100, 1000, noise=0.2)
    attention, made = LiteAttention(threshold=-6.0), []
    assert launched(lambda: made.append(liteattention_rocm.attention(q, k, v))) == ["attention_pingpong_rtne"]
    for _ in range(2):
        names = launched(lambda: made.append(attention(q, k, v)))
        assert names == ["attention_skip_pingpong_rtne"]
    assert same_bits(made[0], made[1])
    assert attention.calc_percentage() > 0.1
    visited_last = attention._lists[1 - attention._read]
    assert attention._listed.tiles == pytest.approx(1 - attention.calc_percentage())
    unions = lists.unpack(lists.union(visited_last, 3), 16)
    assert attention._listed.unions == pytest.approx(unions.double().mean().item())
    # Waves that leave tiles out take 32 rows: the other schedule doesn't have them.
    within = LiteAttention(threshold=-6.0, skip_within_call=True)
    assert launched(lambda: made.append(within(q, k, v))) == ["attention_skip_pingpong_rtne"]
    assert same_bits(made[0], made[-1])
    assert launched(lambda: within(q, k, v)) == ["attention_skip_forward_rtne"]


def test_scattered_lists_run_on_the_small_schedule(two_compute_units):
    """Each query tile lists another third: their union is everything."""
    q, k, v = inputs(1, 3, 768, 1152)
    attention = lite()
    third = torch.arange(18) % 3 == torch.arange(6).unsqueeze(1) % 3
    attention.read_list = lists.to_ranges(lists.pack(third.expand(1, 3, 6, 18)), 18, 1)
    assert launched(lambda: attention(q, k, v)) == ["attention_skip_forward_rtne"]
    assert attention.calc_percentage() == pytest.approx(2 / 3)


def test_a_refused_schedule_is_not_taken(two_compute_units):
    where, q = runtime.target(torch.device("cpu")), torch.zeros(1, 700, 3, 128, dtype=torch.bfloat16)
    try:
        verdicts.store(where, {"attention_skip_pingpong_rtne": {"verdict": "fail", "worst": "w"}})
        assert launched(lambda: lite()(q, q, q)) == ["attention_skip_forward_rtne"]
    finally:
        verdicts.store(where, {})


def broken(*arguments, **options):
    raise RuntimeError("hipErrorLaunchFailure")


@pytest.mark.parametrize("dense", [True, False])
def test_a_call_that_fails_is_no_step(dense, monkeypatch):
    attention, again = (lite((-1.0, -2.0, -6.0, -3.0), enable_skipping=not dense) for _ in range(2))
    q, k, v = inputs(1, 1, 200, 640, noise=0.2)
    attention(q, k, v), again(q, k, v)
    with monkeypatch.context() as patch:
        if dense:
            patch.setattr(lite_attention, "dense_attention", broken)
        else:
            patch.setattr(ops, "_C", SimpleNamespace(skip_forward=broken, skip_plan=_C.skip_plan))
        with pytest.raises(RuntimeError, match="hipErrorLaunchFailure"):
            attention(q, k, v)
    assert attention.step == 1 and attention.threshold == -2.0 and attention.calc_percentage() == 0
    for _ in range(2):
        assert same_bits(attention(q, k, v), again(q, k, v))
        assert attention.calc_percentage() == again.calc_percentage()
        assert (attention.calc_percentage() > 0) == (not dense) or attention.step == 2


def test_a_plan_that_is_refused_is_refused_again(monkeypatch):
    monkeypatch.setattr(runtime, "forced_family", "")
    monkeypatch.setattr(runtime, "forced_pieces", 100_000)
    q = torch.zeros(1, 1, 1, 128, dtype=torch.bfloat16).expand(2, 75_600, 40, 128)
    attention = LiteAttention()
    for _ in range(2):
        with pytest.raises(ValueError, match="pieces is 100000"):
            attention(q, q, q)


def test_another_kernel_may_serve_later_calls(monkeypatch):
    monkeypatch.setattr(runtime, "forced_family", "")
    attention, (q, k, v) = LiteAttention(), inputs(1, 1, 100, 300)
    monkeypatch.setenv(dispatch.KERNEL_VARIABLE, "reference")
    attention(q, k, v)
    monkeypatch.delenv(dispatch.KERNEL_VARIABLE)
    assert launched(lambda: attention(q, k, v)) == ["attention_skip_forward_rtne"]


class OnGpu(torch.Tensor):
    is_cuda, device = True, torch.device("cuda", 1)


@pytest.fixture
def cuda(monkeypatch):
    """Two devices, the first of them current; what is recorded where, and what a query says."""
    state = {"current": 0, "capturing": set(), "recorded": [], "query": lambda: True}

    @contextlib.contextmanager
    def device(one):
        before, state["current"] = state["current"], torch.device(one).index
        yield
        state["current"] = before

    class Event:
        def record(self, stream=("stream", None)):
            state["recorded"].append(stream)

        def query(self):
            assert not state["capturing"], "HIP ends the capture"
            return state["query"]()

    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *sizes, pin_memory=False, **options: empty(*sizes, **options))
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda one: ("stream", torch.device(one).index))
    monkeypatch.setattr(
        torch.cuda, "is_current_stream_capturing", lambda: state["current"] in state["capturing"]
    )
    return state


def pending():
    counts = torch.tensor([[[1, 2], [3, 2]]], dtype=torch.int32).as_subclass(OnGpu)
    return lite_attention._Pending({"forward": counts}, 4)


def test_counts_are_fetched_on_the_device_of_the_call(cuda):
    fetched = pending()
    assert cuda["recorded"] == [("stream", 1)]
    assert fetched.get() == Listed(0.5, 0.5)
    cuda["query"] = lambda: False
    assert fetched.get() is None


def test_a_capture_asks_nothing_of_the_device(cuda):
    fetched = pending()
    cuda["capturing"].add(1)
    assert fetched.get() is None  # of a call before the capture
    assert pending().get() is None and len(cuda["recorded"]) == 1  # of a captured one
    cuda["capturing"].clear()
    assert fetched.get() == Listed(0.5, 0.5)
    cuda["query"] = broken  # where another thread captures
    assert fetched.get() is None


def test_tiny_break_evens_have_tiny_margins():
    policy = fallback.Fallback(0.01)
    for _ in range(fallback.PATIENCE):
        policy.observe(0.004)
    assert policy.dense
    policy.observe(0.02)
    assert policy.dense
    policy.observe(0.03)
    assert not policy.dense


def test_fallback_has_hysteresis():
    policy = fallback.Fallback(0.2)
    for share in (0.17, 0.17, 0.19, 0.17, 0.17):
        policy.observe(share)
        assert policy.next_call() == "skip"
    policy.observe(0.17)
    calls = [policy.next_call() for _ in range(2 * fallback.PROBE_EVERY + 2)]
    assert calls == 2 * (["dense"] * fallback.PROBE_EVERY + ["probe"])
    policy.observe(0.21)
    assert policy.dense
    policy.observe(0.22)
    assert policy.next_call() == "skip"
    never = fallback.Fallback(0)
    for _ in range(10):
        never.observe(0.0)
    assert never.next_call() == "skip"


def test_empty_calls():
    q = torch.zeros(1, 0, 2, 128, dtype=torch.bfloat16)
    k = torch.zeros(1, 5, 2, 128, dtype=torch.bfloat16)
    out, lse = lite()(q, k, k, return_softmax_lse=True)
    assert out.shape == q.shape and lse.shape == (1, 2, 0)


def test_layout_and_rounding():
    q, k, v = inputs(2, 3, 200, 1000)
    expected = lite(rounding="rtz")
    attention = lite(rounding=liteattention_rocm.RoundMode.rtz, layout="bhsd")
    for _ in range(3):
        out = attention(*(t.transpose(1, 2) for t in (q, k, v)))
        assert same_bits(out.transpose(1, 2), expected(q, k, v))
    assert torch.equal(attention.read_list, expected.read_list)


def test_picture(tmp_path):
    from PIL import Image

    attention = lite()
    with pytest.raises(ValueError, match="before the first call"):
        attention.visualize_skips(tmp_path / "none.png")
    q, k, v = inputs(1, 2, 256, 1000)
    attention(q, k, v)
    attention(q, k, v)
    attention.visualize_skips(tmp_path / "skips.png")
    with Image.open(tmp_path / "skips.png") as picture:
        colours = picture.convert("RGB").getcolors(1 << 20)
    share = {colour: number for number, colour in colours}
    dark, light = share[38, 70, 131], share[236, 236, 236]
    assert light / (dark + light) == pytest.approx(attention.calc_percentage(), abs=0.02)


REFUSALS = [
    ({"threshold": 0}, ValueError, "threshold must be below 0"),
    ({"threshold": "low"}, TypeError, "threshold must be a number"),
    ({"threshold": []}, ValueError, "threshold must have at least one entry"),
    ({"threshold": [-1, 3]}, ValueError, "threshold must be below 0"),
    ({"layout": "sbhd"}, ValueError, "layout must be one of"),
    ({"rounding": "up"}, ValueError, "rounding must be one of"),
    ({"exact_first_step": 1}, TypeError, "exact_first_step must be a bool"),
    ({"enable_skipping": None}, TypeError, "enable must be a bool"),
    ({"revive_every": -1}, ValueError, "revive_every must be at least 0"),
    ({"revive_every": 1.5}, TypeError, "revive_every must be an integer"),
    ({"max_batch_size": 0}, ValueError, "max_batch_size must be at least 1"),
    ({"break_even": 2}, ValueError, "break_even must be from 0 to 1"),
    ({"break_even": "x"}, TypeError, "break_even must be a number"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSALS)
def test_refusals(options, error, message):
    with pytest.raises(error, match=message):
        LiteAttention(**options)


CALLS = [
    ({"scale": math.nan}, ValueError, "scale"),
    ({"return_softmax_lse": 1}, TypeError, "return_softmax_lse must be a bool"),
    ({"must_do_list": [5]}, ValueError, "must_do_list must have an even number"),
    ({"must_skip_list": [0, 1001]}, ValueError, "must_skip_list must end within the 1000 rows"),
]


@pytest.mark.parametrize(("options", "error", "message"), CALLS)
def test_refusals_of_a_call(options, error, message, monkeypatch):
    monkeypatch.setattr(ops._C, "skip_forward", lambda *_: pytest.fail("a launch was made"))
    with pytest.raises(error, match=message):
        lite()(*inputs(1, 1, 64, 1000), **options)


def test_refusals_of_inputs(monkeypatch):
    monkeypatch.setattr(ops._C, "skip_forward", lambda *_: pytest.fail("a launch was made"))
    q, k, v = inputs(2, 1, 64, 100)
    with pytest.raises(TypeError, match="q must have dtype"):
        lite()(q.float(), k, v)
    with pytest.raises(TypeError, match=r"k must be a torch\.Tensor"):
        lite()(q, None, v)
    with pytest.raises(ValueError, match="batch of at most 1, got 2"):
        lite(max_batch_size=1)(q, k, v)


@pytest.mark.parametrize("pattern", GRANULARITY)
def test_skip_rate_by_granularity(pattern):
    """Smaller query tiles skip more. What three 128-row tiles' lists make a workgroup of 384 rows visit is
    what one vote for 384 rows would keep. The table of docs/liteattention.md."""
    q, k, v = granularity_inputs(pattern)
    rows = q.shape[1]
    kept = {}
    for size in GRANULARITIES:
        everything = torch.ones(1, 2, rows // size, rows // 64, dtype=torch.bool)
        answer = reference_step(q, k, v, everything, threshold=-6.0, query_rows=size, dtype=torch.float32)
        kept[size] = answer.kept
    rates = {size: 1 - one.float().mean().item() for size, one in kept.items()}
    assert list(rates.values()) == sorted(rates.values(), reverse=True)
    unions = kept[128].unflatten(2, (-1, 3)).any(3)
    assert torch.equal(unions, kept[384])
    page = (Path(__file__).parent.parent / "docs" / "liteattention.md").read_text()
    assert f"| {pattern} | {' | '.join(f'{100 * rate:.1f} %' for rate in rates.values())} |" in page
