"""Thresholds per layer and step, found from a target for the error of the attention output."""

import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .. import arguments
from ..ops import attention as dense_attention
from . import lists, ops

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOWEST, HIGHEST = -30.0, -0.5  # log2 units; 2^-30 is below what float32 sums resolve
ITERATIONS = 7  # of the search: thresholds to within 0.25


def relative_error(actual, expected) -> float:
    """‖actual − expected‖ / ‖expected‖ in float64. Waits for the device."""
    difference = (actual.double() - expected.double()).norm()
    return (difference / expected.double().norm().clamp_min(torch.finfo(torch.float64).tiny)).item()


@dataclass
class Calibration:
    """Thresholds of a model.

    Attributes:
        target_error: relative error of each attention output that they were searched for.
        thresholds: by layer, one for each step, log2 units; −inf where a layer must keep what it has.
    """

    target_error: float
    thresholds: dict[str, list[float]] = field(default_factory=dict)

    def save(self, path) -> None:
        """Writes a TOML file."""
        lines = [f"target_error = {float(self.target_error)!r}", "", "[thresholds]  # log2 units, by step"]
        for layer, steps in self.thresholds.items():
            lines.append(f"{json.dumps(layer)} = [{', '.join(repr(float(step)) for step in steps)}]")
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path) -> "Calibration":
        """Reads what `save` wrote.

        Raises:
            ValueError: no such TOML; names the file, the layer and the value.
            OSError: the file cannot be read.
        """
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is no TOML file: {error}") from error
        if unknown := set(content) - {"target_error", "thresholds"}:
            raise ValueError(
                f"{path}: unknown key {sorted(unknown)[0]!r}, allowed are target_error, thresholds"
            )
        target, layers = content.get("target_error"), content.get("thresholds")
        if isinstance(target, bool) or not isinstance(target, (int, float)) or not target > 0:
            raise ValueError(f"{path}: target_error must be a number above 0, got {target!r}")
        if not isinstance(layers, dict):
            raise ValueError(f"{path}: thresholds must be a table, got {layers!r}")
        for layer, steps in layers.items():
            if not isinstance(steps, list) or not steps:
                raise ValueError(f"{path}: thresholds of layer {layer!r} must be a list, got {steps!r}")
            for step, threshold in enumerate(steps):
                try:
                    ops.check_threshold(threshold)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"{path}: layer {layer!r}, step {step}: {error}") from error
        return cls(float(target), {layer: [float(t) for t in steps] for layer, steps in layers.items()})


class ThresholdSearch:
    """Stands in for the LiteAttention of one layer during a calibration run, which it leaves dense.

    In each call it looks for the largest threshold whose list, applied to this very call, keeps the relative
    error of the output within the target, and goes on with that list.

    Args:
        target_error: relative error, above 0.
        layout, rounding: as LiteAttention's.

    Attributes:
        thresholds: found so far, by step.
        errors: what they cost in the call that they were found in. Above the target where the threshold is
            −inf: the pattern has moved, and tiles dropped before are missed.
    """

    def __init__(self, target_error: float, *, layout="bshd", rounding="rtne"):
        if isinstance(target_error, bool) or not isinstance(target_error, (int, float)):
            raise TypeError(f"target_error must be a number, got {target_error!r}")
        if not target_error > 0:
            raise ValueError(f"target_error must be above 0, got {target_error}")
        arguments.check_layout(layout)
        self.target_error, self.layout, self.rounding = float(target_error), layout, rounding
        self.reset_skip_state()

    def reset_skip_state(self) -> None:
        self.thresholds, self.errors = [], []
        self._list, self._phase = None, 1

    def __call__(self, q, k, v, scale=None, return_softmax_lse=False):
        """Dense attention, as `liteattention_rocm.attention` gives it. Waits for the device."""
        options = {"scale": scale, "layout": self.layout, "rounding": self.rounding}
        answer = dense_attention(q, k, v, return_lse=True, **options)
        sizes = arguments.check_inputs(q, k, v, self.layout)
        if sizes.empty:
            return answer if return_softmax_lse else answer[0]
        shape, tiles = ops.list_shape(sizes), lists.kv_tiles(sizes.seqlen_kv)
        if self._list is None or self._list.shape != shape or self._list.device != q.device:
            self._list = lists.full(shape[:3], tiles, q.device)

        def attempt(threshold):
            """The list that a threshold leaves, and the error of attention over it."""
            written = torch.zeros_like(self._list)
            torch.ops.liteattention_rocm.attention_skip(
                q, k, v, self._list, written, threshold=threshold, backward=self._phase == 0, **options
            )
            out, _ = torch.ops.liteattention_rocm.attention_skip(
                q, k, v, written, self._list.clone(), threshold=-1.0, backward=self._phase == 1, **options
            )
            return written, relative_error(out, answer[0])

        best = (-math.inf, *attempt(-math.inf))
        low, high = LOWEST, HIGHEST
        for threshold in (HIGHEST, LOWEST):
            written, error = attempt(threshold)
            if error <= self.target_error:
                best = (threshold, written, error)
                break
        if best[0] == LOWEST:
            for _ in range(ITERATIONS):
                middle = (low + high) / 2
                written, error = attempt(middle)
                if error <= self.target_error:
                    low, best = middle, (middle, written, error)
                else:
                    high = middle
        self.thresholds.append(best[0])
        self.errors.append(best[2])
        self._list, self._phase = best[1], 1 - self._phase
        return answer if return_softmax_lse else answer[0]
