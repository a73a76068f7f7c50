"""The arms of a comparison: which attention backend serves the video, in which rounding, on which device."""

from __future__ import annotations

import math
from dataclasses import dataclass

OURS = "liteattention_rocm"
PEER = "aiter"
PEER_RTNE = "aiter_rtne"
SDPA = "torch_sdpa"
OURS_RTNE = "liteattention_rocm_rtne"
DEFAULT = (OURS, PEER, PEER_RTNE, SDPA)
SKIPPING = (OURS, "liteattention_rocm@-10", "liteattention_rocm@-6", PEER, PEER_RTNE)
AT = "@"  # what parts our arm's name from a threshold


@dataclass(frozen=True)
class Arm:
    """One way to make the video.

    Attributes:
        name: as given to ``--arms``.
        backend: SGLang's ``--attention-backend``.
        about: what computes the attention, for the report.
        rounding: bfloat16 rounding of P and O that the arm asks its kernel for; None where there is no
            choice.
        kernel: part of the name of every kernel that serves the arm's attention; None where the simulator
            runs none.
        threshold: of the KV tiles that self-attention skips, in log2 units; None skips none.
    """

    name: str
    backend: str
    about: str
    rounding: str | None = None
    kernel: str | None = None
    threshold: float | None = None


_ARMS = (
    Arm(OURS, "liteattention_rocm", "this project's code object, rtz", "rtz", "attention_forward_rtz"),
    Arm(
        OURS_RTNE,
        "liteattention_rocm",
        "this project's code object, rtne",
        "rtne",
        "attention_forward_rtne",
    ),
    Arm(PEER, "aiter", "AITER's code object, rtz as SGLang passes it", "rtz", "fmha_fwd_hd128_bf16_rtz"),
    Arm(PEER_RTNE, "aiter", "AITER's code object, rtne: the noise floor", "rtne", "fmha_fwd_hd128_bf16_rtne"),
    Arm(SDPA, "torch_sdpa", "PyTorch's scaled_dot_product_attention"),
)
ARMS = {arm.name: arm for arm in _ARMS}


def find(name: str) -> Arm:
    """The arm of a name; ``liteattention_rocm@T`` skips at the threshold T, for any T below 0.

    Raises:
        ValueError: there is none.
    """
    if name in ARMS:
        return ARMS[name]
    base, at, text = name.partition(AT)
    try:
        threshold = float(text)
    except ValueError:
        threshold = math.nan
    if base != OURS or not at or not (threshold < 0 or threshold == math.inf):
        raise ValueError(
            f"--arms: unknown arm {name!r} (allowed: {', '.join(ARMS)}, {OURS}{AT}T with a threshold T < 0)"
        )
    about = f"this project's code object, rtz, skipping at {threshold:g}"
    return Arm(name, "liteattention_rocm", about, "rtz", "attention_", threshold)


def select(names: str) -> list[Arm]:
    """Arms named in a comma-separated list.

    Raises:
        ValueError: an unknown or repeated name, or none at all.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    found = [find(name) for name in wanted]
    for name in wanted:
        if wanted.count(name) > 1:
            raise ValueError(f"--arms: {name!r} is named {wanted.count(name)} times")
    if not wanted:
        raise ValueError(f"--arms is empty (allowed: {', '.join(ARMS)})")
    return found


def at(threshold: str) -> str:
    """The name of our arm that skips at a threshold."""
    return f"{OURS}{AT}{threshold.strip()}"
