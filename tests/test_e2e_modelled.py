"""Modelled attention of the arms, from known times of a dense and of a skipping kernel."""

import pytest

from e2e import amdahl, arms, modelled

TEN = "liteattention_rocm@-10"
SKIP = "skipping:rtne"
# Milliseconds by kernel and shape: ours 10, AITER 12, skipping 13 with every tile and 4 with a quarter;
# of cross-attention ours 0.5 and AITER 0.7.
MILLISECONDS = {
    ("ours:rtne", modelled.TRUE_SELF): 10.0,
    ("ours:rtne", modelled.TRUE_CROSS): 0.5,
    ("aiter:rtz", modelled.TRUE_SELF): 12.0,
    ("aiter:rtz", modelled.TRUE_CROSS): 0.7,
    (SKIP, modelled.TRUE_SELF): 13.0,
    (SKIP + modelled.QUARTER, modelled.TRUE_SELF): 4.0,
    ("ours:rtne", "1,2,1080,1080"): 0.2,
    ("ours:rtne", "1,2,1080,512"): 0.1,
    (SKIP, "1,2,1080,1080"): 0.4,
    (SKIP + modelled.QUARTER, "1,2,1080,1080"): 0.1,
    ("aiter:rtz", "1,2,1080,1080"): 0.3,
    ("aiter:rtz", "1,2,1080,512"): 0.1,
}


real_profile = modelled.profile


@pytest.fixture(autouse=True)
def known_times(monkeypatch):
    def profile(kernel, shape):
        ms = MILLISECONDS[kernel, shape]
        sets = {name: {"time_ms": ms} for name in ("D0", *modelled.ensemble())}
        return {"name": kernel, "sets": sets, "time_ms": {"low": 0.9 * ms, "high": 1.1 * ms}}

    monkeypatch.setattr(modelled, "profile", profile)


def finished(sparsity=None):
    attention = [
        {"role": role, "calls": 4, "query_shape": [1, 1080, 2, 128], "kv_length": length}
        for role, length in (("self", 1080), ("cross", 512))
    ]
    times = {"steps_s": [1.0, 1.0]}
    return {"status": "ok", "attention": attention, "sparsity": sparsity, "times": times}


def skipped(*shares, dense=()):
    calls = [
        {"step": step, "skipped": share, "action": "dense" if step in dense else "skip"}
        for step, share in enumerate(shares)
    ]
    return {"calls": calls}


def results(sparsity):
    return {arms.OURS: finished(), arms.PEER: finished(), TEN: finished(sparsity), arms.SDPA: finished()}


def test_the_profile_is_of_the_arms_own_kernel():
    """In the arm's rounding mode, and AITER's of AITER's code object."""
    for name in (arms.OURS, arms.OURS_RTZ, arms.PEER, arms.PEER_RTNE, TEN):
        arm = arms.find(name)
        found = real_profile(arm.clock, "1,1,150,70")
        assert arm.kernel in found["kernel"] and f"_{arm.rounding}" in found["kernel"], name
        assert ("aiter" in found["kernel"]) == (arm.backend == "aiter"), name
    assert real_profile(SKIP, "1,1,150,70")["kernel"] == "attention_skip_forward_rtne"


def test_a_skipping_arm_lies_on_the_line_at_its_share():
    found = modelled.summarise(results(skipped(0.0, 0.5)))["arms"]
    assert set(found) == {arms.OURS, arms.PEER, TEN}
    # A quarter of the tiles skipped on average: 13 − 0.25 · 12.
    assert found[TEN]["self_ms"] == pytest.approx({"low": 9.0, "high": 11.0})
    assert found[TEN]["per_step_ms"] == [pytest.approx([11.7, 14.3]), pytest.approx([0.9 * 7, 1.1 * 7])]
    assert found[arms.OURS]["per_step_ms"] == [[9.0, 11.0]] * 2
    # Four self-attentions on the line from 0.4 to 0.1 and four of cross-attention, which stays dense.
    assert found[TEN]["request_ms"]["high"] == pytest.approx(1.1 * 4 * (0.4 - 0.25 * 0.4 + 0.1))
    assert found[arms.PEER]["request_ms"]["low"] == pytest.approx(0.9 * 4 * 0.4)
    assert found[arms.PEER]["cross_ms"] == pytest.approx({"low": 0.63, "high": 0.77})
    speedup = found[TEN]["speedup"]
    assert speedup["low"] < 12.7 / 10.5 < speedup["high"]
    low, high = found[TEN]["gains"]["0.5"]
    assert low == pytest.approx(amdahl.gain(0.5, speedup["low"])) and low < high


def test_calls_that_fell_back_to_dense_cost_what_dense_ones_do():
    found = modelled.summarise(results(skipped(0.0, 0.5, 0.0, 0.0, dense=(2, 3))))["arms"][TEN]
    assert found["self_ms"]["low"] == pytest.approx(0.9 * (13 + 7 + 10 + 10) / 4)
    found = modelled.summarise(results(skipped(0.0, 0.0, dense=(0, 1))))["arms"][TEN]
    assert found["self_ms"] == pytest.approx({"low": 9.0, "high": 11.0})


def test_more_than_three_quarters_skipped_goes_on_along_the_line():
    found = modelled.summarise(results(skipped(0.9, 0.9)))["arms"][TEN]
    assert found["self_ms"] == pytest.approx({"low": 0.9 * 2.2, "high": 1.1 * 2.2})


def test_sparsity_that_the_goals_need():
    goals = modelled.summarise(results(skipped(0.0, 0.5)))["goals"]
    assert list(goals) == ["1.23", "1.3"]
    for goal, by_share in goals.items():
        for share, (low, high) in by_share.items():
            speedup = 12.7 / (13 - 12 * low + 0.5)
            assert low == high and amdahl.gain(float(share), speedup) == pytest.approx(float(goal))


def test_a_goal_beyond_the_share_is_out_of_reach(monkeypatch):
    monkeypatch.setattr(amdahl, "STATED_SHARES", (0.1, 0.5))
    goals = modelled.summarise(results(skipped(0.0, 0.5)))["goals"]
    assert goals["1.23"]["0.1"] is None and goals["1.23"]["0.5"] is not None


def test_without_arms_that_the_model_knows_there_is_nothing():
    assert modelled.summarise({arms.SDPA: finished(), arms.OURS: {"status": "failed"}}) is None
    alone = modelled.summarise({arms.OURS: finished()})
    assert alone["goals"] is None and "speedup" not in alone["arms"][arms.OURS]
