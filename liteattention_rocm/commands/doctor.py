"""Says what is installed here, which device attention runs on, and what SGLang will see."""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform

from .. import diagnosis, rounding

PLUGIN_GROUP = "sglang.multimodal_gen.plugins"
PLUGIN_NAME = "liteattention_rocm"
DISTRIBUTIONS = ("liteattention_rocm", "torch", "sglang", "amdsmi", "triton")
ALLOW_LIST_VARIABLE = "SGLANG_PLUGINS"
DISABLE_VARIABLE = "LITEATTENTION_ROCM_DISABLE"
KERNEL_NAMES = {"hip": "HIP kernel", "triton": "Triton kernel", "reference": "plain PyTorch"}


def add_options(parser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options) -> int:
    report = collect()
    print(json.dumps(report, indent=1) if options.json else _text(report))
    return 1 if report["problems"] else 0


def collect() -> dict:
    """The whole report. `problems` say what keeps attention from running, `notes` what else to know.

    Each of them is {"kind", "text", "paste"}: `paste` is the shell line that mends it or shows more.
    """
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
        "aiter_package": None,
        "partitions": [],
        "skip_lists": [],
    }
    _collect(report, problems, notes)
    report["problems"] = [finding.json() for finding in problems]
    report["notes"] = [finding.json() for finding in notes]
    return report


def _collect(report: dict, problems: list, notes: list) -> None:
    try:
        from .._C import architectures, code_object, kernel_names
    except (ImportError, OSError) as error:
        problems.append(diagnosis.broken_module(error))
        return
    report["code_objects"] = [
        {"architecture": name, "bytes": len(code_object(name)), "kernels": kernel_names()}
        for name in architectures()
    ]
    if importlib.util.find_spec("torch") is None:
        problems.append(diagnosis.without_torch())
        return
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        problems.append(diagnosis.broken_torch(error))
        return
    report["skip_lists"] = skip_list_memory()
    _devices(report, problems, notes)
    _aiter(report, notes)


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
                    place = device, kernel.target.device
                    file = verdicts.file_of(kernel.target)
                    problems.append(diagnosis.refused(*place, entry["refused"], file))
        except Exception as error:  # a broken device must not hide the others
            entry |= {"served": False, "reason": str(error)}
        report["devices"].append(entry)
    gpus = [entry for entry in report["devices"] if entry["device"] != "cpu"]
    served = [index for index, entry in enumerate(gpus) if entry["served"]]
    for entry in report["devices"]:
        if not entry["served"]:
            if entry["device"] == "cpu":
                problems.append(diagnosis.unserved_cpu(entry["reason"], runtime.HIP_LIBRARY_VARIABLE))
            else:
                notes.append(diagnosis.unserved(entry["device"], entry["reason"], served))
    if hip and not torch.cuda.is_available():
        notes.append(diagnosis.hidden_devices())
    if hip and importlib.util.find_spec("amdsmi") is None:
        notes.append(diagnosis.missing_amdsmi())
    elif hip and (reason := diagnosis.amdsmi_failure()) is not None:
        problems.append(diagnosis.broken_amdsmi(reason))
    if hip:
        report["partitions"] = diagnosis.partitions()
        notes += diagnosis.partitioned(report["partitions"])
    else:
        notes.append(diagnosis.no_rocm(nvidia=torch.cuda.device_count() > 0))
    if forced := os.environ.get(dispatch.KERNEL_VARIABLE):
        notes.append(diagnosis.forced(dispatch.KERNEL_VARIABLE, forced))


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
        problems.append(diagnosis.no_hip_runtime(error))
        return None


def _sglang(notes: list) -> dict:
    installed = importlib.util.find_spec("sglang") is not None
    entries = [
        entry for entry in importlib.metadata.entry_points(group=PLUGIN_GROUP) if entry.name == PLUGIN_NAME
    ]
    allowed = os.environ.get(ALLOW_LIST_VARIABLE, "")
    excluded = bool(allowed) and PLUGIN_NAME not in {name.strip() for name in allowed.split(",")}
    if not entries:
        notes.append(diagnosis.missing_entry(PLUGIN_NAME, PLUGIN_GROUP))
    if excluded:
        notes.append(diagnosis.excluded_plugin(ALLOW_LIST_VARIABLE, allowed, PLUGIN_NAME))
    if (disabled := os.environ.get(DISABLE_VARIABLE, "0")) not in ("", "0"):
        notes.append(diagnosis.disabled_plugin(DISABLE_VARIABLE, disabled))
    if not installed:
        notes.append(diagnosis.missing_sglang())
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
        notes.append(diagnosis.missing_code_objects(error))
    root, findings = diagnosis.aiter_package()
    report["aiter_package"] = root and str(root)
    if report["torch"]["hip"]:  # elsewhere it would break SGLang's import rather than serve it
        notes += findings


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
    for one in report["partitions"]:
        lines.append(f"partition      {one['card']}: compute {one['compute']}, memory {one['memory']}")
    for label, findings in (("note", report["notes"]), ("PROBLEM", report["problems"])):
        for one in findings:
            lines += [f"{label:<15}{one['text']}", f"{'  paste':<15}{one['paste']}"]
    return "\n".join(lines)
