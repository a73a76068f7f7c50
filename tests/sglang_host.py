"""SGLang's diffusion runtime in a test: a tiny model for it, server arguments, and arms as processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from e2e import cpu_host, tiny_wan
from e2e.generate import Job

cpu_host.prepare()

# 2·8·11 = 176 tokens: more than AITER's assembly path needs, and a tail for every tile from 32 up.
REQUEST = {"height": 128, "width": 176, "frames": 5, "steps": 2, "guidance": 5.0, "seed": 3}
TOKENS = 176
TEXT_TOKENS = 512
CALLS_PER_ROLE = tiny_wan.LAYERS * 2 * REQUEST["steps"]  # both branches of guidance in every step

# `sglang generate` through the main of a module, as far as what a component gets: printed behind BACKENDS.
COMMAND_LINE = """
import sys
from e2e import cpu_host
cpu_host.prepare()
from {module} import main
from sglang.multimodal_gen.runtime.entrypoints import diffusion_generator
def stop(cls, **arguments):
    print("BACKENDS", arguments["server_args"].component_attention_backend_roles)
    sys.exit(0)
diffusion_generator.DiffGenerator.from_pretrained = classmethod(stop)
sys.argv = ["sglang", "generate", "--model-path", {model!r}, "--model-id", {model_id!r}, "--prompt", "x",
            "--component-attention-backends", *{words!r}]
main()
"""


def tiny_model(tmp_path_factory) -> Path:
    """The tiny model, made once per test session."""
    return tiny_wan.make(tmp_path_factory.getbasetemp() / "tiny-wan")


def server_args(model: Path, num_gpus: int = 1, **arguments):
    """SGLang's server arguments as it parses them, and made the process's."""
    from sglang.multimodal_gen.runtime.server_args import ServerArgs, set_global_server_args

    args = ServerArgs.from_kwargs(
        model_path=str(model), model_id=tiny_wan.MODEL_ID, num_gpus=num_gpus, **arguments
    )
    set_global_server_args(args)
    return args


def job(arm: str, folder: Path, model: Path, **changes) -> Path:
    """Writes a job for one arm into ``folder``, with ``changes`` to the request, and returns its file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "job.json"
    Job(
        arm=arm,
        folder=str(folder),
        model=str(model),
        prompt=tiny_wan.PROMPTS[1],
        device="cpu",
        **{"model_id": tiny_wan.MODEL_ID, **REQUEST, **changes},
    ).write(file)
    return file


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs this interpreter with variables added to its environment, both streams captured as text."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="replace",
    )


def run_arm(arm: str, folder: Path, model: Path, prelude: str = "", **changes) -> dict:
    """Makes an arm's video in a process of its own, after ``prelude``; returns what ``arm.json`` says."""
    file = str(job(arm, folder, model, **changes))
    run = f"import sys\nfrom e2e.generate import main\nsys.exit(main({file!r}))"
    finished = python("-c", f"{prelude}\n{run}")
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return json.loads((folder / "arm.json").read_text())
