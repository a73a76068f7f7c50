"""One arm: one process that loads the engine (SGLang, or diffusers), makes the video and writes what it saw.

``python -m e2e.generate JOB.json`` is what :mod:`e2e.compare` starts, once per arm, so that neither a backend
choice that SGLang caches nor a crash reaches another arm. Lines on standard output that begin with
:data:`MARK` are for the parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import resource
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from e2e import arms, pinned, skipping
from e2e.arms import Arm
from e2e.job import RESULT, Job

__all__ = ["MARK", "Job", "load", "main", "run"]

MARK = "@e2e "
# Modules with load, watch, run, times, settings, choice and READING_TAKES_TIME, by what they drive.
ENGINES = {"sglang": "e2e.generate", "diffusers": "e2e.diffusers_engine"}
ATTENTION_KERNEL = re.compile(r"attention|attn|fmha|flash|sage", re.IGNORECASE)
FRAMES_PER_SECOND = 16  # what Wan2.1 is trained at
SIMULATED_TIME = "host seconds, simulated on this CPU: not a speed"
HOST_TIME = "host seconds, PyTorch on this CPU: not a speed"
MEASURED_TIME = "measured on the device, synchronised at stage and step ends"


settings = pinned.read_back
choice = pinned.choice
READING_TAKES_TIME = True  # times include reading the sparsity back


def tell(**message: Any) -> None:
    """Sends one message to the parent: one write, lest another thread's output come before the line's end."""
    sys.stdout.write(f"{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


def main(path: str) -> int:
    """Runs the job in ``path``; a result lies in each request's folder afterwards.

    Requests that an earlier run finished are left as they are.
    """
    job = Job.read(Path(path))
    arm = arms.find(job.arm)
    if arm.device_only and job.device == "cpu":
        raise RuntimeError(f"{arm.name} needs a GPU: {arm.device_only}")
    wanted = [request for request in job.each() if request.finished() is None]
    engine = importlib.import_module(ENGINES[job.engine])
    tell(stage=f"loading {job.engine}")
    started = time.perf_counter()
    pipeline, server_args = engine.load(job, arm)
    layers = engine.watch(pipeline, job, arm, len(wanted))
    ready = time.perf_counter() - started

    warm_kernels: dict[str, Any] = {}
    for _ in range(job.warmup):
        tell(stage="warming up")
        warm_kernels.clear()
        with device_kernels(job, warm_kernels):
            engine.run(pipeline, server_args, replace(job, steps=job.warmup_steps or job.steps))
    calls = 0
    for request in wanted:
        layers.clear(told_before=calls)
        Path(request.folder).mkdir(parents=True, exist_ok=True)
        skipping.forget(Path(job.folder))
        reset_statistics(job)
        tell(stage="generating")
        started = time.perf_counter()
        output = engine.run(pipeline, server_args, request)
        seconds = time.perf_counter() - started
        calls += layers.total

        tell(stage="writing")
        result = {"fingerprint": request.fingerprint, "prompt": request.prompt, "seed": request.seed}
        result.update(describe(request, job.folder, arm, layers, warm_kernels or simulated_kernels(job)))
        result["reads_sparsity"] &= engine.READING_TAKES_TIME
        result["times"] = engine.times(request, arm, output, ready, seconds)
        result["memory"] = peak_memory(job)
        result["settings"] = engine.settings(server_args)
        result["choice"] = engine.choice(server_args)
        result["frames"] = int(output.output.shape[2])
        result.update(write_video(Path(request.folder), output, request.keep_frames))
        unfinished = Path(request.folder) / (RESULT + ".unfinished")
        unfinished.write_text(json.dumps(result, indent=2) + "\n")
        unfinished.rename(Path(request.folder) / RESULT)
    return 0


def load(job: Job, arm: Arm):
    """SGLang's pipeline in this process, with the arm's attention backend.

    Returns:
        The pipeline and SGLang's server arguments.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0"
    )
    os.environ.update(SGLANG_DIFFUSION_STAGE_LOGGING="1", SGLANG_DIFFUSION_SYNC_STAGE_PROFILING="1")
    if Path(job.model).is_dir():
        os.environ["HF_HUB_OFFLINE"] = "1"
    extra = pinned.server_arguments(arm.backend, job.sglang)
    if job.device == "cpu":
        from e2e import cpu_host

        cpu_host.prepare()

    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks

    if arm.backend == "aiter":
        set_up_aiter(job, arm)
    apply_plugin_hooks()

    from sglang.multimodal_gen.runtime.distributed.parallel_state import (
        maybe_init_distributed_environment_and_model_parallel,
    )
    from sglang.multimodal_gen.runtime.pipelines_core import build_pipeline
    from sglang.multimodal_gen.runtime.server_args import ServerArgs, set_global_server_args

    if config := backend_config(job, arm):
        extra["attention_backend_config"] = json.dumps(config)
    if job.model_id is not None:
        extra["model_id"] = job.model_id
    server_args = ServerArgs.from_kwargs(
        model_path=job.model, attention_backend=arm.backend, num_gpus=1, **extra
    )
    set_global_server_args(server_args)
    maybe_init_distributed_environment_and_model_parallel(tp_size=1, sp_size=1)
    tell(stage="loading the model")
    return build_pipeline(server_args), server_args


def backend_config(job: Job, arm: Arm) -> dict[str, str | float]:
    """What ``--attention-backend-config`` tells the arm's backend; SGLang's own of AITER takes none."""
    if arm.rounding is None or (arm.backend == "aiter" and job.device != "cpu"):
        return {}
    config = {"rounding": arm.rounding}
    if arm.threshold is not None:
        config["threshold"] = str(arm.threshold)
        if job.break_even is not None:
            config["break_even"] = job.break_even
        if job.read_sparsity:
            config["dump"] = str(Path(job.folder) / skipping.FOLDER)
    return config


def set_up_aiter(job: Job, arm: Arm) -> None:
    """AITER's rounding for this arm: its code object in the simulator, or SGLang's own backend on ROCm.

    Raises:
        RuntimeError: SGLang's backend has no mode to set.
    """
    if job.device == "cpu":
        from e2e import aiter_simulated

        aiter_simulated.register()
        return
    from sglang.multimodal_gen.runtime.layers.attention.backends import aiter

    if not hasattr(aiter, "AITER_BF16_CVT_MODE"):
        raise RuntimeError(f"{aiter.__name__} has no AITER_BF16_CVT_MODE: the arm's rounding can't be chosen")
    aiter.AITER_BF16_CVT_MODE = {"rtne": 0, "rtna": 1, "rtz": 2}[arm.rounding]


def watch(pipeline: Any, job: Job, arm: Arm, requests: int):
    """Counts the transformer's attention calls and reports progress over so many requests.

    Raises:
        RuntimeError: SGLang chose another backend than the arm's.
    """
    from e2e.layers import LayerCalls

    told = 0.0

    def report(calls: int) -> None:
        nonlocal told
        if time.monotonic() - told > 0.5:
            told = time.monotonic()
            tell(calls=calls)

    layers = LayerCalls(
        pipeline.modules["transformer"], report, executed_instructions if job.device == "cpu" else None
    )
    if layers.backends != {arm.backend}:
        raise RuntimeError(
            f"SGLang chose {', '.join(sorted(layers.backends))} where {arm.backend} was asked for"
        )
    branches = 2 if job.guidance > 1 else 1
    kinds = sum(hasattr(module, "attn_impl") for module in pipeline.modules["transformer"].modules())
    tell(expected=kinds * branches * job.steps * requests)
    return layers


def run(pipeline: Any, server_args: Any, job: Job, **sampling_arguments: Any) -> Any:
    """One generation, with further arguments of SGLang's sampling.

    Returns:
        SGLang's output: frames [1, 3, F, H, W] in 0…1, latents of every step.
    """
    from sglang.multimodal_gen.configs.sample.sampling_params import SamplingParams
    from sglang.multimodal_gen.runtime.entrypoints.utils import prepare_request

    sampling = SamplingParams.from_user_sampling_params_args(
        server_args.model_path,
        server_args=server_args,
        prompt=job.prompt,
        height=job.height,
        width=job.width,
        num_frames=job.frames,
        num_inference_steps=job.steps,
        guidance_scale=job.guidance,
        seed=job.seed,
        save_output=False,
        return_trajectory_latents=True,
        **sampling_arguments,
    )
    with torch.inference_mode():
        return pipeline.forward(
            prepare_request(server_args=server_args, sampling_params=sampling), server_args
        )


def reset_statistics(job: Job) -> None:
    """Forgets the simulator's counts, and the device's peak of memory."""
    if job.device == "cpu":
        from liteattention_rocm import simulator

        simulator.reset_statistics()
    else:
        torch.cuda.reset_peak_memory_stats()


def peak_memory(job: Job) -> dict[str, Any]:
    """Peak ``bytes`` of the request on a device, of the whole process on a CPU, and what ``basis`` says."""
    if job.device == "cpu":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"bytes": peak, "basis": "host memory of the process, SGLang and the simulator included"}
    return {
        "bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "basis": "device memory, by torch's allocator",
    }


def executed_instructions() -> int:
    """What the simulator has executed since the last reset, of every kernel."""
    from liteattention_rocm import simulator

    return sum(counts["instructions"] for counts in simulator.statistics()["kernels"].values())


def simulated_kernels(job: Job) -> dict[str, Any]:
    """The simulator's counts per kernel since the last reset; empty on a device."""
    if job.device != "cpu":
        return {}
    from liteattention_rocm import simulator

    return simulator.statistics()["kernels"]


@contextlib.contextmanager
def device_kernels(job: Job, kernels: dict[str, Any]):
    """Adds the block's launches per attention kernel to ``kernels``, from torch's profiler; none on a CPU."""
    if job.device == "cpu":
        yield
        return
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        yield
    for event in profiler.events():
        if event.device_type == DeviceType.CUDA and ATTENTION_KERNEL.search(event.name):
            entry = kernels.setdefault(event.name, {"launches": 0, "seconds": 0.0})
            entry["launches"] += 1
            entry["seconds"] += event.time_range.elapsed_us() / 1e6


def serves(arm: Arm, kernel: str) -> bool:
    """Whether a kernel is the arm's, in its rounding mode; those that only prepare lists have none."""
    if arm.kernel is None or arm.kernel not in kernel:
        return False
    modes = [mode for mode in ("rtne", "rtna", "rtz") if mode in kernel]
    return not modes or arm.rounding in modes


def describe(job: Job, arm_folder: str, arm: Arm, layers: Any, kernels: dict[str, Any]) -> dict[str, Any]:
    """What served the request.

    Raises:
        RuntimeError: in the simulator, when the launches of the arm's kernel are not the layers' calls.
    """
    if job.device == "cpu":
        served = {name: counts["launches"] for name, counts in kernels.items()}
        ours = sum(launches for name, launches in served.items() if serves(arm, name))
        # A call of ours may take more than one launch.
        missing = ours < layers.total if arm.clock and arm.backend != "aiter" else ours != layers.total
        if (missing if arm.kernel else ours) or ours != sum(served.values()):
            raise RuntimeError(f"{layers.total} attention calls, but the simulator launched {served}")
    reads = arm.threshold is not None and job.read_sparsity
    return {
        "arm": arm.name,
        "about": arm.about,
        "backend": arm.backend,
        "rounding": arm.rounding,
        "simulated": job.device == "cpu" and arm.kernel is not None,
        "attention": layers.summary(),
        "kernels": dict(kernels),
        "kernels_steps": job.steps if job.device == "cpu" else job.warmup_steps or job.steps,
        "instructions": sum(counts.get("instructions", 0) for counts in kernels.values()),
        "matrix_instructions": sum(counts.get("matrix", 0) for counts in kernels.values()),
        "self_instructions": list(layers.self_instructions),
        "threshold": arm.threshold,
        "reads_sparsity": reads,
        "sparsity": skipping.read(Path(arm_folder)) if reads else None,
    }


def time_basis(job: Job, arm: Arm) -> str:
    """What the job's times are."""
    if job.device != "cpu":
        return MEASURED_TIME
    return HOST_TIME if arm.kernel is None else SIMULATED_TIME


def times(job: Job, arm: Arm, output: Any, ready: float, seconds: float) -> dict[str, Any]:
    """Seconds of the measured generation, and SGLang's own performance dump beside it.

    Args:
        ready: from the start until the pipeline was loaded.
        seconds: of the generation.
    """
    from sglang.multimodal_gen.runtime.utils.perf_logger import PerformanceLogger

    metrics = output.metrics
    metrics.total_duration_ms = seconds * 1000
    PerformanceLogger.dump_benchmark_report(str(Path(job.folder) / "perf.json"), metrics, tag=job.arm)
    return {
        "basis": time_basis(job, arm),
        "warmup_generations": job.warmup,
        "ready_s": ready,
        "total_s": seconds,
        "stages_s": {name: value / 1000 for name, value in metrics.stages.items()},
        "steps_s": [value / 1000 for value in metrics.steps],
    }


def write_video(folder: Path, output: Any, keep: bool) -> dict[str, Any]:
    """Writes ``frames/*.png``, ``video.mp4`` (H.264, yuv420p) and ``latents.npy`` [steps, C, F, h, w].

    Args:
        keep: write nothing, only digest.

    Returns:
        Where video and frames lie, and the SHA-256 of frames and latents.
    """
    import imageio.v2 as imageio
    from PIL import Image

    frames = to_frames(output.output[0])
    latents = output.trajectory_latents[0].float().cpu().numpy()
    digest = hashlib.sha256(frames.tobytes() + latents.tobytes()).hexdigest()
    if not keep:
        return {"digest": digest}
    (folder / "frames").mkdir(exist_ok=True)
    for index, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / "frames" / f"{index:04d}.png")
    with imageio.get_writer(
        folder / "video.mp4",
        fps=FRAMES_PER_SECOND,
        codec="libx264",
        pixelformat="yuv420p",
        quality=9,
        macro_block_size=2,
    ) as writer:
        for frame in frames:
            writer.append_data(frame)
    np.save(folder / "latents.npy", latents)
    return {"digest": digest, "video": "video.mp4", "frame_folder": "frames"}


def to_frames(video: torch.Tensor) -> np.ndarray:
    """Frames [F, H, W, 3] uint8 of a video [3, F, H, W] in 0…1, rounded to nearest."""
    scaled = (video.float().clamp(0, 1) * 255).round().to(torch.uint8)
    return scaled.permute(1, 2, 3, 0).cpu().numpy()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
