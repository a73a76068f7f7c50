"""The command line: what it prints, its JSON, its exit codes."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from liteattention_rocm import _C, cli, runtime
from liteattention_rocm.commands import compare


def run(capsys, *arguments):
    code = cli.main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys, *arguments):
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    return json.loads(out)


def test_doctor(capsys):
    report = run_json(capsys, "doctor")
    assert report["problems"] == []
    assert report["versions"]["torch"] == importlib.metadata.version("torch")
    (cpu,) = [entry for entry in report["devices"] if entry["device"] == "cpu"]
    assert cpu["served"] and cpu["architecture"] == "gfx942" and cpu["compute_units"] == 304
    assert report["hip_library"]["cpu"].endswith("libgfx942sim.so")
    assert report["code_objects"][0]["architecture"] == "gfx942"
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    for expected in ("gfx942", "304 compute units", "libgfx942sim.so", torch.__version__, "SGLang"):
        assert expected in out


def test_doctor_sees_the_plugin_entry(capsys, monkeypatch):
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    assert run_json(capsys, "doctor")["sglang"]["plugin_entry"] == "sglang_integration.plugin:register"
    assert run_json(capsys, "doctor")["sglang"]["plugin_excluded"] is False
    monkeypatch.setenv("SGLANG_PLUGINS", "other, liteattention_rocm")
    assert run_json(capsys, "doctor")["sglang"]["plugin_excluded"] is False
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    assert run_json(capsys, "doctor")["sglang"]["plugin_excluded"] is True
    assert "keeps SGLang from loading the plugin" in run(capsys, "doctor")[1]


def pretend_rocm(monkeypatch, architecture):
    properties = SimpleNamespace(gcnArchName=architecture, multi_processor_count=304, name="AMD Instinct")
    monkeypatch.setattr(torch.version, "hip", "7.1.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "AMD Instinct")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    opened = SimpleNamespace(
        **{
            **vars(_C),
            "open_hip": lambda path: _C.open_hip(path) if path else 1000,
            "library_path": lambda hip: "torch/lib/libamdhip64.so" if hip == 1000 else _C.library_path(hip),
        }
    )
    monkeypatch.setattr(runtime, "_C", opened)
    runtime._rocm_target.cache_clear()
    runtime.has_code_object.cache_clear()


@pytest.fixture
def rocm(monkeypatch):
    yield lambda architecture: pretend_rocm(monkeypatch, architecture)
    runtime._rocm_target.cache_clear()
    runtime.has_code_object.cache_clear()


def test_row_21_doctor_tells_of_a_missing_amdsmi(capsys, monkeypatch, rocm):
    rocm("gfx942:sramecc+:xnack-")
    find_spec = importlib.util.find_spec
    for installed in (False, True):
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, found=installed: found or None if name == "amdsmi" else find_spec(name),
        )
        out = run(capsys, "doctor")[1]
        assert ("SGLang believes that there is no GPU" in out) is not installed
        assert ("install the amdsmi of your ROCm version" in out) is not installed
        assert "cuda:0: AMD Instinct, gfx942, 304 compute units" in out
        assert "ROCm tensors   torch/lib/libamdhip64.so" in out


def test_doctor_names_a_device_that_is_not_served(capsys, rocm):
    rocm("gfx1100")
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    assert "cuda:0: AMD Instinct, not served" in out
    assert "architecture gfx1100 has no code object here" in out


def test_doctor_fails_without_a_hip_library(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LITEATTENTION_ROCM_HIP_LIBRARY", str(tmp_path / "missing.so"))
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "PROBLEM" in out and "missing.so" in out


def test_doctor_tells_where_aiters_files_would_be(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LITEATTENTION_ROCM_AITER_HSA", str(tmp_path))
    assert run_json(capsys, "doctor")["aiter"] is None
    assert "python tools/fetch_aiter.py" in run(capsys, "doctor")[1]


def test_inspect(capsys):
    (report,) = run_json(capsys, "inspect")
    assert "gfx942" in report["target"]
    kernels = {kernel["name"]: kernel for kernel in report["kernels"]}
    assert set(kernels) == set(_C.kernel_names())
    for kernel in kernels.values():
        assert kernel["vgpr_spills"] == kernel["sgpr_spills"] == kernel["scratch_bytes"] == 0
        assert 0 < kernel["vgprs"] <= 256
        multiplies = not any(part in kernel["name"] for part in ("merge", "order", "pieces"))
        assert (kernel["lds_bytes"] > 0) == (multiplies or "order" in kernel["name"])
        assert kernel["lds_bytes"] <= 65536
        assert kernel["instructions"] == sum(kernel["mix"].values()) > 0
        assert 4 * kernel["instructions"] <= kernel["code_bytes"] <= 12 * kernel["instructions"]
        # 32 query rows × 64 KV rows × 128: 64 MFMAs of 16x16x16, or half of 32x32x8, for S and for O a wave.
        if "aiter_exact" in kernel["name"]:
            assert kernel["most_frequent"]["v_mfma_f32_32x32x8_bf16"] == 64
        elif multiplies:
            assert kernel["most_frequent"]["v_mfma_f32_16x16x16_bf16"] >= 128
        assert "isa" not in kernel
    text = run(capsys, "inspect")[1]
    assert "attention_forward_rtne" in text and "VGPRs" in text and "v_mfma_f32_16x16x16_bf16" in text


def test_inspect_isa(capsys):
    (report,) = run_json(capsys, "inspect", "--isa")
    for kernel in report["kernels"]:
        assert len(kernel["isa"]) == kernel["instructions"]
        assert sum(instruction["size"] for instruction in kernel["isa"]) == kernel["code_bytes"]
        # Every branch stays inside and goes to an instruction, at least one of them backwards: the KV loop.
        at = {instruction["address"]: instruction for instruction in kernel["isa"]}
        branches = [instruction for instruction in kernel["isa"] if "branches_to" in instruction]
        assert any(branch["branches_to"] < branch["address"] for branch in branches)
        assert all(at[branch["branches_to"]]["branched_to"] for branch in branches)
        assert sum(one["branched_to"] for one in at.values()) == len({b["branches_to"] for b in branches})
    text = run(capsys, "inspect", "--isa")[1]
    assert "s_endpgm" in text


def test_inspect_of_aiters_code_object(capsys, aiter):
    (report,) = run_json(capsys, "inspect", str(aiter.find() / aiter.file_name("rtz")))
    (kernel,) = report["kernels"]
    assert kernel["most_frequent"]["v_mfma_f32_32x32x8_bf16"] > 0
    assert kernel["lds_bytes"] == 65536 or kernel["max_workgroup_size"] == 512


def test_inspect_refuses_other_files(capsys, tmp_path):
    (tmp_path / "text").write_text("no code object")
    for file in (tmp_path / "text", tmp_path / "missing"):
        code, _, err = run(capsys, "inspect", str(file))
        assert code == 1
        assert "liteattention-rocm inspect:" in err


def test_coverage(capsys):
    instructions = run_json(capsys, "coverage")
    by_name = {instruction["name"]: instruction for instruction in instructions}
    for name in ("v_mfma_f32_16x16x16_bf16", "v_mfma_f32_32x32x8_bf16", "buffer_load_dwordx4", "s_waitcnt"):
        assert by_name[name]["implemented"], name
        assert by_name[name]["encodings"]
    code, out, _ = run(capsys, "coverage")
    assert code == 0
    assert f"{len(instructions)} instructions are decoded" in out


def test_coverage_covers_our_kernels_and_aiters(capsys, aiter):
    executed = {one["name"].lower() for one in run_json(capsys, "coverage") if one["implemented"]}
    files = [[str(aiter.find() / aiter.file_name(rounding))] for rounding in ("rtne", "rtna", "rtz")]
    for file in ([], *files):
        for report in run_json(capsys, "inspect", "--isa", *file):
            for kernel in report["kernels"]:
                used = {instruction["op"].lower() for instruction in kernel["isa"]}
                assert used and used <= executed


def test_compare_forwards_its_arguments(monkeypatch):
    seen = []
    module = SimpleNamespace(main=lambda arguments: seen.append(arguments) or 3)
    monkeypatch.setattr(compare.importlib, "import_module", lambda name: module)
    assert cli.main(["compare", "--steps", "2", "--help"]) == 3
    assert seen == [["--steps", "2", "--help"]]


def test_compare_without_the_harness(capsys, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'imageio'", name="imageio")

    monkeypatch.setattr(compare.importlib, "import_module", missing)
    code, _, err = run(capsys, "compare")
    assert code == 1
    assert "imageio is missing" in err and "liteattention_rocm[e2e]" in err


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["doctor", "--unknown"]])
def test_wrong_usage(capsys, arguments):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(arguments)
    assert exit_info.value.code == 2
    assert "usage: liteattention-rocm" in capsys.readouterr().err


def test_console_script_is_installed():
    (script,) = [
        entry
        for entry in importlib.metadata.entry_points(group="console_scripts")
        if entry.name == "liteattention-rocm"
    ]
    assert script.load() is cli.main


def test_import_is_light():
    """Beside torch, importing the package loads neither SGLang nor anything slow."""
    code = (
        "import sys, time, torch; begin = time.perf_counter(); import liteattention_rocm; "
        "print(time.perf_counter() - begin, 'sglang' in sys.modules, 'numpy.testing' in sys.modules)"
    )
    seconds, sglang, _ = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    ).stdout.split()
    assert float(seconds) < 0.3
    assert sglang == "False"


def test_without_torch(monkeypatch):
    """The package imports, the command line works, and attention says what is missing."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import importlib.util; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "from liteattention_rocm import cli\n"
        "code = cli.main(['inspect']), cli.main(['coverage']), cli.main(['doctor'])\n"
        "print('codes', code)\n"
        "try:\n"
        "    from liteattention_rocm import attention\n"
        "except ImportError as error:\n"
        "    print('refused:', error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "codes (0, 0, 1)" in out
    assert "PROBLEM        PyTorch is missing" in out
    assert "refused: liteattention_rocm.attention needs PyTorch" in out


def test_version():
    import liteattention_rocm

    assert liteattention_rocm.__version__ == importlib.metadata.version("liteattention_rocm")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = liteattention_rocm.nothing
