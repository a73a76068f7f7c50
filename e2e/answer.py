"""The comparison's one line: the fastest arm that passes the gate; and what Amdahl's law says of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from e2e import amdahl, arms, timings


def candidates(report: dict[str, Any]) -> list[str]:
    """The gate's reference arm and those that pass."""
    gate = report["gate"]
    if gate is None:
        return []
    return [gate["reference"], *(name for name, one in gate["arms"].items() if one["passed"])]


def line(report: dict[str, Any]) -> str:
    """One sentence. On a device by measured totals, otherwise by modelled attention."""
    names = candidates(report)
    if not names:
        return "No answer: no arm finished beside one to compare with."
    if not report["simulated"]:
        return measured_line(report, names)
    return modelled_line(report, names)


def measured_line(report: dict[str, Any], names: list[str]) -> str:
    reference = report["gate"]["reference"]
    medians = {name: report["arms"][name]["timing"]["total_s"]["median"] for name in names}
    best = min(medians, key=medians.get)
    if best == reference:
        return (
            f"Fastest arm that passes the gate: {arms.moded(reference)} itself "
            f"({medians[best]:.2f} s, measured)."
        )
    gain = report["arms"][best]["gain"]
    return (
        f"Fastest arm that passes the gate: {arms.moded(best)}, {timings.text(gain, '{:.3f}')}x "
        f"{arms.moded(reference)} end to end "
        f"({medians[best]:.2f} s against {medians[reference]:.2f} s, measured)."
    )


def modelled_line(report: dict[str, Any], names: list[str]) -> str:
    modelled = (report["modelled"] or {}).get("arms", {})
    known = [name for name in names if name in modelled]
    reference = report["gate"]["reference"]
    if reference not in known or reference != arms.PEER:
        return "No answer: AITER's arm, which times are modelled against, is missing."
    middles = {
        name: 1.0
        if name == reference
        else (modelled[name]["speedup"]["low"] * modelled[name]["speedup"]["high"]) ** 0.5
        for name in known
    }
    best = max(middles, key=middles.get)
    if best == reference:
        return f"Fastest arm that passes the gate: {arms.moded(reference)} itself, modelled."
    one = modelled[best]
    low, high = one["speedup"]["low"], one["speedup"]["high"]
    sure = "" if one["speedup"]["prediction"] else "; the interval is too wide for a prediction"
    sure += "" if one["speedup"]["faster"] == best else "; the model alone does not settle which is faster"
    ends = [one["gains"][f"{share:g}"] for share in (amdahl.STATED_SHARES[0], amdahl.STATED_SHARES[-1])]
    return (
        f"Fastest arm that passes the gate: {arms.moded(best)}, modelled: attention of Wan2.1-T2V-1.3B at "
        f"480p {low:.2f}–{high:.2f}x {arms.moded(reference)}'s, "
        f"hence {ends[0][0]:.2f}–{ends[0][1]:.2f}x end to end at a share of "
        f"{amdahl.STATED_SHARES[0]:.0%} and {ends[1][0]:.2f}–{ends[1][1]:.2f}x at "
        f"{amdahl.STATED_SHARES[-1]:.0%}{sure}."
    )


def gains(report: dict[str, Any]) -> list[str]:
    """Sentences: what the attention share allows, what was obtained, and the sparsity that goals need."""
    if report["simulated"]:
        return modelled_gains(report)
    return measured_gains(report)


def modelled_gains(report: dict[str, Any]) -> list[str]:
    shares = ", ".join(f"{amdahl.limit(share):.2f}x at {share:.0%}" for share in amdahl.STATED_SHARES)
    lines = [f"Amdahl: attention that took no time would give {shares} of a step (stated shares)."]
    modelled = report["modelled"]
    if modelled is None:
        return lines
    for name, one in modelled["arms"].items():
        if "gains" in one:
            texts = ", ".join(
                f"{low:.2f}–{high:.2f}x at {float(share):.0%}" for share, (low, high) in one["gains"].items()
            )
            lines.append(f"{name} obtains {texts} (modelled).")
    for goal, by_share in (modelled["goals"] or {}).items():
        texts = ", ".join(
            f"{'out of reach' if found is None else needed(found)} at {float(share):.0%}"
            for share, found in by_share.items()
        )
        lines.append(
            f"{float(goal):.2f}x end to end needs this share of KV tiles skipped: {texts} (modelled)."
        )
    return lines


def needed(found: list[float]) -> str:
    low, high = found
    return f"{low:.0%}" if round(low, 2) == round(high, 2) else f"{low:.0%}–{high:.0%}"


def measured_gains(report: dict[str, Any]) -> list[str]:
    reference = arms.reference([name for name, arm in report["arms"].items() if arm["status"] == "ok"])
    if reference is None:
        return []
    share = timings.attention_share(report["arms"][reference])
    lines = []
    if share is not None:
        lines.append(
            f"Amdahl: attention is {share:.0%} of {reference}'s step (measured: {timings.PROFILED_SHARE}); "
            f"without it a step would be {amdahl.limit(share):.2f}x as fast."
        )
    for name, arm in report["arms"].items():
        if arm["status"] == "ok" and arm.get("gain"):
            lines.append(f"{name} obtains {timings.text(arm['gain'], '{:.3f}')}x end to end (measured).")
    return lines + measured_goals(report, reference)


def measured_goals(report: dict[str, Any], reference: str) -> list[str]:
    """The sparsity that each goal needs, by a line through the measured steps of the arms that skip."""
    points = [
        (share, seconds)
        for arm in report["arms"].values()
        if arm["status"] == "ok" and arm["sparsity"]
        for run in timings.timed(arm)
        for share, seconds in zip(arm["sparsity"]["per_step"], run["times"]["steps_s"], strict=False)
    ]
    shares = np.array([share for share, _ in points])
    if len(points) < 3 or np.ptp(shares) == 0:
        return []
    slope, start = np.polyfit(shares, [seconds for _, seconds in points], 1)
    timing = report["arms"][reference]["timing"]
    steps = len(report["arms"][reference]["times"]["steps_s"])
    elsewhere = timing["total_s"]["median"] - steps * timing["step_s"]["median"]
    lines = []
    for goal in amdahl.GOALS:
        step = (timing["total_s"]["median"] / goal - elsewhere) / steps
        share = max((step - start) / slope, 0.0) if slope < 0 else None
        text = "out of reach" if share is None or share > 1 else f"{share:.0%} of KV tiles skipped"
        lines.append(f"{goal:.2f}x end to end needs {text}, by a line through the measured steps.")
    return lines
