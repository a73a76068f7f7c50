"""Medians and spread of what was timed, and gains over the reference arm."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

PROFILED_SHARE = "attention kernels of a profiled warm-up over the median step"


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """``median``, ``low`` and ``high`` (least and largest) and ``count``; None of nothing."""
    if not values:
        return None
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "count": len(values),
    }


def timed(arm: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs whose times count: those that read no sparsity back, or all where each does."""
    return [run for run in arm["runs"] if not run["reads_sparsity"]] or arm["runs"]


def summarise(arm: dict[str, Any]) -> dict[str, Any]:
    """Spreads of ``total_s``, ``step_s`` and each of ``stages_s``, and ``peak_bytes``, of :func:`timed`."""
    runs = timed(arm)
    stages: dict[str, list[float]] = {}
    for run in runs:
        for stage, seconds in run["times"]["stages_s"].items():
            stages.setdefault(stage, []).append(seconds)
    return {
        "reads_sparsity": runs[0]["reads_sparsity"],
        "basis": runs[0]["times"]["basis"],
        "total_s": spread([run["times"]["total_s"] for run in runs]),
        "step_s": spread([seconds for run in runs for seconds in run["times"]["steps_s"]]),
        "stages_s": {stage: spread(seconds) for stage, seconds in stages.items()},
        "peak_bytes": max(run["memory"]["bytes"] for run in runs),
        "memory_basis": runs[0]["memory"]["basis"],
    }


def gain(arm: dict[str, Any], reference: dict[str, Any]) -> dict[str, float] | None:
    """Spread of the reference's total over the arm's, round by round and request by request."""

    def totals(one: dict[str, Any]) -> dict[tuple, float]:
        return {(run["round"], run["request"]): run["times"]["total_s"] for run in timed(one)}

    mine, theirs = totals(arm), totals(reference)
    return spread([theirs[key] / mine[key] for key in mine if key in theirs])


def attention_share(arm: dict[str, Any]) -> float | None:
    """Attention's measured share of a denoising step, by :data:`PROFILED_SHARE`; None where not profiled."""
    seconds = sum(entry.get("seconds", 0.0) for entry in arm["kernels"].values())
    step = summarise(arm)["step_s"]
    if arm["times"]["basis"].startswith("host") or not seconds or step is None:
        return None
    return min(seconds / arm["kernels_steps"] / step["median"], 1.0)


def text(value: dict[str, float] | None, form: str = "{:.2f}") -> str:
    """``median (low–high)``; the median alone of a single value."""
    if value is None:
        return ""
    if value["count"] == 1:
        return form.format(value["median"])
    return f"{form.format(value['median'])} ({form.format(value['low'])}–{form.format(value['high'])})"
