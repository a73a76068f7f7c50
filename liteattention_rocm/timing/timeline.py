"""A stretch of one workgroup's modelled timeline, as text, as SVG and as a trace for Perfetto or
chrome://tracing."""

import html
import re

from .parameters import DOCUMENTED, parameter_sets
from .steady import Traces

_SIMDS, _CLOCKS_PER_SLOT = 4, 4
_TILES = 2
_COLOURS = {
    "matrix": "#c0392b",
    "vector": "#2e86c1",
    "transcendental": "#8e44ad",
    "lds": "#229954",
    "vector_memory": "#d68910",
    "scalar": "#909497",
    "scalar_memory": "#909497",
    "control": "#616a6b",
    "wait": "#d5dbdb",
    "barrier": "#17202a",
}
_STALL_COLOUR, _BARRIER_COLOUR = "#f5eef8", "#fadbd8"
_PASS_CLOCKS = {"16x16x16": 16, "32x32x8": 32}
_TRANSCENDENTAL_CLOCKS = 16
# What a character of the drawing stands for, and the marks of the categories.
_MARKS = {
    "matrix": "M",
    "vector": "v",
    "transcendental": "e",
    "lds": "l",
    "vector_memory": "m",
    "scalar": "s",
    "scalar_memory": "s",
    "control": "s",
    "wait": "s",
    "barrier": "b",
}
_WAITS, _IDLE, _BUSY = ".", " ", "#"
LEGEND = (
    "M MFMA, v VALU, e exponentials, l LDS, m memory, s scalar, b at a barrier, . waiting; "
    "matrix: tenths busy, # all"
)


def timeline(traces: Traces, clocks_per_tile: float) -> dict:
    """Two tiles from the steady state of the first resident workgroup, under the documented set.

    Returns:
        {"begin", "end": clocks, "entries": [{wave, simd, address, text, category, issue, begin, stall}]}:
        a wave waits from `begin` for the reason `stall` and issues at `issue`.
    """
    parameters = traces.parameters(parameter_sets()[DOCUMENTED], traces.residents)
    recording = traces.recordings[0]
    total = recording.clock(parameters)["clocks"]
    begin = 0.5 * total
    window = {"timeline_begin": begin, "timeline_end": min(begin + _TILES * clocks_per_tile, total)}
    answer = recording.clock({**parameters, **window})
    instructions = {one["index"]: one for one in answer["instructions"]}
    entries = []
    for wave, index, start, end, stall in answer["timeline"]:
        one = instructions[index]
        entries.append(
            {
                "wave": wave,
                "simd": wave % _SIMDS,
                "address": one["address"],
                "text": one["text"],
                "category": one["category"],
                "begin": start,
                "issue": end - _CLOCKS_PER_SLOT,
                "stall": stall,
            }
        )
    return {"modelled": True, "begin": begin, "end": window["timeline_end"], "entries": entries}


def _occupied(entry: dict) -> int:
    """Clocks that an instruction takes of what it runs on."""
    if match := re.search("16x16x16|32x32x8", entry["text"]):
        return _PASS_CLOCKS[match.group()]
    return _TRANSCENDENTAL_CLOCKS if entry["category"] == "transcendental" else _CLOCKS_PER_SLOT


def drawing(lines: dict, columns: int = 96) -> str:
    """The waves of SIMD 0, a line each: every character is what took most of its clocks. Below them the share
    of its clocks that the matrix pipe is busy, in tenths, and # for all."""
    begin, width = lines["begin"], (lines["end"] - lines["begin"]) / columns
    waves = sorted({entry["wave"] for entry in lines["entries"] if entry["simd"] == 0})
    spent = {row: [{} for _ in range(columns)] for row in (*waves, "pipe")}

    def spend(row, mark, start, end):
        first, last = max(int((start - begin) / width), 0), min(int((end - begin) / width), columns - 1)
        for column in range(first, last + 1):
            left = begin + column * width
            clocks = min(end, left + width) - max(start, left)
            if clocks > 0:
                cell = spent[row][column]
                cell[mark] = cell.get(mark, 0.0) + clocks

    for entry in lines["entries"]:
        if entry["simd"] != 0:
            continue
        waits = _MARKS["barrier"] if entry["stall"] == "barrier" else _WAITS
        spend(entry["wave"], waits, entry["begin"], entry["issue"])
        spend(entry["wave"], _MARKS[entry["category"]], entry["issue"], entry["issue"] + _CLOCKS_PER_SLOT)
        if entry["category"] == "matrix":
            spend("pipe", _BUSY, entry["issue"], entry["issue"] + _occupied(entry))

    def line(row):
        # While a wave waits for the pipe that its own MFMAs fill, or for its exponentials, it is at work.
        marks = []
        for cell in spent[row]:
            if row == "pipe":
                tenths = int(10 * cell.get(_BUSY, 0.0) / width + 0.5)
                marks.append(_BUSY if tenths > 9 else str(tenths))
                continue
            work = {mark: clocks for mark, clocks in cell.items() if mark != _WAITS}
            chosen = work if work else cell
            marks.append(max(chosen, key=chosen.get) if chosen else _IDLE)
        return "".join(marks)

    names = {row: f"wave {row}" if row != "pipe" else "matrix" for row in spent}
    scale = f"clocks {begin:.0f} to {lines['end']:.0f}, {width:.0f} a character; modelled"
    return "\n".join([scale, *(f"{names[row]:<7}|{line(row)}|" for row in spent), LEGEND])


def perfetto(lines: dict, name: str) -> dict:
    """The Trace Event Format: one process per SIMD, one thread per wave; 1 µs stands for 1000 clocks."""
    events = []
    for entry in lines["entries"]:
        place = {"pid": entry["simd"], "tid": entry["wave"], "ph": "X"}
        if entry["issue"] > entry["begin"]:
            events.append(
                {
                    **place,
                    "name": f"stall: {entry['stall']}",
                    "cat": "stall",
                    "ts": entry["begin"] / 1000,
                    "dur": (entry["issue"] - entry["begin"]) / 1000,
                    "args": {"before": entry["text"], "address": hex(entry["address"])},
                }
            )
        events.append(
            {
                **place,
                "name": entry["text"].split()[0],
                "cat": entry["category"],
                "ts": entry["issue"] / 1000,
                "dur": _CLOCKS_PER_SLOT / 1000,
                "args": {"text": entry["text"], "address": hex(entry["address"])},
            }
        )
    for simd in sorted({entry["simd"] for entry in lines["entries"]}):
        events.append(
            {"ph": "M", "pid": simd, "name": "process_name", "args": {"name": f"SIMD {simd} (modelled)"}}
        )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"kernel": name, "note": "modelled; 1 ns stands for 1 clock"},
    }


def svg(lines: dict, name: str) -> str:
    """A drawing: a row per wave with its issues, stalls behind them, and the matrix pipe below."""
    left, width, row = 70, 1800, 34
    begin, end = lines["begin"], lines["end"]
    scale = width / (end - begin)
    waves = sorted({entry["wave"] for entry in lines["entries"]}, key=lambda wave: (wave % _SIMDS, wave))
    top = {wave: 60 + row * place + 8 * (wave % _SIMDS) for place, wave in enumerate(waves)}
    height = 60 + row * len(waves) + 8 * _SIMDS + 20
    boxes = []

    def box(x0, x1, y, tall, colour, title):
        x0, x1 = max(x0, begin), min(x1, end)
        if x1 <= x0:
            return
        boxes.append(
            f'<rect x="{left + (x0 - begin) * scale:.1f}" y="{y}" width="{(x1 - x0) * scale:.2f}" '
            f'height="{tall}" fill="{colour}"><title>{html.escape(title)}</title></rect>'
        )

    for entry in lines["entries"]:
        y = top[entry["wave"]]
        colour = _BARRIER_COLOUR if entry["stall"] == "barrier" else _STALL_COLOUR
        box(entry["begin"], entry["issue"], y, 16, colour, f"{entry['stall']} before {entry['text']}")
        box(
            entry["issue"],
            entry["issue"] + _CLOCKS_PER_SLOT,
            y,
            16,
            _COLOURS[entry["category"]],
            f"{entry['issue']:.0f}: {entry['text']}",
        )
        if match := re.search("16x16x16|32x32x8", entry["text"]):
            clocks = _PASS_CLOCKS[match.group()]
            box(entry["issue"], entry["issue"] + clocks, y + 18, 8, _COLOURS["matrix"], entry["text"])
    labels = [f'<text x="4" y="{top[wave] + 13}">SIMD {wave % _SIMDS} w{wave}</text>' for wave in waves]
    legend = [
        f'<rect x="{left + 130 * i}" y="30" width="12" height="12" fill="{colour}"/>'
        f'<text x="{left + 130 * i + 16}" y="41">{category}</text>'
        for i, (category, colour) in enumerate(_COLOURS.items())
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 10}" height="{height}" '
        f'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{left}" y="18" font-size="14">{html.escape(name)}, modelled: clocks {begin:.0f} to '
        f"{end:.0f} of one workgroup; below each wave its MFMAs in the matrix pipe</text>\n"
        + "\n".join(legend + labels + boxes)
        + "\n</svg>\n"
    )
