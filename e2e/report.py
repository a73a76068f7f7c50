"""The comparison's report: what is in ``report.json``, its Markdown form and the tables on the terminal."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from e2e import arms, perceptual, quality, skipping, timings
from e2e.options import describe_requests

NO_CHECK = f"none: the noise floor takes an arm of ours, {arms.PEER} and {arms.PEER_RTNE}"


TOO_WIDE = ": too wide, no prediction"  # of an interval beyond the timing model's claim
ONLY_WRITTEN = ("LPIPS", "motion PSNR", "largest pixel difference", "values that differ")  # not on a terminal


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


def ok(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The finished arms."""
    return {name: arm for name, arm in report["arms"].items() if arm["status"] == "ok"}


def arm_rows(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of arms."""
    counted = " (simulated)" if report["simulated"] else ""
    seconds = "host s: no speed" if report["simulated"] else "s"
    header = [
        "arm",
        "rounding",
        "self + cross calls",
        "kernel launches",
        f"wave-instructions{counted}",
        f"MFMAs{counted}",
        f"median step, {seconds}",
        f"total, {seconds}",
        "peak memory, GB",
    ]
    rows = []
    for name, arm in report["arms"].items():
        if arm["status"] != "ok":
            rows.append([name, arms.find(name).rounding or "", arm["status"], *[""] * (len(header) - 3)])
            continue
        timing = arm["timing"]
        rows.append(
            [
                name,
                arms.find(name).rounding or "",
                calls_text(arm),
                kernels_text(arm),
                f"{arm['instructions']:,}" if arm["simulated"] else "",
                f"{arm['matrix_instructions']:,}" if arm["simulated"] else "",
                timings.text(timing["step_s"]),
                timings.text(timing["total_s"]),
                f"{timing['peak_bytes'] / 1e9:.1f}",
            ]
        )
    return header, rows


def pair_rows(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of pairs."""
    header = [
        "pair",
        "PSNR",
        "SSIM",
        "worst frame",
        "ST-LPIPS",
        "LPIPS",
        "ColorVideoVDP, JOD",
        "motion PSNR",
        "largest pixel difference",
        "values that differ",
        "last latents' RMSE",
    ]
    rows = []
    for pair in report["pairs"]:
        worst, seen = pair["worst_frame"], pair["perceptual"]
        rows.append(
            [
                f"{arms.moded(pair['a'])} / {arms.moded(pair['b'])}"
                + (" (noise floor)" if pair["noise_floor"] else ""),
                quality.decibels(pair["psnr_db"]),
                f"{pair['ssim']:.5f}",
                f"{worst['frame']}: {quality.decibels(worst['psnr_db'])}, least SSIM {worst['ssim']:.5f}",
                *(f"{seen[name]['mean']:.2e}" if name in seen else "" for name in perceptual.NETWORKS),
                f"{seen[perceptual.VIDEO]['mean']:.3f}" if perceptual.VIDEO in seen else "",
                quality.decibels(pair["motion_psnr_db"]),
                f"{pair['largest_pixel_difference']} of 255",
                f"{pair['differing_values']:.1%}",
                f"{pair['latents']['rmse'][-1]:.2e}",
            ]
        )
    return header, rows


def gate_rows(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the gate's table; none without a gate."""
    gate = report["gate"]
    if gate is None:
        return [], []
    limits = gate["thresholds"]
    header = [
        f"beside {arms.moded(gate['reference'])}",
        f"least SSIM >= {limits['ssim']:g}",
        f"least PSNR >= {limits['psnr_db']:g} dB",
        f"LPIPS <= {limits['lpips']:g}",
        "gate",
    ]
    return header, [
        [
            arms.moded(name)
            + (" (noise floor)" if {name, gate["reference"]} == {arms.PEER, arms.PEER_RTNE} else ""),
            f"{one['ssim']:.5f}",
            quality.decibels(one["psnr_db"]),
            "not computed" if one["lpips"] is None else f"{one['lpips']:.4f}",
            "pass" if one["passed"] else "FAIL",
        ]
        for name, one in gate["arms"].items()
    ]


def modelled_rows(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of modelled times; none where nothing was modelled."""
    if report["modelled"] is None:
        return [], []
    header = [
        "arm (modelled)",
        "one video's attention, ms",
        "self-attention at 480p, ms",
        "cross-attention at 480p, ms",
        f"attention's speed over {arms.moded(arms.PEER)}",
    ]

    def text(one: dict[str, float], form: str) -> str:
        return f"{form.format(one['low'])}–{form.format(one['high'])}"

    def speed(one: dict[str, Any]) -> str:
        return text(one, "{:.2f}") + ("" if one["prediction"] else TOO_WIDE)

    return header, [
        [
            arms.moded(name),
            text(one["request_ms"], "{:.2f}"),
            text(one["self_ms"], "{:.2f}"),
            text(one["cross_ms"], "{:.3f}"),
            speed(one["speedup"]) if "speedup" in one else "",
        ]
        for name, one in report["modelled"]["arms"].items()
    ]


def stage_rows(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of stages."""
    finished = ok(report)
    stages = list(dict.fromkeys(stage for arm in finished.values() for stage in arm["timing"]["stages_s"]))
    return [f"stage, {'host s: no speed' if report['simulated'] else 's'}", *finished], [
        [stage, *(timings.text(arm["timing"]["stages_s"].get(stage), "{:.3f}") for arm in finished.values())]
        for stage in stages
    ]


def notes(report: dict[str, Any]) -> list[str]:
    """Sentences on what the numbers are."""
    lines = [time_basis(report)]
    memory = sorted({arm["timing"]["memory_basis"] for arm in ok(report).values()})
    if memory:
        lines.append(f"Peak memory is {'; '.join(memory)}.")
    missing = ", ".join(f"{name} ({why})" for name, why in report["metrics_missing"].items())
    if missing:
        lines.append(f"Not computed: {missing}.")
    if report["modelled"]:
        lines.append(
            "Modelled times are the simulator's clock's, an interval over its ensemble, and no wall time. "
            f"480p is a call at B,H,Sq,Skv {report['modelled']['shapes']['self']} (self) and "
            f"{report['modelled']['shapes']['cross']} (cross), as in Wan2.1-T2V-1.3B; an arm that skips is "
            "taken at the share that it skipped here."
        )
    for name, arm in ok(report).items():
        if arm["timing"]["reads_sparsity"] and not report["simulated"]:
            lines.append(
                f"{name}: its times include reading the sparsity back in every call; a second round does not."
            )
        if arm["repeatable"] is not None:
            same = "the same" if arm["repeatable"] else "DIFFERENT"
            lines.append(f"{name}: {same} frames and latents in every round.")
    return lines


def time_basis(report: dict[str, Any]) -> str:
    """How the report's times were taken."""
    bases = {arm["times"]["basis"] for arm in report["arms"].values() if arm["status"] == "ok"}
    return f"Times are {'; '.join(sorted(bases))}." if bases else "No arm finished."


def request_text(report: dict[str, Any]) -> str:
    request = report["request"]
    return (
        f"{request['frames']} frames of {request['width']}x{request['height']}, {request['steps']} steps, "
        f"guidance {request['guidance']:g}, {describe_requests(report['requests'])}, {report['rounds']} round"
        + ("s" if report["rounds"] > 1 else "")
    )


def choice_text(arm: dict[str, Any]) -> str:
    """What SGLang was given for this arm alone, as words of its command line, and AITER's mode."""
    words = shlex.join(arm.get("choice") or [])
    mode = (
        {"rtne": 0, "rtna": 1, "rtz": 2}.get(arm.get("rounding")) if arm.get("backend") == arms.PEER else None
    )
    return words or "not used" if mode is None else f"{words} (AITER_BF16_CVT_MODE {mode})"


def outcome(arm: dict[str, Any]) -> str:
    """Why an arm has no result."""
    if arm["status"] == "unavailable":
        return f"unavailable: it {arm['error']}"
    return f"failed: {arm['error']} (log: {arm['log']})"


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [
        "# One Wan2.1-T2V video per attention backend",
        "",
        f"**{report['answer']}**",
        "",
        f"- Device: {report['device']}",
        f"- Model: {report['model']['description']}",
        f"- Request: {request_text(report)}",
        f"- Versions: {', '.join(f'{name} {version}' for name, version in report['versions'].items())}",
        *(f"- {note}" for note in notes(report)),
        "",
        "## Checks",
        "",
        *([f"- {verdict(check)}" for check in report["checks"]] or [f"- {NO_CHECK}"]),
    ]

    def section(title: str, rows: tuple[list[str], list[list[str]]], *before: str) -> None:
        if rows[1]:
            lines.extend(["", f"## {title}", "", *(line for text in before for line in (text, ""))])
            lines.extend(table_lines(*rows))

    section("Gate", gate_rows(report), "SGLang's thresholds for a changed video, on the worst frame.")
    section("Arms", arm_rows(report))
    section("Modelled", modelled_rows(report))
    lines += ["", "## End to end", "", *(f"- {text}" for text in report["gains"])]
    section(
        "Pairs",
        pair_rows(report),
        "From the uncompressed frames (8 bits a channel) and the latents, before video encoding.",
    )
    section("Stages", stage_rows(report))
    if report["skipping"]:
        section("Skipping", skipping.rows(report["skipping"]))
        lines += ["", *(f"- {remark}" for remark in skipping.remarks(report["skipping"]))]
        if report["skipping"]["plot"]:
            lines += ["", f"![Sparsity, instructions and PSNR over thresholds]({report['skipping']['plot']})"]
    for name, arm in report["arms"].items():
        lines += ["", f"## {name}", ""]
        if arm["status"] != "ok":
            lines += [outcome(arm)]
            continue
        lines += [
            f"{arm['about'][0].upper()}{arm['about'][1:]}. "
            f"Videos and frames: {', '.join(f'`{folder}`' for folder in arm['requests'].values())}.",
            "",
            f"- attention: {attention_text(arm)}",
            f"- kernels: {kernels_text(arm)}",
            f"- SGLang: `{choice_text(arm)}`",
            f"- steps in s ({arm['times']['basis']}): "
            f"{', '.join(f'{seconds:.3f}' for seconds in arm['times']['steps_s'])}",
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

    header, rows = pair_rows(report)
    narrow = [index for index, name in enumerate(header) if name not in ONLY_WRITTEN]
    pairs = [header[index] for index in narrow], [[row[index] for index in narrow] for row in rows]
    tables = [("Arms", arm_rows(report)), ("Pairs", pairs)]
    tables += [("Gate", gate_rows(report)), ("Modelled", modelled_rows(report))]
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
    for sentence in [*notes(report), *report["gains"]]:
        console.print(Text(sentence))
    for name, arm in report["arms"].items():
        if arm["status"] != "ok":
            console.print(Text(f"{name} {outcome(arm)}", style="bold red"))
    if not report["checks"]:
        console.print(Text(f"checks: {NO_CHECK}"))
    for check in report["checks"]:
        console.print(Text(verdict(check), style="green" if check["passed"] else "bold red"))
    console.print(Text(report["answer"], style="bold"))
