"""What users meet on a ROCm machine, found without importing what may be broken."""

import importlib.util
import os
import re
import shlex
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
        f"the compiled module does not load: {error}",
        "pip install --force-reinstall --no-deps --no-cache-dir .",
    )


def unserved(device: str, reason: str, others: list[int]) -> Finding:
    """A device that no kernel here serves. `others`: indices of devices that are served."""
    if others:
        paste = f"export HIP_VISIBLE_DEVICES={','.join(map(str, others))}"
    else:
        paste = "export LITEATTENTION_ROCM_DISABLE=1"
    return Finding("architecture", f"{device}: {reason}", paste)


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
    paste = f"unset {variable}" if os.environ.get(variable) else "pip install --force-reinstall --no-deps ."
    if "LITEATTENTION_ROCM_KERNEL" in reason:
        paste = "unset LITEATTENTION_ROCM_KERNEL"
    return Finding("cpu", f"cpu: {reason}", paste)


def no_rocm(nvidia: bool) -> Finding:
    text = "torch is no ROCm build: attention runs on CPU tensors, simulated"
    return Finding("no rocm", text + (", and on NVIDIA devices in Triton" if nvidia else ""), DOCKER)


def forced(variable: str, value: str) -> Finding:
    return Finding("forced", f"{variable}={value!r} forces the kernel of every device", f"unset {variable}")


def missing_code_objects(error: FileNotFoundError) -> Finding:
    return Finding("aiter code objects", str(error), "python tools/fetch_aiter.py")


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


def excluded_plugin(variable: str, value: str, name: str) -> Finding:
    text = f"{variable}={value!r} keeps SGLang from loading the plugin: add {name!r} or unset it"
    return Finding("plugin", text, f'export {variable}="${variable},{name}"')


def disabled_plugin(variable: str, value: str) -> Finding:
    return Finding("plugin", f"{variable}={value!r} switches the plugin off in SGLang", f"unset {variable}")


def missing_entry(name: str, group: str) -> Finding:
    text = f"no entry {name!r} in the group {group}: reinstall liteattention_rocm"
    return Finding("plugin", text, "pip install --force-reinstall --no-deps .")


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


def partitions() -> list[dict[str, str]]:
    """Compute and memory partition modes by DRM card, where the driver tells: [{card, compute, memory}]."""
    found = []
    for folder in sorted(DRM.glob("card[0-9]*/device"), key=lambda f: int(re.sub(r"\D", "", f.parent.name))):
        compute, memory = folder / "current_compute_partition", folder / "current_memory_partition"
        if compute.is_file():
            found.append(
                {
                    "card": folder.parent.name,
                    "compute": compute.read_text().strip(),
                    "memory": memory.read_text().strip() if memory.is_file() else "unknown",
                }
            )
    return found


def partitioned(modes: list[dict[str, str]]) -> list[Finding]:
    """Cards that are split: each part is a device of its own, with a share of the compute units."""
    findings = []
    for one in modes:
        if one["compute"] not in ("SPX", ""):
            findings.append(
                Finding(
                    "partition",
                    f"{one['card']} runs in compute partition mode {one['compute']}: torch sees its parts as "
                    "devices of fewer compute units. Attention works there; times are not those of a whole "
                    "MI300X",
                    "sudo amd-smi set --gpu all --compute-partition SPX",
                )
            )
        if one["memory"] not in ("NPS1", "unknown", ""):
            findings.append(
                Finding(
                    "partition",
                    f"{one['card']} runs in memory partition mode {one['memory']}: a device reaches a part "
                    "of the memory only, and large models may not fit",
                    "sudo amd-smi set --gpu all --memory-partition NPS1",
                )
            )
    return findings
