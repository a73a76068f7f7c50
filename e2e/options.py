"""The comparison's command line."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from e2e import arms, prompts

STRUCTURED_MODEL = "structured"
STRUCTURED_WAN = "structured-1.3b"
# The tiny model's request: 5·12·18 = 1,080 tokens. 1,080 is no multiple of 16, so every tile size leaves a
# tail.
TINY = {"height": 192, "width": 288, "frames": 17, "steps": 4}
# The structured model's: 13·9·16 = 1,872 tokens, 30 KV tiles of 64 with a tail.
STRUCTURED = {"height": 144, "width": 256, "frames": 49, "steps": 6}
# Wan2.1-T2V's own at 480p: 32,760 tokens.
WAN_480P = {"height": 480, "width": 832, "frames": 81, "steps": 50}
MOST_PROCESSES = 4  # at a time by default: each takes about 1 GB
REQUEST_FIELDS = ("height", "width", "frames", "steps", "guidance")


def parser(about: str) -> argparse.ArgumentParser:
    """The parser; ``about`` is its description."""
    result = argparse.ArgumentParser(prog="e2e.compare", description=about)
    add = result.add_argument
    add(
        "--model",
        help="Wan2.1-T2V in diffusers layout, a folder or a name; default: a tiny random one; "
        f"{STRUCTURED_MODEL!r}: a tiny one whose attention is local and drifts; {STRUCTURED_WAN!r}: one "
        "with Wan2.1-T2V-1.3B's own transformer, 2.8 GB, for a GPU",
    )
    add("--model-id", help="name by which SGLang finds the pipeline of a local folder")
    add("--prompt", help="one prompt of your own")
    add("--prompts", default="1", metavar="N|FILE", help="the first N of the built-in prompts, or a file's")
    add("--seed", "--seeds", dest="seeds", default="42", metavar="SEED,…", help="every prompt with each")
    add("--height", type=int, help="pixels, a multiple of 16")
    add("--width", type=int, help="pixels, a multiple of 16")
    add("--frames", type=int, help="4·n + 1")
    add("--steps", type=int, help="denoising steps")
    add("--guidance", type=float, default=5.0, help="above 1 both branches of guidance run")
    add(
        "--arms",
        help=f"comma-separated: {', '.join(arms.ARMS)}, and {arms.OURS}{arms.AT}T, which skips at the "
        f"threshold T; or {arms.ALL}: {', '.join(arms.FULL)}",
    )
    add("--sweep", metavar="T,T,…", default="", help="adds an arm that skips at each of these thresholds")
    add(
        "--break-even",
        type=float,
        metavar="SHARE",
        help="of skipped KV tiles, below which a layer of an arm that skips falls back to dense calls; 0: "
        f"never; default: what the device's model says, with {STRUCTURED_MODEL!r} 0",
    )
    add("--device", choices=("auto", "cpu", "rocm"), default="auto", help="cpu simulates an MI300X")
    add(
        "--engine",
        choices=("sglang", "diffusers"),
        default="sglang",
        help="what makes the videos; diffusers also runs on NVIDIA GPUs, and has no arm of AITER's",
    )
    add(
        "--rounds",
        type=int,
        help="every arm makes every video so many times, arms in turn; default: 3 on ROCm, 1 on a CPU",
    )
    add("--warmup", type=int, help="generations before the measured ones; default: 1 on ROCm, 0 on a CPU")
    add("--warmup-steps", type=int, default=4, help="denoising steps of a warm-up")
    add("--jobs", type=int, help="arms at a time on a CPU; default: its cores, 4 at most. ROCm: 1")
    add("--resume", action="store_true", help="reuse what a complete run left too, where nothing changed")
    add("--sglang", type=json.loads, default={}, metavar="JSON", help="further SGLang server arguments")
    add("--output", type=Path, default=Path("e2e-output"))
    return result


def parse(argv: list[str] | None, about: str = "") -> argparse.Namespace:
    """Reads the command line; exits with a sentence on bad input."""
    reader = parser(about)
    options = reader.parse_args(argv)
    structured = options.model == STRUCTURED_MODEL
    request = STRUCTURED if structured else WAN_480P if options.model else TINY
    for name, value in request.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.arms is None:
        names = arms.SKIPPING if structured else arms.FULL if options.model else arms.DEFAULT
        if options.engine == "diffusers":
            names = arms.WITHOUT_SGLANG
        options.arms = ",".join(names)
    if options.break_even is None and structured:
        options.break_even = 0.0  # with so few tokens the model would often have layers dense
    if options.jobs is None:
        options.jobs = min(os.cpu_count() or 1, MOST_PROCESSES)
    try:
        options.arms = select_arms(options.arms, options.sweep)
        options.requests = requests(options)
        check(options)
    except ValueError as error:
        reader.error(str(error))
    return options


def select_arms(names: str, sweep: str) -> list[arms.Arm]:
    """The arms named, and behind them those of the sweep that are not among them.

    Raises:
        ValueError: an arm that is none.
    """
    found = arms.select(names)
    for threshold in filter(str.strip, sweep.split(",")):
        arm = arms.find(arms.at(threshold))
        if arm.threshold not in [other.threshold for other in found]:
            found.append(arm)
    return found


def requests(options: argparse.Namespace) -> list[dict]:
    """``{"name", "prompt", "seed"}`` of every prompt with every seed.

    Raises:
        ValueError: a seed that is no integer from 0 on, or is named twice.
    """
    wanted = [options.prompt] if options.prompt else prompts.choose(options.prompts)
    seeds = [text.strip() for text in options.seeds.split(",")]
    if not all(seed.isdecimal() for seed in seeds) or len(set(map(int, seeds))) < len(seeds):
        raise ValueError(f"--seeds {options.seeds} (allowed: different integers from 0 on, comma-separated)")
    return [
        {"name": f"prompt-{number}-seed-{seed}", "prompt": prompt, "seed": int(seed)}
        for number, prompt in enumerate(wanted, 1)
        for seed in seeds
    ]


def check(options: argparse.Namespace) -> None:
    """Refuses a request that Wan2.1 can't make.

    Raises:
        ValueError: naming the option, its value and what is allowed.
    """
    for name in ("height", "width"):
        value = getattr(options, name)
        if value <= 0 or value % 16:
            raise ValueError(f"--{name} {value} (allowed: positive multiples of 16)")
    if options.frames < 1 or options.frames % 4 != 1:
        raise ValueError(f"--frames {options.frames} (allowed: 4·n + 1)")
    for name, least in (("steps", 1), ("rounds", 1), ("jobs", 1), ("warmup_steps", 1), ("warmup", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} {value} (allowed: {least} or more)")
    if options.break_even is not None and not 0 <= options.break_even <= 1:
        raise ValueError(f"--break-even {options.break_even} (allowed: 0 to 1)")
    if not isinstance(options.sglang, dict):
        raise ValueError(f"--sglang {json.dumps(options.sglang)} (allowed: a JSON object)")


def describe_requests(wanted: list[dict]) -> str:
    """``prompt …, seed 42`` of one request, or how many there are."""
    if len(wanted) == 1:
        return f"seed {wanted[0]['seed']}, prompt: {wanted[0]['prompt']}"
    seeds = dict.fromkeys(str(request["seed"]) for request in wanted)
    return f"{len({request['prompt'] for request in wanted})} prompts, seeds {', '.join(seeds)}"
