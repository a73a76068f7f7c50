"""Arms made by diffusers' pipeline, and what tools/gpu_wan.py takes from the report."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from e2e import arms, compare, diffusers_engine, generate, tiny_wan
from e2e.job import Job
from sglang_host import CALLS_PER_ROLE, REQUEST, TEXT_TOKENS, TOKENS, run_arm, tiny_model

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import gpu_wan


def run(arm: str, tmp_path, tmp_path_factory) -> tuple[dict, np.ndarray]:
    result = run_arm(arm, tmp_path / arm, tiny_model(tmp_path_factory), engine="diffusers")
    return result, np.load(tmp_path / arm / "latents.npy")


def test_an_arm_that_skips(tmp_path, tmp_path_factory):
    result, latents = run("liteattention_rocm@-6", tmp_path, tmp_path_factory)
    assert result["simulated"] and result["backend"] == "liteattention_rocm"
    shape = [1, TOKENS, tiny_wan.HEADS, tiny_wan.HEAD_DIM]
    assert [
        (entry["role"], entry["calls"], entry["query_shape"], entry["kv_length"])
        for entry in result["attention"]
    ] == [("self", CALLS_PER_ROLE, shape, TOKENS), ("cross", CALLS_PER_ROLE, shape, TEXT_TOKENS)]
    kernels = {name: counts["launches"] for name, counts in result["kernels"].items()}
    assert sum(n for name, n in kernels.items() if "skip_forward" in name) == CALLS_PER_ROLE
    calls = result["sparsity"]["calls"]
    places = [(call["step"], call["branch"], call["layer"]) for call in calls]
    layers = [f"blocks.{number}.attn1" for number in range(tiny_wan.LAYERS)]
    assert places == [(s, b, layer) for s in range(REQUEST["steps"]) for b in range(2) for layer in layers]
    assert len(result["self_instructions"]) == len(calls) and all(result["self_instructions"])
    assert not result["reads_sparsity"]  # its times are without
    assert len(result["times"]["steps_s"]) == REQUEST["steps"]
    assert result["times"]["total_s"] == pytest.approx(sum(result["times"]["stages_s"].values()))
    assert len(latents) == REQUEST["steps"] and np.isfinite(latents).all()
    assert len(list((tmp_path / "liteattention_rocm@-6" / "frames").glob("*.png"))) == REQUEST["frames"]


@pytest.mark.full
def test_arms_make_one_video(tmp_path, tmp_path_factory):
    """Apart by rounding alone; a threshold that keeps everything changes nothing."""
    _, expected = run("torch_sdpa", tmp_path, tmp_path_factory)
    _, dense = run("liteattention_rocm", tmp_path, tmp_path_factory)
    apart = np.linalg.norm(dense - expected) / np.linalg.norm(expected)
    assert 0 < apart < 0.03


def test_an_arm_of_aiter_is_refused():
    job = Job("aiter", "", "", None, "", 64, 64, 5, 1, 5.0, 0, "cpu", engine="diffusers")
    with pytest.raises(RuntimeError, match="aiter needs --engine sglang"):
        diffusers_engine.load(job, arms.find("aiter"))


def test_every_engine_has_what_an_arm_calls():
    for name in generate.ENGINES.values():
        module = sys.modules[name]
        for part in ("load", "watch", "run", "times", "settings", "READING_TAKES_TIME"):
            assert hasattr(module, part), (name, part)


def test_nvidia_devices_take_diffusers_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H200")
    monkeypatch.setattr(compare.dispatch, "serving", lambda device: SimpleNamespace(name="triton"))
    assert compare.detect_device("auto")[0] == "cpu"
    device, text = compare.detect_device("auto", "diffusers")
    assert device == "cuda" and text.startswith("NVIDIA H200") and "triton kernel" in text
    assert compare.detect_device("cpu", "diffusers")[0] == "cpu"


def test_gains_beside_torch(tmp_path):
    """Two thirds of a step of 3 s is self-attention; made twice as fast, a step takes 2 s."""

    def arm(name: str, steps: list[float], own: float, latents: float, sparsity=None) -> dict:
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "latents.npy", np.full((3, 4), latents, np.float32))
        times = {"steps_s": steps, "attention_s": [{"self": own, "cross": 0.3}] * 3}
        return {
            "status": "ok",
            "times": times,
            "timing": {"peak_bytes": 5e9},
            "requests": {"prompt-1-seed-42": name},
            "sparsity": sparsity,
        }

    sparse = {"per_step": [0.0, 0.5, 0.7]}
    report = {
        "arms": {
            arms.SDPA: arm(arms.SDPA, [9.0, 3.0, 3.0], 2.0, 1.0),
            arms.at("-6"): arm(arms.at("-6"), [9.0, 2.0, 2.0], 1.0, 1.1, sparse),
        }
    }
    base, ours = gpu_wan.rows(report, tmp_path)
    assert base["gain"] == 1 and base["distance"] == 0
    assert base["attention_share"] == pytest.approx(2.3 / 3)
    assert (ours["gain"], ours["amdahl"]) == pytest.approx((1.5, 1.5))
    assert ours["limit"] == pytest.approx(3)
    assert ours["sparsity"] == pytest.approx(0.6)
    assert ours["distance"] == pytest.approx(0.1, rel=1e-5)
