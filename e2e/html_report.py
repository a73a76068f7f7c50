"""The report as one HTML file that needs nothing beside it: tables, charts, frames, difference maps."""

from __future__ import annotations

import base64
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from e2e import arms, metrics, plot, quality, skipping
from e2e import report as reports
from e2e.plot import Line, Panel

TEMPLATE = Path(__file__).with_name("report.html.j2")
AMPLIFIED = 8  # factor on the differences in a map
GROUPS = 2  # requests whose frames are shown: those that differ most
WIDEST = 640  # pixels of a picture
JPEG_QUALITY = 88


def render(report: dict[str, Any], output: Path) -> str:
    """The HTML of a report.

    Args:
        output: the run's folder, where the arms' frames lie.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=False, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    tables = [
        ("gate", "Gate", reports.gate_rows(report)),
        ("arms", "Arms", reports.arm_rows(report)),
        ("modelled", "Modelled", reports.modelled_rows(report)),
        ("skipping", "Skipping", skipping.rows(report["skipping"]) if report["skipping"] else ([], [])),
        ("pairs", "Pairs", reports.pair_rows(report)),
        ("stages", "Stages", reports.stage_rows(report)),
    ]
    remarks = skipping.remarks(report["skipping"]) if report["skipping"] else []
    return environment.from_string(TEMPLATE.read_text()).render(
        report=report,
        request=reports.request_text(report),
        notes=[*reports.notes(report), *remarks],
        verdict=reports.verdict,
        outcome=reports.outcome,
        choices={name: reports.choice_text(arm) for name, arm in reports.ok(report).items()},
        no_check=reports.NO_CHECK,
        tables=tables,
        charts=list(charts(report)) if plot.available() else [],
        frames=list(frame_groups(report, output)),
        prompts=dict.fromkeys(request["prompt"] for request in report["requests"]),
    )


def charts(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Element id, caption and SVG of every chart that there is something to draw for."""
    finished = reports.ok(report)
    if not finished:
        return
    steps = range(1, 1 + max(len(arm["times"]["steps_s"]) for arm in finished.values()))
    if report["modelled"]:
        answers = report["modelled"]["arms"]
        bars = {name: (one["self_ms"]["low"], one["self_ms"]["high"]) for name, one in answers.items()}
        yield (
            "chart-modelled",
            "A self-attention of Wan2.1-T2V-1.3B at 480p: modelled, with its interval.",
            inline(plot.bars("ms, modelled", bars)),
        )
        lines = []
        for name, one in answers.items():
            low, high = zip(*one["per_step_ms"], strict=True)
            lines.append(Line(name, [(a + b) / 2 for a, b in zip(low, high, strict=True)], low, high))
        caption = "Step by step, at the share that each step skipped here: modelled. Bands are intervals."
        panel = Panel("self-attention at 480p, ms, modelled", lines)
        yield "chart-steps", caption, inline(plot.lines(steps, "step", [panel]))
    else:
        lines = [Line(name, arm["times"]["steps_s"]) for name, arm in finished.items()]
        caption = "Denoising steps of the first video, measured."
        yield "chart-steps", caption, inline(plot.lines(steps, "step", [Panel("step, s", lines)]))
    lines = [
        Line(name, [100 * share for share in arm["sparsity"]["per_step"]])
        for name, arm in finished.items()
        if arm["sparsity"]
    ]
    if lines:
        caption = "KV tiles skipped by self-attention, mean over layers, branches and requests."
        yield "chart-sparsity", caption, inline(plot.lines(steps, "step", [Panel("skipped, %", lines)]))
    reference = arms.reference(list(finished))
    lines = [
        Line(
            other(pair, reference) + (" (noise floor)" if pair["noise_floor"] else ""),
            pair["latents"]["rmse"],
            dashed=pair["noise_floor"],
        )
        for pair in report["pairs"]
        if reference in (pair["a"], pair["b"])
    ]
    if lines:
        caption = f"How far the latents are from {reference}'s."
        yield "chart-latents", caption, inline(plot.lines(steps, "step", [Panel("RMSE", lines)]))
    sweep = skipping.chart(report["skipping"]) if report["skipping"] else None
    if sweep:
        yield "chart-sweep", "Over thresholds.", inline(sweep)


def inline(figure: Any) -> str:
    """The figure's ``svg`` element, with ids that no other figure's have."""
    text = plot.svg(figure)
    text = text[text.index("<svg") :]
    prefix = f"f{zlib.crc32(text.encode()):08x}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    return re.sub(r'(url\(#|href="#)', rf"\1{prefix}", text)


def other(pair: dict[str, Any], name: str) -> str:
    return pair["a"] if pair["b"] == name else pair["b"]


def frame_groups(report: dict[str, Any], output: Path) -> Iterator[dict[str, Any]]:
    """Frames side by side with their difference maps: of the requests that differ most, the worst frame."""
    finished = reports.ok(report)
    reference = arms.reference(list(finished))
    if reference is None:
        return
    for request, index in shown(report, reference):
        folders = {name: output / arm["requests"][request] for name, arm in finished.items()}
        theirs = frame(folders[reference], index)
        columns = [[picture(theirs, f"{reference}, the reference")]]
        for name, folder in folders.items():
            if name == reference:
                continue
            mine = frame(folder, index)
            pair = quality.find_pair(report["pairs"], name, reference)
            value = metrics.finite(metrics.psnr(mine, theirs))
            floor = " (noise floor)" if pair and pair["noise_floor"] else ""
            difference = np.minimum(np.abs(mine.astype(np.int16) - theirs) * AMPLIFIED, 255)
            columns.append(
                [
                    picture(mine, f"{name}{floor}: {quality.decibels(value)}"),
                    picture(difference.astype(np.uint8), f"{name}: difference, {AMPLIFIED} times"),
                ]
            )
        yield {"title": f"{request}, frame {index}", "columns": columns}


def shown(report: dict[str, Any], reference: str) -> list[tuple[str, int]]:
    """Requests and frame numbers to show: each request's worst frame of the farthest arm, worst first."""
    worst: dict[str, tuple[float, int]] = {}
    for pair in report["pairs"]:
        if reference in (pair["a"], pair["b"]):
            for request, one in pair["requests"].items():
                value = one["worst_frame"]["psnr_db"]
                found = (np.inf if value is None else value, one["worst_frame"]["frame"])
                worst[request] = min(worst.get(request, found), found)
    if not worst:  # a single arm
        worst = {request["name"]: (np.inf, 0) for request in report["requests"]}
    ordered = sorted(worst.items(), key=lambda item: item[1])
    return [(request, index) for request, (_, index) in ordered[:GROUPS]]


def frame(folder: Path, index: int) -> np.ndarray:
    """One frame [H, W, 3] uint8."""
    from PIL import Image

    return np.asarray(Image.open(folder / "frames" / f"{index:04d}.png"))


def picture(pixels: np.ndarray, caption: str) -> dict[str, Any]:
    """A frame [H, W, 3] uint8 as a data URI, at most :data:`WIDEST` pixels wide."""
    from PIL import Image

    image = Image.fromarray(pixels)
    if image.width > WIDEST:
        image = image.resize((WIDEST, round(image.height * WIDEST / image.width)))
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=JPEG_QUALITY)
    source = "data:image/jpeg;base64," + base64.b64encode(encoded.getvalue()).decode()
    return {"source": source, "caption": caption, "width": image.width, "height": image.height}
