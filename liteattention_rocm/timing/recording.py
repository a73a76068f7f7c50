"""Executed traces of workgroups and the clock of one compute unit, over the simulator's C functions."""

import contextlib
import ctypes

from .. import simulator

_POINTER = ctypes.c_void_p
_SIGNATURES = {
    "gfx942sim_trace_begin": (
        ctypes.c_int,
        [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t, ctypes.POINTER(_POINTER)],
    ),
    "gfx942sim_trace_end": (ctypes.c_int, [_POINTER]),
    "gfx942sim_trace_free": (None, [_POINTER]),
    "gfx942sim_trace_time": (ctypes.c_int, [_POINTER, ctypes.c_char_p, ctypes.c_double]),
    "gfx942sim_clock_run": (ctypes.c_int, [_POINTER, ctypes.c_char_p]),
    "gfx942sim_clock_json": (ctypes.c_size_t, [_POINTER, ctypes.c_char_p, ctypes.c_size_t]),
    "gfx942sim_trace_json": (ctypes.c_size_t, [_POINTER, ctypes.c_char_p, ctypes.c_size_t]),
}


def _library() -> ctypes.CDLL:
    library = simulator.library()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _check(library, code: int, what: str) -> None:
    if code != 0:
        detail = (library.gfx942sim_last_error() or b"").decode(errors="replace")
        raise simulator.SimulatorError(f"{what}: {detail}")


def _parameter_text(parameters: dict[str, float]) -> bytes:
    return "\n".join(f"{name}={number!r}" for name, number in parameters.items()).encode()


class Recording:
    """The trace of one launch: what some of its workgroups executed.

    Args:
        workgroups: their linear indices in the grid, x fastest. Inside `with recording.active():` a launch by
            this thread executes these alone. Of several launches the one that executes most is kept.
    """

    def __init__(self, workgroups):
        indices = list(workgroups)
        self._library = _library()
        self._workgroups = (ctypes.c_uint64 * len(indices))(*indices)
        self._handle = _POINTER()

    @contextlib.contextmanager
    def active(self, parameters: dict[str, float] | None = None, core_ghz: float = 0.0):
        """Records the launches of this thread within the `with` block.

        Args:
            parameters: of the clock, see `clock`. With them, launches pass time on a device whose CUs run at
                `core_ghz`: kernels read the modelled core clock by s_memtime and a clock of 100 MHz by
                s_memrealtime, and events are recorded at it. A launch then executes those of the workgroups
                that its grid has and one CU holds, twice.

        Raises:
            SimulatorError: no workgroups were named, this thread records already, or a parameter is refused.
        """
        self.close()
        code = self._library.gfx942sim_trace_begin(
            self._workgroups, len(self._workgroups), ctypes.byref(self._handle)
        )
        _check(self._library, code, "trace")
        try:
            if parameters is not None:
                text = _parameter_text(parameters)
                code = self._library.gfx942sim_trace_time(self._handle, text, core_ghz)
                _check(self._library, code, "trace")
            yield self
        finally:
            self._library.gfx942sim_trace_end(self._handle)

    def description(self) -> dict:
        """Kernel, grid, block, vgprs, lds_bytes, waves_per_workgroup, workgroups_per_cu, workgroups."""
        return simulator._read_json(self._library.gfx942sim_trace_json, self._handle)

    def clock(self, parameters: dict[str, float]) -> dict:
        """What one compute unit does while it runs the recorded workgroups together.

        Args:
            parameters: the clock's, by name, see parameters.json; `l2_miss_interval`: one in how many
                lines that the CU fetches for the first time is not in L2, 0: none. Optional: `residents`,
                so many of the recorded workgroups run; `timeline_begin` and `timeline_end`, the clocks
                between which the first one's timeline is returned.

        Returns:
            Modelled clocks, busy times, counters, and issues and stalls (slots of 4 clocks) by instruction.

        Raises:
            SimulatorError: nothing was recorded, or a parameter is missing, unknown or no number.
        """
        text = _parameter_text(parameters)
        _check(self._library, self._library.gfx942sim_clock_run(self._handle, text), "clock")
        return simulator._read_json(self._library.gfx942sim_clock_json, self._handle)

    def close(self) -> None:
        """Frees the trace."""
        if self._handle:
            self._library.gfx942sim_trace_free(self._handle)
            self._handle = _POINTER()

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()
