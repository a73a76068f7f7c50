"""Skip lists in several workers: heads split by Ulysses, branches split by CFG parallelism."""

import json

import numpy as np
import pytest

from e2e import structured_wan, tiny_wan
from sglang_host import python

# Workers are spawned: they import this file again, and with it what SGLang lacks on a CPU.
SCRIPT = """
import json, sys
from e2e import cpu_host
cpu_host.prepare()

if __name__ == "__main__":
    import numpy
    from sglang.multimodal_gen import DiffGenerator

    model, model_id, prompt, out, dump, parallel = sys.argv[1:]
    generator = DiffGenerator.from_pretrained(
        model_path=model,
        model_id=model_id,
        attention_backend="liteattention_rocm",
        attention_backend_config=json.dumps({"threshold": -6, "dump": dump}),
        component_precisions={"vae": "fp32"},
        **json.loads(parallel),
    )
    try:
        result = generator.generate(
            sampling_params_kwargs=dict(
                prompt=prompt,
                height=64,
                width=128,
                num_frames=45,
                num_inference_steps=3,
                guidance_scale=5.0,
                seed=3,
                save_output=False,
                return_frames=True,
            )
        )
        numpy.save(out, numpy.stack(result.frames))
    finally:
        generator.shutdown()
"""


def generate(folder, model, **parallel):
    """Frames, and each rank's calls."""
    folder.mkdir()
    script, frames, dump = folder / "generate.py", folder / "frames.npy", folder / "dump"
    script.write_text(SCRIPT)
    arguments = (str(model), tiny_wan.MODEL_ID, tiny_wan.PROMPTS[1], str(frames), str(dump))
    finished = python(str(script), *arguments, json.dumps(parallel), HF_HUB_OFFLINE="1")
    assert finished.returncode == 0 and frames.is_file(), finished.stdout[-3000:] + finished.stderr[-3000:]
    ranks = {}
    for file in dump.iterdir():
        dumped = json.loads(file.read_text())
        assert dumped["rank"] not in ranks  # one run, one file a rank
        ranks[dumped["rank"]] = dumped["calls"]
    return np.load(frames).astype(int), ranks


@pytest.mark.full
def test_workers_keep_the_lists_of_their_heads_or_branches(tmp_path):
    """Three generations of one, two and two processes: some minutes."""
    model = structured_wan.make(tmp_path / "model")
    frames, alone = generate(tmp_path / "alone", model, num_gpus=1)
    assert list(alone) == [0] and max(call["skipped"] for call in alone[0]) > 0.1
    keys = ("layer", "branch", "step", "action")

    ulysses_frames, heads = generate(tmp_path / "ulysses", model, num_gpus=2, ulysses_degree=2)
    assert sorted(heads) == [0, 1]
    for first, second, whole in zip(heads[0], heads[1], alone[0], strict=True):
        assert [first[key] for key in keys] == [second[key] for key in keys] == [whole[key] for key in keys]
        assert first["shape"] == second["shape"] == [1, 384, tiny_wan.HEADS // 2, tiny_wan.HEAD_DIM, 384]
        assert (first["skipped"] + second["skipped"]) / 2 == pytest.approx(whole["skipped"], abs=0.03)
    assert np.abs(ulysses_frames - frames).mean() < 2

    cfg_frames, branches = generate(tmp_path / "cfg", model, num_gpus=2, enable_cfg_parallel=True)
    assert sorted(branches) == [0, 1]
    for rank, branch in enumerate(("conditional", "unconditional")):
        expected = [call for call in alone[0] if call["branch"] == branch]
        for call, whole in zip(branches[rank], expected, strict=True):
            assert [call[key] for key in keys] == [whole[key] for key in keys]
            assert call["skipped"] == pytest.approx(whole["skipped"], abs=0.03)
    assert np.abs(cfg_frames - frames).mean() < 2
