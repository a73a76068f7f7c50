"""What ``--attention-backend-config`` may set, in whichever of SGLang's forms it came."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang.multimodal_gen.runtime.server_args import get_global_server_args

from liteattention_rocm.lite import Calibration
from sglang_integration.plugin import BACKEND_NAME

ROUNDINGS = ("rtne", "rtna", "rtz")
FALLBACKS = ("none", "aiter")
# SGLang's backends that read nothing of the configuration.
WITHOUT_OPTIONS = {
    "fa",
    "fa2",
    "fa3",
    "fa4",
    "torch_sdpa",
    "torch_cudnn_sdpa",
    "dynamic_cudnn_sdpa",
    "sage_attn",
    "sage_attn_3",
    "aiter",
    "aiter_sage",
    "fp8_fa_sm120",
    "no_attention",
}
DEFAULT_THRESHOLD = -10.0

logger = logging.getLogger(__name__)


class Refused(ValueError):
    """A value that a key does not take; the message is what is allowed."""


def one_of(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed or not isinstance(value, str):
            raise Refused(", ".join(allowed))
        return value

    return read


def boolean(value: Any) -> bool:
    """JSON's and YAML's own, or the word."""
    words = {"true": True, "false": False}
    if isinstance(value, str):
        value = words.get(value.lower())
    if not isinstance(value, bool):
        raise Refused("true, false")
    return value


def count(value: Any) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Refused("0, 1, 2, …")
    return value


def threshold(value: Any) -> float:
    """A negative number, ``-inf`` (skips nothing) or ``inf``; words where the form has no infinity."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (number < 0 or number == math.inf):
        raise Refused("a number below 0 in log2 units, -inf, inf")
    return number


def error(value: Any) -> float:
    """A finite number above 0."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise Refused("a number above 0")
    return number


def share(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1:
        raise Refused("a number from 0 to 1")
    return number


def ranges(value: Any) -> tuple[int, ...]:
    """``[start, end, start, end, …]``, or the same numbers in a string, apart by spaces."""
    parts = value.split() if isinstance(value, str) else value
    try:
        numbers = tuple(count(part) for part in parts)
    except (TypeError, Refused):
        raise Refused("token ranges: start end start end …") from None
    if len(numbers) % 2 or any(numbers[i] >= numbers[i + 1] for i in range(0, len(numbers), 2)):
        raise Refused("token ranges: start end start end …, every end behind its start")
    return numbers


def calibrated(value: Any) -> dict[str, list[float]]:
    """Thresholds of the file that ``liteattention_rocm.lite.Calibration.save`` wrote."""
    try:
        return Calibration.load(Path(value)).thresholds
    except (OSError, TypeError, ValueError) as error:
        raise Refused(f"a calibration file; {error}") from None


def folder(value: Any) -> Path:
    if not isinstance(value, str) or not value or Path(value).is_file():
        raise Refused("a folder, made where it is missing")
    return Path(value)


@dataclass(frozen=True)
class Settings:
    """What ``--attention-backend-config`` may set.

    Attributes:
        rounding: how P and O are rounded to bfloat16: ``rtne``, ``rtna`` or ``rtz``. SGLang passes ``rtz`` to
            AITER; the default, to nearest even, errs less and is modelled to take as long (docs/kernel.md).
        enable: whether self-attention skips KV tiles. None: where a threshold or a calibration is given.
        threshold: a tile is dropped from the next step on when all its scores lie this far below their rows'
            running maxima, in log2 units of a weight.
        exact_first_steps: so many steps of a run visit every tile. 0 also drops, in every call, what that
            call finds negligible.
        skip_within_call: after those steps, drop in every call what that call finds negligible.
        must_do: key tokens that are never dropped, ``(start, end, start, end, …)``, ends exclusive. What lies
            behind a layer's last token is no range of that layer's.
        calibration: thresholds per layer's name and step; given as a TOML file.
        calibrate: target for the relative error of each attention's output. A run then stays dense, searches
            the thresholds that keep to it, and saves them in ``dump``.
        revive_every: visit every tile again after so many steps; 0 never does.
        break_even: share of skipped tiles below which a layer falls back to dense calls; 0 never does. None:
            what the model of the device says for the layer's shape.
        log: whether each step's sparsity is logged.
        dump: folder for a JSON file per denoising run with the sparsity of every call.
        fallback: what serves the process's layers from then on when a launch fails, ``none`` or ``aiter``.
    """

    rounding: str = "rtne"
    enable: bool | None = None
    threshold: float | None = None
    exact_first_steps: int = 1
    skip_within_call: bool = False
    must_do: tuple[int, ...] = ()
    calibration: dict[str, list[float]] | None = None
    calibrate: float | None = None
    revive_every: int = 0
    break_even: float | None = None
    log: bool = False
    dump: Path | None = None
    fallback: str = "none"

    @property
    def skipping(self) -> bool:
        """Whether self-attention skips."""
        if self.enable is None:
            given = (self.threshold, self.calibration, self.calibrate)
            return any(value is not None for value in given)
        return self.enable

    @property
    def base_threshold(self) -> float:
        """The threshold where no calibration says otherwise."""
        return DEFAULT_THRESHOLD if self.threshold is None else self.threshold

    def threshold_for(self, layer: str, step: int) -> float:
        """The threshold of a layer, by its name, in the step of this index."""
        steps = (self.calibration or {}).get(layer)
        return self.base_threshold if steps is None else steps[min(step, len(steps) - 1)]

    def must_do_within(self, length: int) -> list[int] | None:
        """:attr:`must_do` for a layer with so many key tokens; None where nothing of it is left."""
        pairs = zip(self.must_do[::2], self.must_do[1::2], strict=True)
        cut = [(start, min(end, length)) for start, end in pairs if start < length]
        return [token for pair in cut for token in pair] or None

    @classmethod
    def parse(cls, config: Mapping[str, Any] | None, shared: bool = False) -> Settings:
        """Reads SGLang's parsed configuration, whichever of its forms (JSON, YAML, ``key=value``) it came in.

        Args:
            config: key to value; None is empty.
            shared: whether another backend may read the same configuration; then keys we don't know are left
                to it, and a warning names them once.

        Raises:
            ValueError: an unknown key (unless ``shared``) or a value that is not allowed, naming both.
        """
        config = dict(config or {})
        unknown = [key for key in config if key not in READERS]
        if unknown and not shared:
            raise ValueError(
                f"attention_backend_config: unknown key {unknown[0]!r} for {BACKEND_NAME} "
                f"(allowed: {', '.join(READERS)})"
            )
        if unknown:
            warn_left_over(", ".join(map(str, unknown)))
        values = {}
        for key in (key for key in config if key in READERS):
            try:
                values[key] = READERS[key](config[key])
            except Refused as allowed:
                raise ValueError(
                    f"attention_backend_config: {key}={config[key]!r} (allowed: {allowed})"
                ) from None
        if "calibrate" in values and "dump" not in values:
            raise ValueError(
                f"attention_backend_config: calibrate={config['calibrate']!r} needs dump, its folder"
            )
        return cls(**values)


READERS: dict[str, Callable[[Any], Any]] = {
    "rounding": one_of(*ROUNDINGS),
    "enable": boolean,
    "threshold": threshold,
    "exact_first_steps": count,
    "skip_within_call": boolean,
    "must_do": ranges,
    "calibration": calibrated,
    "calibrate": error,
    "revive_every": count,
    "break_even": share,
    "log": boolean,
    "dump": folder,
    "fallback": one_of(*FALLBACKS),
}


def configured_settings() -> Settings:
    """The settings of SGLang's global server arguments.

    The configuration is one for all backends: where the arguments name another one that may read it, its keys
    pass.
    """
    args = get_global_server_args()
    named = {args.attention_backend, *(args.component_attention_backends or {}).values()}
    for roles in (args.component_attention_backend_roles or {}).values():
        named.update(roles.values())
    others = {str(name).strip().lower() for name in named - {None}} - {BACKEND_NAME} - WITHOUT_OPTIONS
    return Settings.parse(args.attention_backend_config, shared=bool(others))


@functools.cache
def warn_left_over(keys: str) -> None:
    """Says once per process which keys are left to other backends: they may be ours, misspelt."""
    logger.warning(
        "attention_backend_config: %s leaves keys it doesn't know to the other backends named: %s",
        BACKEND_NAME,
        keys,
    )
