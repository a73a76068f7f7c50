"""Skip lists per layer, guidance branch and denoising run.

SGLang publishes what a layer needs to know in its forward context: the request, the step's index and the
branch of guidance. A run's lists lie in the request, under the key of which SGLang's standard denoising
stages drop everything when the loop ends: they can't outlive the request, nor meet another's, whatever order
requests are served in. A worker that serves one branch of guidance, or some of the heads, holds just these.

Within a run a list is good for the very next step only. A step index that jumps, because a cache answered for
the block or the whole step, or that doesn't advance, because a loop begins anew, starts the layer over.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.multimodal_gen.runtime.managers.forward_context import (
    DENOISING_LOOP_STATE,
    get_forward_context_or_none,
)

import liteattention_rocm
from liteattention_rocm import lite
from sglang_integration.plugin import BACKEND_NAME
from sglang_integration.settings import Settings
from sglang_integration.sparsity import Call, Record

_run_numbers = itertools.count(1)


@dataclass(frozen=True)
class Place:
    """Where in a denoising run a layer is called."""

    run: DenoisingRun
    step: int
    negative: bool


@dataclass
class LayerLists:
    """One layer's skip lists in one branch of a run.

    Attributes:
        attention: the ``LiteAttention`` that owns them.
        step: index of the step in which they were written.
        shape: of query and key then.
        calls: of the layer in that step.
    """

    attention: Any
    step: int
    shape: tuple[int, ...]
    calls: int = 0


@dataclass(eq=False)
class DenoisingRun:
    """Everything kept for one denoising loop.

    Attributes:
        settings: the plugin's.
        record: sparsity per call; None where nobody reads it.
        step: index of the latest step seen.
        loops: how often the loop began anew, as with models that make a video clip by clip.
    """

    settings: Settings
    record: Record | None = None
    step: int = -1
    loops: int = 0
    lists: dict[tuple[object, bool], LayerLists] = field(default_factory=dict)
    names: dict[object, str] = field(default_factory=dict)

    def name(self, layer: object, prefix: str) -> str:
        """The layer's name in this run; where two models have one of that name, the second's ends in @2."""
        if layer not in self.names:
            same = sum(name.partition("@")[0] == prefix for name in self.names.values())
            self.names[layer] = prefix if same == 0 else f"{prefix}@{same + 1}"
        return self.names[layer]

    def begin(self, step: int) -> None:
        """Takes note of the step and drops what it makes worthless: lists that missed a step or a loop."""
        if step == self.step:
            return
        anew = step < self.step
        self.loops += anew
        self.step = step
        for key in [key for key, kept in self.lists.items() if anew or kept.step != step - 1]:
            del self.lists[key]

    def attend(
        self,
        layer: object,
        prefix: str,
        place: Place,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """One call of a self-attention layer; tensors [B, S, H, 128]."""
        self.begin(place.step)
        name, shape = self.name(layer, prefix), (*query.shape, key.shape[1])
        limit = self.settings.threshold_for(name, place.step)
        if self.settings.calibrate is not None:
            search, _ = self.lists_for(layer, name, place, shape)
            out = search(query, key, value, scale=scale)
            if self.record is not None:
                self.record.found(name, place.step, search.thresholds[-1])
            return out
        if place.step < self.settings.exact_first_steps - 1:
            action, skipped = "dense", 0.0
            out = liteattention_rocm.attention(
                query, key, value, scale=scale, layout="bshd", rounding=self.settings.rounding
            )
        else:
            attention, fresh = self.lists_for(layer, name, place, shape)
            attention.set_threshold(limit)
            must_do = self.settings.must_do_within(key.shape[1])
            out = attention(query, key, value, scale=scale, must_do_list=must_do)
            action = "dense" if attention.last_was_dense else "fresh" if fresh else "skip"
            skipped = attention.calc_percentage() if self.record is not None else 0.0
        if self.record is not None:
            branch = "unconditional" if place.negative else "conditional"
            self.record.add(Call(name, branch, place.step, self.loops, action, skipped, limit, shape))
        return out

    def lists_for(self, layer: object, name: str, place: Place, shape: tuple[int, ...]) -> tuple[Any, bool]:
        """What owns the layer's lists here, started over unless they are the last step's; whether it was.

        Of several calls in a step nothing says which one in the next step is like which.
        """
        kept = self.lists.get((layer, place.negative))
        if kept is None:
            kept = LayerLists(make_attention(self.settings, name), place.step, shape)
            self.lists[layer, place.negative] = kept
        fresh = kept.step != place.step - 1 or kept.calls != 1 or kept.shape != shape
        if fresh and kept.calls:
            kept.attention.reset_skip_state()
        kept.calls = kept.calls + 1 if kept.step == place.step else 1
        kept.step, kept.shape = place.step, shape
        return kept.attention, fresh


def make_attention(settings: Settings, name: str) -> Any:
    """A ``LiteAttention`` for one layer, by its name, in one branch and run; in a calibration its search."""
    if settings.calibrate is not None:
        return lite.ThresholdSearch(settings.calibrate, layout="bshd", rounding=settings.rounding)
    return lite.LiteAttention(
        True,
        settings.base_threshold,
        layout="bshd",
        rounding=settings.rounding,
        exact_first_step=settings.exact_first_steps > 0,
        skip_within_call=settings.skip_within_call,
        revive_every=settings.revive_every,
        break_even=settings.break_even,
        name=name,
    )


def locate(settings: Settings) -> Place | None:
    """Where SGLang stands; None outside a denoising loop, or while the device records a graph.

    A recorded graph would replay one step's lists for ever. Passes beside a loop, which fill a cache say,
    have no step's index or a negative one.
    """
    context = get_forward_context_or_none()
    request = None if context is None else context.forward_batch
    extra = getattr(request, "extra", None)
    if extra is None or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return None
    if context.current_timestep is None or (step := int(context.current_timestep)) < 0:
        return None
    runs = extra.setdefault(DENOISING_LOOP_STATE, {})
    run = runs.get(BACKEND_NAME)
    if run is None:
        run = runs[BACKEND_NAME] = start_run(settings, warmup=bool(getattr(request, "is_warmup", False)))
    return Place(run, step, bool(getattr(request, "is_cfg_negative", False)))


def start_run(settings: Settings, warmup: bool = False) -> DenoisingRun:
    """A run without lists; its record, where one is asked for, is written when SGLang drops the run."""
    record = None
    if (settings.log or settings.dump is not None) and not warmup:
        record = Record(next(_run_numbers), settings)
    run = DenoisingRun(settings, record)
    if record is not None:
        weakref.finalize(run, record.finish)
    return run
