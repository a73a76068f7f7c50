"""`sglang generate` by both of its entry points, each to a finished video."""

import re

import numpy as np
import pytest

from e2e import metrics, tiny_wan
from sglang_host import REQUEST, python, run_arm, tiny_model

# Workers are spawned: they import this file again, and with it what SGLang lacks on a CPU.
SCRIPT = """
import sys
from e2e import cpu_host
cpu_host.prepare()

if __name__ == "__main__":
    from {module} import main
    sys.argv[0] = "sglang"
    main()
"""
BT_601 = np.array([0.299, 0.587, 0.114])  # luma of red, green and blue
ENTRY_POINTS = {
    "console script": "sglang.cli.main",
    "module": "sglang.multimodal_gen.runtime.entrypoints.cli.main",
}


def generate(folder, model, module, *more):
    """The video that the command writes, decoded, and the log."""
    folder.mkdir()
    script, video = folder / "command.py", folder / "video.mp4"  # "sglang.py" would be the package
    script.write_text(SCRIPT.format(module=module))
    options = {
        "model-path": model,
        "model-id": tiny_wan.MODEL_ID,
        "num-gpus": 1,
        "attention-backend": "liteattention_rocm",
        "component-precisions.vae": "fp32",
        "prompt": tiny_wan.PROMPTS[1],
        "height": REQUEST["height"],
        "width": REQUEST["width"],
        "num-frames": REQUEST["frames"],
        "num-inference-steps": REQUEST["steps"],
        "guidance-scale": REQUEST["guidance"],
        "seed": REQUEST["seed"],
        "output-file-path": video,
        "output-compression": 100,
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    finished = python(str(script), "generate", *words, *more, HF_HUB_OFFLINE="1")
    log = finished.stdout + finished.stderr
    if finished.returncode != 0 or not video.is_file():
        return None, log
    return decoded(video), log


def decoded(video) -> np.ndarray:
    """Frames [F, H, W, 3] of a file."""
    import imageio.v2 as imageio

    with imageio.get_reader(video) as reader:
        return np.stack(list(reader.iter_data())).astype(int)


def correlation(a, b) -> float:
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


def frames_of(folder, model, seed):
    """The frames of the request with a seed, made in one process of the harness."""
    run_arm("liteattention_rocm", folder, model, seed=seed)
    return metrics.read_frames(folder / "frames").astype(int)


@pytest.mark.full
def test_row_20_sglang_generate_by_either_entry_point(tmp_path, tmp_path_factory):
    """The global choice works from both, an override by component from the module; the console script refuses
    that one by name, which docs/sglang.md says what to do about."""
    model = tiny_model(tmp_path_factory)
    expected, other = (frames_of(tmp_path / f"seed-{seed}", model, seed) for seed in (REQUEST["seed"], 77))
    videos = {}
    for index, (name, module) in enumerate(ENTRY_POINTS.items()):
        more = ["--component-attention-backends", "transformer.cross=liteattention_rocm"] if index else []
        video, log = generate(tmp_path / str(index), model, module, *more)
        assert video is not None, log[-5000:]
        chosen = "cross=liteattention_rocm" if more else "transformer: liteattention_rocm"
        assert re.search(f"Attention backends for transformer.*{chosen}|Attention backends for {chosen}", log)
        # H.264 halves the resolution of colours and, uncompressed, keeps luma but for its rounding and range.
        assert video.shape == expected.shape, name
        luma, mine, others = (frames @ BT_601 for frames in (video, expected, other))
        assert correlation(luma, mine) > 0.999 > correlation(luma, others), name
        videos[name] = video
    assert np.array_equal(*videos.values())
