"""How far the arms' videos are apart, over all requests, and whether they pass SGLang's gate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from e2e import arms, metrics, perceptual

# What SGLang's tests ask of a changed video. SSIM and PSNR hold for the worst frame, LPIPS for the mean of
# the frames looked at.
GATE = {"ssim": 0.92, "psnr_db": 24.0, "lpips": 0.15}
TOLERANCE_DB = 1.0  # how far our PSNR against AITER may lie below AITER's own noise floor


def pairs(names: list[str]) -> Iterator[tuple[str, str]]:
    """Which arms to compare: ours and AITER's with every other; all of them where neither is there.

    An arm of ours that skips is compared with its dense one in any case.
    """
    anchors = [name for name in (arms.OURS, arms.PEER) if name in names] or names
    for index, first in enumerate(anchors):
        for second in names:
            if second not in anchors[: index + 1]:
                yield first, second
    for name in names:
        dense = arms.dense(name)
        if dense != name and dense in names and dense not in anchors:
            yield dense, name


def compare(
    output: Path, results: dict[str, dict[str, Any]], tell: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """The differences of the arms' frames and latents, a dictionary per pair.

    Perceptual metrics are taken of pairs with the reference arm, which is the metric's reference too.

    Args:
        output: the run's folder.
        results: the report's arms.
        tell: called with what is being compared.

    Returns:
        Per pair ``a``, ``b``, ``noise_floor``, ``requests`` (everything by request's name), and over all
        requests ``identical``, ``psnr_db`` (of the mean error), ``ssim``, ``motion_psnr_db``,
        ``largest_pixel_difference``, ``differing_values``, ``worst_frame``, ``latents`` (per step, mean) and
        ``perceptual``.
    """
    finished = [name for name, arm in results.items() if arm["status"] == "ok"]
    reference = arms.reference(finished)
    compared = []
    for a, b in pairs(finished):
        tell(f"{a} / {b}: comparing")
        per_request = {}
        for request, folder in results[a]["requests"].items():
            folders = output / folder, output / results[b]["requests"][request]
            frames = [metrics.read_frames(one / "frames") for one in folders]
            one = metrics.compare_frames(*frames)
            one["worst_frame"] = worst_frame(one)
            one["latents"] = metrics.compare_latents(*(np.load(one / "latents.npy") for one in folders))
            if reference in (a, b):
                ordered = frames if b == reference else frames[::-1]
                one["perceptual"] = perceptual.compare(*ordered, one["worst_frame"]["frame"])
            per_request[request] = one
        floor = {a, b} == {arms.PEER, arms.PEER_RTNE}
        compared.append({"a": a, "b": b, "noise_floor": floor, "requests": per_request, **pool(per_request)})
    return compared


def worst_frame(one: dict[str, Any]) -> dict[str, Any]:
    """The frame of least PSNR: its number, PSNR, and the least SSIM of all frames."""
    values = [math.inf if value is None else value for value in one["psnr_db_per_frame"]]
    index = int(np.argmin(values))
    return {
        "frame": index,
        "psnr_db": metrics.finite(values[index]),
        "ssim": min(one["ssim_per_frame"]),
    }


def pool(per_request: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Over all requests: means, and the worst."""
    ones = list(per_request.values())
    worst = min(per_request.items(), key=lambda item: _infinite(item[1]["worst_frame"]["psnr_db"]))
    found = {
        "identical": all(one["identical"] for one in ones),
        "psnr_db": metrics.pooled_psnr([one["psnr_db"] for one in ones]),
        "motion_psnr_db": metrics.pooled_psnr([one["motion_psnr_db"] for one in ones]),
        "ssim": float(np.mean([one["ssim"] for one in ones])),
        "largest_pixel_difference": max(one["largest_pixel_difference"] for one in ones),
        "differing_values": float(np.mean([one["differing_values"] for one in ones])),
        "worst_frame": {
            "request": worst[0],
            **worst[1]["worst_frame"],
            "ssim": min(one["worst_frame"]["ssim"] for one in ones),
        },
        "latents": {
            name: np.mean([one["latents"][name] for one in ones], axis=0).tolist()
            for name in ("rmse", "cosine")
        },
        "perceptual": {},
    }
    seen = [one["perceptual"] for one in ones if "perceptual" in one]
    # A metric that failed in one request is of none.
    for name in set.intersection(*map(set, seen)) if seen else ():
        if name == perceptual.VIDEO:
            values = [one[name] for one in seen]
            found["perceptual"][name] = {"mean": float(np.mean(values)), "worst": min(values)}
        else:
            found["perceptual"][name] = {
                "mean": float(np.mean([one[name]["mean"] for one in seen])),
                "worst": max(one[name]["worst"] for one in seen),
            }
    return found


def _infinite(value: float | None) -> float:
    return math.inf if value is None else value


def find_pair(compared: list[dict[str, Any]], a: str, b: str) -> dict[str, Any] | None:
    """The entry of two arms, in either order."""
    return next((pair for pair in compared if {pair["a"], pair["b"]} == {a, b}), None)


def gate(
    compared: list[dict[str, Any]],
    results: dict[str, dict[str, Any]],
    thresholds: dict[str, float],
) -> dict[str, Any] | None:
    """Whether every finished arm's videos are as near to the reference's as SGLang asks of a changed video.

    Args:
        thresholds: as they were written down before the run, in the form of :data:`GATE`.

    Returns:
        ``reference``, ``thresholds``, ``lpips_missing`` (why, or None), and ``arms``: per arm ``passed`` and
        the values that decided, ``ssim``, ``psnr_db`` and ``lpips`` (None where not computed). None without a
        reference arm.
    """
    finished = [name for name, arm in results.items() if arm["status"] == "ok"]
    reference = arms.reference(finished)
    if reference is None or len(finished) < 2:
        return None
    judged: dict[str, dict[str, Any]] = {}
    for name in finished:
        pair = find_pair(compared, name, reference)
        if pair is None:
            continue
        lpips = pair["perceptual"].get("lpips", {}).get("mean")
        worst = pair["worst_frame"]
        judged[name] = {
            "ssim": worst["ssim"],
            "psnr_db": worst["psnr_db"],
            "lpips": lpips,
            "passed": worst["ssim"] >= thresholds["ssim"]
            and _infinite(worst["psnr_db"]) >= thresholds["psnr_db"]
            and (lpips is None or lpips <= thresholds["lpips"]),
        }
    return {
        "reference": reference,
        "thresholds": thresholds,
        "lpips_missing": perceptual.missing().get("lpips"),
        "arms": judged,
    }


def noise_floor_checks(compared: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether our video is as near to AITER's in its rounding mode as AITER's two modes are to each other.

    Diffusion trajectories part on rounding alone, so a PSNR says nothing without that floor.

    Returns:
        A check with ``name``, ``passed`` and ``detail`` for each of our dense arms that has its pair; none
        without both of AITER's arms.
    """
    floor = find_pair(compared, arms.PEER, arms.PEER_RTNE)
    found = []
    for ours, peer in arms.same_mode():
        pair = find_pair(compared, ours, peer)
        if pair is None or floor is None:
            continue
        values = decibels(pair["psnr_db"]), decibels(floor["psnr_db"])
        found.append(
            {
                "name": f"PSNR({ours}, {peer}) >= PSNR({arms.PEER}, {arms.PEER_RTNE}) - {TOLERANCE_DB:g} dB",
                "passed": _infinite(pair["psnr_db"]) >= _infinite(floor["psnr_db"]) - TOLERANCE_DB,
                "detail": "{} against a noise floor of {}".format(*values),
            }
        )
    return found


def own_videos_check(results: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Whether no two arms of different kernels or roundings made the same frames and latents: one that made
    another's to the bit was served by the other's attention. What a threshold skips may be nothing, or
    nothing that shows: such arms may equal the dense one.

    Returns:
        The check with ``name``, ``passed`` and ``detail``; None of a single arm.
    """
    digests = {
        name: {run["request"]: run["digest"] for run in arm["runs"] if run["round"] == 0}
        for name, arm in results.items()
        if arm["status"] == "ok"
    }
    if len(digests) < 2:
        return None

    def kind(name: str) -> tuple[str, str | None]:
        return arms.find(name).backend, arms.find(name).rounding

    same = [
        f"{a} and {b}"
        for a, b in itertools.combinations(digests, 2)
        if kind(a) != kind(b) and digests[a] == digests[b]
    ]
    return {
        "name": "every arm made a video of its own",
        "passed": not same,
        "detail": f"the same frames and latents: {', '.join(same)}" if same else f"{len(digests)} arms",
    }


def decibels(value: float | None) -> str:
    return "infinite (identical)" if value is None else f"{value:.2f} dB"
