"""The simulated MI300X: a ctypes view of libgfx942sim.so, a HIP library whose device memory is the host's.

Environment, read by the library at its first use: LITEATTENTION_ROCM_SIM_THREADS (host threads), _CHECK
(what `checking` takes), _MATRIX ("exact" or "float32"), _PROGRESS ("0" or "1"), _COMPUTE_UNITS,
_XCDS. `set_option` sets the same later.
"""

import contextlib
import ctypes
import functools
import json
import os
from pathlib import Path

from . import _C, views

ARCHITECTURE = "gfx942"
_MULTIPROCESSOR_COUNT = 63  # hipDeviceAttributeMultiprocessorCount
_WARP_SIZE = 87  # hipDeviceAttributeWarpSize


class SimulatorError(RuntimeError):
    """A call into the simulator failed. The message is the simulator's own diagnostic."""


def path() -> Path:
    """Where the simulator lies: beside the compiled module of this package."""
    return Path(_C.__file__).parent / "libgfx942sim.so"


_SIGNATURES = {
    "gfx942sim_register_memory": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int],
    "gfx942sim_unregister_memory": [ctypes.c_void_p],
    "gfx942sim_declare_unwritten": [ctypes.c_void_p, ctypes.c_size_t],
    "gfx942sim_set_option": [ctypes.c_char_p, ctypes.c_char_p],
    "hipInit": [ctypes.c_uint],
    "hipGetErrorName": [ctypes.c_int],
    "hipDeviceGetAttribute": [ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int],
    "hipModuleLoadData": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p],
    "hipModuleUnload": [ctypes.c_void_p],
    "hipModuleGetFunction": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p],
    "hipModuleLaunchKernel": [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3],
    "gfx942sim_last_error": [],
    "gfx942sim_reset_statistics": [],
    "gfx942sim_statistics_json": [ctypes.c_char_p, ctypes.c_size_t],
    "gfx942sim_coverage_json": [ctypes.c_char_p, ctypes.c_size_t],
    "gfx942sim_executed_json": [ctypes.c_char_p, ctypes.c_size_t],
    "gfx942sim_findings_json": [ctypes.c_char_p, ctypes.c_size_t],
    "gfx942sim_proof_json": [
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ],
    "gfx942sim_disassemble_json": [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t],
}
_RESULTS = {
    "hipGetErrorName": ctypes.c_char_p,
    "gfx942sim_last_error": ctypes.c_char_p,
    "gfx942sim_reset_statistics": None,
    "gfx942sim_statistics_json": ctypes.c_size_t,
    "gfx942sim_coverage_json": ctypes.c_size_t,
    "gfx942sim_executed_json": ctypes.c_size_t,
    "gfx942sim_findings_json": ctypes.c_size_t,
    "gfx942sim_proof_json": ctypes.c_size_t,
    "gfx942sim_disassemble_json": ctypes.c_size_t,
}


@functools.cache
def _open(library_path: str) -> ctypes.CDLL:
    opened = ctypes.CDLL(library_path)
    for name, argument_types in _SIGNATURES.items():
        if hasattr(opened, name):
            function = getattr(opened, name)
            function.argtypes = argument_types
            function.restype = _RESULTS.get(name, ctypes.c_int)
    return opened


def library() -> ctypes.CDLL:
    """The simulator, loaded once, with the signatures of its functions declared. Ctrl-C stops a launch."""
    opened = _open(str(path()))
    _watch_interrupts()
    return opened


@functools.cache
def _watch_interrupts() -> None:
    _C.set_interrupt_check(_C.open_hip(str(path())))


def _check(opened: ctypes.CDLL, code: int, what: str) -> None:
    if code != 0:
        detail = opened.gfx942sim_last_error() or opened.hipGetErrorName(code)
        raise SimulatorError(f"{what}: {detail.decode(errors='replace')}")


@functools.cache
def compute_units(library_path: str) -> int:
    """Compute units of device 0 of a HIP library, asked for once, and again after `set_option`.

    Raises:
        SimulatorError: the library's answers are not those of a device with waves of 64.
    """
    opened = _open(library_path)
    if opened.hipInit(0) != 0:
        raise SimulatorError(f"hipInit of {library_path} failed")
    answers = []
    for attribute in (_WARP_SIZE, _MULTIPROCESSOR_COUNT):
        value = ctypes.c_int()
        if opened.hipDeviceGetAttribute(ctypes.byref(value), attribute, 0) != 0:
            raise SimulatorError(f"hipDeviceGetAttribute({attribute}) of {library_path} failed")
        answers.append(value.value)
    if answers[0] != 64 or answers[1] <= 0:
        raise SimulatorError(f"{library_path} reports waves of {answers[0]} and {answers[1]} compute units")
    return answers[1]


def _extent(memory) -> tuple[int, int]:
    if hasattr(memory, "data_ptr"):
        return views.extent(memory)
    view = memoryview(memory)
    if not view.c_contiguous:
        raise ValueError("a registered buffer must be contiguous")
    holder = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(holder), view.nbytes


@contextlib.contextmanager
def register(
    memory, label: str = "", writable: bool = True, *, unwritten: bool = False, library: str | None = None
):
    """Lets launches touch exactly the bytes between the first and the last element of `memory`.

    Args:
        memory: a tensor with data_ptr(), or a writable object with the buffer protocol.
        label: what diagnostics call it.
        writable: whether kernels may store to it.
        unwritten: whether what it holds counts as never written, for the check `uninitialised`.
        library: path of the HIP library; the simulator where it is None. A library without
            gfx942sim_register_memory needs no registration.
    """
    opened = _open(library or str(path()))
    address, size = _extent(memory)
    if size == 0 or not hasattr(opened, "gfx942sim_register_memory"):
        yield
        return
    if opened.gfx942sim_register_memory(address, size, label.encode(), int(writable)) != 0:
        raise SimulatorError(f"{label or 'memory'} at {address:#x} of {size} bytes cannot be registered")
    if unwritten:
        opened.gfx942sim_declare_unwritten(address, size)
    try:
        yield
    finally:
        opened.gfx942sim_unregister_memory(address)


def set_option(name: str, value) -> None:
    """Sets an option: threads, check, mutation, delivery, findings, matrix, progress, compute_units, xcds or
    execute.

    Raises:
        SimulatorError: unknown name or value.
    """
    opened = library()
    if opened.gfx942sim_set_option(name.encode(), str(value).encode()) != 0:
        detail = (opened.gfx942sim_last_error() or b"").decode(errors="replace")
        raise SimulatorError(f"option {name}={value!r} was refused: {detail}".removesuffix(": "))
    if name == "compute_units":
        compute_units.cache_clear()


def _read_json(function, *leading):
    size = function(*leading, None, 0)
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = function(*leading, buffer, size)
        if needed <= size:
            break
        size = needed
    answer = json.loads(buffer.value)
    if answer == {}:  # what the simulator answers where it fails
        raise SimulatorError((library().gfx942sim_last_error() or b"no answer").decode(errors="replace"))
    return answer


def statistics() -> dict:
    """What ran since the last reset: {"kernels": {name: counters}, "hip_calls": {function: count}}."""
    return _read_json(library().gfx942sim_statistics_json)


def reset_statistics() -> None:
    """Sets every counter of `statistics` to zero."""
    library().gfx942sim_reset_statistics()


def coverage() -> list[dict]:
    """The instructions that the decoder knows: name, encodings, and whether the simulator executes them."""
    return _read_json(library().gfx942sim_coverage_json)


# What the options are where neither the environment nor a program has set them.
_CHECK_DEFAULT = os.environ.get("LITEATTENTION_ROCM_SIM_CHECK") or "waits,wait_states"


@contextlib.contextmanager
def checking(check="all", *, mutation="none", delivery="early", findings="first"):
    """Launches run under these options; afterwards the options have their defaults again.

    Args:
        check: "all", "none", or a comma-separated list of waits, wait_states, races, uninitialised, bounds
            and resources.
        mutation: a change to the kernel as it executes, "KIND:ADDRESS[:AMOUNT]"; KIND is skip, vmcnt,
            lgkmcnt, m0, records or exec.
        delivery: "early": a load's contents appear at once; "late": at the wait that covers it;
            "random:SEED": in between, in an order that the hardware allows, while waves take random turns.
        findings: "first": what a check finds ends the launch; "all": it is listed and execution goes on.

    Raises:
        SimulatorError: an unknown value.
    """
    chosen = {"check": check, "mutation": mutation, "delivery": delivery, "findings": findings}
    defaults = {"check": _CHECK_DEFAULT, "mutation": "none", "delivery": "early", "findings": "first"}
    try:
        for name, value in chosen.items():
            set_option(name, value)
        yield
    finally:
        for name, value in defaults.items():
            set_option(name, value)


def findings() -> list[dict]:
    """What checks under `findings="all"` have found since `reset_statistics`, once per check and instruction.

    Returns:
        [{check, kernel, address, message, occurrences}], addresses as in the ELF file.
    """
    return _read_json(library().gfx942sim_findings_json)


def executed() -> list[int]:
    """ELF addresses of the instructions that checked launches have executed since `reset_statistics`.

    Launches that are checked by waits and wait_states alone are not recorded.
    """
    return _read_json(library().gfx942sim_executed_json)


def prove(code_object: bytes, kernel: str, mutation: str) -> dict:
    """Whether a mutation provably changes nothing, on every path of the kernel's control-flow graph.

    Args:
        mutation: skip of an s_waitcnt or s_nop, or a weakened counter, as for `checking`.

    Returns:
        {"proven": bool, "reason": what the proof rests on, or the first place where it fails}

    Raises:
        SimulatorError: not a code object, no such kernel, or a malformed mutation.
    """
    function = library().gfx942sim_proof_json
    return _read_json(function, code_object, len(code_object), kernel.encode(), mutation.encode())


def disassemble(code_object: bytes) -> dict:
    """Kernels and instructions of a gfx942 code object.

    Returns:
        {"kernels": [{name, address, size}], "instructions": [{address, size, text, op, category}]}

    Raises:
        SimulatorError: not a code object for gfx942.
    """
    return _read_json(library().gfx942sim_disassemble_json, code_object, len(code_object))


class Module:
    """A code object loaded into the simulator.

    Args:
        code_object: the bytes of an AMDGPU ELF for gfx942.

    Raises:
        SimulatorError: the simulator cannot load it; the message says why.
    """

    def __init__(self, code_object: bytes):
        self._library = library()
        self._code_object = code_object  # kept: the library may refer to it
        self._handle = ctypes.c_void_p()
        _check(self._library, self._library.hipInit(0), "hipInit")
        code = self._library.hipModuleLoadData(ctypes.byref(self._handle), code_object)
        _check(self._library, code, "hipModuleLoadData")

    def launch(self, name: str, grid, block, arguments: bytes, dynamic_lds: int = 0) -> None:
        """Runs one kernel to its end.

        Args:
            name: kernel symbol.
            grid: workgroups along x, y, z.
            block: work-items along x, y, z.
            arguments: the packed explicit kernel arguments.
            dynamic_lds: bytes of dynamic LDS.

        Raises:
            KeyboardInterrupt: Ctrl-C stopped the launch.
            SimulatorError: no such kernel, or a fault; the message names kernel, wave and instruction.
        """
        function = ctypes.c_void_p()
        code = self._library.hipModuleGetFunction(ctypes.byref(function), self._handle, name.encode())
        _check(self._library, code, f"kernel {name!r}")
        buffer = ctypes.create_string_buffer(arguments, len(arguments))
        size = ctypes.c_size_t(len(arguments))
        # HIP_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
        try:
            code = self._library.hipModuleLaunchKernel(
                function, *grid, *block, dynamic_lds, None, None, extra
            )
        except SystemError as error:
            # Ctrl-C during the launch: the interrupt check left the exception behind, which ctypes does not
            # expect of a C function.
            raise error.__cause__ or error from None
        _check(self._library, code, f"launch of {name!r}")

    def close(self) -> None:
        """Unloads the module."""
        if self._handle:
            self._library.hipModuleUnload(self._handle)
            self._handle = ctypes.c_void_p()

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()
