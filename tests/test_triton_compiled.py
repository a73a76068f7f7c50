"""The Triton kernels compiled without a GPU: what the compilers make of them, and gfx942's code simulated."""

import re

import pytest
import torch

import triton_cases
from attention_cases import Case
from liteattention_rocm import code_object, simulator
from triton_cases import Call

pytest.importorskip("triton.backends.amd", reason="Triton with its AMD backend is not installed")

import triton_builds

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")

# Triton's buffers reach 2 GiB from their base, wherever its tensor ends, so that `bounds` would refuse them.
# Accesses outside allocations are refused anyway.
CHECKS = "waits,wait_states,races,uninitialised,resources"
LDS_BYTES = {"gfx90a": 65536, "gfx942": 65536, "gfx950": 163840}
full = pytest.mark.full


@pytest.mark.parametrize(
    ("architecture", "rounding", "options"),
    [
        ("gfx942", "rtne", {}),
        ("gfx942", "rtz", {}),
        ("gfx942", "rtne", {"listed": True}),
        ("gfx942", "rtz", {"listed": True, "backward": True}),
        ("gfx950", "rtne", {}),
        ("gfx950", "rtz", {"listed": True}),
        pytest.param("gfx942", "rtna", {}, marks=full),
        pytest.param("gfx942", "rtne", {"short": True}, marks=full),
        pytest.param("gfx950", "rtz", {}, marks=full),
        pytest.param("gfx950", "rtne", {"short": True}, marks=full),
        pytest.param("gfx950", "rtne", {"listed": True, "backward": True}, marks=full),
        pytest.param("gfx90a", "rtne", {}, marks=full),
        pytest.param("gfx90a", "rtz", {"listed": True}, marks=full),
    ],
    ids=str,
)
def test_amd_without_spills(architecture, rounding, options):
    compiled, _, _ = triton_builds.forward(architecture, rounding, **options)
    parsed = code_object.parse(compiled.asm["hsaco"])
    assert parsed.architecture == architecture
    (kernel,) = parsed.kernels
    assert kernel.vgpr_spills == 0 and kernel.sgpr_spills == 0 and kernel.scratch_bytes == 0
    assert compiled.metadata.shared <= LDS_BYTES[architecture]
    assert "v_mfma" in compiled.asm["amdgcn"]


@pytest.mark.parametrize(
    ("rounding", "options"),
    [
        ("rtne", {}),
        ("rtne", {"described": "bshd"}),
        ("rtz", {"described": "bhsd", "listed": True}),
        pytest.param("rtz", {"listed": True}, marks=full),
        pytest.param("rtna", {"described": "bhsd"}, marks=full),
        pytest.param("rtne", {"described": "bshd", "short": True}, marks=full),
        pytest.param("rtna", {"described": "bshd", "listed": True, "backward": True}, marks=full),
    ],
    ids=str,
)
def test_nvidia(rounding, options):
    """PTX with tensor-core products that wait for nothing but their own operands, tiles copied by descriptors
    where these are given, and an ELF from ptxas."""
    compiled, _, chosen = triton_builds.forward("sm_90", rounding, **options)
    ptx = compiled.asm["ptx"]
    assert re.search(r"\.target sm_90a", ptx)
    assert "wgmma.mma_async" in ptx and ".local" not in ptx
    described = "described" in options
    assert ("cp.async.bulk.tensor" in ptx) == described
    assert (f".maxnreg {chosen.registers}" in ptx) == bool(described and chosen.registers)
    assert compiled.asm["cubin"].startswith(b"\x7fELF")
    ttgir = compiled.asm["ttgir"]
    round_, _, _ = ttgir[ttgir.index("scf.for") :].partition("scf.yield")
    if described:  # as many tiles as stages are under way, a dense walk's keys and values under one barrier
        assert re.search(rf"memdesc<{chosen.stages}x(1x)?{chosen.kv_rows}x(1x)?128xbf16", ttgir)
        assert round_.count("ttng.wait_barrier") == (2 if options.get("listed") else 1)
    if options.get("listed"):  # and no copy waits for its tile's place, which an earlier round has loaded
        (place,) = re.findall(r"(%\S+) = tt\.load .*ptr<i32>", round_)
        assert f"arith.muli {place}," not in round_ and f"arith.extsi {place} " not in round_


@pytest.fixture(scope="module")
def gfx942(hip):
    return triton_builds.Simulated(hip)


def run(gfx942, call: Call) -> Call:
    name, arguments = call.launch()
    with simulator.checking(CHECKS):
        getattr(gfx942, name)(**arguments)
    call.take(arguments)
    return call


def dense_call(rounding: str, layout: str, seqlen_q: int, seqlen_kv: int) -> Call:
    case = Case(seqlen_q, seqlen_kv, rounding, layout, batch=2, heads=2, kv_heads=1)
    return Call(*case.inputs(), rounding, layout)


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_kv", "layout"),
    [(130, 200, "bshd"), (1, 1, "bhsd"), (257, 64, "bhsd"), (2, 319, "bshd")],
)
@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
def test_dense(gfx942, rounding, layout, seqlen_q, seqlen_kv):
    call = run(gfx942, dense_call(rounding, layout, seqlen_q, seqlen_kv))
    triton_cases.judge_dense(call)
    triton_cases.judge_against_hip(call)


@pytest.mark.full
def test_dense_rtna(gfx942):
    call = run(gfx942, dense_call("rtna", "bshd", 130, 200))
    triton_cases.judge_dense(call)
    triton_cases.judge_against_hip(call)
    triton_cases.judge_halves(run(gfx942, triton_cases.halves("rtna")))


@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
def test_edges(gfx942, rounding):
    assert (run(gfx942, triton_cases.very_negative(rounding)).out == 1).all()
    triton_cases.judge_halves(run(gfx942, triton_cases.halves(rounding)))
    triton_cases.judge_special(run(gfx942, triton_cases.special(rounding)))


@pytest.mark.full
def test_negative_scale(gfx942):
    call = dense_call("rtne", "bshd", 70, 100)
    call.scale = -0.13
    triton_cases.judge_dense(run(gfx942, call))


@pytest.mark.parametrize("name", ["forward, partial tile, grouped heads", "backward, two words"])
def test_skipping_one(gfx942, name):
    call = run(gfx942, triton_cases.skipping_calls()[name])
    assert triton_cases.judge_skipping_call(name, call) == 0
    triton_cases.judge_against_hip(call)


@pytest.mark.full
@pytest.mark.parametrize("name", [*triton_cases.skipping_calls()])
def test_skipping(gfx942, name):
    call = run(gfx942, triton_cases.skipping_calls()[name])
    assert triton_cases.judge_skipping_call(name, call) == 0
    triton_cases.judge_against_hip(call)


def test_accesses_outside_the_tensors_are_refused(gfx942):
    """What the launches above rest on: memory ends where a tensor does."""
    call = dense_call("rtne", "bshd", 70, 100)
    name, arguments = call.launch()
    arguments["k"] = arguments["k"][:, :90].clone()
    from simulated_hip import Failed

    with pytest.raises(Failed, match="kernel attention_forward"):
        getattr(gfx942, name)(**arguments)


def test_configurations_are_chosen_by_architecture_and_length():
    from liteattention_rocm.triton import attention

    for architecture in ("gfx90a", "gfx942", "gfx950", "sm_90", "sm_80", "interpreter"):
        long, short, listed = (
            attention.configuration(architecture, *which) for which in ((75600,), (512,), (512, True))
        )
        assert short.query_rows <= long.query_rows
        assert attention.QUERY_ROWS_PER_LIST_ROW % listed.query_rows == 0
        assert listed.kv_rows == attention.KV_ROWS_PER_TILE
    assert torch.cuda.is_available() or attention.architecture(torch.device("cpu")) == "interpreter"
