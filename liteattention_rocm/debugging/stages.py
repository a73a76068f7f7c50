"""The stages of attention in float64, and how far float32 may stray from them.

A tile is 64 kv rows. S and both P are [batch, heads, rows, tiles · 64], row maximum and row sum [batch,
heads, rows, tiles]; values belong to the moment after their tile. m is the running maximum, c is
|scale|·log2(e):

    S             q·k, unscaled (of -q where the scale is negative); -Inf behind the last kv row
    row maximum   m
    P             2^((S - m)·c)
    packed P      P rounded to bfloat16
    row sum       of P, over all tiles so far, in units of 2^(m·c)
    LSE           m·|scale| + ln(row sum), after the last tile
    O             (sum of packed P·v, in units of 2^(m·c)) / row sum, after the last tile

Tolerances are sums of the rounding errors of float32, each at its bound (Higham, Accuracy and Stability of
Numerical Algorithms, chapters 2 and 3: n additions of products err by n·u·Σ|a·b|, u = 2^-24). v_exp_f32,
v_log_f32 and Triton's counterparts err by up to 2 units in the last place.
"""

import math
from dataclasses import dataclass

import torch

from .. import reference
from ..lite import lists

TILE = lists.KV_ROWS_PER_TILE
U = 2.0**-24  # unit roundoff of float32
_LOWEST = torch.finfo(torch.float32).min
TINY = 2.0**-125  # below the normal numbers of float32, which may be flushed

PER_TILE = ("S", "row maximum", "P", "packed P", "row sum")
AT_THE_END = ("LSE", "O")
STAGES = PER_TILE + AT_THE_END
WIDE = ("S", "P", "packed P")
MAX_ULPS = 1 << 24
BF16_STAGES = ("packed P", "O")  # the others are float32


@dataclass
class Expected:
    """Stages in float64 and their tolerances, by stage."""

    values: dict
    tolerances: dict
    weights: torch.Tensor  # 2^((m_tile - m_last)·c): [batch, heads, rows, tiles]
    v: torch.Tensor  # float64 [batch, heads, tiles · 64, 128], 0 behind the last row
    rounding: str


def expected(q, k, v, *, scale: float, layout: str, rounding: str) -> Expected:
    """All stages but O, which depends on how an implementation rounded P: see `expected_output`."""
    q, k, v = reference.per_head(q, k, v, layout, torch.float64)
    if scale < 0:
        q, scale = -q, -scale
    c = max(scale * math.log2(math.e), torch.finfo(torch.float32).tiny)
    columns = k.shape[2]
    padding = -columns % TILE
    tiles = (columns + padding) // TILE
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, padding)) for x in (k, v))
    s = q @ k.transpose(2, 3)
    s_error = q.shape[-1] * U * (q.abs() @ k.abs().transpose(2, 3))
    s[..., columns:] = -math.inf
    s_error[..., columns:] = 0.0
    tiled, tiled_error = s.unflatten(-1, (tiles, TILE)), s_error.unflatten(-1, (tiles, TILE))
    m = tiled.amax(-1).clamp_min(_LOWEST).cummax(-1).values
    m_error = tiled_error.amax(-1).cummax(-1).values

    def exponential(difference, error):
        """2^(difference·c) and its error, for a difference that errs by `error`."""
        value = torch.exp2(difference * c)
        exponent_error = (error + 2 * U * difference.abs().nan_to_num(posinf=0.0)) * c
        relative = torch.expm1(exponent_error * math.log(2)) + 4 * U
        return value, torch.where(value == 0, 0.0, value * relative) + TINY

    p, p_error = exponential(tiled - m.unsqueeze(-1), tiled_error + m_error.unsqueeze(-1))
    p_error[tiled == -math.inf] = 0.0
    previous = torch.nn.functional.pad(m, (1, 0), value=_LOWEST)[..., :-1]
    previous_error = torch.nn.functional.pad(m_error, (1, 0))[..., :-1]
    shrink, shrink_error = exponential(previous - m, previous_error + m_error)
    total, total_error = torch.zeros_like(m[..., 0]), torch.zeros_like(m[..., 0])
    totals, total_errors = [], []
    for tile in range(tiles):
        grown = total * shrink[..., tile] + p[..., tile, :].sum(-1)
        total_error = (
            total_error * shrink[..., tile]
            + total * shrink_error[..., tile]
            + p_error[..., tile, :].sum(-1)
            + (TILE + 2) * U * grown
        )
        total = grown
        totals.append(total)
        total_errors.append(total_error)
    row_sum, row_sum_error = torch.stack(totals, -1), torch.stack(total_errors, -1)
    lse = m[..., -1] * scale + torch.log(total)
    lse_error = (
        m_error[..., -1] * scale
        + total_error / total
        + 4 * U * (m[..., -1].abs() * scale + torch.log(total).abs() + 1)
    )
    rounded = reference.round_to_bfloat16(p.float(), rounding).double()
    values = {
        "S": s,
        "row maximum": m,
        "P": p.flatten(-2),
        "packed P": rounded.flatten(-2),
        "row sum": row_sum,
        "LSE": lse,
    }
    tolerances = {
        "S": s_error,
        "row maximum": m_error,
        "P": p_error.flatten(-2),
        "packed P": (p_error + 2**-7 * p).flatten(-2),  # that of P, then a step of bfloat16
        "row sum": row_sum_error,
        "LSE": lse_error,
    }
    weights = torch.exp2((m - m[..., -1:]) * c)
    return Expected(values, tolerances, weights, v, rounding)


def expected_output(of: Expected, packed, exact: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """O in float64 from an implementation's own packed P, and its tolerance: [batch, heads, rows, 128] both.

    So O shows the second product, the rescaling and the division alone. Its tolerance has the rounding
    errors of the sums, of the row sum, and a step of bfloat16. exact: false where `packed` is not the
    implementation's own, which may round each P by a step elsewhere.
    """
    tiles = of.weights.shape[-1]
    weighted = packed.double() * of.weights.repeat_interleave(TILE, -1)
    total = of.values["row sum"][..., -1:]
    relative = of.tolerances["row sum"][..., -1:] / total
    out = weighted @ of.v / total
    spread = weighted @ of.v.abs() / total
    if not exact:
        relative = relative + 2**-7
    # Each tile multiplies by a shrink whose error is that of the row sum at most.
    return out, spread * ((TILE + 4) * tiles * U + 2 * relative) + 2**-7 * out.abs() + TINY


def packing_is_exact(p, packed, rounding: str) -> torch.Tensor:
    """Where an implementation's packed P is its own P, rounded: bool of their shape."""
    own = reference.round_to_bfloat16(p, rounding).float()
    return (own == packed) | (own.isnan() & packed.isnan())


def ulps(a, b, stage: str) -> torch.Tensor:
    """Units in the last place between two tensors, as numbers of the stage's type: MAX_ULPS at most."""
    if stage in BF16_STAGES:
        ordered = [
            _ordered(x.to(torch.bfloat16).contiguous().view(torch.int16).to(torch.int64), 15) for x in (a, b)
        ]
    else:
        ordered = [
            _ordered(x.to(torch.float32).contiguous().view(torch.int32).to(torch.int64), 31) for x in (a, b)
        ]
    return (ordered[0] - ordered[1]).abs().clamp_max(MAX_ULPS)


def _ordered(bits, sign_bit: int):
    """Integers in the order of the floats whose sign-extended bits these are."""
    return torch.where(bits < 0, -(bits & ((1 << sign_bit) - 1)), bits)
