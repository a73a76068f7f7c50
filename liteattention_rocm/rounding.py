"""The three ways in which float32 becomes bfloat16."""

import enum


class RoundMode(enum.Enum):
    """How probabilities and outputs are rounded to bfloat16. The values are AITER's `how_v3_bf16_cvt`.

    rtne: to nearest, ties to even; every NaN becomes 0x7FFF.
    rtna: to nearest, ties away from zero; every NaN becomes 0x7FFF. AITER's default.
    rtz:  toward zero; a NaN keeps its own upper 16 bits. What SGLang's AITER backend passes.
    """

    rtne = 0
    rtna = 1
    rtz = 2


ROUNDINGS = {mode.name: mode for mode in RoundMode}


def rounding_name(rounding) -> str:
    """Name of a rounding mode given as `RoundMode` or by name.

    Raises:
        TypeError: `rounding` is neither a string nor a `RoundMode`.
        ValueError: no mode has this name.
    """
    if isinstance(rounding, RoundMode):
        return rounding.name
    if not isinstance(rounding, str):
        raise TypeError(f"rounding must be a RoundMode or its name, got {rounding!r}")
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding must be one of {', '.join(map(repr, ROUNDINGS))}, got {rounding!r}")
    return rounding
