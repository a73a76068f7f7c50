"""An arm made by diffusers' own Wan pipeline, on hosts where SGLang doesn't run: see :mod:`e2e.generate`.

Every attention of the transformer goes to the arm's kernel. Each layer keeps a skip list for either branch of
classifier-free guidance over the steps, which the first step of a generation makes anew.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

import liteattention_rocm
from e2e import arms, skipping
from e2e.arms import Arm
from e2e.job import Job
from liteattention_rocm.lite import LiteAttention

READING_TAKES_TIME = False
TEXT_TOKENS = 512  # as Wan2.1 was trained
BACKENDS = (arms.find(arms.OURS).backend, arms.find(arms.SDPA).backend)


class Attentions:
    """What the transformer's attentions call: counts, times and serves them.

    Attributes:
        self_instructions: executed by each call of a self-attention, in order.
        shares: per step and finished self-attention ``step``, ``layer``, ``branch``, ``action`` and
            ``skipped``.
        seconds: per step, device seconds of self- and of cross-attention; empty on a CPU.
    """

    def __init__(self, arm: Arm, on_call: Callable[[int], None], count: Callable[[], int] | None):
        self.arm, self._on_call, self._count = arm, on_call, count or (lambda: 0)
        self.layer, self.role, self.branch = "", "self", 0
        self.clear()

    def clear(self, told_before: int = 0) -> None:
        """Forgets all calls and lists."""
        self._told_before = told_before
        self._calls: Counter[tuple] = Counter()
        self._instructions: Counter[tuple] = Counter()
        self._states: dict[tuple[str, int], LiteAttention] = {}
        self._events: list[tuple] = []
        self.self_instructions: list[int] = []
        self.shares: list[dict[str, Any]] = []
        self.seconds: list[dict[str, float]] = []

    @property
    def total(self) -> int:
        return sum(self._calls.values())

    def __call__(self, query, key, value, **_: Any) -> torch.Tensor:
        """Serves diffusers' ``dispatch_attention_fn``: [B, S, H, D]."""
        before = self._count()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if query.is_cuda else None
        if events:
            events[0].record()
        out = self._compute(query, key, value)
        if events:
            events[1].record()
            self._events.append((self.role, *events))
        executed = self._count() - before
        kind = (self.role, tuple(query.shape), key.shape[1], not value.is_contiguous())
        self._calls[kind] += 1
        self._instructions[kind] += executed
        if self.role == "self":
            self.self_instructions.append(executed)
        self._on_call(self._told_before + self.total)
        return out

    def _compute(self, query, key, value) -> torch.Tensor:
        if self.arm.backend != arms.find(arms.OURS).backend:
            q, k, v = (x.transpose(1, 2) for x in (query, key, value))
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        if self.arm.threshold is None or self.role == "cross":
            return liteattention_rocm.attention(query, key, value, rounding=self.arm.rounding)
        state = self._states.get((self.layer, self.branch))
        if state is None:
            state = LiteAttention(threshold=self.arm.threshold, rounding=self.arm.rounding, name=self.layer)
            self._states[self.layer, self.branch] = state
        return state(query, key, value)

    def end_step(self, step: int) -> None:
        """Reads back what the step skipped and how long its attentions took. Waits for the device."""
        for (layer, branch), state in self._states.items():
            action = "dense" if state.is_dense else "skip"
            self.shares.append(
                {
                    "step": step,
                    "layer": layer,
                    "branch": branch,
                    "action": action,
                    "skipped": state.calc_percentage(),
                }
            )
        if self._events:
            self._events[-1][2].synchronize()
            self.seconds.append(
                {
                    role: sum(start.elapsed_time(end) for kind, start, end in self._events if kind == role)
                    / 1000
                    for role in ("self", "cross")
                }
            )
            self._events.clear()

    def summary(self) -> list[dict[str, Any]]:
        """As :meth:`e2e.layers.LayerCalls.summary`."""
        return [
            {
                "role": role,
                "backend": self.arm.backend,
                "calls": calls,
                "instructions": self._instructions[role, shape, kv_length, strided],
                "query_shape": list(shape),
                "kv_length": kv_length,
                "value_strided": strided,
            }
            for (role, shape, kv_length, strided), calls in sorted(self._calls.items(), reverse=True)
        ]


class Marked:
    """A processor that says whose attention comes before its own processor runs."""

    def __init__(self, processor: Any, attentions: Attentions, layer: str, role: str):
        self.processor, self.attentions, self.layer, self.role = processor, attentions, layer, role

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.attentions.layer, self.attentions.role = self.layer, self.role
        return self.processor(*arguments, **options)


def load(job: Job, arm: Arm) -> tuple[Any, dict[str, Any]]:
    """The pipeline, and its settings.

    Raises:
        RuntimeError: an arm that needs SGLang.
    """
    if arm.backend not in BACKENDS:
        raise RuntimeError(f"{arm.name} needs --engine sglang (diffusers serves {', '.join(BACKENDS)})")
    if job.device == "cpu":
        from e2e import cpu_host

        cpu_host.prepare()
    from diffusers import AutoencoderKLWan, WanPipeline

    vae = AutoencoderKLWan.from_pretrained(job.model, subfolder="vae", torch_dtype=torch.float32)
    pipeline = WanPipeline.from_pretrained(job.model, vae=vae, torch_dtype=torch.bfloat16)
    pipeline.to("cpu" if job.device == "cpu" else "cuda")
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, {"transformer": "bfloat16", "vae": "float32", "offload": False}


def watch(pipeline: Any, job: Job, arm: Arm, requests: int) -> Attentions:
    """Puts the arm's attention into the transformer and reports progress over so many requests."""
    from diffusers.models.transformers import transformer_wan

    from e2e.generate import executed_instructions, tell

    told = 0.0

    def report(calls: int) -> None:
        nonlocal told
        if time.monotonic() - told > 0.5:
            told = time.monotonic()
            tell(calls=calls)

    attentions = Attentions(arm, report, executed_instructions if job.device == "cpu" else None)
    transformer_wan.dispatch_attention_fn = attentions
    blocks = pipeline.transformer.blocks
    for number, block in enumerate(blocks):
        for attention, role in ((block.attn1, "self"), (block.attn2, "cross")):
            name = f"blocks.{number}.{'attn1' if role == 'self' else 'attn2'}"
            attention.processor = Marked(attention.processor, attentions, name, role)
    branches = 2 if job.guidance > 1 else 1
    # The pipeline calls the transformer for the prompt, then for the negative one.
    calls = iter(range(1 << 62))
    pipeline.transformer.register_forward_pre_hook(
        lambda *_: setattr(attentions, "branch", next(calls) % branches)
    )
    tell(expected=2 * len(blocks) * branches * job.steps * requests)
    pipeline.attentions, pipeline.dump = attentions, Path(job.folder) / skipping.FOLDER
    return attentions


def run(pipeline: Any, settings: dict[str, Any], job: Job) -> Any:
    """One generation.

    Returns:
        ``output``: frames [1, 3, F, H, W] in 0…1; ``trajectory_latents`` [1, steps, C, F, h, w]; and
        ``steps_s`` and ``stages_s``, without the time that reading back takes.
    """
    attentions, latents, steps = pipeline.attentions, [], []
    attentions.clear(attentions._told_before)
    cuda = job.device != "cpu"

    def now() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def step_done(_: Any, index: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        nonlocal clock
        steps.append(now() - clock)
        attentions.end_step(index)
        latents.append(tensors["latents"].float().cpu())
        clock = now()
        return tensors

    device = "cuda" if cuda else "cpu"
    with torch.inference_mode():
        begun = now()
        embeddings = pipeline.encode_prompt(
            job.prompt,
            "",
            job.guidance > 1,
            max_sequence_length=TEXT_TOKENS,
            device=torch.device(device),
            dtype=torch.bfloat16,
        )
        clock = now()
        encoding = clock - begun
        video = pipeline(
            prompt_embeds=embeddings[0],
            negative_prompt_embeds=embeddings[1],
            height=job.height,
            width=job.width,
            num_frames=job.frames,
            num_inference_steps=job.steps,
            guidance_scale=job.guidance,
            generator=torch.Generator("cpu").manual_seed(job.seed),
            output_type="pt",
            callback_on_step_end=step_done,
        ).frames
        decoding = now() - clock
    if attentions.arm.threshold is not None:
        pipeline.dump.mkdir(parents=True, exist_ok=True)
        (pipeline.dump / "generation.json").write_text(json.dumps({"calls": attentions.shares}))
    return SimpleNamespace(
        output=video.transpose(1, 2),
        trajectory_latents=torch.stack(latents, 1),
        steps_s=steps,
        stages_s={"encoding": encoding, "denoising": sum(steps), "decoding": decoding},
        attention_s=list(attentions.seconds),
    )


def times(job: Job, arm: Arm, output: Any, ready: float, seconds: float) -> dict[str, Any]:
    """As :func:`e2e.generate.times`, without what reading back took; ``attention_s`` has each step's device
    seconds of ``self`` and of ``cross``."""
    from e2e.generate import time_basis

    return {
        "basis": time_basis(job, arm),
        "warmup_generations": job.warmup,
        "ready_s": ready,
        "total_s": sum(output.stages_s.values()),
        "stages_s": output.stages_s,
        "steps_s": output.steps_s,
        "attention_s": output.attention_s,
    }


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """What :func:`load` gave beside the pipeline."""
    return given


def choice(given: dict[str, Any]) -> list[str]:
    """Words of a command line: there is none."""
    return []
