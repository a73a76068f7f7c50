"""Wan2.1-T2V with structured weights through the diffusers pipeline on a real GPU: torch SDPA against ours.

python tools/gpu_wan.py --json wan.json

The weights (e2e/structured_wan.py) make attention local and drifting; they say nothing about picture quality.
Every arm denoises the same latents with the same prompt embedding; latents are compared, no video is decoded.
"""

import argparse
import contextlib
import json
import math
import statistics
import sys

import torch
import torch.nn.functional as F

import liteattention_rocm
from e2e import structured_wan, tiny_wan
from liteattention_rocm import dispatch
from liteattention_rocm.lite import LiteAttention

HEIGHT, WIDTH, FRAMES = 480, 832, 81
SEED = 1


class Attention:
    """What every attention of the transformer calls in one arm, and the device time that it takes."""

    def __init__(self, threshold: float | None, ours: bool, rounding: str):
        self.threshold, self.ours, self.rounding = threshold, ours, rounding
        self.states: dict[tuple[int, int], LiteAttention] = {}
        self.layer, self.cross, self.branch = 0, False, 0
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event, bool]] = []

    def __call__(self, query, key, value, **_) -> torch.Tensor:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        out = self.compute(query, key, value)
        end.record()
        self.events.append((start, end, self.cross))
        return out

    def compute(self, query, key, value) -> torch.Tensor:
        if not self.ours:
            q, k, v = (x.transpose(1, 2) for x in (query, key, value))
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        if self.threshold is None or self.cross:
            return liteattention_rocm.attention(query, key, value, rounding=self.rounding)
        state = self.states.get((self.layer, self.branch))
        if state is None:
            state = LiteAttention(threshold=self.threshold, rounding=self.rounding, break_even=0)
            self.states[self.layer, self.branch] = state
        return state(query, key, value)

    def sparsity(self) -> float:
        return (
            statistics.mean(state.calc_percentage() for state in self.states.values()) if self.states else 0.0
        )

    def take_milliseconds(self) -> tuple[float, float]:
        """Device milliseconds of self- and of cross-attention since the last call."""
        torch.cuda.synchronize()
        sums = [
            sum(a.elapsed_time(b) for a, b, cross in self.events if cross is kind) for kind in (False, True)
        ]
        self.events.clear()
        return sums[0], sums[1]


class Marked:
    """A processor that says whose attention is computed before its own processor runs."""

    def __init__(self, processor, arm, layer: int, cross: bool):
        self.processor, self.arm, self.layer, self.cross = processor, arm, layer, cross

    def __call__(self, *arguments, **options):
        self.arm().layer, self.arm().cross = self.layer, self.cross
        return self.processor(*arguments, **options)


@contextlib.contextmanager
def serving(transformer, arm: Attention):
    """The transformer's attentions call `arm`; branches of classifier-free guidance are counted by calls."""
    from diffusers.models.transformers import transformer_wan

    original, processors = transformer_wan.dispatch_attention_fn, []
    transformer_wan.dispatch_attention_fn = arm
    for layer, block in enumerate(transformer.blocks):
        for attention, cross in ((block.attn1, False), (block.attn2, True)):
            processors.append((attention, attention.processor))
            attention.processor = Marked(attention.processor, lambda: arm, layer, cross)
    # The pipeline calls the transformer twice a step: with the prompt, then with the negative one.
    calls = iter(range(1 << 30))
    hook = transformer.register_forward_pre_hook(lambda *_: setattr(arm, "branch", next(calls) % 2))
    try:
        yield
    finally:
        hook.remove()
        transformer_wan.dispatch_attention_fn = original
        for attention, processor in processors:
            attention.processor = processor


def pipeline_of(transformer):
    from diffusers import UniPCMultistepScheduler, WanPipeline

    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
    )
    return WanPipeline(
        tokenizer=None, text_encoder=None, vae=None, scheduler=scheduler, transformer=transformer
    )


def run(pipeline, arm: Attention, steps: int, size, device) -> dict:
    height, width, frames = size
    transformer = pipeline.transformer
    generator = torch.Generator(device).manual_seed(SEED)
    text = torch.randn((2, 1, 512, transformer.config.text_dim), generator=generator, device=device)
    prompt, negative = text.to(torch.bfloat16).unbind(0)
    rows, latents = [], []
    torch.cuda.reset_peak_memory_stats()
    clock = [torch.cuda.Event(enable_timing=True)]

    def step_done(_, index, timestep, tensors):
        now = torch.cuda.Event(enable_timing=True)
        now.record()
        now.synchronize()
        own, cross = arm.take_milliseconds()
        rows.append(
            {
                "step": index,
                "ms": clock[0].elapsed_time(now),
                "self_attention_ms": own,
                "cross_attention_ms": cross,
                "sparsity": arm.sparsity(),
            }
        )
        latents.append(tensors["latents"].float().cpu())
        clock[0] = torch.cuda.Event(enable_timing=True)
        clock[0].record()
        return tensors

    with serving(transformer, arm):
        clock[0].record()
        pipeline(
            prompt_embeds=prompt,
            negative_prompt_embeds=negative,
            height=height,
            width=width,
            num_frames=frames,
            num_inference_steps=steps,
            guidance_scale=5.0,
            generator=torch.Generator(device).manual_seed(SEED),
            output_type="latent",
            callback_on_step_end=step_done,
        )
    return {"steps": rows, "latents": latents, "peak_bytes": torch.cuda.max_memory_allocated()}


def summary(name: str, result: dict, base: dict) -> dict:
    """Medians leave out the first step, in which kernels are compiled and every list is full."""
    later = result["steps"][1:]
    ms = statistics.median(row["ms"] for row in later)
    base_later = base["steps"][1:]
    base_ms = statistics.median(row["ms"] for row in base_later)
    base_self = statistics.median(row["self_attention_ms"] for row in base_later)
    base_attention = base_self + statistics.median(row["cross_attention_ms"] for row in base_later)
    own = statistics.median(row["self_attention_ms"] for row in later)
    sparsity = statistics.mean(row["sparsity"] for row in later)
    final, reference = result["latents"][-1].double(), base["latents"][-1].double()
    # Amdahl: the rest stays; self-attention takes its dense time in this arm's kernel times what is left.
    return {
        "arm": name,
        "step_ms": ms,
        "self_attention_ms": own,
        "attention_share": base_attention / base_ms if name == "torch_sdpa" else own / ms,
        "sparsity": sparsity,
        "gain": base_ms / ms,
        "gain_if_self_attention_were_free": base_ms / (base_ms - base_self),
        "latents_relative_distance": ((final - reference).norm() / reference.norm()).item(),
        "peak_GiB": result["peak_bytes"] / 2**30,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="1.3b", choices=sorted(structured_wan.SIZES))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounding", default="rtz")
    parser.add_argument("--json")
    options = parser.parse_args()
    device = torch.device("cuda", 0)
    torch.manual_seed(SEED)
    if options.size == "1.3b":
        tiny_wan.TEXT_WIDTH = 4096  # UMT5-XXL's, as in the published configuration
    with torch.device(device):
        transformer = structured_wan.build(options.size)
    transformer = transformer.to(device, torch.bfloat16).eval().requires_grad_(False)
    pipeline = pipeline_of(transformer)
    arms = {
        "torch_sdpa": Attention(None, False, options.rounding),
        "ours dense": Attention(None, True, options.rounding),
        "ours dense rtne": Attention(None, True, "rtne"),
        "ours -10": Attention(-10.0, True, options.rounding),
        "ours -6": Attention(-6.0, True, options.rounding),
    }
    size = (HEIGHT, WIDTH, FRAMES) if options.size == "1.3b" else (144, 256, 49)
    report = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "size": size}
    report |= {"kernel": dispatch.serving(device).name, "steps": options.steps, "arms": {}, "summary": []}
    print(report, flush=True)
    results = {}
    for name, arm in arms.items():
        results[name] = run(pipeline, arm, options.steps, size, device)
        report["arms"][name] = {key: results[name][key] for key in ("steps", "peak_bytes")}
        row = summary(name, results[name], results["torch_sdpa"])
        row["latents_distance_by_step"] = [
            ((a.double() - b.double()).norm() / b.double().norm()).item()
            for a, b in zip(results[name]["latents"], results["torch_sdpa"]["latents"], strict=True)
        ]
        report["summary"].append(row)
        shown = {
            k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items() if not isinstance(v, list)
        }
        print(shown, flush=True)
        print("  sparsity by step", [round(r["sparsity"], 3) for r in results[name]["steps"]], flush=True)
        print("  ms by step", [round(r["ms"]) for r in results[name]["steps"]], flush=True)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(report, file, indent=1)
    finite = all(math.isfinite(row["latents_relative_distance"]) for row in report["summary"])
    return 0 if finite else 1


if __name__ == "__main__":
    sys.exit(main())
