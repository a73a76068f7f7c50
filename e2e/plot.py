"""Line charts below one another over a shared axis, drawn with Pillow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COLOURS = ("#1f6fb4", "#d1602b", "#3a8f3f", "#7d4fa0")
WIDTH, HEIGHT = 760, 330  # of a panel, in pixels
LEFT, RIGHT, TOP, BOTTOM = 70, 25, 55, 45  # margins within a panel
TEXT_SIZE = 14


@dataclass(frozen=True)
class Line:
    """A named curve: one value per position."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """One chart: its vertical axis's name and its lines."""

    axis: str
    lines: Sequence[Line]


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round values from at most ``low`` to at least ``high``, about ``wanted`` steps apart."""
    span = (high - low) or max(abs(high), 1.0)
    magnitude = 10.0 ** math.floor(math.log10(span / wanted))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude * wanted >= span)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = max(last, first + 1)
    return [index * step for index in range(first, last + 1)]


def draw(positions: Sequence[float], axis: str, panels: Sequence[Panel], path: Path) -> None:
    """Writes the charts as a PNG file.

    Args:
        positions: ascending, shared by all lines.
        axis: the horizontal axis's name.
        panels: from top to bottom.
        path: the file.
    """
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH, HEIGHT * len(panels)), "white")
    canvas = ImageDraw.Draw(image)
    font = ImageFont.load_default(TEXT_SIZE)
    span = positions[-1] - positions[0]

    def across(position: float) -> float:
        return LEFT + (position - positions[0]) / span * (WIDTH - LEFT - RIGHT)

    for number, panel in enumerate(panels):
        top, bottom = number * HEIGHT + TOP, (number + 1) * HEIGHT - BOTTOM
        values = [value for line in panel.lines for value in line.values]
        marks = ticks(min(values), max(values))

        def up(value: float, top: int = top, bottom: int = bottom, marks: list[float] = marks) -> float:
            return bottom - (value - marks[0]) / (marks[-1] - marks[0]) * (bottom - top)

        for mark in marks:
            canvas.line((LEFT, up(mark), WIDTH - RIGHT, up(mark)), fill="#dddddd")
            canvas.text((LEFT - 8, up(mark)), f"{mark:g}", fill="black", font=font, anchor="rm")
        for position in positions:
            canvas.line((across(position), bottom, across(position), bottom + 5), fill="black")
            canvas.text((across(position), bottom + 7), f"{position:g}", fill="black", font=font, anchor="mt")
        canvas.line((LEFT, top, LEFT, bottom, WIDTH - RIGHT, bottom), fill="black")
        canvas.text((LEFT, top - 40), panel.axis, fill="black", font=font, anchor="lm")
        canvas.text((WIDTH - RIGHT, bottom + 34), axis, fill="black", font=font, anchor="rm")
        right = LEFT
        for line, colour in zip(panel.lines, COLOURS, strict=False):
            points = [(across(x), up(y)) for x, y in zip(positions, line.values, strict=True)]
            canvas.line(points, fill=colour, width=3)
            for x, y in points:
                canvas.ellipse((x - 4, y - 4, x + 4, y + 4), fill=colour)
            canvas.text((right, top - 18), line.name, fill=colour, font=font, anchor="lm")
            right += canvas.textlength(line.name, font=font) + 24
    image.save(path)
