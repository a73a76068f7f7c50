"""Whole programs: what clang builds for gfx942, from -O0 to -O3, computes what the host computes.

Calls, recursion, function pointers, scratch arrays, switches, division and conversions: the code that
compilers emit around a kernel's arithmetic.
"""

import ctypes
import shutil
import struct
import subprocess

import numpy as np
import pytest
import torch

import device_compiler
import execute_programs
from liteattention_rocm import simulator

COUNT, THREADS = 192, 96  # the second wave of a workgroup is half filled
EDGES = [
    0,
    0x80000000,
    0x3F800000,
    0x7F800000,
    0x7FC00000,
    1,
    0x400000,
    0x7F7FFFFF,
    0xFF7FFFFF,
    0x800000,
    2,
    3,
]
EDGES += [0x7FFFFFFF, 0xFFFFFFFF]
FLAGS = ("-ffp-contract=off", "-Wno-unknown-attributes")


@pytest.fixture(scope="module")
def words():
    generator = np.random.default_rng(1)
    values = generator.integers(0, 2**32, 4096 + 64, dtype=np.uint32)
    values[:40] = generator.choice(np.array(EDGES, np.uint32), 40)
    return values


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The same functions for this machine, by the same compiler; the system's linker makes the library."""
    folder = tmp_path_factory.mktemp("host")
    source, unit, library = folder / "host.cpp", folder / "host.o", folder / "host.so"
    source.write_text(execute_programs.HOST)
    compiler, environment = device_compiler._command()
    arguments = [
        "-c",
        "-fPIC",
        "-O1",
        "-ffp-contract=off",
        "-std=c++17",
        "-Wno-psabi",
        str(source),
        "-o",
        str(unit),
    ]
    subprocess.run([*compiler, *arguments], env=environment, check=True, capture_output=True)
    subprocess.run(
        [shutil.which("g++") or "c++", "-shared", str(unit), "-o", str(library), "-lm"], check=True
    )
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module", params=["-O0", "-O1", "-O2", "-O3"])
def module(request):
    return simulator.Module(device_compiler.compile_hip(execute_programs.DEVICE, *FLAGS, request.param))


@pytest.mark.parametrize("name", execute_programs.NAMES)
def test_program(name, module, host, words):
    expected = np.zeros(COUNT, np.uint64)
    getattr(host, name)(ctypes.c_void_p(words.ctypes.data), ctypes.c_void_p(expected.ctypes.data), COUNT)
    out = np.full(COUNT, 0xA5A5A5A5A5A5A5A5, np.uint64)
    source, target = torch.from_numpy(words.view(np.int32)), torch.from_numpy(out.view(np.int64))
    with simulator.register(source, "input", False), simulator.register(target, "output", True):
        arguments = struct.pack("<QQ", source.data_ptr(), target.data_ptr())
        module.launch(name, (COUNT // THREADS, 1, 1), (THREADS, 1, 1), arguments)
    np.testing.assert_array_equal(out, expected)
