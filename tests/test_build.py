"""What a build produces, and what it refuses."""

import importlib.metadata
import io
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from device_compiler import compile_hip
from liteattention_rocm import _C, code_object

ROOT = Path(__file__).resolve().parent.parent
CHECK = ROOT / "cmake" / "check_code_object.py"
OFFENDERS = ROOT / "tests" / "stubs" / "offenders.hip"


@pytest.fixture
def compile_offenders(tmp_path):
    def run(architecture: str, *flags: str) -> Path:
        image = tmp_path / f"offenders.{architecture}.hsaco"
        image.write_bytes(compile_hip(OFFENDERS.read_text(), "-O3", *flags, architecture=architecture))
        return image

    return run


def check(image: Path, arch: str):
    command = [sys.executable, str(CHECK), "--arch", arch, str(image)]
    return subprocess.run(command, capture_output=True, text=True)


# What is embedded


@pytest.mark.parametrize("arch", _C.architectures())
def test_embedded_kernels_keep_the_limits(arch):
    embedded = code_object.parse(_C.code_object(arch))
    assert embedded.architecture == arch
    assert embedded.version == 5
    assert sorted(kernel.name for kernel in embedded.kernels) == sorted(_C.kernel_names())
    assert code_object.violations(embedded) == []
    for kernel in embedded.kernels:
        assert (kernel.vgpr_spills, kernel.sgpr_spills, kernel.scratch_bytes) == (0, 0, 0)
        assert 0 < kernel.vgprs <= 256
        assert (kernel.lds_bytes == 0) == ("merge" in kernel.name or kernel.name.endswith("pieces"))
        assert kernel.lds_bytes <= 65536
        assert kernel.wavefront_size == 64
        assert kernel.max_workgroup_size == (512 if "pingpong" in kernel.name else 256)
        assert kernel.code_bytes > 500


def test_kernels_take_the_argument_struct_of_the_host():
    # 5 addresses, 4 x 3 strides, 4 ints, 2 floats, mask, padding
    dense = "<5Q12q4i2fIi"
    varlen = dense + "QQ"
    # Workspace, query tiles, whole and split blocks, pieces, groups of 16 rows, padding
    split = dense + "Q6i"
    # Lists, order, threshold, words, direction, whether votes count; what pieces have; query tiles of a block
    skip = dense + "3Qf3i"
    skip_split = split + "3Qf3i3Q2i"
    varlen = dense + "2Q"  # the two arrays of cumulative lengths
    sizes = {
        kernel.name: (kernel.arguments[0].offset, kernel.arguments[0].size, kernel.arguments[0].kind)
        for kernel in code_object.parse(_C.code_object("gfx942")).kernels
    }
    for mode in ("rtne", "rtna", "rtz"):
        for family, layout in [
            *[("forward", dense), ("pingpong", dense), ("aiter_exact", dense), ("varlen", varlen)],
            *[("forward_split", split), ("pingpong_split", split), ("merge", split)],
            *[("skip_forward", skip), ("skip_pingpong", skip), ("skip_merge", skip_split)],
            *[("skip_forward_split", skip_split), ("skip_pingpong_split", skip_split)],
        ]:
            assert sizes[f"attention_{family}_{mode}"] == (0, struct.calcsize(layout), "by_value")
    assert sizes["attention_skip_pieces"] == (0, struct.calcsize(skip_split), "by_value")


# What the check refuses


def test_each_limit_is_named_with_kernel_and_value(compile_offenders):
    image = compile_offenders("gfx942")
    result = check(image, "gfx942")
    assert result.returncode == 1
    for pattern in (
        r"spills_vgprs: \d+ VGPR spills, at most 0",
        r"spills_vgprs: \d+ bytes of scratch, at most 0",
        r"spills_sgprs: \d+ SGPR spills, at most 0",
        r"uses_scratch: \d+ bytes of scratch, at most 0",
        r"takes_300_vgprs: \d+ VGPRs, at most 256",
    ):
        assert re.search(pattern, result.stderr), result.stderr
    assert "keeps_the_limits" not in result.stderr
    kernels = {kernel.name: kernel for kernel in code_object.parse(image.read_bytes()).kernels}
    assert kernels["takes_300_vgprs"].vgpr_spills == 0  # refused for its registers alone
    assert kernels["takes_300_vgprs"].vgprs > 256


def test_lds_overflow_is_refused(compile_offenders):
    image = compile_offenders("gfx950", "-DOVERSIZED_LDS")
    result = check(image, "gfx950")
    assert result.returncode == 1
    assert "takes_80000_bytes_of_lds: 80000 bytes of LDS, at most 65536" in result.stderr


def test_another_architecture_is_refused(tmp_path):
    image = tmp_path / "embedded.hsaco"
    image.write_bytes(_C.code_object("gfx942"))
    assert check(image, "gfx942").returncode == 0
    result = check(image, "gfx950")
    assert result.returncode == 1
    assert "gfx942, not gfx950" in result.stderr


@pytest.mark.parametrize("image", [b"", b"not an ELF file at all, but longer than a header" * 4])
def test_bytes_that_are_no_code_object(image):
    with pytest.raises(ValueError, match="not an AMDGPU code object"):
        code_object.parse(image)


def test_a_host_library_is_no_code_object():
    with pytest.raises(ValueError, match="ELF machine is EM_X86_64"):
        code_object.parse(Path(_C.__file__).read_bytes())


@pytest.mark.parametrize("keep", [100, 2000, 0.5])
def test_a_truncated_code_object(keep):
    image = _C.code_object("gfx942")
    with pytest.raises(ValueError):
        code_object.parse(image[: int(keep * len(image)) if keep < 1 else keep])


# What is installed


def test_dependencies_never_mention_torch():
    requirements = importlib.metadata.requires("liteattention_rocm")
    names = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in requirements}
    assert {"pyelftools", "msgpack"} <= names
    unconditional = {re.match(r"[\w-]+", r)[0] for r in requirements if "extra ==" not in r}
    assert unconditional == {"pyelftools", "msgpack", "tomli"}  # tomli below Python 3.11 alone
    assert not names & {"torch", "triton", "sglang"}


def test_entry_points():
    entries = importlib.metadata.distribution("liteattention_rocm").entry_points
    assert {(entry.group, entry.name, entry.value) for entry in entries} == {
        ("console_scripts", "liteattention-rocm", "liteattention_rocm.cli:main"),
        ("sglang.multimodal_gen.plugins", "liteattention_rocm", "sglang_integration.plugin:register"),
    }


def test_the_simulator_lies_beside_the_extension():
    assert Path(_C.__file__).with_name("libgfx942sim.so").is_file()


# The build as a whole


def build_wheel(source: Path, destination: Path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", str(source), "-w", str(destination)]
    command += ["-C", "cmake.define.LITEATTENTION_ROCM_SIMULATOR=OFF", "-C", "build-dir=build"]
    environment = {k: v for k, v in os.environ.items() if k != "LITEATTENTION_ROCM_DEVICE_COMPILER"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.full
def test_a_kernel_that_begins_to_spill_fails_the_build(tmp_path):
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "build", "tests", "*-output*")
    shutil.copytree(ROOT, source, ignore=ignored)
    wheels = tmp_path / "wheels"
    result = build_wheel(source, wheels)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = wheels.iterdir()

    listing = subprocess.run([sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True)
    names = [line.split()[0] for line in listing.stdout.splitlines()[1:]]
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {
        "liteattention_rocm",
        "sglang_integration",
        "e2e",
    }

    # The source keeps its date; only a file that it includes changes.
    header = source / "csrc" / "device" / "attention.hip"
    text = header.read_text()
    assert "amdgpu_waves_per_eu(2, 2)" in text
    header.write_text(text.replace("amdgpu_waves_per_eu(2, 2)", "amdgpu_num_vgpr(48)"))
    for _ in range(2):  # a failure isn't remembered as a success
        result = build_wheel(source, wheels)
        assert result.returncode != 0
        assert re.search(
            r"attention_forward_rtne: \d+ VGPR spills, at most 0 allowed", result.stdout + result.stderr
        )
    header.write_text(text)
    assert build_wheel(source, wheels).returncode == 0


def test_kernels_keep_nothing_in_device_globals():
    """What a launch does follows from its arguments and the caller's memory: a code object can't remember."""
    elf = ELFFile(io.BytesIO(_C.code_object("gfx942")))
    objects = [
        symbol.name
        for symbol in elf.get_section_by_name(".symtab").iter_symbols()
        if symbol["st_info"]["type"] == "STT_OBJECT"
    ]
    descriptors = [name for name in objects if name.endswith(".kd")]
    assert len(descriptors) == len(_C.kernel_names())
    (other,) = set(objects) - set(descriptors)
    assert other.startswith("__hip_cuid_")  # a byte by which HIP tells translation units apart
    assert elf.get_section_by_name(".data") is None and elf.get_section_by_name(".bss")["sh_size"] == 1
