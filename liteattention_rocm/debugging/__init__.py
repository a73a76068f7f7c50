"""Where two implementations of one attention call part: see `compare`."""

from .comparison import Comparison, Parting, compare

__all__ = ["Comparison", "Parting", "compare"]
