"""When a layer goes back to dense attention because skipping doesn't pay, and when it tries again."""

import logging

logger = logging.getLogger("liteattention_rocm")

# Measured on an H200 at 1,12,32760: with every tile listed the Triton kernel takes 1.07 (rtne, rtz) to 1.09
# (rtna) times as long as without a list.
TRITON_BREAK_EVEN = 0.08
HYSTERESIS = 0.02  # above break-even by this much to come back; below by as much, or half of it, to leave
PATIENCE = 3  # calls in a row that are below
PROBE_EVERY = 10  # dense calls between two tries

_told: set[str] = set()  # decisions that this process has logged at the info level


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
        """The share of tiles that the next call can skip, comparable with `break_even`."""
        if self.dense:
            if share >= self.break_even + HYSTERESIS:
                self._log("skipping again", share)
                self.reset()
            return
        margin = min(HYSTERESIS, self.break_even / 2)
        self._below = self._below + 1 if share < self.break_even - margin else 0
        if self._below >= PATIENCE:
            self._log("dense from now on", share)
            self.dense, self._dense_calls = True, 0

    def _log(self, decision: str, share: float) -> None:
        """The process's first of a kind at the info level; a model has a list per layer and branch."""
        first = decision not in _told
        _told.add(decision)
        logger.log(
            logging.INFO if first else logging.DEBUG,
            "LiteAttention%s: %s, %.1f %% of the tiles can be skipped and skipping pays from %.1f %%%s",
            f" {self.name}" if self.name else "",
            decision,
            100 * share,
            100 * self.break_even,
            "; more of this at the debug level" if first else "",
        )
