"""A device through its HIP library: modules, launches, events. Simulator and ROCm look the same from here."""

import contextlib
import ctypes
import functools

import torch

from .. import _C, runtime, simulator

_POINTER = ctypes.c_void_p
_FLOAT = ctypes.c_float
_WALL_CLOCK_RATE = 10017  # hipDeviceAttributeWallClockRate
_SIGNATURES = {
    "hipModuleLoadData": [ctypes.POINTER(_POINTER), ctypes.c_char_p],
    "hipModuleUnload": [_POINTER],
    "hipModuleGetFunction": [ctypes.POINTER(_POINTER), _POINTER, ctypes.c_char_p],
    "hipModuleLaunchKernel": [_POINTER, *[ctypes.c_uint] * 7, *[_POINTER] * 3],
    "hipEventCreate": [ctypes.POINTER(_POINTER)],
    "hipEventDestroy": [_POINTER],
    "hipEventRecord": [_POINTER, _POINTER],
    "hipEventSynchronize": [_POINTER],
    "hipEventElapsedTime": [ctypes.POINTER(_FLOAT), _POINTER, _POINTER],
    "hipDeviceSynchronize": [],
    "hipGetLastError": [],
    "hipRuntimeGetVersion": [ctypes.POINTER(ctypes.c_int)],
    "hipDeviceGetAttribute": [ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int],
}


class HipFailure(RuntimeError):
    """A HIP function failed. The message names it and the error, and has the simulator's diagnostic."""


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    for name, types in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, ctypes.c_int
    library.hipGetErrorName.argtypes, library.hipGetErrorName.restype = [ctypes.c_int], ctypes.c_char_p
    return library


class Device:
    """One device.

    Args:
        device: what torch.device accepts: "cuda" on ROCm, "cpu" for the simulator.

    Attributes:
        simulated: whether what answers is the gfx942 simulator.

    Raises:
        ValueError, RuntimeError: the device cannot run attention here.
    """

    def __init__(self, device="cpu"):
        self.torch_device = torch.device(device)
        self.target = runtime.target(self.torch_device)
        self.simulated = _C.is_simulator(self.target.hip)
        self._path = _C.library_path(self.target.hip)
        self._hip = _library(self._path)

    @property
    def name(self) -> str:
        if self.torch_device.type == "cpu":
            return "simulated MI300X" if self.simulated else f"CPU tensors through {self._path}"
        return torch.cuda.get_device_name(self.torch_device)

    @property
    def runtime_version(self) -> int:
        """Of the HIP runtime: major · 10^7 + minor · 10^5 + patch."""
        version = ctypes.c_int()
        self.call("hipRuntimeGetVersion", ctypes.byref(version))
        return version.value

    @property
    def reference_ghz(self) -> float:
        """Of the constant clock that s_memrealtime reads: 0.1 on an MI300X."""
        kilohertz = ctypes.c_int()
        self.call("hipDeviceGetAttribute", ctypes.byref(kilohertz), _WALL_CLOCK_RATE, self.target.device)
        return kilohertz.value / 1e6

    def call(self, function: str, *arguments) -> None:
        """Calls a HIP function.

        Raises:
            HipFailure: it returned an error.
        """
        try:
            code = getattr(self._hip, function)(*arguments)
        except SystemError as error:  # Ctrl-C in a simulated launch, see simulator.Module.launch
            raise error.__cause__ or error from None
        if code:
            text = f"{function}: {self._hip.hipGetErrorName(code).decode()}"
            if self.simulated:
                text += "\n" + (simulator.library().gfx942sim_last_error() or b"").decode(errors="replace")
            self._hip.hipGetLastError()  # else torch's next look at the runtime finds this error
            raise HipFailure(text)

    @contextlib.contextmanager
    def current(self):
        """Makes the device torch's current one."""
        if self.torch_device.type == "cpu":
            yield
        else:
            with torch.cuda.device(self.torch_device):
                yield

    def stream(self) -> int:
        """torch's current stream on the device."""
        if self.torch_device.type == "cpu":
            return 0
        return torch.cuda.current_stream(self.torch_device).cuda_stream

    def synchronize(self) -> None:
        with self.current():
            self.call("hipDeviceSynchronize")

    def elapsed_ms(self, work) -> float:
        """Milliseconds between an event before and one behind what `work()` puts on the current stream."""
        with contextlib.ExitStack() as cleanup, self.current():
            events = []
            for _ in range(2):
                event = _POINTER()
                self.call("hipEventCreate", ctypes.byref(event))
                cleanup.callback(self._hip.hipEventDestroy, event)
                events.append(event)
            self.call("hipEventRecord", events[0], self.stream())
            work()
            self.call("hipEventRecord", events[1], self.stream())
            self.call("hipEventSynchronize", events[1])
            milliseconds = _FLOAT()
            self.call("hipEventElapsedTime", ctypes.byref(milliseconds), *events)
            return milliseconds.value

    def module(self, code_object: bytes) -> "Module":
        return Module(self, code_object)


class Module:
    """A code object loaded on a device; unloaded with the object."""

    def __init__(self, device: Device, code_object: bytes):
        self._device, self._code_object, self._handle = device, code_object, _POINTER()
        self._functions: dict[str, _POINTER] = {}
        with device.current():
            device.call("hipModuleLoadData", ctypes.byref(self._handle), code_object)

    def launch(self, kernel: str, grid, block, arguments: bytes, tensors=()) -> None:
        """Puts a launch on torch's current stream of the device.

        Args:
            grid, block: workgroups and work-items along x, y, z.
            arguments: the packed explicit kernel arguments.
            tensors: what the kernel reads and writes.

        Raises:
            HipFailure: no such kernel, or the launch failed.
        """
        device = self._device
        with contextlib.ExitStack() as scope:
            scope.enter_context(device.current())
            if device.target.library is not None:
                for tensor in tensors:
                    scope.enter_context(simulator.register(tensor, library=device.target.library))
            function = self._functions.get(kernel)
            if function is None:
                function = _POINTER()
                device.call("hipModuleGetFunction", ctypes.byref(function), self._handle, kernel.encode())
                self._functions[kernel] = function
            buffer = ctypes.create_string_buffer(arguments, len(arguments))
            size = ctypes.c_size_t(len(arguments))
            # HIP_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
            extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
            device.call("hipModuleLaunchKernel", function, *grid, *block, 0, device.stream(), None, extra)

    def __del__(self):
        with contextlib.suppress(Exception):
            if self._handle:
                self._device.synchronize()
                self._device.call("hipModuleUnload", self._handle)
