"""Our kernels beside AITER's, in one run: published shapes and Wan's, every rounding mode."""

import math

from .calibration import published
from .kernels import KERNELS, Shape
from .parameters import DOCUMENTED, ensemble
from .profiling import profile, ratio

MODES = ("rtz", "rtna", "rtne")
# Wan2.1: 1.3B at 480×832×81; 720×1280×81 with guidance; 1.3B's cross-attention.
WAN = (Shape(1, 12, 32760, 32760), Shape(2, 12, 75600, 75600), Shape(1, 12, 32760, 512))


def published_shapes() -> list[Shape]:
    """The shapes of the published times."""
    return list(dict.fromkeys(point.shape for point in published()))


def compare(shapes: list[Shape], modes=MODES, progress=None) -> dict:
    """AITER's modelled time over ours.

    Args:
        progress: called with (number done, number of all) profiles of pairs.

    Returns:
        "rows", one a shape, and "means": by mode the geometric mean over the published shapes among them by
        parameter set, and "members", the mean of the ensemble's. A row has "shape" and by mode "sets" (the
        ratio by parameter set), "low" and "high" of the interval, "faster" (whether ours is named so),
        "kernel" of ours, and "clocks": by parameter set, of 64 KV rows × 384 query rows, where the kernel
        has these.

    Raises:
        FileNotFoundError: AITER's code objects are missing.
    """
    rows, done = [], 0
    for shape in shapes:
        row = {"shape": vars(shape)}
        for mode in modes:
            ours = profile(KERNELS[f"ours:{mode}"].planned(shape), shape, top=0)
            answer = ratio(ours, profile(KERNELS[f"aiter:{mode}"], shape, top=0))
            row[mode] = {
                "sets": answer["sets"],
                "low": answer["low"],
                "high": answer["high"],
                "faster": answer["faster"] == ours["name"],
                "kernel": ours["kernel"],
                "clocks": {name: result["clocks_per_tile"] for name, result in ours["sets"].items()}
                if ours["query_rows_per_workgroup"] == 384
                else None,
            }
            done += 1
            if progress is not None:
                progress(done, len(shapes) * len(modes))
        rows.append(row)
    known = [vars(shape) for shape in published_shapes()]
    averaged = [row for row in rows if row["shape"] in known]
    means = {mode: _means(averaged, mode) for mode in modes} if averaged else {}
    return {"modelled": True, "rows": rows, "means": means}


def _means(rows: list[dict], mode: str) -> dict[str, float]:
    found = {
        name: math.exp(sum(math.log(row[mode]["sets"][name]) for row in rows) / len(rows))
        for name in rows[0][mode]["sets"]
    }
    return found | {"members": sum(found[name] for name in ensemble()) / len(ensemble())}


def _shape_text(shape: dict) -> str:
    batch, heads, seqlen_q, seqlen_kv = shape.values()
    return f"{batch},{heads},{seqlen_q}" + ("" if seqlen_kv == seqlen_q else f"×{seqlen_kv}")


def text(table: dict) -> str:
    """The table for a reader, Markdown."""
    modes = [mode for mode in MODES if mode in table["rows"][0]]
    lines = ["| shape | " + " | ".join(modes) + " |", "| --- " * (1 + len(modes)) + "|"]
    for row in table["rows"]:
        cells = [_shape_text(row["shape"])]
        for mode in modes:
            numbers = " / ".join(f"{row[mode]['sets'][name]:.2f}" for name in ensemble())
            bold = "**" if row[mode]["faster"] else ""
            cells.append(f"{bold}{numbers}{bold} ({row[mode]['sets'][DOCUMENTED]:.2f})")
        lines.append("| " + " | ".join(cells) + " |")
    if not table["means"]:
        return "\n".join(lines)
    cells = ["geometric mean of the published"]
    for mode in modes:
        mean = table["means"][mode]
        numbers = " / ".join(f"{mean[name]:.2f}" for name in ensemble())
        cells.append(f"{numbers} ({mean[DOCUMENTED]:.2f}), members {mean['members']:.2f}")
    return "\n".join([*lines, "| " + " | ".join(cells) + " |"])
