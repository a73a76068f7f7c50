"""The HIP functions of the simulator through ctypes, as another program would call them."""

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

import numpy as np

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION = 1, 2, 9
INVALID_DEVICE, INVALID_IMAGE, NO_BINARY, FILE_NOT_FOUND, SYMBOL_NOT_FOUND = 101, 200, 209, 301, 302
INVALID_HANDLE, NOT_FOUND, ILLEGAL_ADDRESS, OUT_OF_RESOURCES = 400, 500, 700, 701
ALREADY_REGISTERED, NOT_REGISTERED, LAUNCH_FAILURE, NOT_SUPPORTED = 712, 713, 719, 801

# What a launch may call while a graph is being captured: nothing that waits, allocates, copies or loads.
ALLOWED_DURING_CAPTURE = {"hipInit", "hipGetDevice", "hipDeviceGetAttribute", "hipModuleLaunchKernel"}


class Failed(Exception):
    """A HIP function returned `code`; the text is gfx942sim_last_error's."""

    def __init__(self, code: int, message: str):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Hip:
    """`hip.hipMalloc(...)` calls the function and raises `Failed` unless it returns hipSuccess.

    Args:
        path: of the library; the one in the installed package where it is None.
    """

    def __init__(self, path=None):
        if path is None:
            from liteattention_rocm import simulator

            path = simulator.path()
        self.library = ctypes.CDLL(str(path))
        self.library.hipGetErrorName.restype = c_char_p
        self.library.hipGetErrorString.restype = c_char_p
        self.library.gfx942sim_last_error.restype = c_char_p
        for name in ("statistics", "coverage", "disassemble"):
            getattr(self.library, f"gfx942sim_{name}_json").restype = c_size_t

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def checked(*arguments):
            code = function(*arguments)
            if code != 0:
                raise Failed(code, self.library.gfx942sim_last_error().decode())

        return checked

    def module(self, image: bytes) -> c_void_p:
        module = c_void_p()
        self.hipModuleLoadData(byref(module), image)
        return module

    def function(self, module: c_void_p, name: str) -> c_void_p:
        function = c_void_p()
        self.hipModuleGetFunction(byref(function), module, name.encode())
        return function

    def kernel(self, image: bytes, name: str) -> c_void_p:
        return self.function(self.module(image), name)

    def malloc(self, size: int) -> int:
        address = c_void_p()
        self.hipMalloc(byref(address), c_size_t(size))
        return address.value

    def upload(self, content: bytes) -> int:
        address = self.malloc(len(content))
        self.hipMemcpyHtoD(c_void_p(address), content, c_size_t(len(content)))
        return address

    def download(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.hipMemcpyDtoH(buffer, c_void_p(address), c_size_t(size))
        return buffer.raw

    def free(self, address: int) -> None:
        self.hipFree(c_void_p(address))

    def launch(self, function, grid, block, arguments: bytes, dynamic_lds=0, stream=None) -> None:
        """With a packed argument buffer."""
        buffer, size = ctypes.create_string_buffer(arguments, len(arguments)), c_size_t(len(arguments))
        extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
        self._launch(function, grid, block, dynamic_lds, stream, None, extra)

    def launch_parameters(self, function, grid, block, parameters, dynamic_lds=0) -> None:
        """With one pointer per argument; `parameters` are ctypes objects."""
        pointers = (c_void_p * max(1, len(parameters)))(*map(ctypes.addressof, parameters))
        self._launch(function, grid, block, dynamic_lds, None, pointers, None)

    def _launch(self, function, grid, block, dynamic_lds, stream, parameters, extra):
        sizes = [c_uint(extent) for extent in (*grid, *block, dynamic_lds)]
        self.hipModuleLaunchKernel(function, *sizes, stream, parameters, extra)

    def text(self, name: str, *leading):
        """One of the JSON texts."""
        function = getattr(self.library, f"gfx942sim_{name}_json")
        buffer = ctypes.create_string_buffer(function(*leading, None, c_size_t(0)))
        function(*leading, buffer, c_size_t(len(buffer)))
        return json.loads(buffer.value)

    def attribute(self, number: int) -> int:
        value = c_int()
        self.hipDeviceGetAttribute(byref(value), number, 0)
        return value.value

    def set_option(self, name: str, value: str) -> None:
        self.gfx942sim_set_option(name.encode(), value.encode())


def words(hip: Hip, address: int, count: int) -> np.ndarray:
    """`count` 32-bit words of device memory."""
    return np.frombuffer(hip.download(address, 4 * count), np.uint32)


def pointer(*addresses: int) -> bytes:
    """Packed pointer arguments."""
    return struct.pack(f"<{len(addresses)}Q", *addresses)


def run_python(script, **environment):
    """Runs a script in another interpreter, where `hip` is the simulator."""
    from liteattention_rocm import simulator

    preamble = f"""
    import sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import ctypes, os, struct, threading
    from ctypes import byref, c_int, c_size_t, c_void_p
    import device_compiler, simulator_kernels
    from simulated_hip import Failed, Hip
    hip = Hip({str(simulator.path())!r})
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(preamble) + textwrap.dedent(script)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=50)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # forked children too
        raise
    # Decoded here, since text mode turns carriage returns into line feeds.
    return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())
