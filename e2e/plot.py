"""Line charts below one another over a shared axis, and bars with intervals, drawn by matplotlib."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 7.6, 3.2  # of a panel, in inches
MOST_INSIDE, LEGEND = 4, 2.0  # names that a legend inside a panel has at most; inches beside it for more
BAR = 0.42  # height of a bar's row, in inches
REPRODUCIBLE = {"svg.hashsalt": "e2e", "svg.fonttype": "none", "font.size": 9}


@dataclass(frozen=True)
class Line:
    """A named curve: one value per position, and where they are known the ends of each value's interval."""

    name: str
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One chart: its vertical axis's name and its lines."""

    axis: str
    lines: Sequence[Line]


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def lines(positions: Sequence[float], axis: str, panels: Sequence[Panel]) -> Any:
    """A matplotlib figure of charts from top to bottom.

    Args:
        positions: ascending, shared by all lines; a line with fewer values ends earlier.
        axis: the horizontal axis's name.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(REPRODUCIBLE):
        crowded = max(len(panel.lines) for panel in panels) > MOST_INSIDE
        figure = Figure((WIDTH + LEGEND * crowded, HEIGHT * len(panels)), layout="constrained")
        for panel, axes in zip(panels, figure.subplots(len(panels), 1, squeeze=False)[:, 0], strict=True):
            for line in panel.lines:
                at = positions[: len(line.values)]
                (drawn,) = axes.plot(
                    at, line.values, "--" if line.dashed else "o-", label=line.name, markersize=4
                )
                if line.low is not None and line.high is not None:
                    axes.fill_between(at, line.low, line.high, color=drawn.get_color(), alpha=0.15, lw=0)
            axes.set_ylabel(panel.axis)
            axes.grid(True, alpha=0.3)
            beside = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if crowded else {}
            axes.legend(fontsize=8, **beside)
        axes.set_xlabel(axis)
        axes.set_xticks(list(positions))
    return figure


def bars(axis: str, intervals: Mapping[str, tuple[float, float]]) -> Any:
    """A matplotlib figure of horizontal intervals, by name from top to bottom."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(REPRODUCIBLE):
        figure = Figure((WIDTH, 0.9 + BAR * len(intervals)), layout="constrained")
        axes = figure.subplots()
        for row, (low, high) in enumerate(intervals.values()):
            middle = (low + high) / 2
            axes.barh(row, middle, height=0.6, color="#9db8d9")
            axes.errorbar(middle, row, xerr=(high - low) / 2, color="black", capsize=4)
        axes.set_yticks(range(len(intervals)), list(intervals))
        axes.invert_yaxis()
        axes.set_xlabel(axis)
        axes.grid(True, axis="x", alpha=0.3)
    return figure


def svg(figure: Any) -> str:
    """The figure as an SVG document; the same figure gives the same text."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context(REPRODUCIBLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def save(figure: Any, path: Path) -> None:
    """Writes the figure in the format of the file's suffix."""
    figure.savefig(path, dpi=110)
