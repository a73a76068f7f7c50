"""What users meet on a ROCm machine, found without importing what may be broken."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

DRM = Path("/sys/class/drm")
KFD = Path("/dev/kfd")
# What SGLang's AITER backends import or pass, by the file of AITER that has it.
AITER_NEEDS = (
    ("ops/mha.py", "how_v3_bf16_cvt", "rounding modes in flash_attn_func"),
    ("jit/core.py", "ENABLE_CK", "the switch that SGLang imports"),
)
AITER_SAGE = "ops/triton/attention/fav3_sage.py"
DOCKER = (
    "docker run -it --rm --device=/dev/kfd --device=/dev/dri --group-add video --ipc=host "
    "--security-opt seccomp=unconfined rocm/pytorch:latest"
)
INSTALL_AITER = (
    "git clone --recursive https://github.com/ROCm/aiter && pip install --no-build-isolation ./aiter"
)
# Where a command needs the repository.
CLONE = "CLONE is the folder that the repository of liteattention_rocm was cloned to"
REINSTALL = "pip install --force-reinstall --no-deps CLONE"
# What SGLang 0.5.23 asks before it takes the ROCm platform (multimodal_gen/runtime/platforms/__init__.py).
AMDSMI_CALLS = "import amdsmi; amdsmi.amdsmi_init(); print(len(amdsmi.amdsmi_get_processor_handles()))"
AMDSMI_SECONDS = 30
VISIBLE_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Finding:
    """Something that is wrong or worth knowing.

    Attributes:
        kind: a word for programs: "amdsmi", "aiter", "architecture", …
        text: one sentence or two.
        paste: the shell line that mends it, shows more, or gets by without.
    """

    kind: str
    text: str
    paste: str

    def json(self) -> dict[str, str]:
        return asdict(self)


def without_torch() -> Finding:
    return Finding(
        "torch",
        "PyTorch is missing: install its ROCm build on an MI300X, any build for simulated runs",
        DOCKER,
    )


def broken_torch(error: Exception) -> Finding:
    """A torch that is installed; its libraries are listed with what they lack."""
    (folder, *_) = importlib.util.find_spec("torch").submodule_search_locations or ["."]
    libraries = shlex.quote(str(Path(folder) / "lib"))
    return Finding(
        "torch",
        f"PyTorch is installed but does not load: {error}; a library that another one wants belongs to "
        "another version of ROCm, or is not on this machine",
        f"ldd {libraries}/*.so | grep 'not found'",
    )


def broken_module(error: Exception) -> Finding:
    return Finding(
        "module",
        f"the compiled module does not load: {error}; {CLONE}",
        f"{REINSTALL} --no-cache-dir",
    )


def unserved(device: str, reason: str, others: list[int]) -> Finding:
    """A device that no kernel here serves. `others`: torch's indices of devices that are served."""
    if others:
        variable, names = _visible()
        paste = f"export {variable}={','.join(names[i] if i < len(names) else str(i) for i in others)}"
    else:
        paste = "export LITEATTENTION_ROCM_DISABLE=1"
    return Finding("architecture", f"{device}: {reason}", paste)


def _visible() -> tuple[str, list[str]]:
    """The variable of HIP that chooses devices, and what torch's indices are called there; empty: the same.

    HIP reads CUDA_VISIBLE_DEVICES where HIP_VISIBLE_DEVICES is not set. Both count what ROCR_VISIBLE_DEVICES
    has left, as torch does where neither is set.
    """
    for variable in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if value := os.environ.get(variable):
            return variable, [shlex.quote(name.strip()) for name in value.split(",")]
    return "HIP_VISIBLE_DEVICES", []


def hidden_devices() -> Finding:
    """A ROCm build of torch that sees no device."""
    for variable in VISIBLE_VARIABLES:
        if (value := os.environ.get(variable)) is not None:
            text = f"torch is a ROCm build but sees no device, and {variable}={value!r} hides some or all"
            return Finding("no device", text, f"unset {variable}")
    if not KFD.exists():
        return Finding(
            "no device",
            f"torch is a ROCm build but sees no device: {KFD} is missing, so the amdgpu driver is not loaded "
            "or the container was started without the device",
            DOCKER,
        )
    if not os.access(KFD, os.R_OK | os.W_OK):
        return Finding(
            "no device",
            f"torch is a ROCm build but sees no device: this user may not open {KFD}",
            "sudo usermod -aG render,video $USER && newgrp render",
        )
    return Finding(
        "no device", "torch is a ROCm build but sees no device: check the driver", "rocminfo | head -40"
    )


def unserved_cpu(reason: str, variable: str) -> Finding:
    """CPU tensors run nowhere."""
    if "LITEATTENTION_ROCM_KERNEL" in reason:
        variable = "LITEATTENTION_ROCM_KERNEL"
    elif not os.environ.get(variable):
        return Finding("cpu", f"cpu: {reason}; {CLONE}", REINSTALL)
    return Finding("cpu", f"cpu: {reason}", f"unset {variable}")


def no_rocm(nvidia: bool) -> Finding:
    text = "torch is no ROCm build: attention runs on CPU tensors, simulated"
    return Finding("no rocm", text + (", and on NVIDIA devices in Triton" if nvidia else ""), DOCKER)


def forced(variable: str, value: str) -> Finding:
    return Finding("forced", f"{variable}={value!r} forces the kernel of every device", f"unset {variable}")


def missing_code_objects(error: FileNotFoundError) -> Finding:
    return Finding("aiter code objects", f"{error}; {CLONE}", "python CLONE/tools/fetch_aiter.py")


def no_hip_runtime(error: Exception) -> Finding:
    text = f"torch is a ROCm build, but no HIP runtime opens: {error}"
    return Finding("hip runtime", text, "ldconfig -p | grep libamdhip64")


def missing_amdsmi() -> Finding:
    return Finding(
        "amdsmi",
        "amdsmi is not installed, so SGLang believes that there is no GPU and runs on the CPU: "
        "install the amdsmi of your ROCm version (share/amd_smi of the ROCm installation, or the package "
        "amdsmi)",
        "pip install /opt/rocm/share/amd_smi || pip install amdsmi",
    )


def amdsmi_failure() -> str | None:
    """Why the amdsmi that is installed lists no GPU, asked as SGLang asks, in a process of its own."""
    command = [sys.executable, "-c", AMDSMI_CALLS]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=AMDSMI_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {AMDSMI_SECONDS} s"
    count, said = process.stdout.split()[-1:], process.stderr.strip().splitlines()
    if count == ["0"]:
        return "it lists no processor"
    if count and count[0].isdecimal():
        return None
    return said[-1].strip() if said else f"exit status {process.returncode}"


def broken_amdsmi(reason: str) -> Finding:
    return Finding(
        "amdsmi",
        f"amdsmi is installed but fails ({reason}), so SGLang runs on the CPU without a word: it has to be "
        "of the version of ROCm that is installed, and this user must be allowed to open /dev/kfd and "
        "/dev/dri",
        "pip install --force-reinstall --no-deps /opt/rocm/share/amd_smi",
    )


def excluded_plugin(variable: str, value: str, name: str) -> Finding:
    text = f"{variable}={value!r} keeps SGLang from loading the plugin: add {name!r} or unset it"
    return Finding("plugin", text, f'export {variable}="${variable},{name}"')


def disabled_plugin(variable: str, value: str) -> Finding:
    return Finding("plugin", f"{variable}={value!r} switches the plugin off in SGLang", f"unset {variable}")


def missing_entry(name: str, group: str) -> Finding:
    text = f"no entry {name!r} in the group {group}: reinstall liteattention_rocm; {CLONE}"
    return Finding("plugin", text, REINSTALL)


def missing_sglang() -> Finding:
    text = "SGLang is not installed here: the plugin has nobody to serve, attention itself works"
    return Finding("sglang", text, 'pip install "sglang[diffusion]"')


def refused(device: str, index: int, variants: list[str], file: Path) -> Finding:
    where = "simulator" if device == "cpu" else f"hip --index {index}"
    return Finding(
        "self-test",
        f"{device}: {', '.join(variants)} failed the self-test and will not run; verdicts in {file}",
        f"liteattention-rocm selftest --device {where}",
    )


def _mentions(file: Path, name: str) -> bool:
    return file.is_file() and re.search(rf"\b{name}\b", file.read_text(errors="replace")) is not None


def aiter_package() -> tuple[Path | None, list[Finding]]:
    """Where the installed AITER lies, and what keeps SGLang's AITER backends, the baseline, from running.

    Its files are read, not imported: an import compiles, or fails where there is no ROCm.
    """
    spec = importlib.util.find_spec("aiter")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        text = "AITER is not installed: there is nothing to compare with on the GPU, attention itself works"
        return None, [Finding("aiter", text, INSTALL_AITER)]
    root = Path(places[0])
    lacking = [
        what
        for file, name, what in AITER_NEEDS
        if not (root / file).is_file()
        or not re.search(rf"\b{name}\b", (root / file).read_text(errors="replace"))
    ]
    if lacking:
        text = f"AITER in {root} is too old for SGLang's AITER backend: it lacks {' and '.join(lacking)}"
        return root, [Finding("aiter", text, INSTALL_AITER)]
    if not (root / AITER_SAGE).is_file():
        text = f"AITER in {root} is too old for SGLang's aiter_sage backend: it lacks {AITER_SAGE}"
        return root, [Finding("aiter", text, INSTALL_AITER)]
    return root, []


def _mode(file: Path) -> str:
    """A partition mode, in capitals as the driver prints it; "unknown" where it does not tell.

    The driver refuses to tell while it resets a device.
    """
    try:
        mode = file.read_text().strip().upper()
    except OSError:
        return "unknown"
    return "unknown" if mode in ("", "UNKNOWN") else mode


def partitions() -> list[dict[str, str]]:
    """Compute and memory partition modes by DRM card, where the driver tells: [{card, compute, memory}]."""
    found = []
    for folder in sorted(DRM.glob("card[0-9]*/device"), key=lambda f: int(re.sub(r"\D", "", f.parent.name))):
        compute, memory = folder / "current_compute_partition", folder / "current_memory_partition"
        if compute.is_file():
            found.append({"card": folder.parent.name, "compute": _mode(compute), "memory": _mode(memory)})
    return found


def partitioned(modes: list[dict[str, str]]) -> list[Finding]:
    """Cards that are split: each part is a device of its own, with a share of the compute units.

    Memory comes first: the driver takes SPX only where memory is one partition.
    """
    memory = [
        Finding(
            "partition",
            f"{one['card']} runs in memory partition mode {one['memory']}: a device reaches a part of the "
            "memory only, and large models may not fit",
            "sudo amd-smi set --gpu all --memory-partition NPS1",
        )
        for one in modes
        if one["memory"] not in ("NPS1", "unknown")
    ]
    compute = [
        Finding(
            "partition",
            f"{one['card']} runs in compute partition mode {one['compute']}: torch sees its parts as devices "
            "of fewer compute units. Attention works there; times are not those of a whole MI300X",
            "sudo amd-smi set --gpu all --compute-partition SPX",
        )
        for one in modes
        if one["compute"] not in ("SPX", "unknown")
    ]
    return memory + compute
