"""Compiles HIP and assembles gfx942 assembly for tests, with the compiler that builds the package's kernels.

`LITEATTENTION_ROCM_DEVICE_COMPILER` names another clang, as it does in the build.
"""

import functools
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

# HIP's keywords; the compiler comes without HIP's headers.
PRELUDE = """
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
"""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="device-compiler-")


@functools.cache
def _command() -> tuple[list[str], dict[str, str]]:
    environment = dict(os.environ)
    if other := environment.get("LITEATTENTION_ROCM_DEVICE_COMPILER"):
        return [other], environment
    folder = Path(_folder().name)
    environment["ZIG_GLOBAL_CACHE_DIR"] = environment["ZIG_LOCAL_CACHE_DIR"] = str(folder / "cache")
    # clang's driver calls `lld -flavor gnu ...` for HIP and `ld.lld ...` for assembly.
    for name, shift in (("lld", "shift 2\n"), ("ld.lld", "")):
        shim = folder / name
        shim.write_text(f'#!/bin/sh\n{shift}exec {shlex.quote(sys.executable)} -m ziglang ld.lld "$@"\n')
        shim.chmod(0o755)
    environment["PATH"] = f"{folder}{os.pathsep}{environment['PATH']}"
    return [sys.executable, "-m", "ziglang", "clang"], environment


def _run(arguments: list[str], source: str, suffix: str) -> bytes:
    command, environment = _command()
    with tempfile.TemporaryDirectory(dir=_folder().name) as folder:
        path, output = Path(folder) / f"kernel{suffix}", Path(folder) / "kernel.hsaco"
        path.write_text(source)
        done = subprocess.run(
            [*command, *arguments, str(path), "-o", str(output)],
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the device compiler failed:\n{done.stderr}")
        return output.read_bytes()


@functools.cache
def compile_hip(
    source: str, *flags: str, architecture: str = "gfx942", code_object_version: int = 5
) -> bytes:
    """The code object of HIP source, to which `PRELUDE` is prepended.

    Args:
        source: HIP C++ without headers.
        flags: more compiler flags; the default optimisation level is -O2.
        architecture: e.g. gfx942.
        code_object_version: 4, 5 or 6.

    Raises:
        RuntimeError: with the compiler's diagnostics.
    """
    arguments = ["-x", "hip", f"--offload-arch={architecture}", "--offload-device-only"]
    arguments += ["--no-gpu-bundle-output", "-nogpulib", "-nogpuinc", "-std=c++17", "-O2"]
    arguments += [f"-mcode-object-version={code_object_version}", *flags]
    return _run(arguments, PRELUDE + source, ".hip")


@functools.cache
def assemble(source: str, architecture: str = "gfx942") -> bytes:
    """The linked code object of assembly source. Metadata without `amdhsa.target` gets it, as clang adds it.

    Raises:
        RuntimeError: with the assembler's diagnostics.
    """
    if "amdhsa.target" not in source:
        target = f"amdhsa.target: amdgcn-amd-amdhsa--{architecture}"
        source = re.sub(r"^(amdhsa\.version:.*)$", rf"\1\n{target}", source, flags=re.MULTILINE)
    arguments = ["--target=amdgcn-amd-amdhsa", f"-mcpu={architecture}", "-x", "assembler"]
    return _run(arguments, source, ".s")
