"""Makes the same videos through SGLang (or diffusers) once per attention backend and compares them.

``python -m e2e.compare``; ``liteattention-rocm compare`` is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import liteattention_rocm
import sglang_integration
from e2e import (
    answer,
    arms,
    cpu_host,
    html_report,
    modelled,
    options,
    perceptual,
    pinned,
    quality,
    runner,
    skipping,
    structured_wan,
    timings,
    tiny_wan,
)
from e2e import report as reports
from e2e.job import Job, identity
from liteattention_rocm import dispatch

SCHEMA = 3
PLAN = "run.json"
ROUNDS = {"rocm": 3, "cuda": 1, "cpu": 1}  # by default
PACKAGES = ("liteattention_rocm", "sglang", "torch", "diffusers", "transformers", "numpy")
AITER = ("amd-aiter", "aiter")  # the names under which AITER is distributed
# The wheel whose rtz code object tools/fetch_aiter.py unpacks, by the object's SHA-256.
AITER_OBJECTS = {
    "e8a95e49ba20afa3f81d71b0141cadc46cae33684c5ee89389d29040f4178b75": "amd-aiter 0.1.7.post2.dev18"
}


def detect_device(wanted: str, engine: str = "sglang") -> tuple[str, str]:
    """The device to run on, and its description.

    Raises:
        RuntimeError: ``rocm`` is wanted and torch sees no ROCm device.
    """
    rocm = torch.version.hip is not None and torch.cuda.is_available()
    if wanted == "rocm" and not rocm:
        raise RuntimeError(
            "--device rocm: this PyTorch sees no ROCm device; install its ROCm build, or use --device cpu"
        )
    if rocm and wanted != "cpu":
        properties = torch.cuda.get_device_properties(0)
        return "rocm", f"{properties.name} ({properties.gcnArchName}), ROCm {torch.version.hip}"
    if engine == "diffusers" and wanted != "cpu" and torch.cuda.is_available():
        kernel = dispatch.serving(torch.device("cuda")).name
        return (
            "cuda",
            f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}; our arms: {kernel} kernel",
        )
    return "cpu", f"simulated MI300X (gfx942) on {platform.machine()} with {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    """Versions of what takes part. AITER's is the installed one, or the digest of its code object here."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        found[name] = _version(name) or "not installed"
    found["aiter"] = next(filter(None, map(_version, AITER)), None) or aiter_code_object()
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def aiter_code_object() -> str:
    """The wheel and the digest of AITER's rtz code object, where one is unpacked."""
    from liteattention_rocm import aiter_kernel

    try:
        folder = aiter_kernel.find()
    except FileNotFoundError:
        return "not installed"
    digest = hashlib.sha256((folder / aiter_kernel.file_name("rtz")).read_bytes()).hexdigest()
    wheel = AITER_OBJECTS.get(digest, "an unknown wheel")
    return f"{wheel}'s {aiter_kernel.file_name('rtz')}, SHA-256 {digest[:16]}…, not installed"


def make_model(chosen: argparse.Namespace) -> str:
    """Makes the model that the options ask for, if one is to be made, and returns its description."""
    sizes = f"({tiny_wan.LAYERS} layers, {tiny_wan.HEADS} heads of {tiny_wan.HEAD_DIM})"
    if chosen.model is None:
        chosen.model = tiny_wan.make(chosen.output / "model")
        chosen.model_id = tiny_wan.MODEL_ID
        return f"tiny Wan2.1-T2V with random weights {sizes}: its video shows no scene"
    if chosen.model == options.STRUCTURED_MODEL:
        chosen.model = structured_wan.make(chosen.output / "structured-model")
        chosen.model_id = tiny_wan.MODEL_ID
        return (
            "tiny Wan2.1-T2V whose attention is local in space and time and drifts over the steps "
            f"{sizes}: it shows no scene"
        )
    if chosen.model == options.STRUCTURED_WAN:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            chosen.model = structured_wan.make(chosen.output / "structured-1.3b-model", size="1.3b")
        chosen.model_id = tiny_wan.MODEL_ID
        return (
            "Wan2.1-T2V-1.3B's transformer with weights that make its attention local in space and time, "
            "drifting over the steps; text encoder and VAE are tiny. Its video shows no scene: pixels and "
            "metrics say nothing about picture quality"
        )
    return f"{chosen.model} as given"


def make_plan(
    chosen: argparse.Namespace, device: str, device_text: str, description: str, argv: list[str]
) -> dict[str, Any]:
    """What is known before anything runs, thresholds among it: the first part of the report."""
    return {
        "schema": SCHEMA,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "e2e.compare", *argv]),
        "gate_thresholds": quality.GATE,
        "versions": versions(),
        "device": device_text,
        "simulated": device == "cpu",
        "model": {"path": str(chosen.model), "description": description},
        "request": {name: getattr(chosen, name) for name in options.REQUEST_FIELDS},
        "requests": chosen.requests,
        "rounds": chosen.rounds,
        "engine": chosen.engine,
        "settings": {**pinned.SETTINGS, **chosen.sglang} if chosen.engine == "sglang" else {},
        "planned_arms": [arm.name for arm in chosen.arms],
    }


def make_job(chosen: argparse.Namespace, arm: arms.Arm, number: int, device: str, made_by: str) -> Job:
    """The arm's job of one round."""
    warmup = chosen.warmup if chosen.warmup is not None else (0 if device == "cpu" else 1)
    return Job(
        arm=arm.name,
        folder=str(chosen.output / arm.name / f"round-{number + 1}"),
        model=str(chosen.model),
        model_id=chosen.model_id,
        prompt=chosen.requests[0]["prompt"],
        height=chosen.height,
        width=chosen.width,
        frames=chosen.frames,
        steps=chosen.steps,
        guidance=chosen.guidance,
        seed=chosen.requests[0]["seed"],
        device=device,
        warmup=warmup,
        sglang=chosen.sglang,
        engine=chosen.engine,
        requests=chosen.requests,
        warmup_steps=min(chosen.warmup_steps, chosen.steps),
        keep_frames=number == 0,
        read_sparsity=number == 0 or device == "cpu",
        identity=made_by,
    )


def make_room(chosen: argparse.Namespace) -> None:
    """Removes what a complete earlier run left in the folder; an interrupted one's results stay."""
    complete = (chosen.output / "report.json").is_file()
    for name in ("report.json", "report.md", "report.html", skipping.PLOT):
        (chosen.output / name).unlink(missing_ok=True)
    if complete and not chosen.resume:
        for arm in chosen.arms:
            shutil.rmtree(chosen.output / arm.name, ignore_errors=True)


def summarise(plan: dict[str, Any], results: dict[str, Any], output: Path, tell: Any) -> dict[str, Any]:
    """The report: the plan, and what became of it."""
    finished = {name: arm for name, arm in results.items() if arm["status"] == "ok"}
    for arm in finished.values():
        arm["timing"] = timings.summarise(arm)
    reference = arms.reference(list(finished))
    for name, arm in finished.items():
        other = None if name == reference or plan["simulated"] else finished[reference]
        arm["gain"] = timings.gain(arm, other) if other else None
    compared = quality.compare(output, results, tell)
    skipped = skipping.summarise(results, compared)
    if skipped:
        skipped["plot"] = skipping.plot(skipped, output)
    checks = [
        pinned.check({name: arm["settings"] for name, arm in finished.items()}),
        quality.own_videos_check(results),
        *quality.noise_floor_checks(compared),
        *skipping.checks(skipped),
    ]
    report = {
        **plan,
        "arms": results,
        "pairs": compared,
        "metrics_missing": perceptual.missing(),
        "gate": quality.gate(compared, results, plan["gate_thresholds"]),
        "modelled": modelled.summarise(results, tell) if plan["simulated"] else None,
        "checks": [check for check in checks if check],
        "skipping": skipped,
    }
    report["gains"] = answer.gains(report)
    report["answer"] = answer.line(report)
    return report


def main(argv: list[str] | None = None) -> int:
    """Runs the comparison.

    Returns:
        0 when every arm finished and every check passed, 130 after Ctrl-C, 1 otherwise.
    """
    from rich.console import Console

    argv = sys.argv[1:] if argv is None else argv
    chosen = options.parse(argv, __doc__.splitlines()[0])
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a log has no width of its own
    try:
        device, device_text = detect_device(chosen.device, chosen.engine)
    except RuntimeError as error:
        console.print(str(error), style="bold red")
        return 1
    if chosen.rounds is None:
        chosen.rounds = ROUNDS[device]
    chosen.output = chosen.output.resolve()
    chosen.output.mkdir(parents=True, exist_ok=True)
    make_room(chosen)
    if device == "cpu":
        cpu_host.prepare()
    description = make_model(chosen)
    plan = make_plan(chosen, device, device_text, description, argv)
    (chosen.output / PLAN).write_text(json.dumps(plan, indent=2) + "\n")
    console.print(f"Device: {device_text}\nModel: {description}", highlight=False)
    packages = [Path(package.__file__).parent for package in (liteattention_rocm, sglang_integration)]
    made_by = identity(plan["versions"], packages)
    todo = runner.pieces(
        chosen.arms, chosen.rounds, lambda arm, number: make_job(chosen, arm, number, device, made_by)
    )
    try:
        runner.run(todo, device, chosen.jobs, console)
        with console.status("comparing") as status:
            report = summarise(plan, runner.results(todo, chosen.output), chosen.output, status.update)
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here", style="bold red")
        return 130
    reports.write(report, chosen.output)
    (chosen.output / "report.html").write_text(html_report.render(report, chosen.output))
    reports.show(report, console)
    console.print(f"Report: {chosen.output / 'report.html'}", highlight=False, soft_wrap=True)
    failed = any(arm["status"] == "failed" for arm in report["arms"].values())
    return 1 if failed or not all(check["passed"] for check in report["checks"]) else 0


if __name__ == "__main__":
    sys.exit(main())
