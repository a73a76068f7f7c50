"""Says what is installed here, which device attention runs on, and what SGLang will see."""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform

from .. import rounding

PLUGIN_GROUP = "sglang.multimodal_gen.plugins"
PLUGIN_NAME = "liteattention_rocm"
DISTRIBUTIONS = ("liteattention_rocm", "torch", "sglang", "amdsmi", "triton")
ALLOW_LIST_VARIABLE = "SGLANG_PLUGINS"
KERNEL_NAMES = {"hip": "HIP kernel", "triton": "Triton kernel", "reference": "plain PyTorch"}


def add_options(parser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options) -> int:
    report = collect()
    print(json.dumps(report, indent=1) if options.json else _text(report))
    return 1 if report["problems"] else 0


def collect() -> dict:
    """The whole report. `problems` say what keeps attention from running, `notes` what else to know."""
    problems, notes = [], []
    report = {
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in DISTRIBUTIONS},
        "code_objects": [],
        "torch": None,
        "devices": [],
        "hip_library": {},
        "sglang": _sglang(notes),
        "aiter": None,
        "skip_lists": [],
        "problems": problems,
        "notes": notes,
    }
    try:
        from .. import _C
    except ImportError as error:
        problems.append(f"the compiled module does not load: {error}")
        return report
    report["code_objects"] = [
        {"architecture": name, "bytes": len(_C.code_object(name)), "kernels": _C.kernel_names()}
        for name in _C.architectures()
    ]
    if importlib.util.find_spec("torch") is None:
        problems.append(
            "PyTorch is missing: install its ROCm build on an MI300X, any build for simulated runs"
        )
        return report
    report["skip_lists"] = skip_list_memory()
    _devices(report, problems, notes)
    _aiter(report, notes)
    return report


# Wan2.1: (model, self-attention layers, heads), and 81 frames in latent tokens.
WAN_MODELS = (("1.3B", 30, 12), ("14B", 40, 40))
WAN_SIZES = (("480p", 21 * 30 * 52), ("720p", 21 * 45 * 80))
CFG_BRANCHES = 2


def skip_list_memory() -> list[dict]:
    """Memory of LiteAttention's lists for all layers of a model, as bits and as the field's int16 ranges."""
    from ..lite import lists

    return [
        {
            "model": model,
            "size": size,
            "tokens": tokens,
            "bytes": copies * lists.list_bytes(1, heads, tokens, tokens),
            "int16_bytes": copies * lists.range_bytes(1, heads, tokens, tokens),
        }
        for model, layers, heads in WAN_MODELS
        for size, tokens in WAN_SIZES
        for copies in [CFG_BRANCHES * layers]
    ]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices(report: dict, problems: list, notes: list) -> None:
    import torch

    from .. import dispatch, runtime, verdicts

    hip = torch.version.hip
    report["torch"] = {"version": torch.__version__, "hip": hip, "cuda": torch.version.cuda}
    library = runtime.cpu_library()
    report["hip_library"] = {
        "cpu": library,
        "cpu_is_simulator": os.environ.get(runtime.HIP_LIBRARY_VARIABLE) is None,
        "rocm": _rocm_library(problems, runtime) if hip else None,
    }
    for device in ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]:
        entry = {"device": device, "name": "simulated MI300X" if device == "cpu" else None}
        try:
            if device != "cpu":
                entry["name"] = torch.cuda.get_device_name(device)
            kernel = dispatch.serving(torch.device(device))
            entry |= _served(kernel, device)
            if kernel.name == "hip":
                entry["refused"] = sorted(verdicts.refused(kernel.target))
                if entry["refused"]:
                    problems.append(
                        f"{device}: {', '.join(entry['refused'])} failed the self-test and will not run; "
                        f"verdicts in {verdicts.file_of(kernel.target)}"
                    )
        except Exception as error:  # a broken device must not hide the others
            entry |= {"served": False, "reason": str(error)}
            (problems if device == "cpu" else notes).append(f"{device}: {error}")
        report["devices"].append(entry)
    if hip and not torch.cuda.is_available():
        notes.append("torch is a ROCm build but sees no device: check the driver and the rights on /dev/kfd")
    if hip and importlib.util.find_spec("amdsmi") is None:
        notes.append(
            "amdsmi is not installed, so SGLang believes that there is no GPU and runs on the CPU: install "
            "the amdsmi of your ROCm version (share/amd_smi of the ROCm installation, or the package amdsmi)"
        )
    if not hip:
        notes.append(
            "torch is no ROCm build: attention runs on CPU tensors, simulated"
            + (", and on NVIDIA devices in Triton" if torch.cuda.device_count() else "")
        )
    if forced := os.environ.get(dispatch.KERNEL_VARIABLE):
        notes.append(f"{dispatch.KERNEL_VARIABLE}={forced!r} forces the kernel of every device")


def _served(kernel, device: str) -> dict:
    """What the report says of a device that `kernel` serves."""
    import torch

    entry = {"served": True, "kernel": kernel.name}
    if kernel.name == "hip":
        return entry | {
            "architecture": kernel.target.architecture,
            "compute_units": kernel.target.compute_units,
        }
    units = None if device == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count
    return entry | {"architecture": getattr(kernel, "architecture", None), "compute_units": units}


def _rocm_library(problems: list, runtime) -> str | None:
    try:
        return runtime.rocm_library()
    except RuntimeError as error:
        problems.append(f"torch is a ROCm build, but no HIP runtime opens: {error}")
        return None


def _sglang(notes: list) -> dict:
    installed = importlib.util.find_spec("sglang") is not None
    entries = [
        entry for entry in importlib.metadata.entry_points(group=PLUGIN_GROUP) if entry.name == PLUGIN_NAME
    ]
    allowed = os.environ.get(ALLOW_LIST_VARIABLE, "")
    excluded = bool(allowed) and PLUGIN_NAME not in {name.strip() for name in allowed.split(",")}
    if not entries:
        notes.append(f"no entry {PLUGIN_NAME!r} in the group {PLUGIN_GROUP}: reinstall liteattention_rocm")
    if excluded:
        notes.append(
            f"{ALLOW_LIST_VARIABLE}={allowed!r} keeps SGLang from loading the plugin: "
            f"add {PLUGIN_NAME!r} or unset it"
        )
    return {
        "installed": installed,
        "plugin_entry": entries[0].value if entries else None,
        "plugin_excluded": excluded,
    }


def _aiter(report: dict, notes: list) -> None:
    from .. import aiter_kernel

    try:
        directory = aiter_kernel.find()
        report["aiter"] = {
            "directory": str(directory),
            "files": [aiter_kernel.file_name(name) for name in rounding.ROUNDINGS],
        }
    except FileNotFoundError as error:
        notes.append(str(error))


def _text(report: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version)
    missing = [name for name, version in report["versions"].items() if not version]
    lines = [f"installed      Python {report['python']}, {versions}"]
    if missing:
        lines.append(f"not installed  {', '.join(missing)}")
    if report["torch"]:
        build = f"ROCm {report['torch']['hip']}" if report["torch"]["hip"] else "no ROCm"
        lines.append(f"torch build    {build}")
    for entry in report["code_objects"]:
        kernels = ", ".join(entry["kernels"])
        lines.append(f"code object    {entry['architecture']}: {entry['bytes']} bytes, {kernels}")
    for entry in report["devices"]:
        if entry["served"]:
            facts = [entry["name"], entry["architecture"]]
            facts += [entry["compute_units"] and f"{entry['compute_units']} compute units"]
            facts += [KERNEL_NAMES[entry["kernel"]]]
            lines.append(f"device         {entry['device']}: {', '.join(filter(None, facts))}")
        else:
            lines.append(f"device         {entry['device']}: {entry['name']}, not served")
    if report["hip_library"]:
        lines.append(f"CPU tensors    {report['hip_library']['cpu']}")
        lines.append(f"ROCm tensors   {report['hip_library']['rocm'] or 'none: torch is no ROCm build'}")
    plugin = report["sglang"]
    state = "excluded by SGLANG_PLUGINS" if plugin["plugin_excluded"] else "not excluded"
    lines.append(
        f"SGLang         {'installed' if plugin['installed'] else 'not installed'}; plugin entry "
        f"{plugin['plugin_entry'] or 'missing'}, {state}"
    )
    aiter = report["aiter"]["directory"] if report["aiter"] else "no code objects found"
    lines.append(f"AITER          {aiter}")
    for entry in report["skip_lists"]:
        lines.append(
            f"skip lists     {entry['model']} at {entry['size']}: {entry['bytes'] / 1e6:.0f} MB, as int16 "
            f"ranges {entry['int16_bytes'] / 1e6:.0f} MB"
        )
    lines += [f"note           {note}" for note in report["notes"]]
    lines += [f"PROBLEM        {problem}" for problem in report["problems"]]
    return "\n".join(lines)
