"""How far two videos are apart, from their uncompressed frames and their latents."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from skimage.metrics import peak_signal_noise_ratio, structural_similarity


def read_frames(folder: Path) -> np.ndarray:
    """Frames [F, H, W, 3] uint8 of the PNG files in ``folder``, in the order of their names.

    Raises:
        FileNotFoundError: there are none.
    """
    from PIL import Image

    files = sorted(Path(folder).glob("*.png"))
    if not files:
        raise FileNotFoundError(f"no PNG frames in {folder}")
    return np.stack([np.asarray(Image.open(file)) for file in files])


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB of uint8 arrays of one shape, over all values; infinite when equal."""
    if np.array_equal(a, b):
        return math.inf
    return float(peak_signal_noise_ratio(a, b, data_range=255))


def motion_psnr(a: np.ndarray, b: np.ndarray) -> float:
    """PSNR in dB of the differences of consecutive frames [F, H, W, 3] uint8; infinite of a single frame."""
    moved = [np.diff(clip.astype(np.int16), axis=0) for clip in (a, b)]
    error = np.mean((moved[0] - moved[1]).astype(np.float64) ** 2) if len(a) > 1 else 0.0
    return 10 * math.log10(255**2 / error) if error else math.inf


def pooled_psnr(values: list[float | None]) -> float | None:
    """PSNR in dB of the mean error of clips of one size, from theirs; None where all are infinite."""
    error = np.mean([0.0 if value is None else 10 ** (-value / 10) for value in values])
    return float(-10 * math.log10(error)) if error else None


def ssim_per_frame(a: np.ndarray, b: np.ndarray) -> list[float]:
    """Structural similarity of each of the frames [F, H, W, 3] uint8, on colour channels."""
    return [
        float(structural_similarity(x, y, channel_axis=-1, data_range=255)) for x, y in zip(a, b, strict=True)
    ]


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Mean structural similarity of frames [F, H, W, 3] uint8."""
    return float(np.mean(ssim_per_frame(a, b)))


def compare_frames(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """Differences of two clips [F, H, W, 3] uint8.

    Returns:
        ``psnr_db`` over the clip, ``psnr_db_per_frame``, ``motion_psnr_db`` (of what changes from frame to
        frame: it falls where one clip flickers), ``ssim`` (mean) and ``ssim_per_frame``,
        ``largest_pixel_difference`` in 8-bit levels, ``differing_values`` as a share of all values, and
        ``identical``. A PSNR is None where it is infinite.

    Raises:
        ValueError: shapes differ.
    """
    if a.shape != b.shape:
        raise ValueError(f"clips of shape {a.shape} and {b.shape} can't be compared")
    difference = np.abs(a.astype(np.int16) - b.astype(np.int16))
    similarity = ssim_per_frame(a, b)
    return {
        "identical": not difference.any(),
        "psnr_db": finite(psnr(a, b)),
        "psnr_db_per_frame": [finite(psnr(x, y)) for x, y in zip(a, b, strict=True)],
        "motion_psnr_db": finite(motion_psnr(a, b)),
        "ssim": float(np.mean(similarity)),
        "ssim_per_frame": similarity,
        "largest_pixel_difference": int(difference.max()),
        "differing_values": float(np.mean(difference != 0)),
    }


def compare_latents(a: np.ndarray, b: np.ndarray) -> dict[str, list[float]]:
    """Per step, root-mean-square error and cosine of latents [steps, C, F, h, w].

    Raises:
        ValueError: shapes differ.
    """
    if a.shape != b.shape:
        raise ValueError(f"latents of shape {a.shape} and {b.shape} can't be compared")
    x, y = (array.reshape(len(array), -1).astype(np.float64) for array in (a, b))
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return {
        "rmse": np.sqrt(np.mean((x - y) ** 2, axis=1)).tolist(),
        "cosine": (np.sum(x * y, axis=1) / norms).tolist(),
    }


def finite(value: float) -> float | None:
    """The value as JSON can hold it: None for infinity."""
    return value if math.isfinite(value) else None
