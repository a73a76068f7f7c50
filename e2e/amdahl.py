"""What an attention backend can gain end to end, by the share that attention has of the reference's time."""

from __future__ import annotations

STATED_SHARES = (0.3, 0.5, 0.7)  # of a Wan2.1 step in published reports, 480p to 720p, where none is measured
GOALS = (1.23, 1.30)  # end-to-end gains over AITER whose price in sparsity is printed


def gain(share: float, speedup: float) -> float:
    """End-to-end gain where a share of the time becomes faster by ``speedup``: Amdahl's law."""
    return 1 / (1 - share + share / speedup)


def limit(share: float) -> float:
    """The gain with attention that takes no time; infinite at a share of 1."""
    return 1 / (1 - share) if share < 1 else float("inf")


def speedup_for(share: float, wanted: float) -> float | None:
    """How much faster attention must be for a gain; None where the share doesn't allow it."""
    left = 1 / wanted - (1 - share)
    return share / left if left > 1e-12 else None


def sparsity_for(speedup: float, reference: float, start: float, slope: float) -> float | None:
    """The share of KV tiles to skip so that attention is ``speedup`` times as fast as a reference.

    Args:
        reference: time of the reference's attention.
        start, slope: skipping attention takes ``start + slope·sparsity``.

    Returns:
        0 where no skipping is needed; None where skipping everything would not do.
    """
    if reference / speedup >= start:
        return 0.0
    if slope >= 0:
        return None
    found = (reference / speedup - start) / slope
    return found if found <= 1 else None
