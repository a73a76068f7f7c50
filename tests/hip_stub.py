"""A recording HIP library, compiled with the host's C++ compiler, and calls of _C that need no tensor."""

import ctypes
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "stubs" / "hip_stub.cpp"


@functools.cache
def compiled(*, simulator: bool = False) -> Path:
    """The stub as a shared library, compiled once per test run."""
    folder = Path(tempfile.mkdtemp(prefix="hip-stub-"))
    library = folder / "libstub.so"
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += ["-DSIMULATOR"] * simulator + [
        f"-I{ROOT / 'csrc'}",
        str(SOURCE),
        "-o",
        str(library),
        "-lpthread",
    ]
    subprocess.run(command, check=True)
    return library


def copy(destination: Path, *, simulator: bool = False) -> Path:
    """A copy of its own: another library to the dynamic loader, with nothing loaded through it."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(compiled(simulator=simulator), destination)
    return destination


class Stub:
    """Controls and log of one loaded stub."""

    def __init__(self, path: Path):
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.stub_log.restype = ctypes.c_char_p
        self.library.stub_set.argtypes = [ctypes.c_char_p, ctypes.c_long]

    def set(self, name: str, value: int) -> None:
        self.library.stub_set(name.encode(), value)

    def clear(self) -> None:
        self.library.stub_clear()

    def log(self) -> list[dict]:
        return [json.loads(line) for line in self.library.stub_log().decode().splitlines()]

    def functions(self) -> list[str]:
        return [call["function"] for call in self.log()]

    def launches(self) -> list[dict]:
        return [call for call in self.log() if call["function"] == "hipModuleLaunchKernel"]

    @property
    def device(self) -> int:
        return self.library.stub_current_device()

    @property
    def last_error(self) -> int:
        return self.library.stub_last_error()


def forward_arguments(**changes) -> dict:
    """Keyword arguments of _C.forward for a contiguous bshd call of B=2, H=4, Sq=300, Skv=100."""
    batch, heads, seqlen_q, seqlen_kv = 2, 4, 300, 100
    call = {
        "device": 0,
        "arch": "gfx942:sramecc+:xnack-",
        "compute_units": 304,
        "query": 0x10000000,
        "key": 0x20000000,
        "value": 0x30000000,
        "out": 0x40000000,
        "lse": 0,
        "batch": batch,
        "heads": heads,
        "kv_heads": heads,
        "seqlen_q": seqlen_q,
        "seqlen_kv": seqlen_kv,
        "query_strides": (seqlen_q * heads * 128, 128, heads * 128),
        "key_strides": (seqlen_kv * heads * 128, 128, heads * 128),
        "value_strides": (seqlen_kv * heads * 128, 128, heads * 128),
        "out_strides": (seqlen_q * heads * 128, 128, heads * 128),
        "scale": 0.125,
        "rounding": 0,
        "stream": 0x5000,
    }
    assert changes.keys() <= call.keys() | {"hip"}
    return call | changes
