"""`bench`: the event path on a pretended GPU whose clock is known, and the rehearsal with modelled times."""

import functools
import hashlib
import importlib
import json
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import liteattention_rocm
from liteattention_rocm import _C, cli
from liteattention_rocm.bench import contenders, measuring, report
from liteattention_rocm.calibration import hip
from liteattention_rocm.timing import Shape

SHAPE = Shape(1, 2, 140, 70)
CPU = torch.device("cpu")


class Gpu:
    """torch.cuda as far as `bench` uses it: work passes time on a device that runs behind the host."""

    def __init__(self):
        self.now_ms, self.synchronized, self.log = 0.0, True, []
        gpu = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing

            def record(self):
                self.at, gpu.synchronized = gpu.now_ms, False

            def elapsed_time(self, later):
                assert gpu.synchronized, "an event was read before the device had reached it"
                return later.at - self.at

        self.Event = Event

    def synchronize(self):
        self.synchronized = True

    def work(self, name, milliseconds, result):
        def call(*arguments, **options):
            self.now_ms += milliseconds
            self.synchronized = False
            self.log.append(name)
            return result(*arguments, **options)

        return call


torch_sdpa = torch.nn.functional.scaled_dot_product_attention


def sdpa(q, k, v, **_):
    return torch_sdpa(*(x.transpose(1, 2).float() for x in (q, k, v))).transpose(1, 2).to(q.dtype)


@functools.cache
def ours(rounding):
    """The simulator's answer, once: the pretended GPU asks for it again and again."""
    return liteattention_rocm.attention(*measuring.inputs(SHAPE, CPU), rounding=rounding)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU on which ours takes 2 ms, AITER 3 ms, its Sage path 1 ms and torch 4 ms; there is no MAX."""
    gpu = Gpu()
    monkeypatch.setattr(measuring.torch.cuda, "Event", gpu.Event)
    monkeypatch.setattr(measuring.torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(measuring, "SHORTEST_MS", 7.0)
    answer = gpu.work("ours", 2.0, lambda q, k, v, rounding: ours(rounding))
    monkeypatch.setattr(contenders, "attention", answer)
    functional = torch.nn.functional
    monkeypatch.setattr(functional, "scaled_dot_product_attention", gpu.work("torch", 4.0, torch_sdpa))
    asked = []

    def flash_attn_func(q, k, v, *, return_lse, how_v3_bf16_cvt):
        asked.append(how_v3_bf16_cvt)
        return sdpa(q, k, v) if how_v3_bf16_cvt else (sdpa(q, k, v),)  # versions differ

    aiter = ModuleType("aiter")
    aiter.flash_attn_func = gpu.work("aiter", 3.0, flash_attn_func)
    sage = ModuleType("aiter.ops.triton.attention.fav3_sage")
    sage.fav3_sage_wrapper_func = gpu.work("sage", 1.0, sdpa)
    monkeypatch.setitem(sys.modules, "aiter", aiter)
    monkeypatch.setitem(sys.modules, "aiter.ops.triton.attention.fav3_sage", sage)
    aiter.__spec__ = importlib.machinery.ModuleSpec("aiter", None)
    folder = tmp_path / "gfx942" / "fmha_v3_fwd" / "MI300"
    folder.mkdir(parents=True)
    for mode in ("rtne", "rtna", "rtz"):
        (folder / f"fwd_hd128_bf16_{mode}.co").write_bytes(mode.encode())
    monkeypatch.setenv("AITER_ASM_DIR", str(tmp_path))
    version = importlib.metadata.version
    monkeypatch.setattr(
        contenders.importlib.metadata,
        "version",
        lambda name: "0.1.99" if name == "amd-aiter" else version(name),
    )
    monkeypatch.setattr(measuring, "kernels_of", lambda one: [f"kernel of {one.name}"])
    monkeypatch.setattr(report, "kernels_of", measuring.kernels_of)
    gpu.asked = asked
    return gpu


def measured(**changes):
    options = {"roundings": ["rtz", "rtne"], "rounds": 5, "warmup": 2} | changes
    return report.measure(SHAPE, CPU, **options)


def by_name(comparison):
    return {result["name"]: result for result in comparison["results"]}


def test_times_ratios_and_rates(gpu):
    comparison = measured()
    results = by_name(comparison)
    assert list(results) == ["ours:rtz", "ours:rtne", "aiter:rtz", "aiter:rtne", "aiter_sage", "torch_sdpa"]
    assert comparison["source"] == "measured"
    for name, milliseconds in (("ours:rtz", 2), ("ours:rtne", 2), ("aiter:rtz", 3), ("aiter_sage", 1)):
        time = results[name]["milliseconds"]
        assert time["median"] == time["low_quartile"] == time["max"] == milliseconds and time["count"] == 5
        assert results[name]["tflops"] == pytest.approx(SHAPE.flop / milliseconds * 1e-9)
        assert results[name]["clock"] == "device events"
    assert results["ours:rtz"]["ratio"] == {"to": "aiter:rtz", **measuring.spread([1.5] * 5)}
    assert results["ours:rtne"]["ratio"]["to"] == "aiter:rtne"
    assert results["aiter_sage"]["ratio"]["median"] == 3 and results["aiter:rtz"]["ratio"]["median"] == 1
    # Spans of at least 7 ms.
    assert [results[name]["calls"] for name in ("ours:rtz", "aiter:rtz", "aiter_sage")] == [4, 3, 7]
    assert set(gpu.asked) == {0, 2}
    assert results["ours:rtne"]["accuracy"]["rmse"] < results["ours:rtz"]["accuracy"]["rmse"] < 0.01
    assert comparison["absent"]["max"].startswith("ModuleNotFoundError")


def test_contenders_take_turns_in_changing_order(gpu):
    measured(roundings=["rtz"], rounds=6)
    log = "".join(name[0] for name in gpu.log)
    warm = "ooooo" + "aaaaa" + "sssss" + "ttttt"
    assert log.startswith(warm)
    timed, seen = log[len(warm) :], set()
    for _ in range(6):  # spans of at least 7 ms
        part, timed = timed[:16], timed[16:]
        order = "".join(dict.fromkeys(part))
        assert part == "".join({"o": "oooo", "a": "aaa", "s": "sssssss", "t": "tt"}[name] for name in order)
        seen.add(order)
    assert len(seen) > 2
    assert timed == "oast"  # once more, for the error against float64


def test_a_contender_that_breaks_leaves_the_others(gpu, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no such\nkernel")

    monkeypatch.setattr(sys.modules["aiter"], "flash_attn_func", broken)
    comparison = measured(roundings=["rtz"])
    results = by_name(comparison)
    assert results["aiter:rtz"]["error"] == "RuntimeError: no such kernel"
    assert "milliseconds" not in results["aiter:rtz"]
    assert results["ours:rtz"]["milliseconds"]["median"] == 2 and results["ours:rtz"]["ratio"] is None
    text = report.markdown(report.document([comparison], CPU, ["bench"]))
    assert "| aiter:rtz | failed |" in text and "**failed**: RuntimeError: no such kernel" in text


def test_ours_is_no_exception(gpu, monkeypatch):
    """Its failure is in the report beside everybody else's times."""
    monkeypatch.setattr(contenders, "attention", lambda *_, **__: 1 / 0)
    results = by_name(measured(roundings=["rtz"]))
    assert results["ours:rtz"]["error"] == "ZeroDivisionError: division by zero"
    assert results["aiter:rtz"]["milliseconds"]["median"] == 3


def test_a_contender_that_breaks_after_its_times(gpu, monkeypatch):
    flash_attn_func, calls = sys.modules["aiter"].flash_attn_func, []

    def breaks(*arguments, **options):
        calls.append(None)
        if len(calls) > 20:  # 2 of warm-up, 3 to size a span, 5 rounds of 3
            raise RuntimeError("out of memory")
        return flash_attn_func(*arguments, **options)

    monkeypatch.setattr(sys.modules["aiter"], "flash_attn_func", breaks)
    comparison = measured(roundings=["rtz"])
    result = by_name(comparison)["aiter:rtz"]
    assert result["milliseconds"]["count"] == 5 and result["error"] == "RuntimeError: out of memory"
    assert result["accuracy"] is None and by_name(comparison)["ours:rtz"]["accuracy"]["rmse"] < 0.01
    text = report.markdown(report.document([comparison], CPU, ["bench"]))
    assert (
        "| aiter:rtz | 3.000 (3.000 – 3.000) |" in text and "**failed**: RuntimeError: out of memory" in text
    )


def test_kernels_are_those_of_the_device(monkeypatch):
    """Neither what the host calls to launch them nor copies; a profiler that fails names none."""
    from torch.autograd import DeviceType
    from torch.autograd.profiler import profile

    names = {
        "fmha_fwd_hd128_bf16_rtz": DeviceType.CUDA, "Memset (Device)": DeviceType.CUDA,
        "Memcpy DtoD (Device -> Device)": DeviceType.CUDA, "hipModuleLaunchKernel": DeviceType.CPU,
        "Activity Buffer Request": DeviceType.CPU, "a_second_kernel": DeviceType.CUDA,
    }  # fmt: skip

    class Profile:
        def __init__(self, activities):
            assert activities == [torch.profiler.ProfilerActivity.CUDA]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def key_averages(self):
            return [SimpleNamespace(key=name, device_type=kind) for name, kind in names.items()]

    synchronized = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: synchronized.append(None))
    monkeypatch.setattr(torch.profiler, "profile", Profile)
    one = contenders.Contender("ours:rtz", lambda: None)
    assert measuring.kernels_of(one) == ["a_second_kernel", "fmha_fwd_hd128_bf16_rtz"] and synchronized
    # What the stand-in has are attributes of the real one's answers.
    with profile() as seen:
        torch.zeros(3) + 1
    assert all(isinstance(event.device_type, DeviceType) for event in seen.key_averages())
    names["no attribute of it"] = None
    monkeypatch.setattr(Profile, "key_averages", lambda self: 1 / 0)
    assert measuring.kernels_of(one) == []


def test_every_call_of_torch_cuda_exists():
    """The pretended GPU takes calls that the real module has, with these arguments."""
    import inspect

    assert {"enable_timing"} <= set(inspect.signature(torch.cuda.Event.__new__).parameters)
    for name, arguments in (("record", 0), ("elapsed_time", 1)):
        method = getattr(torch.cuda.Event, name)
        inspect.signature(method).bind(*[None] * (1 + arguments))
    inspect.signature(torch.cuda.synchronize).bind()
    inspect.signature(torch.cuda.device).bind(CPU)
    inspect.signature(torch.cuda.get_device_properties).bind(CPU)


def test_what_the_times_belong_to(monkeypatch, tmp_path):
    """On ROCm's torch: device, architecture, compute units, HIP and the driver."""
    properties = SimpleNamespace(
        name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", multi_processor_count=304
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", "7.0.51831")
    (tmp_path / "version").write_text("6.14.14\n")
    monkeypatch.setattr(report, "_DRIVER", tmp_path / "version")
    found = report.environment(torch.device("cuda", 0))
    assert found["device"] == "AMD Instinct MI300X" and found["compute units"] == "304"
    assert found["architecture"] == "gfx942:sramecc+:xnack-"
    assert (found["HIP"], found["amdgpu driver"]) == ("7.0.51831", "6.14.14")


def test_the_command_on_a_device(gpu, monkeypatch, tmp_path, capsys):
    """From the command line through the device's context to files, written after each shape."""
    entered, written = [], []

    class Device:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            entered.append(self.device)

        def __exit__(self, *_):
            written.append((tmp_path / "out" / "bench.json").exists())

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", Device)
    measure = report.measure
    monkeypatch.setattr(report, "measure", lambda shape, _, **options: measure(shape, CPU, **options))
    document = report.document
    monkeypatch.setattr(report, "document", lambda found, _, command: document(found, CPU, command))
    shape = ["--shape", f"1,2,{SHAPE.seqlen_q},{SHAPE.seqlen_kv}"]
    command = ["bench", *shape, *shape, "--index", "1", "--rounds", "3", "--output", str(tmp_path / "out")]
    assert cli.main(command) == 0
    assert entered == [torch.device("cuda", 1)] * 2 and written == [False, True]
    report_read = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert report_read["source"] == "measured" and len(report_read["comparisons"]) == 2
    assert [row["milliseconds"]["count"] for row in report_read["comparisons"][1]["results"]] == [3] * 6
    assert "ms, median (quartiles)" in capsys.readouterr().out
    monkeypatch.setattr(sys.modules["aiter"], "flash_attn_func", lambda *_, **__: 1 / 0)
    assert cli.main(command) == 1  # somebody failed, and is in the report
    assert "**failed**: ZeroDivisionError" in (tmp_path / "out" / "bench.md").read_text()
    assert cli.main(["bench", "--index", "2"]) == 1
    assert "--index must be below 2, got 2" in capsys.readouterr().err
    (tmp_path / "file").touch()
    monkeypatch.setattr(report, "measure", None)
    assert cli.main(["bench", *shape, "--output", str(tmp_path / "file")]) == 1  # before anything runs
    assert "exists" in capsys.readouterr().err


def test_an_absent_aiter_is_said(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiter", None)
    monkeypatch.setitem(sys.modules, "aiter.ops.triton.attention.fav3_sage", None)
    comparison = measured(roundings=["rtz"])
    assert set(comparison["absent"]) == {"aiter:rtz", "aiter_sage", "max"}
    assert by_name(comparison)["ours:rtz"]["ratio"] is None


def test_versions_and_hashes(gpu):
    results = by_name(measured())
    facts = results["aiter:rtne"]["facts"]
    assert facts["version"] == "amd-aiter 0.1.99"
    assert facts["code object sha256"] == hashlib.sha256(b"rtne").hexdigest()
    ours = results["ours:rtz"]["facts"]
    assert ours["code object sha256"] == hashlib.sha256(_C.code_object("gfx942")).hexdigest()
    text = report.markdown(report.document([measured()], CPU, ["liteattention-rocm", "bench"]))
    for expected in (
        facts["code object sha256"],
        "amd-aiter 0.1.99",
        "1.500 (1.500 – 1.500)",
        "2.000 (2.000",
    ):
        assert expected in text
    assert "`kernel of ours:rtz`" in text and "MODELLED" not in text


def test_aiters_files_are_launched_directly(gpu, aiter, monkeypatch):
    """`--aiter-hsa`: here in the simulator, through the same HIP calls as on ROCm."""
    directory = aiter.find()
    monkeypatch.setattr(hip.Module, "launch", gpu.work("file", 8.0, hip.Module.launch))
    comparison = measured(roundings=["rtz"], aiter_hsa=directory, rounds=1, warmup=1)
    result = by_name(comparison)["aiter-file:rtz"]
    assert result["accuracy"]["rmse"] < 0.01 and result["milliseconds"]["median"] == 8
    file = directory / aiter.file_name("rtz")
    assert result["facts"]["code object sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(FileNotFoundError):
        measured(aiter_hsa=directory.parent.parent / "nowhere")


class MaxGraph:
    """A pretended MAX: graph, engine and driver as far as `bench` uses them."""

    def __init__(self, gpu, scale):
        self.modules = {
            name: ModuleType(name) for name in ("driver", "dtype", "graph", "nn.kernels", "engine")
        }
        driver, dtype, graph, kernels, engine = self.modules.values()
        device = SimpleNamespace(synchronize=lambda: None)
        driver.Accelerator = lambda index: device
        driver.Buffer = SimpleNamespace(from_dlpack=torch.from_dlpack)
        dtype.DType = SimpleNamespace(bfloat16="bfloat16")
        graph.DeviceRef = SimpleNamespace(GPU=lambda index: ("gpu", index))
        graph.TensorType = lambda dtype, shape, device: (dtype, shape, device)

        class Graph:
            def __init__(self, name, input_types):
                self.inputs = [SimpleNamespace(tensor=i) for i in range(len(input_types))]

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def output(self, result):
                assert result == (0, 1, 2, "null", pytest.approx(scale))

        graph.Graph = Graph
        kernels.MHAMaskVariant = SimpleNamespace(NULL_MASK="null")
        kernels.flash_attention_gpu = lambda q, k, v, *, mask_variant, scale: (q, k, v, mask_variant, scale)
        model = SimpleNamespace(execute=lambda *operands: (gpu.work("max", 5.0, sdpa)(*operands),))
        engine.InferenceSession = lambda devices: SimpleNamespace(load=lambda graph: model)


def test_max_is_timed_by_the_hosts_clock(gpu, monkeypatch):
    for name, module in MaxGraph(gpu, 128**-0.5).modules.items():
        monkeypatch.setitem(sys.modules, f"max.{name}", module)
    monkeypatch.setitem(sys.modules, "max", ModuleType("max"))
    monkeypatch.setitem(sys.modules, "max.nn", ModuleType("max.nn"))
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: gpu.now_ms / 1e3)
    result = by_name(measured(roundings=["rtz"]))["max"]
    assert result["clock"] == "host" and result["milliseconds"]["median"] == pytest.approx(5)
    assert result["accuracy"]["rmse"] < 0.01


@pytest.mark.parametrize(("rounds", "warmup"), [(0, 1), (1, 0)])
def test_too_few_rounds(gpu, rounds, warmup):
    with pytest.raises(ValueError, match="at least 1"):
        measured(rounds=rounds, warmup=warmup)


def test_spread():
    assert measuring.spread([3.0]) == {
        **dict.fromkeys(("median", "low_quartile", "high_quartile", "min", "max"), 3.0),
        "count": 1,
    }
    five = measuring.spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (five["median"], five["low_quartile"], five["high_quartile"]) == (3, 2, 4)


def test_dry_run(capsys, aiter, tmp_path):
    command = ["bench", "--dry-run", "--shape", "1,1,256,128", "--rounding", "rtz"]
    assert cli.main([*command, "--output", str(tmp_path / "made" / "here")]) == 0
    text = capsys.readouterr().out
    assert "MODELLED by the simulator's clock, not measured" in text and "ms, modelled" in text
    assert "| ours:rtz |" in text and "| aiter:rtz |" in text and "- torch_sdpa: absent" in text
    written = json.loads((tmp_path / "made" / "here" / "bench.json").read_text())
    assert (tmp_path / "made" / "here" / "bench.md").read_text() == text.removesuffix("\n")
    assert written["source"] == "modelled" and written["environment"]["ours runs"] == "simulated"
    (comparison,) = written["comparisons"]
    ours, theirs = comparison["results"]
    assert {ours["clock"], theirs["clock"]} == {"modelled"} and ours["ratio"]["to"] == "aiter:rtz"
    assert 0 < ours["milliseconds"]["low"] < ours["milliseconds"]["high"]
    assert ours["facts"]["code object sha256"] == hashlib.sha256(_C.code_object("gfx942")).hexdigest()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "torch sees no GPU"),
        (["--dry-run", "--shape", "1,2"], "shape must be"),
        (["--dry-run", "--rounding", "rtz,up"], "--rounding must be of .* got 'up'"),
    ],
)
def test_wrong_use(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["bench", *arguments]) == 1
    assert re.search(message, capsys.readouterr().err)
