"""Attention times that the simulator's clock models for the arms: at the launches' shapes, and at Wan2.1's.

Nothing here is measured, and no time of a simulation enters. Every answer is an interval: the hull over the
timing model's ensemble (:mod:`liteattention_rocm.timing`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from statistics import fmean
from typing import Any

from e2e import amdahl, arms

TRUE_SELF, TRUE_CROSS = "1,12,32760", "1,12,32760,512"  # Wan2.1-T2V-1.3B at 480p, 81 frames
QUARTER = "@0.25"  # behind a skipping kernel's name: it visits a quarter of the KV tiles


@functools.cache
def profile(kernel: str, shape: str) -> dict[str, Any]:
    """The timing model's profile of a kernel of :data:`liteattention_rocm.timing.KERNELS`."""
    from liteattention_rocm import timing

    parsed = timing.Shape.parse(shape)
    return timing.profile(timing.Kernel.parse(kernel).planned(parsed), parsed, top=0)


def skipping_profiles(clock: str, shape: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of calls that skip, in a dense kernel's mode: over all tiles and over a quarter of them. Schedule and
    pieces are as the plan has them for each."""
    name = f"skipping:{clock.partition(':')[2]}"
    return profile(name, shape), profile(name + QUARTER, shape)


def layer_time(dense: dict, listed: dict, listed_quarter: dict, sparsity: dict[str, Any] | None) -> dict:
    """A call's modelled time at a run's mean sparsity, in a profile's form.

    A workgroup that visits a part of the KV tiles takes what it takes with so many tiles: a line through the
    times at all tiles and at a quarter of them. Every workgroup is taken to skip the mean share, and one of
    several query tiles to find them in agreement.

    Args:
        dense: profile of the dense kernel, for calls that took no list.
        listed, listed_quarter: profiles of the skipping kernel over all tiles and over a quarter of them.
        sparsity: what :func:`e2e.skipping.read` found; None for a dense arm.
    """
    if sparsity is None:
        return dense
    calls = sparsity["calls"]
    shares = [call["skipped"] for call in calls if call["action"] != "dense"]
    lists = len(shares) / len(calls)
    share = fmean(shares) if shares else 0.0
    return mix(
        dense["name"] if not shares else listed["name"],
        [(dense, 1 - lists), (listed, lists * (1 - share / 0.75)), (listed_quarter, lists * share / 0.75)],
    )


def mix(name: str, parts: list[tuple[dict, float]]) -> dict:
    """Weighted sum of profiles' times, member by member of the ensemble, with the sum of their intervals."""
    used = [(one, weight) for one, weight in parts if weight]  # a line's weights may be negative
    times = {
        member: {"time_ms": sum(weight * one["sets"][member]["time_ms"] for one, weight in used)}
        for member in parts[0][0]["sets"]
    }
    ends = {end: sum(weight * one["time_ms"][end] for one, weight in used) for end in ("low", "high")}
    return {"name": name, "sets": times, "time_ms": ends}


def interval(one: dict) -> dict[str, float]:
    """``low`` and ``high`` in milliseconds."""
    return {end: one["time_ms"][end] for end in ("low", "high")}


def launched_shape(call: dict[str, Any]) -> str:
    """A call's shape as the timing model takes it."""
    batch, rows, heads, _ = call["query_shape"]
    return f"{batch},{heads},{rows},{call['kv_length']}"


def summarise(
    results: dict[str, dict[str, Any]], tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any] | None:
    """Modelled attention of every finished arm that the timing model knows.

    Args:
        results: the report's arms.
        tell: called with what is being modelled.

    Returns:
        ``arms``: per arm ``request_ms`` (attention of one video as launched), ``self_ms`` and ``cross_ms`` (a
        call at :data:`TRUE_SELF` and :data:`TRUE_CROSS`), ``per_step_ms`` of a self-attention there, and,
        against :data:`e2e.arms.PEER`, ``speedup`` of self- and cross-attention together (with ``faster``) and
        ``gains`` by share. ``goals``: sparsity that :data:`e2e.amdahl.GOALS` need, by share. None without
        an arm.
    """
    found: dict[str, Any] = {}
    layers: dict[str, dict] = {}
    for name, arm in results.items():
        if arm["status"] != "ok":
            continue
        clock = arms.find(name).clock
        if clock is None:
            continue
        tell(f"{name}: modelling")
        skips = arm["sparsity"] is not None
        dense = profile(clock, TRUE_SELF)
        full, quarter = skipping_profiles(clock, TRUE_SELF) if skips else (dense, dense)
        own = layer_time(dense, full, quarter, arm["sparsity"])
        cross = profile(clock, TRUE_CROSS)
        layers[name] = mix(own["name"], [(own, 1.0), (cross, 1.0)])
        found[name] = {
            "request_ms": request_time(arm, clock),
            "self_ms": interval(own),
            "cross_ms": interval(cross),
            "per_step_ms": per_step(arm, dense, full, quarter),
        }
    if not found:
        return None
    if arms.PEER in layers:
        from liteattention_rocm import timing

        for name, one in found.items():
            if name == arms.PEER:
                continue
            ratio = timing.ratio(layers[name], layers[arms.PEER])
            one["speedup"] = {key: ratio[key] for key in ("low", "high", "prediction")}
            one["speedup"]["faster"] = {layers[name]["name"]: name, layers[arms.PEER]["name"]: arms.PEER}.get(
                ratio["faster"]
            )
            one["gains"] = {
                f"{share:g}": [amdahl.gain(share, ratio[end]) for end in ("low", "high")]
                for share in amdahl.STATED_SHARES
            }
    return {
        "shapes": {"self": TRUE_SELF, "cross": TRUE_CROSS},
        "arms": found,
        "goals": goals(layers[arms.PEER]) if arms.PEER in layers else None,
    }


def request_time(arm: dict[str, Any], clock: str) -> dict[str, Any]:
    """Attention of one video as launched, summed over its calls."""
    total = {"low": 0.0, "high": 0.0}
    for call in arm["attention"]:
        shape = launched_shape(call)
        one = profile(clock, shape)
        if call["role"] == "self" and arm["sparsity"] is not None:
            one = layer_time(one, *skipping_profiles(clock, shape), arm["sparsity"])
        for end in total:
            total[end] += call["calls"] * one["time_ms"][end]
    return total


def per_step(arm: dict[str, Any], dense: dict, full: dict, quarter: dict) -> list[list[float]]:
    """``[low, high]`` in milliseconds of a self-attention at :data:`TRUE_SELF`, in each step."""
    if arm["sparsity"] is None:
        return [[dense["time_ms"]["low"], dense["time_ms"]["high"]]] * len(arm["times"]["steps_s"])
    calls = arm["sparsity"]["calls"]
    answer = []
    for step in sorted({call["step"] for call in calls}):
        of_step = {"calls": [call for call in calls if call["step"] == step]}
        ends = layer_time(dense, full, quarter, of_step)["time_ms"]
        answer.append([ends["low"], ends["high"]])
    return answer


def goals(reference: dict) -> dict[str, dict[str, Any]]:
    """Sparsity of self-attention that each goal needs, by share: ``[low, high]``, or None out of reach.

    In the plugin's default rounding mode; cross-attention stays dense.
    """
    clock = arms.find(arms.OURS).clock
    full, quarter = skipping_profiles(clock, TRUE_SELF)
    cross = profile(clock, TRUE_CROSS)
    answer: dict[str, dict[str, Any]] = {}
    for goal in amdahl.GOALS:
        for share in amdahl.STATED_SHARES:
            speedup = amdahl.speedup_for(share, goal)
            needed = []
            for member in ensemble():
                ms = {
                    key: one["sets"][member]["time_ms"]
                    for key, one in (("all", full), ("few", quarter), ("cross", cross), ("peer", reference))
                }
                slope = (ms["few"] - ms["all"]) / 0.75
                needed.append(
                    None
                    if speedup is None
                    else amdahl.sparsity_for(speedup, ms["peer"], ms["all"] + ms["cross"], slope)
                )
            answer.setdefault(f"{goal:g}", {})[f"{share:g}"] = (
                None if any(one is None for one in needed) else [min(needed), max(needed)]
            )
    return answer


def ensemble() -> list[str]:
    from liteattention_rocm.timing.parameters import ensemble as members

    return members()
