"""Distances as people see them. Each says why where it can't be computed; none downloads anything.

- ``st_lpips``: shift-tolerant LPIPS, AlexNet, whose weights are in its package. 0 is identical. Its scale is
  not plain LPIPS's.
- ``lpips``: plain LPIPS, AlexNet, where torchvision's weights lie in torch's cache.
- ``cvvdp_jod``: ColorVideoVDP, a video metric in just-objectionable differences: 10 is identical, one less is
  what three of four people prefer the other video for.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

FRAMES_PER_SECOND = 16
DISPLAY = "standard_4k"  # ColorVideoVDP's viewing conditions
SAMPLED_ON_CPU = 2  # frames that networks look at there, evenly spread, beside the worst one
ALEXNET = "alexnet-owt-7be5be79.pth"  # torchvision's file in torch's cache
NETWORKS = {"st_lpips": "stlpips_pytorch", "lpips": "lpips"}
VIDEO = "cvvdp_jod"


def missing() -> dict[str, str]:
    """Why a metric can't be computed here, by the metric's name; what failed once is among them."""
    found = {name: f"{package} is not installed" for name, package in NETWORKS.items() if not _has(package)}
    if not _has("pycvvdp"):
        found[VIDEO] = "cvvdp is not installed"
    if "lpips" not in found and not alexnet_file().is_file():
        found["lpips"] = f"its weights, {ALEXNET}, are not in torch's cache"
    return {**found, **_failed}


_failed: dict[str, str] = {}


def alexnet_file() -> Path:
    """Where torchvision's AlexNet lies once it was downloaded."""
    return Path(torch.hub.get_dir()) / "checkpoints" / ALEXNET


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@functools.cache
def network(name: str) -> torch.nn.Module:
    """The network of a metric of :data:`NETWORKS`, ready for inference."""
    with contextlib.redirect_stdout(io.StringIO()):
        if name == "st_lpips":
            from stlpips_pytorch import stlpips

            found = stlpips.LPIPS(net="alex", variant="shift_tolerant", verbose=False)
        else:
            import lpips

            found = lpips.LPIPS(net="alex", verbose=False)
    return found.eval().to(device())


def sampled(frames: int, worst: int) -> list[int]:
    """The frames that networks look at: all on a device; on a CPU a few and the worst one."""
    if device().type != "cpu":
        return list(range(frames))
    return sorted(
        {*np.linspace(0, frames - 1, min(frames, SAMPLED_ON_CPU)).round().astype(int).tolist(), worst}
    )


def distances(name: str, a: np.ndarray, b: np.ndarray, frames: list[int]) -> list[float]:
    """A network's distance of each of some ``frames`` of two clips [F, H, W, 3] uint8."""
    found = []
    with torch.inference_mode():
        for index in frames:
            x, y = (
                torch.from_numpy(clip[index].copy()).permute(2, 0, 1)[None].float().to(device()) / 127.5 - 1
                for clip in (a, b)
            )
            found.append(float(network(name)(x, y).mean()))
    return found


@functools.cache
def video_metric() -> Any:
    import pycvvdp

    return pycvvdp.cvvdp(display_name=DISPLAY, device=device(), quiet=True)


def video_quality(a: np.ndarray, b: np.ndarray) -> float:
    """ColorVideoVDP of a clip [F, H, W, 3] uint8 beside the reference ``b``, in JOD."""
    with contextlib.redirect_stderr(io.StringIO()), torch.inference_mode():
        quality, _ = video_metric().predict(a, b, dim_order="FHWC", frames_per_second=FRAMES_PER_SECOND)
    return float(quality)


def compare(a: np.ndarray, b: np.ndarray, worst: int) -> dict[str, Any]:
    """Every metric that can be computed, of a clip [F, H, W, 3] uint8 beside the reference ``b``.

    Args:
        worst: index of the frame that is always looked at.

    Returns:
        Per network its ``mean``, ``worst`` and the ``frames`` it looked at; JOD under :data:`VIDEO`.
    """
    frames = sampled(len(a), worst)
    found: dict[str, Any] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small convolutions: threads that wait for each other cost more than they save
    try:
        _compute(a, b, frames, found)
    finally:
        torch.set_num_threads(threads)
    return found


def _compute(a: np.ndarray, b: np.ndarray, frames: list[int], found: dict[str, Any]) -> None:
    for name in (*NETWORKS, VIDEO):
        if name in missing():
            continue
        try:
            if name == VIDEO:
                found[name] = video_quality(a, b)
                continue
            values = distances(name, a, b, frames)
            found[name] = {"mean": float(np.mean(values)), "worst": max(values), "frames": frames}
        except Exception as error:  # whatever a package does, hours of videos keep their report
            _failed[name] = f"{type(error).__name__}: {error}"
