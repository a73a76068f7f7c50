"""SGLang's DiffGenerator in a process of its own, with workers that it spawns: frames for given arguments."""

import json
import re
from pathlib import Path

import numpy as np

from e2e import tiny_wan
from sglang_host import REQUEST, python

# Workers are spawned: they import this file again, and with it what SGLang lacks on a CPU.
SCRIPT = """
import json, os, sys
from e2e import cpu_host
cpu_host.prepare()

if "EAGER_VAE" in os.environ:
    from sglang.multimodal_gen.runtime.pipelines_core.stages.decoding import DecodingStage
    DecodingStage._get_vae_decode_fn = lambda self, vae, *_, decode_fn=None, **__: decode_fn or vae.decode

if __name__ == "__main__":
    import numpy
    from sglang.multimodal_gen import DiffGenerator

    model, out, arguments, request = sys.argv[1:]
    generator = DiffGenerator.from_pretrained(
        model_path=model, component_precisions={"vae": "fp32"}, **json.loads(arguments)
    )
    try:
        result = generator.generate(sampling_params_kwargs=json.loads(request))
        numpy.save(out, numpy.stack(result.frames))
    finally:
        generator.shutdown()
"""


def sampling(**changes) -> dict:
    """SGLang's sampling parameters of the tests' request; frames come back and no file is written."""
    request = REQUEST | changes
    return {
        "prompt": tiny_wan.PROMPTS[1],
        "height": request["height"],
        "width": request["width"],
        "num_frames": request["frames"],
        "num_inference_steps": request["steps"],
        "guidance_scale": request["guidance"],
        "seed": request["seed"],
        "save_output": False,
        "return_frames": True,
    }


def generate(
    folder: Path, model: Path, *, request=None, environment=None, **arguments
) -> tuple[np.ndarray, str]:
    """Frames [F, H, W, 3] as int, and what the processes logged.

    Args:
        folder: where script and frames go; made here.
        request: changes to the tests' request.
        environment: variables for the processes.
        arguments: of `DiffGenerator.from_pretrained`; our backend unless they name another.
    """
    folder.mkdir(parents=True)
    script, out = folder / "generate.py", folder / "frames.npy"
    script.write_text(SCRIPT)
    arguments = {
        "model_id": tiny_wan.MODEL_ID,
        "num_gpus": 1,
        "attention_backend": "liteattention_rocm",
    } | arguments
    words = (str(model), str(out), json.dumps(arguments), json.dumps(sampling(**(request or {}))))
    finished = python(str(script), *words, HF_HUB_OFFLINE="1", **(environment or {}))
    log = finished.stdout + finished.stderr
    assert finished.returncode == 0 and out.is_file(), log[-6000:]
    assert re.search(r"Attention backends for transformer: .*liteattention_rocm", log), log[-6000:]
    return np.load(out).astype(int), log
