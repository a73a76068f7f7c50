"""The kernel, simulated, against float64 and against a float32 replica with the same rounding."""

import math
import os
import signal
import threading
import time

import pytest
import torch

import liteattention_rocm
from attention_cases import (
    LAYOUTS,
    LENGTHS,
    ROUNDINGS,
    Case,
    GuardedOut,
    all_cases,
    bits,
    paired_cases,
    same_bits,
)
from liteattention_rocm import reference, simulator

pytestmark = pytest.mark.usefixtures("dense_kernel")

# float32 log-sum-exp of N(0, 1) inputs: v_exp_f32 and v_log_f32 are good to an ulp or two, values reach 10.
LSE_TOLERANCE = 5e-6
SIMULATOR_THREADS = os.environ["LITEATTENTION_ROCM_SIM_THREADS"]


def check_case(case: Case) -> None:
    q, k, v = case.inputs()
    out = GuardedOut(q.shape, gap=8)
    _, lse = liteattention_rocm.attention(
        q, k, v, out=out.tensor, layout=case.layout, rounding=case.rounding, return_lse=True
    )
    expected, expected_lse = reference.attention(q, k, v, layout=case.layout)
    replica, _ = reference.replica(q, k, v, layout=case.layout, rounding=case.rounding)
    rmse = reference.rmse(out.tensor, expected)
    bar = 1.05 * reference.rmse(replica, expected)
    assert rmse <= bar, f"rmse {rmse:.3e} exceeds 1.05 × the replica's, {bar:.3e}"
    assert lse.shape == (case.batch, case.heads, case.seqlen_q)
    assert (lse.double() - expected_lse).abs().max() <= LSE_TOLERANCE
    out.check()


def test_pairs_cover_every_length_on_either_side():
    for rounding in ROUNDINGS:
        for layout in LAYOUTS:
            of_mode = [c for c in paired_cases() if (c.rounding, c.layout) == (rounding, layout)]
            assert {c.seqlen_q for c in of_mode} == set(LENGTHS)
            assert {c.seqlen_kv for c in of_mode} == set(LENGTHS)


@pytest.mark.parametrize("case", paired_cases(), ids=str)
def test_accuracy(case):
    check_case(case)


@pytest.mark.full
@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_accuracy_of_every_length_pair(case):
    check_case(case)


@pytest.mark.parametrize(("rounding", "bar"), [("rtne", 2.4e-4), ("rtna", 2.4e-4), ("rtz", 6.5e-4)])
def test_rmse_at_384x256(rounding, bar):
    q, k, v = Case(384, 256, rounding, batch=1, heads=4, kv_heads=4).inputs()
    out = liteattention_rocm.attention(q, k, v, rounding=rounding)
    assert reference.rmse(out, reference.attention(q, k, v)[0]) <= bar


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (4, 2), (6, 3)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_grouped_query_heads(heads, kv_heads, layout):
    check_case(Case(70, 130, layout=layout, heads=heads, kv_heads=kv_heads, seed=1))


@pytest.mark.parametrize("scale", [0.3, 1, 1e-3, 0.0, -0.2, 0])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_scale(scale, rounding):
    q, k, v = Case(33, 129, rounding, heads=2, kv_heads=2, seed=2).inputs()
    out, lse = liteattention_rocm.attention(q, k, v, scale=scale, rounding=rounding, return_lse=True)
    expected, expected_lse = reference.attention(q, k, v, scale=scale)
    replica, _ = reference.replica(q, k, v, scale=scale, rounding=rounding)
    assert reference.rmse(out, expected) <= 1.05 * reference.rmse(replica, expected)
    # Scores of scale 1 reach 50.
    assert torch.allclose(lse.double(), expected_lse, rtol=1e-6, atol=LSE_TOLERANCE)


def test_scale_0_weighs_all_keys_alike_however_large_their_scores_are():
    q, k, v = Case(33, 129, heads=1, kv_heads=1, seed=2).inputs()
    out, lse = liteattention_rocm.attention(q * 1e18, k * 1e18, v, scale=0, return_lse=True)
    assert (lse - math.log(129)).abs().max() < LSE_TOLERANCE
    assert (out.double() - v.double().mean(dim=1, keepdim=True)).abs().max() < 2**-9


def test_large_magnitudes():
    """Scores of several hundred: a few keys own each row, and the running maximum jumps from tile to tile."""
    q, k, v = Case(130, 700, heads=2, kv_heads=2, seed=3).inputs()
    q, k = q * 6, k * 6
    out = liteattention_rocm.attention(q, k, v)
    expected, _ = reference.attention(q, k, v)
    replica, _ = reference.replica(q, k, v)
    assert reference.rmse(out, expected) <= 1.05 * reference.rmse(replica, expected)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_deterministic(rounding):
    """The same bits from every run, whatever the number of host threads that share the workgroups."""
    q, k, v = Case(400, 333, rounding, seed=4).inputs()
    runs = []
    try:
        for threads in (1, 2, 2, 3):
            simulator.set_option("threads", threads)
            runs.append(liteattention_rocm.attention(q, k, v, rounding=rounding, return_lse=True))
    finally:
        simulator.set_option("threads", SIMULATOR_THREADS)
    for out, lse in runs[1:]:
        assert same_bits(out, runs[0][0])
        assert torch.equal(lse, runs[0][1])


def test_rounding_modes_differ():
    """The mode reaches the kernel: rtz shrinks outputs, rtne and rtna differ on ties alone."""
    q, k, v = Case(64, 100, seed=5).inputs()
    v = v.abs()
    rtne, rtna, rtz = (liteattention_rocm.attention(q, k, v, rounding=rounding) for rounding in ROUNDINGS)
    expected, _ = reference.attention(q, k, v)
    assert (rtz.double() - expected).mean() < -1e-3
    assert abs((rtne.double() - expected).mean()) < 1e-4
    assert (bits(rtne) != bits(rtna)).float().mean() < 0.05


@pytest.fixture
def interrupt():
    """Sends SIGINT to this process after some seconds, as Ctrl-C does."""
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)
    signal.signal(signal.SIGINT, handler)


def test_ctrl_c_stops_a_launch(interrupt):
    """Within a second, of a launch that would take a minute; the next call is right."""
    q = torch.zeros(1, 1, 1, 128, dtype=torch.bfloat16).expand(1, 4096, 24, 128)
    interrupt(0.3)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        liteattention_rocm.attention(q, q, q)
    assert time.monotonic() - begin < 5
    check_case(Case(20, 20))


def test_ctrl_c_stops_a_launch_of_aiters(interrupt, aiter):
    q = torch.zeros(1, 1, 1, 128, dtype=torch.bfloat16).expand(1, 4096, 24, 128)
    interrupt(0.3)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        aiter.forward(q, q, q)
    assert time.monotonic() - begin < 5
    assert aiter.forward(q[:, :4], q[:, :4], q[:, :4]).isfinite().all()


def test_threads_share_one_process():
    """Calls from several threads at once give each caller its own result."""
    cases = [Case(100 + 30 * i, 90 + 17 * i, seed=10 + i) for i in range(4)]
    expected = [liteattention_rocm.attention(*case.inputs()) for case in cases]
    results = [None] * len(cases)

    def call(index):
        results[index] = [liteattention_rocm.attention(*cases[index].inputs()) for _ in range(3)]

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, outs in zip(expected, results, strict=True):
        assert outs is not None
        assert all(same_bits(one, out) for out in outs)
