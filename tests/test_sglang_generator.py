"""SGLang's DiffGenerator, whose worker is a spawned process, with our backend."""

import numpy as np
import pytest

from e2e import metrics, tiny_wan
from sglang_host import REQUEST, python, run_arm, tiny_model

# The worker is spawned: it imports this file again, and with it what SGLang lacks on a CPU.
SCRIPT = """
import sys
from e2e import cpu_host
cpu_host.prepare()

if __name__ == "__main__":
    import numpy
    from sglang.multimodal_gen import DiffGenerator

    model, model_id, prompt, out = sys.argv[1:5]
    request = dict(zip(("height", "width", "frames", "steps", "guidance", "seed"), map(float, sys.argv[5:])))
    generator = DiffGenerator.from_pretrained(
        model_path=model,
        model_id=model_id,
        num_gpus=1,
        attention_backend="liteattention_rocm",
        component_attention_backends="transformer.cross=liteattention_rocm",
        component_precisions={"vae": "fp32"},
    )
    try:
        result = generator.generate(
            sampling_params_kwargs=dict(
                prompt=prompt,
                height=int(request["height"]),
                width=int(request["width"]),
                num_frames=int(request["frames"]),
                num_inference_steps=int(request["steps"]),
                guidance_scale=request["guidance"],
                seed=int(request["seed"]),
                save_output=False,
                return_frames=True,
            )
        )
        numpy.save(out, numpy.stack(result.frames))
    finally:
        generator.shutdown()
"""


@pytest.mark.full
def test_spawned_worker_makes_the_same_video(tmp_path, tmp_path_factory):
    """Two processes that each import SGLang: about a minute."""
    model = tiny_model(tmp_path_factory)
    script, out = tmp_path / "generate.py", tmp_path / "frames.npy"
    script.write_text(SCRIPT)
    arguments = [str(model), tiny_wan.MODEL_ID, tiny_wan.PROMPTS[1], str(out), *map(str, REQUEST.values())]
    finished = python(str(script), *arguments, HF_HUB_OFFLINE="1")
    assert finished.returncode == 0 and out.is_file(), finished.stdout[-3000:] + finished.stderr[-3000:]
    run_arm("liteattention_rocm", tmp_path / "one_process", model)
    one_process = metrics.read_frames(tmp_path / "one_process" / "frames")
    # SGLang's own conversion truncates where the harness rounds.
    assert np.abs(np.load(out).astype(int) - one_process).max() <= 1
