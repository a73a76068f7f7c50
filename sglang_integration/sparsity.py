"""How much attention was skipped, per layer, branch and step of a denoising run: in the log and as JSON."""

from __future__ import annotations

import itertools
import json
import logging
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from liteattention_rocm.lite import Calibration
from sglang_integration.plugin import BACKEND_NAME
from sglang_integration.settings import Settings

SCHEMA = 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """One call of a self-attention layer.

    Attributes:
        layer: its name in the model.
        branch: ``conditional`` or ``unconditional``.
        step: index of the denoising step.
        loop: how often the loop had begun anew in this run.
        action: ``dense`` (a step that is to be exact and writes no list, or a layer in which skipping doesn't
            pay), ``fresh`` (visits every tile and writes the first list) or ``skip`` (reads a list; to
            revive or to try again, a full one).
        skipped: share of the KV tiles not visited, 0…1.
        threshold: in log2 units.
        shape: batch, query length, heads, channels, key length.
    """

    layer: str
    branch: str
    step: int
    loop: int
    action: str
    skipped: float
    threshold: float
    shape: tuple[int, ...]


@dataclass
class Record:
    """The calls of one denoising run.

    Attributes:
        number: of the run in this process, from 1.
        settings: where to, and what to log.
    """

    number: int
    settings: Settings
    calls: list[Call] = field(default_factory=list)
    thresholds: dict[str, dict[int, float]] = field(default_factory=dict)

    def found(self, layer: str, step: int, threshold: float) -> None:
        """A calibration's threshold; of several in one step, one a branch, the most careful stays."""
        steps = self.thresholds.setdefault(layer, {})
        steps[step] = min(threshold, steps.get(step, threshold))

    def add(self, call: Call) -> None:
        if self.settings.log and self.calls and self.calls[-1].step != call.step:
            self.log_step()
        self.calls.append(call)

    def log_step(self) -> None:
        """One line for the latest step, and one a layer at the debug level."""
        latest = self.calls[-1]
        shares = defaultdict(list)
        for call in reversed(self.calls):
            if (call.step, call.loop) != (latest.step, latest.loop):
                break
            shares[call.layer].append(call.skipped)
        means = {layer: fmean(values) for layer, values in reversed(shares.items())}
        logger.info(
            "%s: run %d, step %d: %.1f %% of the KV tiles skipped (%.1f to %.1f %% over %d layers)",
            BACKEND_NAME,
            self.number,
            latest.step,
            100 * fmean(means.values()),
            100 * min(means.values()),
            100 * max(means.values()),
            len(means),
        )
        for layer, mean in means.items():
            logger.debug(
                "%s: run %d, step %d, %s: %.1f %%", BACKEND_NAME, self.number, latest.step, layer, 100 * mean
            )

    def finish(self) -> None:
        """Logs the last step and writes the run's file; what goes wrong there is one line in the log."""
        if self.settings.log and self.calls:
            self.log_step()
        try:
            if self.settings.dump is not None and self.calls:
                write(self.settings.dump, self.summary())
            if self.thresholds:
                path = free_path(self.settings.dump, "calibration", "toml")
                self.calibration().save(path)
                logger.info("%s: thresholds of run %d are in %s", BACKEND_NAME, self.number, path)
        except OSError as error:
            logger.error("%s: what run %d found is lost: %s", BACKEND_NAME, self.number, error)

    def calibration(self) -> Calibration:
        """The thresholds by step; a step that a layer missed takes its last one before, or its first."""
        layers = {}
        for layer, steps in self.thresholds.items():
            latest, layers[layer] = steps[min(steps)], []
            for step in range(max(steps) + 1):
                latest = steps.get(step, latest)
                layers[layer].append(latest)
        return Calibration(self.settings.calibrate, layers)

    def summary(self) -> dict[str, Any]:
        """What the file holds."""
        return {
            "schema": SCHEMA,
            "rank": rank(),
            "run": self.number,
            "skipped": fmean(call.skipped for call in self.calls),
            "settings": {
                key: str(value) if isinstance(value, Path) else value
                for key, value in asdict(self.settings).items()
            },
            "calls": [asdict(call) for call in self.calls],
        }


def rank() -> int:
    """This worker's rank; 0 without torch.distributed."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def write(folder: Path, summary: dict[str, Any]) -> None:
    """Writes ``sparsity-RANK-NUMBER.json``."""
    # JSON has no infinity: thresholds at either end are written as the words that the settings take.
    text = json.dumps(finite(summary), indent=1, allow_nan=False) + "\n"
    free_path(folder, "sparsity", "json").write_text(text)


def free_path(folder: Path, stem: str, suffix: str) -> Path:
    """Makes the empty file ``STEM-RANK-NUMBER.SUFFIX`` with the first number that no other run has taken."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = folder / f"{stem}-{rank()}-{number:04d}.{suffix}"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return str(value) if isinstance(value, float) and value in (float("inf"), float("-inf")) else value
