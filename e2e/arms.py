"""The arms of a comparison: which attention backend serves the video, in which rounding, on which device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

OURS = "liteattention_rocm"
PEER = "aiter"
PEER_RTNE = "aiter_rtne"
SAGE = "aiter_sage"
SDPA = "torch_sdpa"
OURS_RTZ = "liteattention_rocm_rtz"
AT = "@"  # what parts our arm's name from a threshold
DEFAULT = (OURS, OURS_RTZ, PEER, PEER_RTNE, SDPA)
SKIPPING = (OURS, "liteattention_rocm@-10", "liteattention_rocm@-6", PEER, PEER_RTNE)
FULL = (*SKIPPING, OURS_RTZ, SAGE, SDPA)
WITHOUT_SGLANG = (SDPA, OURS, "liteattention_rocm@-10", "liteattention_rocm@-6")
ALL = "all"  # stands for FULL


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
        clock: its dense kernel in :data:`liteattention_rocm.timing.KERNELS`; None where none is modelled.
        device_only: why it needs a GPU; empty where it doesn't.
    """

    name: str
    backend: str
    about: str
    rounding: str | None = None
    kernel: str | None = None
    threshold: float | None = None
    clock: str | None = None
    device_only: str = ""


_ARMS = (
    Arm(
        OURS,
        "liteattention_rocm",
        "this project's code object, rtne as the plugin has it by default",
        "rtne",
        "attention_",
        clock="ours:rtne",
    ),
    Arm(
        OURS_RTZ,
        "liteattention_rocm",
        "this project's code object, rtz as SGLang's AITER",
        "rtz",
        "attention_",
        clock="ours:rtz",
    ),
    Arm(
        PEER,
        "aiter",
        "AITER's code object, rtz as SGLang passes it",
        "rtz",
        "fmha_fwd_hd128_bf16_rtz",
        clock="aiter:rtz",
    ),
    Arm(
        PEER_RTNE,
        "aiter",
        "AITER's code object, rtne: the noise floor",
        "rtne",
        "fmha_fwd_hd128_bf16_rtne",
        clock="aiter:rtne",
    ),
    Arm(
        SAGE,
        "aiter_sage",
        "AITER's SageAttention",
        device_only="its kernels are compiled for the GPU at hand: there is no code object to simulate",
    ),
    Arm(SDPA, "torch_sdpa", "PyTorch's scaled_dot_product_attention"),
)
ARMS = {arm.name: arm for arm in _ARMS}


def find(name: str) -> Arm:
    """The arm of a name; behind one of ours, ``@T`` skips at the threshold T, for any T below 0.

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
    if base not in (OURS, OURS_RTZ) or not at or not (threshold < 0 or threshold == math.inf):
        raise ValueError(
            f"--arms: unknown arm {name!r} (allowed: {ALL}, {', '.join(ARMS)}, "
            f"{OURS}{AT}T or {OURS_RTZ}{AT}T with a threshold T < 0)"
        )
    dense = ARMS[base]
    about = f"this project's code object, {dense.rounding}, skipping at {threshold:g}"
    return replace(dense, name=name, about=about, threshold=threshold)


def dense(name: str) -> str:
    """The arm that differs from a skipping one in nothing but that it skips nothing."""
    return name.partition(AT)[0]


def moded(name: str) -> str:
    """The arm's name with its rounding mode behind it, where it has one: ``aiter (rtz)``."""
    rounding = find(name).rounding
    return f"{name} ({rounding})" if rounding else name


def same_mode() -> list[tuple[str, str]]:
    """Our dense arms, each with AITER's of the same rounding mode."""
    peers = {ARMS[name].rounding: name for name in (PEER, PEER_RTNE)}
    return [(name, peers[ARMS[name].rounding]) for name in (OURS, OURS_RTZ)]


def select(names: str) -> list[Arm]:
    """Arms named in a comma-separated list; ``all`` stands for :data:`FULL`.

    Raises:
        ValueError: an unknown or repeated name, or none at all.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if wanted == [ALL]:
        wanted = list(FULL)
    found = [find(name) for name in wanted]
    for name in wanted:
        if wanted.count(name) > 1:
            raise ValueError(f"--arms: {name!r} is named {wanted.count(name)} times")
    if not wanted:
        raise ValueError(f"--arms is empty (allowed: {ALL}, {', '.join(ARMS)})")
    return found


def at(threshold: str) -> str:
    """The name of our arm that skips at a threshold."""
    return f"{OURS}{AT}{threshold.strip()}"


def reference(names: list[str]) -> str | None:
    """The arm that others are compared with: AITER's as SGLang passes it, else ours; None with neither."""
    return next((name for name in (PEER, OURS) if name in names), None)
