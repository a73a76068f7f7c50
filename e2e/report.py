"""The comparison's report: what is in ``report.json``, its Markdown form and the tables on the terminal."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e import arms, skipping

NO_CHECK = f"none: the noise floor takes the arms {arms.OURS}, {arms.PEER} and {arms.PEER_RTNE}"
TOLERANCE_DB = 1.0  # how far our PSNR against AITER may lie below AITER's own noise floor


def pairs(names: list[str]) -> Iterator[tuple[str, str]]:
    """Which arms to compare: ours and AITER's with every other; all of them where neither is there."""
    anchors = [name for name in (arms.OURS, arms.PEER) if name in names] or names
    for index, first in enumerate(anchors):
        for second in names:
            if second not in anchors[: index + 1]:
                yield first, second


def find_pair(compared: list[dict[str, Any]], a: str, b: str) -> dict[str, Any] | None:
    """The entry of two arms, in either order."""
    return next((pair for pair in compared if {pair["a"], pair["b"]} == {a, b}), None)


def noise_floor_check(compared: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Whether our video is as near to AITER's as AITER's two roundings are to each other.

    Diffusion trajectories part on rounding alone, so a PSNR says nothing without that floor.

    Returns:
        The check with ``name``, ``passed`` and ``detail``; None where one of the three arms is missing.
    """
    ours = find_pair(compared, arms.OURS, arms.PEER)
    floor = find_pair(compared, arms.PEER, arms.PEER_RTNE)
    if ours is None or floor is None:
        return None
    ours_db, floor_db = (
        float("inf") if pair["psnr_db"] is None else pair["psnr_db"] for pair in (ours, floor)
    )
    return {
        "name": f"PSNR({arms.OURS}, {arms.PEER}) >= "
        f"PSNR({arms.PEER}, {arms.PEER_RTNE}) - {TOLERANCE_DB:g} dB",
        "passed": ours_db >= floor_db - TOLERANCE_DB,
        "detail": f"{decibels(ours['psnr_db'])} against a noise floor of {decibels(floor['psnr_db'])}",
    }


def decibels(value: float | None) -> str:
    return "infinite (identical)" if value is None else f"{value:.2f} dB"


def verdict(check: dict[str, Any]) -> str:
    return f"{'pass' if check['passed'] else 'FAIL'}: {check['name']} ({check['detail']})"


def attention_text(arm: dict[str, Any]) -> str:
    """``16 self [1, 1080, 2, 128] x 1080, 16 cross …``."""
    return ", ".join(
        f"{entry['calls']} {entry['role']} {entry['query_shape']} x {entry['kv_length']}"
        + (" (V strided)" if entry["value_strided"] else "")
        for entry in arm["attention"]
    )


def calls_text(arm: dict[str, Any]) -> str:
    """Calls of self- and of cross-attention layers."""
    return " + ".join(
        str(sum(entry["calls"] for entry in arm["attention"] if entry["role"] == role))
        for role in ("self", "cross")
    )


def demangle(symbol: str) -> str:
    """A nested C++ name without parameters, as AITER's kernels have: ``_ZN5aiter3fooE`` is ``aiter::foo``."""
    if not (symbol.startswith("_ZN") and symbol.endswith("E")):
        return symbol
    rest, parts = symbol[3:-1], []
    while digits := re.match(r"\d+", rest):
        end = digits.end() + int(digits[0])
        if end > len(rest):
            return symbol
        parts.append(rest[digits.end() : end])
        rest = rest[end:]
    return "::".join(parts) if parts and not rest else symbol


def kernels_text(arm: dict[str, Any]) -> str:
    """Launches per kernel, most first; the few that launch most on a device, where there are hundreds."""
    counts = sorted(arm["kernels"].items(), key=lambda item: -item[1]["launches"])
    text = ", ".join(f"{entry['launches']} x {demangle(name)}" for name, entry in counts[:8])
    return (text or "none of gfx942's") + (f", and {len(counts) - 8} more" if len(counts) > 8 else "")


def arm_rows(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of arms."""
    counted = " (simulated)" if report["simulated"] else ""
    header = [
        "arm",
        "self + cross calls",
        "kernel launches",
        f"wave-instructions{counted}",
        f"MFMAs{counted}",
        "median step, s",
        "total, s",
    ]
    rows = []
    for name, arm in report["arms"].items():
        if arm["status"] != "ok":
            rows.append([name, "failed", *[""] * (len(header) - 2)])
            continue
        times = arm["times"]
        rows.append(
            [
                name,
                calls_text(arm),
                kernels_text(arm),
                f"{arm['instructions']:,}" if arm["simulated"] else "",
                f"{arm['matrix_instructions']:,}" if arm["simulated"] else "",
                f"{statistics.median(times['steps_s']):.2f}" if times["steps_s"] else "",
                f"{times['total_s']:.2f}",
            ]
        )
    return header, rows


def pair_rows(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of pairs."""
    header = ["pair", "PSNR", "SSIM", "largest pixel difference", "values that differ", "last latents' RMSE"]
    return header, [
        [
            f"{pair['a']} / {pair['b']}" + (" (noise floor)" if pair["noise_floor"] else ""),
            decibels(pair["psnr_db"]),
            f"{pair['ssim']:.5f}",
            f"{pair['largest_pixel_difference']} of 255",
            f"{pair['differing_values']:.1%}",
            f"{pair['latents']['rmse'][-1]:.2e}",
        ]
        for pair in report["pairs"]
    ]


def time_basis(report: dict[str, Any]) -> str:
    """How the report's times were taken."""
    bases = {arm["times"]["basis"] for arm in report["arms"].values() if arm["status"] == "ok"}
    return f"Times are {'; '.join(sorted(bases))}." if bases else "No arm finished."


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    request, model = report["request"], report["model"]
    lines = [
        "# One Wan2.1-T2V video per attention backend",
        "",
        f"- Device: {report['device']}",
        f"- Model: {model['description']}",
        f"- Request: {request['frames']} frames of {request['width']}x{request['height']}, "
        f"{request['steps']} steps, guidance {request['guidance']:g}, seed {request['seed']}, "
        f"prompt: {request['prompt']}",
        f"- {time_basis(report)}",
        "",
        "## Checks",
        "",
        *([f"- {verdict(check)}" for check in report["checks"]] or [f"- {NO_CHECK}"]),
        "",
        "## Arms",
        "",
        *table_lines(*arm_rows(report)),
        "",
        "## Pairs",
        "",
        "From the uncompressed frames (8 bits a channel) and the latents, before video encoding.",
        "",
        *table_lines(*pair_rows(report)),
    ]
    if report["skipping"]:
        lines += ["", "## Skipping", "", *table_lines(*skipping.rows(report["skipping"])), ""]
        lines += [f"- {remark}" for remark in skipping.remarks(report["skipping"])]
        if report["skipping"]["plot"]:
            lines += ["", f"![Sparsity, instructions and PSNR over thresholds]({report['skipping']['plot']})"]
    for name, arm in report["arms"].items():
        lines += ["", f"## {name}", ""]
        if arm["status"] != "ok":
            lines += [f"Failed: {arm['error']}. See `{arm['log']}`."]
            continue
        stages = ", ".join(f"{stage} {seconds:.3f}" for stage, seconds in arm["times"]["stages_s"].items())
        lines += [
            f"{arm['about'][0].upper()}{arm['about'][1:]}. "
            f"Video: `{name}/{arm['video']}`, frames: `{name}/{arm['frame_folder']}`.",
            "",
            f"- attention: {attention_text(arm)}",
            f"- kernels: {kernels_text(arm)}",
            f"- stages in s ({arm['times']['basis']}): {stages}",
            f"- steps in s: {', '.join(f'{seconds:.3f}' for seconds in arm['times']['steps_s'])}",
        ]
    return "\n".join(lines) + "\n"


def table_lines(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *cells]]


def write(report: dict[str, Any], folder: Path) -> None:
    """Writes ``report.json`` and ``report.md`` to ``folder``."""
    (folder / "report.json").write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
    (folder / "report.md").write_text(markdown(report))


def show(report: dict[str, Any], console: Any) -> None:
    """Prints the tables and checks to a rich console."""
    from rich.table import Table
    from rich.text import Text

    tables = [("Arms", arm_rows(report)), ("Pairs", pair_rows(report))]
    if report["skipping"]:
        tables.append(("Skipping", skipping.rows(report["skipping"])))
    for title, (header, rows) in tables:
        if not rows:
            continue
        table = Table(title=title, title_justify="left")
        for index, name in enumerate(header):
            table.add_column(name, overflow="fold", justify="left" if index == 0 else "right")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row), style="bold" if "noise floor" in row[0] else None)
        console.print(table)
    for remark in skipping.remarks(report["skipping"]) if report["skipping"] else []:
        console.print(Text(remark))
    console.print(Text(time_basis(report)))
    for name, arm in report["arms"].items():
        if arm["status"] != "ok":
            console.print(Text(f"{name} failed: {arm['error']} (log: {arm['log']})", style="bold red"))
    if not report["checks"]:
        console.print(Text(f"checks: {NO_CHECK}"))
    for check in report["checks"]:
        console.print(Text(verdict(check), style="green" if check["passed"] else "bold red"))
