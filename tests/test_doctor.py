"""`doctor` on pretended ROCm machines: what users meet there, each with one line to paste."""

import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from liteattention_rocm import _C, cli, diagnosis, runtime
from liteattention_rocm.commands import doctor

ROOT = Path(__file__).resolve().parent.parent


class Machine:
    """A ROCm machine on which nothing is amiss until a test says so."""

    def __init__(self, patch, tmp_path):
        self.patch, self.folder = patch, tmp_path
        self.modules = {"amdsmi": True, "aiter": None, "sglang": True}
        find_spec = importlib.util.find_spec

        def spec(name, *arguments):
            if name not in self.modules:
                return find_spec(name, *arguments)
            if not self.modules[name]:
                return None
            made = importlib.machinery.ModuleSpec(name, None, is_package=True)
            made.submodule_search_locations = [str(self.folder / name)]
            return made

        patch.setattr(importlib.util, "find_spec", spec)
        patch.setattr(torch.version, "hip", "7.2.0")
        patch.setattr(diagnosis, "DRM", tmp_path / "drm")
        patch.setattr(diagnosis, "KFD", tmp_path / "kfd")
        (tmp_path / "kfd").touch()
        patch.setenv("PYTHONPATH", str(tmp_path / "stubs"))
        self.amdsmi()
        for variable in ("SGLANG_PLUGINS", "LITEATTENTION_ROCM_DISABLE", *diagnosis.VISIBLE_VARIABLES):
            patch.delenv(variable, raising=False)
        opened = {
            "open_hip": lambda path: _C.open_hip(path) if path else 1000,
            "library_path": lambda hip: "libamdhip64.so" if hip == 1000 else _C.library_path(hip),
        }
        patch.setattr(runtime, "_C", SimpleNamespace(**{**vars(_C), **opened}))
        self.devices("gfx942:sramecc+:xnack-")
        self.aiter()

    def devices(self, *architectures, compute_units=304):
        properties = [
            SimpleNamespace(gcnArchName=name, multi_processor_count=compute_units, name="AMD Instinct")
            for name in architectures
        ]

        def of(device):
            return properties[device if isinstance(device, int) else torch.device(device).index or 0]

        self.patch.setattr(torch.cuda, "device_count", lambda: len(properties))
        self.patch.setattr(torch.cuda, "is_available", lambda: bool(properties))
        self.patch.setattr(torch.cuda, "get_device_name", lambda device: of(device).name)
        self.patch.setattr(torch.cuda, "get_device_properties", of)
        runtime._rocm_target.cache_clear()
        runtime.has_code_object.cache_clear()

    def aiter(self, files=("ops/mha.py", "jit/core.py", diagnosis.AITER_SAGE)):
        """An AITER as new as SGLang wants it, or the part of its files that is named."""
        self.modules["aiter"] = True
        content = {file: f"{name} = 1\n" for file, name, _ in diagnosis.AITER_NEEDS}
        for file in files:
            path = self.folder / "aiter" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content.get(file, ""))

    def amdsmi(self, source="def amdsmi_init(): ...\ndef amdsmi_get_processor_handles(): return [1]\n"):
        (self.folder / "stubs").mkdir(exist_ok=True)
        (self.folder / "stubs" / "amdsmi.py").write_text(source)

    def partition(self, card, compute, memory="NPS1"):
        device = self.folder / "drm" / card / "device"
        device.mkdir(parents=True)
        (device / "current_compute_partition").write_text(compute + "\n")
        (device / "current_memory_partition").write_text(memory + "\n")

    def findings(self):
        """Everything found, after checking that each has one line to paste that a shell can parse."""
        report = doctor.collect()
        json.dumps(report)
        text = doctor._text(report)
        for one in report["problems"] + report["notes"]:
            assert one["paste"].strip() and "\n" not in one["paste"]
            assert subprocess.run(["bash", "-n", "-c", one["paste"]]).returncode == 0, one["paste"]
            assert one["text"] in text and one["paste"] in text
        return {one["kind"]: one for one in report["problems"] + report["notes"]}


@pytest.fixture
def machine(monkeypatch, tmp_path, aiter):
    yield Machine(monkeypatch, tmp_path)
    runtime._rocm_target.cache_clear()
    runtime.has_code_object.cache_clear()


def test_nothing_amiss(machine):
    assert machine.findings() == {}
    report = doctor.collect()
    assert [entry["device"] for entry in report["devices"]] == ["cpu", "cuda:0"]
    assert report["devices"][1]["served"] and report["aiter_package"] == str(machine.folder / "aiter")


def test_no_amdsmi(machine):
    machine.modules["amdsmi"] = False
    finding = machine.findings()["amdsmi"]
    assert "SGLang believes that there is no GPU" in finding["text"]
    assert finding["paste"].startswith("pip install /opt/rocm/share/amd_smi")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def amdsmi_init(): raise RuntimeError('driver not loaded')\n", "RuntimeError: driver not loaded"),
        ("raise OSError('libamd_smi.so')\n", "OSError: libamd_smi.so"),
        ("def amdsmi_init(): ...\ndef amdsmi_get_processor_handles(): return []\n", "it lists no processor"),
        ("import os\ndef amdsmi_init(): os._exit(3)\n", "exit status 3"),
        ("import time\ndef amdsmi_init(): time.sleep(60)\n", "no answer within 1 s"),
    ],
)
def test_an_amdsmi_that_fails(machine, monkeypatch, capsys, source, reason):
    machine.amdsmi(source)
    if "sleep" in source:
        monkeypatch.setattr(diagnosis, "AMDSMI_SECONDS", 1)
    finding = machine.findings()["amdsmi"]
    assert f"amdsmi is installed but fails ({reason}), so SGLang runs on the CPU" in finding["text"]
    assert finding["paste"].endswith("/opt/rocm/share/amd_smi")
    assert cli.main(["doctor"]) == 1 and "PROBLEM        amdsmi" in capsys.readouterr().out


def test_no_aiter(machine):
    machine.modules["aiter"] = False
    finding = machine.findings()["aiter"]
    assert "AITER is not installed" in finding["text"] and "ROCm/aiter" in finding["paste"]


@pytest.mark.parametrize(
    ("files", "lacks"),
    [
        (
            ("jit/core.py", diagnosis.AITER_SAGE),
            "for SGLang's AITER backend: it lacks rounding modes",
        ),
        (("ops/mha.py", diagnosis.AITER_SAGE), "it lacks the switch that SGLang imports"),
        ((), "rounding modes in flash_attn_func and the switch"),
        (("ops/mha.py", "jit/core.py"), "too old for SGLang's aiter_sage backend"),
    ],
)
def test_an_old_aiter(machine, files, lacks):
    shutil.rmtree(machine.folder / "aiter")
    machine.aiter(files)
    assert lacks in machine.findings()["aiter"]["text"]


def test_an_aiter_with_an_older_signature(machine):
    (machine.folder / "aiter" / "ops" / "mha.py").write_text("def flash_attn_func(q, k, v): ...\n")
    assert "rounding modes" in machine.findings()["aiter"]["text"]


def test_wrong_architecture(machine):
    machine.devices("gfx1100")
    finding = machine.findings()["architecture"]
    assert (
        finding["text"].startswith("cuda:0: ")
        and "architecture gfx1100 has no code object here" in finding["text"]
    )
    assert finding["paste"] == "export LITEATTENTION_ROCM_DISABLE=1"


def test_wrong_architecture_beside_a_right_one(machine):
    machine.devices("gfx1100", "gfx942", "gfx942")
    finding = machine.findings()["architecture"]
    assert finding["paste"] == "export HIP_VISIBLE_DEVICES=1,2"


@pytest.mark.parametrize(
    ("set_to", "paste"),
    [
        ({"HIP_VISIBLE_DEVICES": "4,5"}, "HIP_VISIBLE_DEVICES=5"),
        ({"CUDA_VISIBLE_DEVICES": "6, 7"}, "CUDA_VISIBLE_DEVICES=7"),
        ({"HIP_VISIBLE_DEVICES": "GPU-a,GPU-b", "CUDA_VISIBLE_DEVICES": "0,1"}, "HIP_VISIBLE_DEVICES=GPU-b"),
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, "HIP_VISIBLE_DEVICES=1"),
        ({"ROCR_VISIBLE_DEVICES": "2,3,4", "HIP_VISIBLE_DEVICES": "2,0"}, "HIP_VISIBLE_DEVICES=0"),
        ({"HIP_VISIBLE_DEVICES": ""}, "HIP_VISIBLE_DEVICES=1"),
    ],
)
def test_wrong_architecture_among_visible_devices(machine, monkeypatch, set_to, paste):
    """The line names devices as the variable in force does, not by torch's indices."""
    for variable, value in set_to.items():
        monkeypatch.setenv(variable, value)
    machine.devices("gfx1100", "gfx942")
    assert machine.findings()["architecture"]["paste"] == f"export {paste}"


def test_plugin_not_in_sglang_plugins(machine, monkeypatch):
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    finding = machine.findings()["plugin"]
    assert "keeps SGLang from loading the plugin" in finding["text"]
    # The line does what it says.
    shown = subprocess.run(
        ["bash", "-c", finding["paste"] + '; echo "$SGLANG_PLUGINS"'],
        env={"SGLANG_PLUGINS": "other", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    monkeypatch.setenv("SGLANG_PLUGINS", shown.stdout.strip())
    assert machine.findings() == {}


def test_plugin_switched_off(machine, monkeypatch):
    monkeypatch.setenv("LITEATTENTION_ROCM_DISABLE", "1")
    assert machine.findings()["plugin"]["paste"] == "unset LITEATTENTION_ROCM_DISABLE"
    monkeypatch.setenv("LITEATTENTION_ROCM_DISABLE", "0")
    assert machine.findings() == {}


def test_plugin_without_entry(machine, monkeypatch):
    monkeypatch.setattr(doctor.importlib.metadata, "entry_points", lambda group: ())
    assert "no entry 'liteattention_rocm'" in machine.findings()["plugin"]["text"]


def test_no_sglang(machine):
    machine.modules["sglang"] = False
    assert machine.findings()["sglang"]["paste"] == 'pip install "sglang[diffusion]"'


@pytest.mark.parametrize("mode", ["DPX", "QPX", "CPX"])
def test_compute_partitions(machine, mode):
    machine.devices(*["gfx942"] * 2, compute_units=38)
    machine.partition("card1", "SPX")
    machine.partition("card10", mode, "NPS4" if mode == "CPX" else "NPS1")
    report = doctor.collect()
    assert [one["card"] for one in report["partitions"]] == ["card1", "card10"]
    findings = machine.findings()
    assert "card10 runs in " in findings["partition"]["text"]
    texts = [one["text"] for one in report["notes"]]
    assert any(f"card10 runs in compute partition mode {mode}" in text for text in texts)
    assert any("memory partition mode NPS4" in text for text in texts) == (mode == "CPX")
    assert not any("card1 " in text for text in texts)
    assert "38 compute units" in doctor._text(report)
    assert all(entry["served"] for entry in report["devices"])  # fewer compute units are served


def test_partition_files_that_a_driver_lacks(machine):
    (machine.folder / "drm" / "card0" / "device").mkdir(parents=True)
    assert doctor.collect()["partitions"] == [] and machine.findings() == {}


@pytest.mark.parametrize("unknown", ["UNKNOWN", "unknown", ""])
def test_partition_modes_that_the_driver_does_not_know(machine, unknown):
    machine.partition("card1", unknown, unknown)
    machine.partition("card2", "spx", "nps1")
    assert machine.findings() == {}
    assert doctor.collect()["partitions"] == [
        {"card": "card1", "compute": "unknown", "memory": "unknown"},
        {"card": "card2", "compute": "SPX", "memory": "NPS1"},
    ]


def test_partition_modes_that_the_driver_refuses_to_tell(machine, monkeypatch):
    machine.partition("card1", "CPX", "NPS4")
    read = Path.read_text

    def refuse(path, *arguments, **options):
        if path.name.endswith("_partition"):
            raise PermissionError(1, "Operation not permitted")
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert machine.findings() == {}
    (card,) = doctor.collect()["partitions"]
    assert card == {"card": "card1", "compute": "unknown", "memory": "unknown"}


def test_memory_is_joined_before_compute(machine):
    """Of all cards: the driver takes SPX only where memory is one partition."""
    machine.partition("card1", "CPX")
    machine.partition("card2", "CPX", "NPS4")
    pastes = [one["paste"].split("--")[-1] for one in doctor.collect()["notes"]]
    assert pastes == ["memory-partition NPS1", "compute-partition SPX", "compute-partition SPX"]


def test_no_device_hidden_by_the_environment(machine, monkeypatch):
    machine.devices()
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "9")
    finding = machine.findings()["no device"]
    assert "HIP_VISIBLE_DEVICES='9' hides" in finding["text"]
    assert finding["paste"] == "unset HIP_VISIBLE_DEVICES"


def test_no_device_without_kfd(machine):
    machine.devices()
    (machine.folder / "kfd").unlink()
    finding = machine.findings()["no device"]
    assert "is missing" in finding["text"] and "--device=/dev/kfd" in finding["paste"]


@pytest.mark.parametrize(("allowed", "paste"), [(False, "sudo usermod -aG render,video"), (True, "rocminfo")])
def test_no_device_for_this_user(machine, monkeypatch, allowed, paste):
    machine.devices()
    monkeypatch.setattr(os, "access", lambda path, mode: allowed)
    assert machine.findings()["no device"]["paste"].startswith(paste)


def test_no_hip_runtime(machine, monkeypatch):
    def missing(path):
        if path:
            return _C.open_hip(path)
        raise RuntimeError("no copy of libamdhip64.so can be opened")

    monkeypatch.setattr(runtime, "_C", SimpleNamespace(**{**vars(_C), "open_hip": missing}))
    machine.devices("gfx942")
    assert "no HIP runtime opens" in machine.findings()["hip runtime"]["text"]


def test_cpu_library_missing(machine, monkeypatch, capsys):
    monkeypatch.setenv("LITEATTENTION_ROCM_HIP_LIBRARY", str(machine.folder / "missing.so"))
    assert machine.findings()["cpu"]["paste"] == "unset LITEATTENTION_ROCM_HIP_LIBRARY"
    assert cli.main(["doctor"]) == 1
    assert "PROBLEM        cpu: cannot open HIP library" in capsys.readouterr().out


def test_forced_kernel(machine, monkeypatch):
    monkeypatch.setenv("LITEATTENTION_ROCM_KERNEL", "reference")
    assert machine.findings()["forced"]["paste"] == "unset LITEATTENTION_ROCM_KERNEL"
    monkeypatch.setenv("LITEATTENTION_ROCM_KERNEL", "cuda")
    assert machine.findings()["cpu"]["paste"] == "unset LITEATTENTION_ROCM_KERNEL"


def test_refused_variant(machine, monkeypatch):
    from liteattention_rocm import verdicts

    refused = {"attention_pingpong_rtz": {"verdict": "fail", "worst": "w"}}
    monkeypatch.setattr(verdicts, "refused", lambda where: refused if where.library is None else {})
    monkeypatch.setattr(verdicts, "file_of", lambda where: machine.folder / "verdicts.json")
    finding = machine.findings()["self-test"]
    assert "attention_pingpong_rtz failed the self-test" in finding["text"]
    assert finding["paste"] == "liteattention-rocm selftest --device hip --index 0"


def test_no_code_objects_of_aiter(machine, monkeypatch):
    monkeypatch.setenv("LITEATTENTION_ROCM_AITER_HSA", str(machine.folder))
    assert machine.findings()["aiter code objects"]["paste"] == "python CLONE/tools/fetch_aiter.py"


def test_without_torch_or_module(machine):
    machine.modules["torch"] = False
    assert "PyTorch is missing" in machine.findings()["torch"]["text"]
    finding = diagnosis.broken_module(ImportError("undefined symbol"))
    assert "undefined symbol" in finding.text and finding.paste.startswith("pip install")


def test_lines_that_need_the_repository_say_where_it_is(machine, monkeypatch):
    """They name CLONE, and the text says what that is."""
    monkeypatch.setenv("LITEATTENTION_ROCM_AITER_HSA", str(machine.folder))
    monkeypatch.setattr(doctor.importlib.metadata, "entry_points", lambda group: ())
    found = machine.findings()
    broken = diagnosis.broken_module(ImportError("undefined symbol")).json()
    for one in (
        found["aiter code objects"],
        found["plugin"],
        diagnosis.unserved_cpu("r", "V").json(),
        broken,
    ):
        assert " CLONE" in one["paste"] and "CLONE is the folder" in one["text"]
        assert not one["paste"].endswith(" .") and " tools/" not in one["paste"]


def test_another_build_of_torch(machine, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    machine.devices()
    assert set(machine.findings()) == {"no rocm"}


def without(cause, tmp_path, *arguments):
    """`liteattention-rocm` in a process where torch or the compiled module does not load."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = ["-m", "liteattention_rocm.cli"]
    if cause == "_C":
        program = (
            "import sys; sys.modules['liteattention_rocm._C'] = None; from liteattention_rocm import cli; "
        )
        program = ["-c", f"{program}sys.exit(cli.main(sys.argv[1:]))"]
    else:
        package = tmp_path / "first" / "torch"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"raise {cause}\n")
        environment["PYTHONPATH"] = f"{package.parent}{os.pathsep}{ROOT}"
    return subprocess.run(
        [sys.executable, *program, *arguments], capture_output=True, text=True, env=environment
    )


MISSING_LIBRARY = "libamdhip64.so.6: cannot open shared object file"


@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_a_torch_that_does_not_load(tmp_path, error):
    process = without(f"{error}('{MISSING_LIBRARY}')", tmp_path, "doctor", "--json")
    assert process.returncode == 1 and "Traceback" not in process.stderr
    (problem,) = json.loads(process.stdout)["problems"]
    assert problem["kind"] == "torch" and MISSING_LIBRARY in problem["text"]
    assert problem["paste"] == f"ldd {tmp_path}/first/torch/lib/*.so | grep 'not found'"


@pytest.mark.parametrize("command", ["selftest", "calibrate"])
def test_commands_say_that_torch_does_not_load(tmp_path, command):
    process = without(f"ImportError('{MISSING_LIBRARY}')", tmp_path, command)
    assert process.returncode == 1 and process.stdout == ""
    assert process.stderr == (
        f"liteattention-rocm {command}: PyTorch does not load: {MISSING_LIBRARY}; "
        "`liteattention-rocm doctor` says more\n"
    )


def test_other_commands_fail_in_one_line(tmp_path):
    process = without(f"ImportError('{MISSING_LIBRARY}')", tmp_path, "speed")
    assert process.returncode == 1 and "Traceback" not in process.stderr
    assert process.stderr.startswith("liteattention-rocm speed: ") and MISSING_LIBRARY in process.stderr


def test_a_compiled_module_that_does_not_load(tmp_path):
    process = without("_C", tmp_path, "doctor")
    assert process.returncode == 1 and "Traceback" not in process.stdout + process.stderr
    assert "PROBLEM        the compiled module does not load: " in process.stdout
    assert "  paste        " in process.stdout.split("PROBLEM")[1]
    process = without("_C", tmp_path, "coverage")
    assert process.returncode == 1 and "Traceback" not in process.stderr
    assert process.stderr.startswith("liteattention-rocm coverage: the compiled module does not load: ")


def test_what_does_not_load_is_said_at_its_use(tmp_path):
    """The package imports; each of its names raises, with the reason and where to learn more."""
    code = (
        "import sys; sys.modules['liteattention_rocm._C'] = None\n"
        "import liteattention_rocm\n"
        "for name in liteattention_rocm.__all__:\n"
        "    try:\n"
        "        getattr(liteattention_rocm, name)\n"
        "    except ImportError as error:\n"
        "        print(name, error.__cause__ is not None, error)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    lines = process.stdout.splitlines()
    for name in ("LiteAttention", "attention", "attention_varlen", "prepare"):
        (line,) = [
            one for one in lines if one.startswith(f"{name} True liteattention_rocm.{name} does not load")
        ]
        assert "doctor" in line
