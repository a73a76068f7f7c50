"""Makes the same video through SGLang once per attention backend and compares the results.

``python -m e2e.compare``; ``liteattention-rocm compare`` is the same.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from e2e import arms, cpu_host, skipping, structured_wan, tiny_wan
from e2e import report as reports
from e2e.generate import MARK, Job

SCHEMA = 2
STRUCTURED_MODEL = "structured"
# The tiny model's request: 5·12·18 = 1,080 tokens. 1,080 is no multiple of 16, so every tile size leaves a
# tail.
TINY = {"height": 192, "width": 288, "frames": 17, "steps": 4}
# The structured model's: 13·9·16 = 1,872 tokens, 30 KV tiles of 64 with a tail.
STRUCTURED = {"height": 144, "width": 256, "frames": 49, "steps": 6}
# Wan2.1-T2V's own at 480p: 32,760 tokens.
WAN_480P = {"height": 480, "width": 832, "frames": 81, "steps": 50}


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Reads the command line; exits with a sentence on bad input."""
    parser = argparse.ArgumentParser(prog="e2e.compare", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model",
        help="Wan2.1-T2V in diffusers layout, a folder or a name; default: a tiny random one; "
        f"{STRUCTURED_MODEL!r}: a tiny one whose attention is local and drifts",
    )
    parser.add_argument("--model-id", help="name by which SGLang finds the pipeline of a local folder")
    parser.add_argument("--prompt", default=tiny_wan.PROMPTS[0])
    parser.add_argument("--height", type=int, help="pixels, a multiple of 16")
    parser.add_argument("--width", type=int, help="pixels, a multiple of 16")
    parser.add_argument("--frames", type=int, help="4·n + 1")
    parser.add_argument("--steps", type=int, help="denoising steps")
    parser.add_argument("--guidance", type=float, default=5.0, help="above 1 both branches of guidance run")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument(
        "--arms",
        help=f"comma-separated: {', '.join(arms.ARMS)}, and {arms.OURS}{arms.AT}T, which skips at the "
        "threshold T",
    )
    parser.add_argument(
        "--sweep", metavar="T,T,…", default="", help="adds an arm that skips at each of these thresholds"
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "rocm"), default="auto", help="cpu simulates an MI300X"
    )
    parser.add_argument(
        "--warmup", type=int, help="generations before the measured one; default: 1 on ROCm, 0 on a CPU"
    )
    parser.add_argument(
        "--sglang", type=json.loads, default={}, metavar="JSON", help="further SGLang server arguments"
    )
    parser.add_argument("--output", type=Path, default=Path("e2e-output"))
    options = parser.parse_args(argv)
    structured = options.model == STRUCTURED_MODEL
    request = STRUCTURED if structured else WAN_480P if options.model else TINY
    for name, value in request.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.arms is None:
        options.arms = ",".join(arms.SKIPPING if structured else arms.DEFAULT)
    try:
        options.arms = select_arms(options.arms, options.sweep)
        check_request(options)
    except ValueError as error:
        parser.error(str(error))
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


def check_request(options: argparse.Namespace) -> None:
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
    if options.steps < 1:
        raise ValueError(f"--steps {options.steps} (allowed: 1 or more)")
    if not isinstance(options.sglang, dict):
        raise ValueError(f"--sglang {json.dumps(options.sglang)} (allowed: a JSON object)")


def detect_device(wanted: str) -> tuple[str, str]:
    """The device to run on, and its description.

    Raises:
        RuntimeError: ``rocm`` is wanted and torch sees no ROCm device.
    """
    import torch

    rocm = torch.version.hip is not None and torch.cuda.is_available()
    if wanted == "rocm" and not rocm:
        raise RuntimeError(
            "--device rocm: this PyTorch sees no ROCm device; install its ROCm build, or use --device cpu"
        )
    if rocm and wanted != "cpu":
        properties = torch.cuda.get_device_properties(0)
        return "rocm", f"{properties.name} ({properties.gcnArchName}), ROCm {torch.version.hip}"
    return "cpu", f"simulated MI300X (gfx942) on {platform.machine()} with {os.cpu_count()} cores"


@dataclass
class Child:
    """An arm's process as seen from here.

    Attributes:
        log: all that it printed.
        on_message: called with each message of :func:`e2e.generate.tell`.
    """

    job: Job
    log: Path
    on_message: Callable[[dict[str, Any]], None]

    def run(self) -> dict[str, Any]:
        """Runs the arm to its end and returns its part of the report; never raises for a broken arm."""
        folder = Path(self.job.folder)
        self.job.write(folder / "job.json")
        command = [sys.executable, "-u", "-m", "e2e.generate", str(folder / "job.json")]
        last_error = ""
        with self.log.open("w") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
            try:
                for line in process.stdout:
                    if line.startswith(MARK):
                        self.on_message(json.loads(line[len(MARK) :]))
                        continue
                    log.write(line)
                    log.flush()
                    text = line.strip()
                    last_error = re.sub(r"^\[rank\d+\]: ", "", text) if "Error" in text else last_error
                code = process.wait()
            finally:
                process.kill()
                process.wait()
        if code != 0:
            reason = last_error or f"exit status {code}"
            return {"status": "failed", "error": reason, "log": f"{folder.name}/{self.log.name}"}
        return {
            "status": "ok",
            "log": f"{folder.name}/{self.log.name}",
            **json.loads((folder / "arm.json").read_text()),
        }


def run_arms(options: argparse.Namespace, device: str, console: Any) -> dict[str, dict[str, Any]]:
    """Runs every arm after the other; returns their results by name."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    results = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for arm in options.arms:
            task = progress.add_task(f"{arm.name}: starting", total=None)

            def follow(message: dict[str, Any], task: Any = task, name: str = arm.name) -> None:
                if "stage" in message:
                    progress.update(task, description=f"{name}: {message['stage']}")
                if "expected" in message:
                    progress.update(task, total=message["expected"])
                if "calls" in message:
                    progress.update(task, completed=message["calls"])

            folder = options.output / arm.name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            result = Child(make_job(options, arm, folder, device), folder / "log.txt", follow).run()
            progress.remove_task(task)
            outcome = (
                f"{result['times']['total_s']:.1f} s"
                if result["status"] == "ok"
                else f"FAILED: {result['error']}"
            )
            console.print(f"{arm.name}: {outcome}", highlight=False, markup=False)
            results[arm.name] = result
    return results


def make_job(options: argparse.Namespace, arm: arms.Arm, folder: Path, device: str) -> Job:
    """The arm's job for these options."""
    warmup = options.warmup if options.warmup is not None else (1 if device == "rocm" else 0)
    # Offloading layers is SGLang's choice by free memory, which may differ from arm to arm: pinned alike.
    offload = {} if device == "cpu" else {"dit_layerwise_offload": False}
    return Job(
        arm=arm.name,
        folder=str(folder),
        model=str(options.model),
        model_id=options.model_id,
        prompt=options.prompt,
        height=options.height,
        width=options.width,
        frames=options.frames,
        steps=options.steps,
        guidance=options.guidance,
        seed=options.seed,
        device=device,
        warmup=warmup,
        sglang={**offload, **options.sglang},
    )


def compare_pairs(folder: Path, names: list[str]) -> list[dict[str, Any]]:
    """The differences of the arms' frames and latents, a dictionary per pair."""
    import numpy as np

    from e2e import metrics

    compared = []
    for a, b in reports.pairs(names):
        frames = (metrics.read_frames(folder / name / "frames") for name in (a, b))
        latents = (np.load(folder / name / "latents.npy") for name in (a, b))
        compared.append(
            {
                "a": a,
                "b": b,
                "noise_floor": {a, b} == {arms.PEER, arms.PEER_RTNE},
                **metrics.compare_frames(*frames),
                "latents": metrics.compare_latents(*latents),
            }
        )
    return compared


def versions() -> dict[str, str]:
    """Versions of what took part."""
    found = {"python": platform.python_version()}
    for name in ("liteattention_rocm", "sglang", "torch", "diffusers", "transformers"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main(argv: list[str] | None = None) -> int:
    """Runs the comparison.

    Returns:
        0 when every arm finished and every check passed, 130 after Ctrl-C, 1 otherwise.
    """
    from rich.console import Console

    options = parse(argv)
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a log has no width of its own
    try:
        device, device_text = detect_device(options.device)
    except RuntimeError as error:
        console.print(str(error), style="bold red")
        return 1
    options.output = options.output.resolve()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in (
        "report.json",
        "report.md",
        skipping.PLOT,
    ):  # an interrupted run leaves none of an earlier one's
        (options.output / name).unlink(missing_ok=True)
    if device == "cpu":
        cpu_host.prepare()
    description = f"{options.model} as given"
    if options.model is None:
        options.model = tiny_wan.make(options.output / "model")
        options.model_id = tiny_wan.MODEL_ID
        description = (
            f"tiny Wan2.1-T2V with random weights ({tiny_wan.LAYERS} layers, {tiny_wan.HEADS} heads of "
            f"{tiny_wan.HEAD_DIM}): its video shows no scene"
        )
    elif options.model == STRUCTURED_MODEL:
        options.model = structured_wan.make(options.output / "structured-model")
        options.model_id = tiny_wan.MODEL_ID
        description = (
            "tiny Wan2.1-T2V whose attention is local in space and time and drifts over the steps "
            f"({tiny_wan.LAYERS} layers, {tiny_wan.HEADS} heads of {tiny_wan.HEAD_DIM}): it shows no scene"
        )
    console.print(f"Device: {device_text}\nModel: {description}", highlight=False)
    try:
        results = run_arms(options, device, console)
    except KeyboardInterrupt:
        console.print("interrupted", style="bold red")
        return 130
    finished = [name for name, result in results.items() if result["status"] == "ok"]
    compared = compare_pairs(options.output, finished)
    check = reports.noise_floor_check(compared)
    skipped = skipping.summarise(results, compared)
    report = {
        "schema": SCHEMA,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions(),
        "device": device_text,
        "simulated": device == "cpu",
        "model": {"path": str(options.model), "description": description},
        "request": {
            name: getattr(options, name)
            for name in ("prompt", "height", "width", "frames", "steps", "guidance", "seed")
        },
        "arms": results,
        "pairs": compared,
        "checks": ([check] if check else []) + skipping.checks(skipped),
        "skipping": skipped,
    }
    if report["skipping"]:
        report["skipping"]["plot"] = skipping.plot(report["skipping"], options.output)
    reports.write(report, options.output)
    reports.show(report, console)
    console.print(f"Report: {options.output / 'report.md'}", highlight=False, soft_wrap=True)
    return 0 if len(finished) == len(results) and all(check["passed"] for check in report["checks"]) else 1


if __name__ == "__main__":
    sys.exit(main())
