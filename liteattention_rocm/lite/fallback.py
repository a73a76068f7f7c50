"""When a layer goes back to dense attention because skipping doesn't pay, and when it tries again."""

import logging

from .. import _C

logger = logging.getLogger("liteattention_rocm")

# Clocks of the skipping kernel over those of the dense kernel it is made from, with every tile listed:
# modelled, 0.96 to 1.01 over rtne, rtz and the model's parameter sets.
SKIPPING_OVER_FORWARD = 1.01
# Measured on an H200 at 1,12,32760: with every tile listed the Triton kernel takes 1.05 (rtne) to 1.09 (rtz)
# times as long as without a list.
TRITON_BREAK_EVEN = 0.08
HYSTERESIS = 0.02  # below break-even by this much to leave, above by as much to come back
PATIENCE = 3  # calls in a row that are below
PROBE_EVERY = 10  # dense calls between two tries


def modelled_break_even(sizes, compute_units: int) -> float:
    """The share of tiles that must be skipped for the skipping kernel to be as fast as the dense kernel that
    a plan chooses for these sizes. Modelled: see docs/timing.md."""
    shape = (sizes.batch, sizes.heads, sizes.kv_heads, sizes.seqlen_q, sizes.seqlen_kv)
    dense = _C.plan(*shape, compute_units)["modelled_clocks"]
    skipping = SKIPPING_OVER_FORWARD * _C.plan(*shape, compute_units, "forward")["modelled_clocks"]
    return max(0.0, 1.0 - dense / skipping)


def break_even_of(kernel, sizes) -> float:
    """The share of tiles from which skipping pays on what `dispatch.serving` gave for a device."""
    if kernel.name == "hip":
        return modelled_break_even(sizes, kernel.target.compute_units)
    return TRITON_BREAK_EVEN if kernel.name == "triton" else 0.0


class Fallback:
    """The state of one layer.

    Args:
        break_even: share of tiles; 0: never dense.
        name: of the layer, for the log.
    """

    def __init__(self, break_even: float = 0.0, name: str = ""):
        self.break_even, self.name = break_even, name
        self.reset()

    def reset(self) -> None:
        self.dense = False
        self._below = 0
        self._dense_calls = 0

    def next_call(self) -> str:
        """What the next call should be: "skip", "dense", or "probe": skip, starting from the full list."""
        if not self.dense:
            return "skip"
        self._dense_calls += 1
        return "probe" if self._dense_calls % (PROBE_EVERY + 1) == 0 else "dense"

    def observe(self, share: float) -> None:
        """The share of tiles that the list just written lets the next call skip."""
        if self.dense:
            if share >= self.break_even + HYSTERESIS:
                self._log("skipping again", share)
                self.reset()
            return
        self._below = self._below + 1 if share < self.break_even - HYSTERESIS else 0
        if self._below >= PATIENCE:
            self._log("dense from now on", share)
            self.dense, self._dense_calls = True, 0

    def _log(self, decision: str, share: float) -> None:
        logger.info(
            "LiteAttention%s: %s, %.1f %% of the tiles can be skipped and skipping pays from %.1f %%",
            f" {self.name}" if self.name else "",
            decision,
            100 * share,
            100 * self.break_even,
        )
