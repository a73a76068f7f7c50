"""The arms of a comparison: which attention backend serves the video, in which rounding, on which device."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "liteattention_rocm"
PEER = "aiter"
PEER_RTNE = "aiter_rtne"
SDPA = "torch_sdpa"
DEFAULT = (OURS, PEER, PEER_RTNE, SDPA)


@dataclass(frozen=True)
class Arm:
    """One way to make the video.

    Attributes:
        name: as given to ``--arms``.
        backend: SGLang's ``--attention-backend``.
        about: what computes the attention, for the report.
        rounding: bfloat16 rounding of P and O that the arm asks its kernel for; None where there is no
            choice.
        kernel: part of the name of the one kernel that serves the arm's attention; None where the simulator
            runs none.
    """

    name: str
    backend: str
    about: str
    rounding: str | None = None
    kernel: str | None = None


_ARMS = (
    Arm(OURS, "liteattention_rocm", "this project's code object, rtz", "rtz", "attention_forward_rtz"),
    Arm(
        "liteattention_rocm_rtne",
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


def select(names: str) -> list[Arm]:
    """Arms named in a comma-separated list.

    Raises:
        ValueError: an unknown or repeated name, or none at all.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in ARMS:
            raise ValueError(f"--arms: unknown arm {name!r} (allowed: {', '.join(ARMS)})")
        if wanted.count(name) > 1:
            raise ValueError(f"--arms: {name!r} is named {wanted.count(name)} times")
    if not wanted:
        raise ValueError(f"--arms is empty (allowed: {', '.join(ARMS)})")
    return [ARMS[name] for name in wanted]
