"""What the arms that skip did: sparsity, executed instructions, quality, and where skipping begins to pay."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from e2e import arms
from e2e import plot as charts
from e2e.plot import Line, Panel

FOLDER = "sparsity"  # below an arm's folder: what the plugin dumps
PLOT = "sweep.png"
CAREFUL = -6.0  # down from here a threshold is to leave the video as near to dense as rounding does
TOLERANCE_DB = 1.0


def read(folder: Path) -> dict[str, Any]:
    """What the plugin dumped of the arm's last denoising run.

    Returns:
        ``skipped`` over all calls of self-attention, ``per_step``, ``per_layer`` (all 0…1), and ``calls`` in
        their order.

    Raises:
        FileNotFoundError: it dumped nothing: no layer's call was within a denoising loop.
    """
    files = sorted((folder / FOLDER).glob("*.json"))
    if not files:
        raise FileNotFoundError(f"no sparsity in {folder / FOLDER}: no self-attention kept a list")
    calls = json.loads(files[-1].read_text())["calls"]
    steps, layers = defaultdict(list), defaultdict(list)
    for call in calls:
        steps[call["step"]].append(call["skipped"])
        layers[call["layer"]].append(call["skipped"])
    return {
        "skipped": fmean(call["skipped"] for call in calls),
        "per_step": [fmean(steps[step]) for step in sorted(steps)],
        "per_layer": {name: fmean(shares) for name, shares in layers.items()},
        "calls": calls,
    }


def merge(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What :func:`read` gave for several requests of an arm, as one: means, and all calls in order."""
    return {
        "skipped": fmean(one["skipped"] for one in found),
        "per_step": [fmean(shares) for shares in zip(*(one["per_step"] for one in found), strict=True)],
        "per_layer": {name: fmean(one["per_layer"][name] for one in found) for name in found[0]["per_layer"]},
        "calls": [call for one in found for call in one["calls"]],
    }


def forget(folder: Path) -> None:
    """Removes what was dumped below an arm's folder."""
    for file in (folder / FOLDER).glob("*.json"):
        file.unlink()


def arm_names(results: dict[str, dict[str, Any]]) -> list[str]:
    """The finished arms that skip, from the most careful threshold to the boldest."""
    skipping = [
        name for name, arm in results.items() if arm["status"] == "ok" and arm.get("threshold") is not None
    ]
    return sorted(skipping, key=lambda name: results[name]["threshold"])


def summarise(results: dict[str, dict[str, Any]], compared: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The report's part on skipping; None where no arm skipped.

    Args:
        results: the report's arms.
        compared: its pairs.

    Returns:
        ``arms`` with, per arm, its ``threshold``, ``skipped``, ``per_step``, self-attention ``instructions``
        and that count over the dense arm's, and PSNR and SSIM against the dense arm; ``noise_floor_db`` and
        ``noise_floor`` (its pair); ``break_even``, a share of tiles.
    """
    names = arm_names(results)
    if not names:
        return None
    entries = {}
    for name in names:
        arm = results[name]
        instructions = sum(arm["self_instructions"])
        dense_instructions = sum(results.get(arms.dense(name), {}).get("self_instructions", []))
        pair = _pair(compared, name, arms.dense(name)) or {}
        entries[name] = {
            "threshold": arm["threshold"],
            "skipped": arm["sparsity"]["skipped"],
            "per_step": arm["sparsity"]["per_step"],
            "instructions": instructions,
            "instructions_over_dense": instructions / dense_instructions if dense_instructions else None,
            "psnr_db": pair.get("psnr_db"),
            "ssim": pair.get("ssim"),
            "identical": pair.get("identical"),
        }
    floor = next((pair for pair in compared if pair["noise_floor"]), None)
    alike = [name for name in names if arms.dense(name) == arms.dense(names[0])]
    return {
        "arms": entries,
        "noise_floor": [floor["a"], floor["b"]] if floor else None,
        "noise_floor_db": floor["psnr_db"] if floor else None,
        "break_even": break_even([results[name] for name in alike], results.get(arms.dense(alike[0]), {})),
    }


def _pair(compared: list[dict[str, Any]], a: str, b: str) -> dict[str, Any] | None:
    return next((pair for pair in compared if {pair["a"], pair["b"]} == {a, b}), None)


def break_even(skipping: list[dict[str, Any]], dense: dict[str, Any]) -> float | None:
    """The sparsity at which a call that skips executes as many instructions as a dense one.

    A straight line through instructions over sparsity of every self-attention's call that read a list, by
    least squares, cut with the dense arm's mean.

    Returns:
        A share of KV tiles; at most 0 where skipping pays from the first tile. None without a dense arm,
        without counted instructions, or where all calls skip the same share.
    """
    executed = dense.get("self_instructions") or [0]
    points = [
        (call["skipped"], count)
        for arm in skipping
        for call, count in zip(arm["sparsity"]["calls"], arm["self_instructions"], strict=True)
        if call["action"] != "dense"
    ]
    shares = np.array([share for share, _ in points])
    if not sum(executed) or not points or np.ptp(shares) == 0:
        return None
    slope, start = np.polyfit(shares, [count for _, count in points], 1)
    return float((fmean(executed) - start) / slope)


def checks(summary: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Whether PSNR to dense reaches the noise floor, per arm with a threshold of at most :data:`CAREFUL`.

    Returns:
        Checks with ``name``, ``passed`` and ``detail``; none without a dense arm and a noise floor.
    """
    if summary is None or summary["noise_floor"] is None:
        return []
    floor = np.inf if summary["noise_floor_db"] is None else summary["noise_floor_db"]
    found = []
    for name, entry in summary["arms"].items():
        if entry["identical"] is None or entry["threshold"] > CAREFUL:
            continue
        psnr = np.inf if entry["psnr_db"] is None else entry["psnr_db"]
        found.append(
            {
                "name": f"PSNR({name}, {arms.dense(name)}) >= noise floor - {TOLERANCE_DB:g} dB",
                "passed": bool(psnr >= floor - TOLERANCE_DB),
                "detail": f"{psnr:.2f} dB against {floor:.2f} dB, {entry['skipped']:.1%} skipped",
            }
        )
    return found


def rows(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table."""
    header = [
        "arm",
        "KV tiles skipped",
        "last step",
        "self-attention's wave-instructions",
        "of dense",
        "PSNR to dense",
        "SSIM to dense",
    ]
    return header, [
        [
            arms.moded(name),
            f"{entry['skipped']:.1%}",
            f"{entry['per_step'][-1]:.1%}",
            f"{entry['instructions']:,}" if entry["instructions"] else "",
            _text(entry["instructions_over_dense"], "{:.1%}"),
            "infinite (identical)" if entry["identical"] else _text(entry["psnr_db"], "{:.2f} dB"),
            _text(entry["ssim"], "{:.5f}"),
        ]
        for name, entry in summary["arms"].items()
    ]


def _text(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def remarks(summary: dict[str, Any]) -> list[str]:
    """Sentences below the table."""
    lines = []
    if summary["noise_floor"]:
        a, b = summary["noise_floor"]
        floor = _text(summary["noise_floor_db"], "{:.2f} dB") or "infinite (identical)"
        lines.append(f"Noise floor, {a} / {b}: {floor}.")
    if summary["break_even"] is not None:
        lines.append(
            f"Break-even sparsity, by executed instructions (simulated): {max(summary['break_even'], 0):.1%}."
        )
    return lines


def chart(summary: dict[str, Any]) -> Any | None:
    """A figure of sparsity, instructions and PSNR over thresholds; None with fewer than two finite ones."""
    entries = [entry for entry in summary["arms"].values() if np.isfinite(entry["threshold"])]
    if len(entries) < 2:
        return None
    thresholds = [entry["threshold"] for entry in entries]
    shares = [
        Line("KV tiles skipped, %", [100 * entry["skipped"] for entry in entries]),
        Line("in the last step, %", [100 * entry["per_step"][-1] for entry in entries]),
    ]
    if all(entry["instructions_over_dense"] for entry in entries):
        executed = [100 * entry["instructions_over_dense"] for entry in entries]
        shares.append(Line("self-attention's instructions, % of dense", executed))
    panels = [Panel("share, %", shares)]
    if all(entry["psnr_db"] is not None for entry in entries):
        quality = [Line("PSNR to dense, dB", [entry["psnr_db"] for entry in entries])]
        if summary["noise_floor_db"] is not None:
            quality.append(Line("noise floor, dB", [summary["noise_floor_db"]] * len(entries), dashed=True))
        panels.append(Panel("PSNR, dB", quality))
    return charts.lines(thresholds, "threshold, log2 units", panels)


def plot(summary: dict[str, Any], folder: Path) -> str | None:
    """Draws :func:`chart` into ``folder``.

    Returns:
        The picture's file name; None where there is nothing to draw, or no matplotlib to draw it.
    """
    figure = chart(summary) if charts.available() else None
    if figure is None:
        return None
    charts.save(figure, folder / PLOT)
    return PLOT
