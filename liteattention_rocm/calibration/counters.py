"""rocprofv3's input file with the hardware counters that `profile` models, and the command for it."""

import shlex
from pathlib import Path

from ..timing.counters import names

# One line is one run of the program: few enough of each block's counters that they fit together.
_PER_RUN = 4
_CLOCK = "GRBM_GUI_ACTIVE"  # clocks during which the device is busy: over the time, its clock


def groups() -> list[list[str]]:
    """The counters, run by run."""
    wanted = [_CLOCK, *names()]
    return [wanted[i : i + _PER_RUN] for i in range(0, len(wanted), _PER_RUN)]


def write(path: Path) -> None:
    """Writes rocprofv3's text format: a line "pmc:" and names for each run."""
    path.write_text("".join(f"pmc: {' '.join(group)}\n" for group in groups()))


def command(path: Path, workload: str, shape: str) -> str:
    """What to type on a machine with rocprofv3."""
    words = ["rocprofv3", "-i", str(path), "-d", str(path.with_suffix("")), "--output-format", "csv", "--"]
    words += ["liteattention-rocm", "calibrate", "--workload", workload, "--shape", shape]
    return shlex.join(words)
