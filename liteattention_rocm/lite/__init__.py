"""LiteAttention: attention that skips what no query looks at, across the steps of a denoising run."""

from .attention import LiteAttention
from .calibration import Calibration, ThresholdSearch

__all__ = ["Calibration", "LiteAttention", "ThresholdSearch"]
