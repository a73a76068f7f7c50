"""Which kernel serves which device, and what is said about it. Devices other than the CPU are pretended."""

import contextlib
import importlib.util
import logging
import math
from types import SimpleNamespace

import pytest
import torch

import liteattention_rocm
from attention_cases import ROUNDINGS, Case, same_bits
from lite_cases import inputs as local_inputs
from lite_cases import random_list
from liteattention_rocm import _C, dispatch, ops, reference, runtime
from liteattention_rocm.commands import doctor
from liteattention_rocm.lite import fallback, lists
from liteattention_rocm.lite.reference import step as reference_step

GPU = torch.device("cuda", 0)
VARIABLE = dispatch.KERNEL_VARIABLE


def clear_caches():
    for cached in (
        runtime._rocm_target,
        runtime.has_code_object,
        dispatch._say_once,
        dispatch._triton_is_installed,
    ):
        cached.cache_clear()


@pytest.fixture
def pretend(monkeypatch):
    """A pretended GPU, and whether Triton is installed."""
    monkeypatch.delenv(VARIABLE, raising=False)
    find_spec = importlib.util.find_spec

    def pretend(architecture, *, triton=True):
        """architecture: a gfx name with its features, or (major, minor) of an NVIDIA device."""
        amd = isinstance(architecture, str)
        major, minor = (9, 4) if amd else architecture
        properties = SimpleNamespace(
            gcnArchName=architecture if amd else "", multi_processor_count=132, major=major, minor=minor,
            name="AMD Instinct" if amd else "NVIDIA H200",
        )  # fmt: skip
        monkeypatch.setattr(torch.version, "hip", "7.1" if amd else None)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: properties.name)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        opened = {"open_hip": lambda path: _C.open_hip(path) if path else 1000}
        opened["library_path"] = lambda hip: "libamdhip64.so" if hip == 1000 else _C.library_path(hip)
        monkeypatch.setattr(runtime, "_C", SimpleNamespace(**{**vars(_C), **opened}))
        spec = (lambda: object()) if triton else (lambda: None)
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: spec() if name == "triton" else find_spec(name)
        )
        clear_caches()

    yield pretend
    clear_caches()


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("gfx942:sramecc+:xnack-", dispatch.Hip(runtime.Target(1000, 0, "gfx942", 132))),
        ("gfx90a:sramecc+:xnack-", dispatch.Triton("gfx90a")),
        ("gfx950", dispatch.Triton("gfx950")),
        ((9, 0), dispatch.Triton("sm_90")),
        ((8, 0), dispatch.Triton("sm_80")),
        ((12, 0), dispatch.Triton("sm_120")),
    ],
    ids=str,
)
def test_row_17_what_serves_a_device(pretend, architecture, expected):
    pretend(architecture)
    assert dispatch.serving(GPU) == expected
    assert dispatch.serving(torch.device("cuda")) == expected


@pytest.mark.parametrize("architecture", ["gfx1100", "gfx908:sramecc+", "gfx9420"])
def test_row_17_refused_in_a_sentence_that_names_both_ways(pretend, architecture):
    pretend(architecture)
    name = architecture.split(":")[0]
    with pytest.raises(RuntimeError) as caught:
        dispatch.serving(GPU)
    message = str(caught.value)
    assert f"whose architecture {name} has no code object here; supported are" in message
    assert "gfx942: MI300X" in message and "CPU tensors, which run simulated" in message
    assert f"the Triton kernel serves gfx90a, gfx942, gfx950 and NVIDIA devices, not {name}" in message


@pytest.mark.parametrize("architecture", ["gfx950", (9, 0)], ids=str)
def test_row_17_without_triton(pretend, architecture):
    pretend(architecture, triton=False)
    with pytest.raises(RuntimeError, match=r"supported are .*; Triton, .*is not installed"):
        dispatch.serving(GPU)
    with pytest.raises(RuntimeError, match="is not installed"):
        liteattention_rocm.prepare(GPU)


def test_row_17_an_old_nvidia_device(pretend):
    pretend((7, 5))
    with pytest.raises(RuntimeError, match=r"needs compute capability 8\.0, NVIDIA H200 has 7\.5"):
        dispatch.serving(GPU)


def test_row_17_hip_needs_no_triton(pretend):
    pretend("gfx942", triton=False)
    assert dispatch.serving(GPU).name == "hip"


@pytest.mark.parametrize(
    ("architecture", "forced", "expected"),
    [
        ("gfx942", "triton", dispatch.Triton("gfx942")),
        ("gfx942", "hip", dispatch.Hip(runtime.Target(1000, 0, "gfx942", 132))),
        ("gfx942", "reference", dispatch.Reference()),
        ("gfx1100", "reference", dispatch.Reference()),
        ((9, 0), "", dispatch.Triton("sm_90")),
    ],
    ids=str,
)
def test_a_forced_kernel(pretend, monkeypatch, architecture, forced, expected):
    pretend(architecture)
    monkeypatch.setenv(VARIABLE, forced)
    assert dispatch.serving(GPU) == expected


def test_a_forced_kernel_that_does_not_serve_the_device(pretend, monkeypatch):
    pretend("gfx90a")
    monkeypatch.setenv(VARIABLE, "hip")
    with pytest.raises(RuntimeError, match="architecture gfx90a has no code object here"):
        dispatch.serving(GPU)
    pretend("gfx1100")
    monkeypatch.setenv(VARIABLE, "triton")
    with pytest.raises(RuntimeError, match="not gfx1100"):
        dispatch.serving(GPU)


@pytest.mark.parametrize("value", ["cuda", "HIP", " triton"])
def test_a_kernel_that_does_not_exist(monkeypatch, value):
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ValueError, match=f"{VARIABLE} must be one of hip, triton, reference, got '{value}'"):
        liteattention_rocm.attention(*Case(4, 4).inputs())


def test_triton_serves_cpu_tensors_in_its_interpreter_alone(monkeypatch):
    monkeypatch.setenv(VARIABLE, "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="set TRITON_INTERPRET=1 before Python starts"):
        liteattention_rocm.attention(*Case(4, 4).inputs())


def test_said_once_in_the_log(pretend, caplog):
    with caplog.at_level(logging.WARNING, logger="liteattention_rocm"):
        pretend("gfx942")
        dispatch.serving(GPU)
        assert caplog.messages == []
        pretend("gfx950")
        for _ in range(3):
            dispatch.serving(GPU)
    assert caplog.messages == [
        "liteattention_rocm has no code object for gfx950: attention runs in its Triton kernel"
    ]


@pytest.mark.parametrize(
    ("architecture", "line"),
    [
        ("gfx942", "cuda:0: AMD Instinct, gfx942, 132 compute units, HIP kernel"),
        ("gfx90a", "cuda:0: AMD Instinct, gfx90a, 132 compute units, Triton kernel"),
        ((9, 0), "cuda:0: NVIDIA H200, sm_90, 132 compute units, Triton kernel"),
    ],
    ids=str,
)
def test_doctor_tells_the_kernel_of_each_device(pretend, monkeypatch, architecture, line):
    pretend(architecture)
    report = doctor.collect()
    assert report["problems"] == []
    text = doctor._text(report)
    assert line in text
    assert "cpu: simulated MI300X, gfx942, 304 compute units, HIP kernel" in text
    monkeypatch.setenv(VARIABLE, "reference")
    text = doctor._text(doctor.collect())
    assert "cuda:0" in text and "132 compute units, plain PyTorch" in text
    assert f"note           {VARIABLE}='reference' forces the kernel of every device" in text
    monkeypatch.setenv(VARIABLE, "cuda")
    assert any("must be one of hip" in problem["text"] for problem in doctor.collect()["problems"])


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_reference_through_the_operator(monkeypatch, rounding, layout):
    case = Case(70, 130, rounding, layout)
    monkeypatch.setenv(VARIABLE, "reference")
    monkeypatch.setattr(runtime, "launch", lambda *_, **__: pytest.fail("a kernel was launched"))
    options = {"rounding": rounding, "layout": layout}
    out, lse = liteattention_rocm.attention(*case.inputs(), return_lse=True, **options)
    expected, expected_lse = reference.replica(*case.inputs(), **options)
    assert same_bits(out, expected) and out.is_contiguous()
    assert torch.equal(lse, expected_lse)
    q, k, v = case.inputs()
    assert liteattention_rocm.attention(q[:0], k[:0], v[:0], **options).shape[0] == 0


@pytest.mark.parametrize("backward", [False, True])
def test_skipping_reference_through_the_operator(monkeypatch, backward):
    """Output, LSE and list of the HIP kernel's skipping operator, from plain PyTorch."""
    q, k, v = local_inputs(1, 2, 200, 333, noise=0.2)
    kept = random_list(1, 2, 200, 333)
    made = []
    for forced in ("hip", "reference"):
        monkeypatch.setenv(VARIABLE, forced)
        read, write = lists.pack(kept), torch.zeros_like(lists.pack(kept))
        out, lse = torch.ops.liteattention_rocm.attention_skip(
            q, k, v, read, write, threshold=-6.0, backward=backward, return_lse=True
        )
        made.append((out, lse, write, *torch.ops.liteattention_rocm.skip_order(write)))
    expected = reference_step(q, k, v, kept, threshold=-6.0, backward=backward)
    for out, lse, write, _, _ in made:
        assert torch.equal(lists.unpack(write, kept.shape[-1]), expected.kept)
        assert (out.double() - expected.out).abs().max() < 2e-2
        assert (lse.double() - expected.lse).abs().max() < 1e-4
    for ours, theirs in zip(*(m[2:] for m in made), strict=True):
        assert torch.equal(ours, theirs)


class Recorded:
    """Launches of the Triton kernels, recorded in their place, and the devices that were current."""

    def __init__(self, monkeypatch):
        self.calls, self.current = [], []
        from liteattention_rocm.triton import attention

        monkeypatch.setattr(attention, "forward", lambda *a, **o: self.calls.append(("forward", a, o)))
        monkeypatch.setattr(attention, "skip_forward", lambda *a, **o: self.calls.append(("skip", a, o)))

        @contextlib.contextmanager
        def current(device):
            self.current.append(device)
            yield

        monkeypatch.setattr(dispatch, "_current", current)


@pytest.fixture
def recorded(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    recorded = Recorded(monkeypatch)
    monkeypatch.setattr(dispatch, "serving", lambda device: dispatch.Triton("sm_90"))
    return recorded


def test_triton_gets_tensors_that_it_can_address(recorded):
    q, k, v = Case(70, 130).inputs()
    spread = torch.zeros(*k.shape[:3], 256, dtype=k.dtype)[..., ::2].copy_(k)
    liteattention_rocm.attention(q, spread, v, scale=0.5, rounding="rtz", return_lse=True)
    ((name, (*tensors, sizes), options),) = recorded.calls
    assert name == "forward" and options == {"layout": "bshd", "scale": 0.5, "rounding": "rtz"}
    assert torch.equal(tensors[1], k) and tensors[1].is_contiguous()
    assert tensors[0].data_ptr() == q.data_ptr() and tensors[2].data_ptr() == v.data_ptr()
    assert tensors[4].shape == sizes.lse_shape()
    assert recorded.current == [q.device]
    liteattention_rocm.attention(q[:, :0], k, v)
    assert len(recorded.calls) == 1  # nothing to write


def test_lite_attention_asks_no_hip_target_where_triton_serves(recorded, monkeypatch):
    monkeypatch.setattr(runtime, "target", lambda device: pytest.fail("there is none"))
    attend = liteattention_rocm.LiteAttention(threshold=-6.0)
    q, k, v = local_inputs(1, 2, 200, 333)
    attend(q, k, v)
    assert [call[0] for call in recorded.calls] == ["skip"]
    assert attend._fallback.break_even == fallback.TRITON_BREAK_EVEN


def test_triton_batches_beyond_a_grid(recorded, monkeypatch):
    monkeypatch.setattr(dispatch, "MAX_GRID_BATCH", 2)
    q, k, v = Case(4, 4, batch=5).inputs()
    liteattention_rocm.attention(q, k, v)
    starts = [call[1][0].data_ptr() for call in recorded.calls]
    assert starts == [q[i].data_ptr() for i in (0, 2, 4)]
    assert [call[1][-1].batch for call in recorded.calls] == [2, 2, 1]
    assert [call[1][3].shape[0] for call in recorded.calls] == [2, 2, 1]


def test_the_skipping_operator_launches_triton(recorded):
    q, k, v = local_inputs(1, 2, 200, 333)
    read = lists.pack(random_list(1, 2, 200, 333))
    write = torch.zeros_like(read)
    torch.ops.liteattention_rocm.attention_skip(q, k, v, read, write, threshold=-math.inf, backward=True)
    ((name, (*tensors, sizes, given_read, given_write), options),) = recorded.calls
    assert name == "skip" and sizes.seqlen_kv == 333
    assert (given_read is read) and (given_write is write)
    assert options["threshold"] == -math.inf and options["backward"] is True
    assert len(tensors) == 5


def test_prepare_compiles_for_both_walks(recorded, monkeypatch):
    monkeypatch.setattr(torch, "zeros", lambda *s, device, zeros=torch.zeros, **o: zeros(*s, **o))
    monkeypatch.setattr(torch, "device", lambda name, device=torch.device: SimpleNamespace(type="cuda"))
    for mode, modes in ((None, [*ROUNDINGS]), ("rtz", ["rtz"])):
        recorded.calls.clear()
        monkeypatch.setattr(lists, "full", lambda shape, tiles, device: torch.ones(*shape, 1).int())
        dispatch.prepare("cuda:0", mode)
        dense = [call for call in recorded.calls if call[0] == "forward"]
        assert sorted({call[2]["rounding"] for call in dense}) == sorted(modes)
        assert {call[1][-1].seqlen_kv for call in dense} == {256, 2048}
        walks = {(call[2]["rounding"], call[2]["backward"]) for call in recorded.calls if call[0] == "skip"}
        assert walks == {(name, backward) for name in modes for backward in (False, True)}


def test_prepare_loads_the_code_object(pretend, monkeypatch):
    pretend("gfx942")
    loaded = []
    monkeypatch.setattr(runtime._C, "prepare", lambda *arguments: loaded.append(arguments), raising=False)
    liteattention_rocm.prepare("cuda:0")
    assert loaded == [(1000, 0, "gfx942", 132)]


def test_the_operator_asks_for_the_tensors_device(monkeypatch):
    asked = []
    serving = dispatch.serving
    monkeypatch.setattr(ops.dispatch, "serving", lambda device: asked.append(device) or serving(device))
    q, k, v = Case(4, 4).inputs()
    liteattention_rocm.attention(q, k, v)
    assert asked == [q.device]
