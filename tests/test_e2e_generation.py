"""Videos made through SGLang: which kernel served them, what is written, and what a broken arm does."""

import html
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from e2e import cpu_host, metrics, quality, structured_wan, tiny_wan
from sglang_host import CALLS_PER_ROLE, REQUEST, TEXT_TOKENS, TOKENS, python, run_arm, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory, model):
    """One run of the command with our arm, torch's, and AITER's without its code objects."""
    folder = tmp_path_factory.mktemp("comparison")
    options = [f"--{name}={value}" for name, value in REQUEST.items()]
    finished = python(
        "-m",
        "e2e.compare",
        f"--model={model}",
        f"--model-id={tiny_wan.MODEL_ID}",
        f"--prompt={tiny_wan.PROMPTS[1]}",
        "--arms=liteattention_rocm,aiter,torch_sdpa",
        f"--output={folder}",
        *options,
        LITEATTENTION_ROCM_AITER_HSA=str(folder / "nowhere"),
    )
    assert (folder / "report.json").is_file(), finished.stdout[-3000:] + finished.stderr[-3000:]
    return finished, folder, json.loads((folder / "report.json").read_text())


def videos(folder, name):
    """Where the comparison's only request of an arm lies."""
    (found,) = (folder / name / "round-1").glob("prompt-*")
    return found


def calls(arm, role):
    (entry,) = (entry for entry in arm["attention"] if entry["role"] == role)
    return entry


def attention_launches(arm):
    """One per call: merging the pieces of a split KV and ordering workgroups are launches beside it."""
    return sum(
        counts["launches"]
        for name, counts in arm["kernels"].items()
        if "merge" not in name and "order" not in name
    )


def test_our_kernel_served_every_self_and_cross_layer(comparison):
    _, _, report = comparison
    arm = report["arms"]["liteattention_rocm"]
    assert arm["status"] == "ok", arm
    shape = [1, TOKENS, tiny_wan.HEADS, tiny_wan.HEAD_DIM]
    for role, length, strided in (("self", TOKENS, True), ("cross", TEXT_TOKENS, False)):
        entry = calls(arm, role)
        assert entry["backend"] == "liteattention_rocm" and entry["calls"] == CALLS_PER_ROLE
        assert entry["query_shape"] == shape and entry["kv_length"] == length
        assert entry["value_strided"] is strided
    assert all(re.fullmatch("attention_[a-z_]+_rtne", name) for name in arm["kernels"])
    name = "liteattention_rocm"
    assert arm["choice"] == [
        *("--attention-backend", name),
        *("--component-attention-backends", f"transformer.self={name},transformer.cross={name}"),
        *("--attention-backend-config", '{"rounding": "rtne"}'),
    ]
    assert attention_launches(arm) == 2 * CALLS_PER_ROLE
    instructions, matrix = (
        sum(counts[kind] for counts in arm["kernels"].values()) for kind in ("instructions", "matrix")
    )
    assert arm["instructions"] == instructions > arm["matrix_instructions"] == matrix > 0
    # No bfloat16 MFMA of gfx942 does more than 32·32·8 multiply-adds, and Q·K and P·V need these.
    multiply_adds = 2 * TOKENS * (TOKENS + TEXT_TOKENS) * tiny_wan.HEAD_DIM * tiny_wan.HEADS * CALLS_PER_ROLE
    assert matrix * 32 * 32 * 8 >= multiply_adds


def test_broken_arm_is_reported_and_the_others_finish(comparison):
    finished, folder, report = comparison
    assert finished.returncode == 1
    broken = report["arms"]["aiter"]
    assert broken["status"] == "failed" and "AITER's code objects are not under" in broken["error"]
    assert (folder / broken["log"]).is_file()
    assert {name for name, arm in report["arms"].items() if arm["status"] == "ok"} == {
        "liteattention_rocm",
        "torch_sdpa",
    }
    assert "aiter failed: " in finished.stdout
    settings, videos_of_their_own = report["checks"]  # the noise floor takes AITER's arms
    assert settings["name"] == "every arm ran with the same settings" and settings["passed"]
    assert (
        videos_of_their_own["name"] == "every arm made a video of its own" and videos_of_their_own["passed"]
    )


def test_pair_of_finished_arms_is_compared(comparison):
    _, folder, report = comparison
    (pair,) = report["pairs"]
    assert {pair["a"], pair["b"]} == {"liteattention_rocm", "torch_sdpa"}
    # Attention of random weights shows in the video, and ours is near torch's.
    assert not pair["identical"] and 30 < pair["psnr_db"] < 80 and pair["ssim"] > 0.9
    frames = [metrics.read_frames(videos(folder, name) / "frames") for name in (pair["a"], pair["b"])]
    error = np.mean((frames[0].astype(float) - frames[1]) ** 2)
    assert pair["psnr_db"] == pytest.approx(10 * np.log10(255**2 / error))
    assert len(pair["latents"]["rmse"]) == REQUEST["steps"]
    assert pair["latents"]["rmse"][0] < pair["latents"]["rmse"][-1] < 0.2


def test_video_plays_and_frames_are_complete(comparison):
    import av

    _, folder, _ = comparison
    for name in ("liteattention_rocm", "torch_sdpa"):
        frames = metrics.read_frames(videos(folder, name) / "frames")
        assert frames.shape == (REQUEST["frames"], REQUEST["height"], REQUEST["width"], 3)
        assert frames.std() > 5  # a picture, not one colour
        with av.open(str(videos(folder, name) / "video.mp4")) as container:
            (stream,) = container.streams.video
            assert stream.codec_context.name == "h264" and stream.codec_context.pix_fmt == "yuv420p"
            decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert len(decoded) == REQUEST["frames"] and decoded[0].shape == frames[0].shape
        assert np.abs(decoded[0].astype(int) - frames[0]).mean() < 20


def test_times_are_labelled_and_complete(comparison):
    _, folder, report = comparison
    for name, how in (("liteattention_rocm", "simulated"), ("torch_sdpa", "PyTorch")):
        times = report["arms"][name]["times"]
        assert times["basis"] == f"host seconds, {how} on this CPU: not a speed"
        assert len(times["steps_s"]) == REQUEST["steps"] and min(times["steps_s"]) > 0
        assert {"TextEncodingStage", "DenoisingStage", "DecodingStage"} <= set(times["stages_s"])
        assert sum(times["stages_s"].values()) <= times["total_s"] * 1.01
        dump = json.loads((videos(folder, name) / "perf.json").read_text())
        assert dump["total_duration_ms"] == pytest.approx(times["total_s"] * 1000)
        assert report["arms"][name]["memory"]["bytes"] > 100 << 20
    assert report["simulated"] and "simulated" in report["device"]


def test_thresholds_are_written_down_before_the_run(comparison):
    _, folder, report = comparison
    plan = json.loads((folder / "run.json").read_text())
    assert plan["gate_thresholds"] == report["gate"]["thresholds"] == quality.GATE
    written = (folder / "run.json").stat().st_mtime
    jobs = [file.stat().st_mtime for file in folder.rglob("job.json")]
    assert len(jobs) == 3 and written <= min(jobs)
    assert {key: report[key] for key in plan} == plan
    assert report["versions"]["aiter"] == "not installed" and "--arms=liteattention_rocm" in plan["command"]


def test_html_report_needs_nothing_beside_it(comparison):
    _, folder, report = comparison
    text = (folder / "report.html").read_text()
    assert report["answer"] in html.unescape(text) and "AITER&#39;s code objects are not under" in text
    sources = re.findall(r'(?:src|href)="([^"#][^"]*)"', text)
    assert len(sources) == 3 and all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert "<script" not in text and "@import" not in text


def test_our_attention_is_modelled_at_the_shapes_launched_and_at_wans(comparison):
    _, _, report = comparison
    assert list(report["modelled"]["arms"]) == ["liteattention_rocm"]
    ours = report["modelled"]["arms"]["liteattention_rocm"]
    assert 5 < ours["self_ms"]["low"] < ours["self_ms"]["high"] < 30
    assert 0.1 < ours["cross_ms"]["low"] < ours["cross_ms"]["high"] < 0.5
    assert 0.05 < ours["request_ms"]["low"] < ours["request_ms"]["high"] < 5
    assert report["answer"].startswith("No answer: ")


def test_sdpa_inside_our_backend_gives_torch_sdpas_frames_bit_for_bit(comparison, tmp_path, model):
    """The plugin and the harness add nothing: with SDPA in the kernel's place the videos are the same."""
    prelude = """
import torch, liteattention_rocm
from liteattention_rocm import simulator
counts = {"launches": 0, "instructions": 1, "matrix": 1}
simulator.statistics = lambda: {"kernels": {"attention_forward_rtne": counts}}
def sdpa(q, k, v, *, scale, layout, rounding):
    counts["launches"] += 1
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2)
liteattention_rocm.attention = sdpa
"""
    run_arm("liteattention_rocm", tmp_path, model, prelude)
    _, folder, _ = comparison
    assert np.array_equal(
        metrics.read_frames(tmp_path / "frames"),
        metrics.read_frames(videos(folder, "torch_sdpa") / "frames"),
    )
    theirs = np.load(videos(folder, "torch_sdpa") / "latents.npy")
    assert np.array_equal(np.load(tmp_path / "latents.npy"), theirs)


def test_aiters_code_object_serves_its_arm_near_ours(comparison, aiter, tmp_path, model):
    arm = run_arm("aiter", tmp_path, model)
    assert list(arm["kernels"]) == ["_ZN5aiter23fmha_fwd_hd128_bf16_rtzE"]
    assert calls(arm, "self")["calls"] == calls(arm, "cross")["calls"] == CALLS_PER_ROLE
    assert sum(counts["launches"] for counts in arm["kernels"].values()) == 2 * CALLS_PER_ROLE
    _, folder, _ = comparison
    ours = metrics.read_frames(videos(folder, "liteattention_rocm") / "frames")
    assert metrics.psnr(metrics.read_frames(tmp_path / "frames"), ours) > 35


def test_aiter_arm_refuses_a_query_that_aiter_gives_to_another_kernel(aiter):
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks

    apply_plugin_hooks()
    from e2e.aiter_simulated import AiterSimulatedImpl

    layer = AiterSimulatedImpl.__new__(AiterSimulatedImpl)
    layer.rounding = "rtz"
    q = torch.zeros(1, 128, 2, 128, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"query length 128: .*more than 128"):
        layer.forward(q, q, q, None)


def test_structured_models_video_with_skipping(tmp_path):
    """12 frames of 32 tokens: 3 query tiles and 6 KV tiles. The arms part in the second step.

    KV is not split here: a dense call that is split rounds in another order than one that keeps lists.
    """
    unsplit = "import os\nos.environ['LITEATTENTION_ROCM_HIP_PIECES'] = '1'"
    structured = structured_wan.make(tmp_path / "model")
    request = {"height": 64, "width": 128, "frames": 45, "steps": 3}
    dense, skipping = (
        run_arm(name, tmp_path / name, structured, unsplit, **request)
        for name in ("liteattention_rocm", "liteattention_rocm@-6")
    )
    calls_per_role = tiny_wan.LAYERS * 2 * request["steps"]
    launches = {name: counts["launches"] for name, counts in skipping["kernels"].items()}
    assert sum(n for name, n in launches.items() if "skip" in name and "order" not in name) == calls_per_role
    assert attention_launches(skipping) == 2 * calls_per_role  # cross-attention is dense
    found = skipping["sparsity"]
    assert [call["action"] for call in found["calls"][:: tiny_wan.LAYERS * 2]] == ["fresh", "skip", "skip"]
    assert found["per_step"][0] == 0 and 0.1 < found["per_step"][1] <= found["per_step"][2] < 0.8
    # What self-attention executes falls with what it skips; with 6 tiles a row much of it belongs to no tile.
    per_step = np.reshape(skipping["self_instructions"], (request["steps"], -1)).sum(1)
    saved = 1 - per_step[2] / per_step[0]
    assert 0.6 * found["per_step"][2] < saved < found["per_step"][2]
    assert per_step[0] < 1.2 * sum(dense["self_instructions"]) / request["steps"]
    latents = [np.load(tmp_path / arm["arm"] / "latents.npy") for arm in (dense, skipping)]
    assert np.array_equal(latents[0][0], latents[1][0])  # the exact first step
    apart = metrics.compare_latents(*latents)
    assert 0 < apart["rmse"][1] <= apart["rmse"][2] < 0.1 and apart["cosine"][2] > 0.999


@pytest.mark.full
def test_interrupted_by_the_keyboard_it_goes_on_where_it_stopped(tmp_path, model):
    options = [f"--{name}={value}" for name, value in REQUEST.items()]
    command = [
        *(sys.executable, "-m", "e2e.compare", f"--model={model}", f"--model-id={tiny_wan.MODEL_ID}"),
        *("--arms=torch_sdpa,liteattention_rocm", "--jobs=1", f"--output={tmp_path}", *options),
    ]
    first = tmp_path / "torch_sdpa" / "round-1"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while process.poll() is None and not list(tmp_path.glob("liteattention_rocm/round-1/job.json")):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 130 and "the same command goes on from here" in output
    assert not (tmp_path / "report.json").exists()
    (result,) = first.glob("*/arm.json")
    made = result.stat().st_mtime_ns
    finished = subprocess.run(command, capture_output=True, text=True)
    assert "torch_sdpa: kept from the interrupted run" in finished.stdout, finished.stdout[-3000:]
    assert "liteattention_rocm: done" in finished.stdout and result.stat().st_mtime_ns == made
    report = json.loads((tmp_path / "report.json").read_text())
    assert [arm["status"] for arm in report["arms"].values()] == ["ok", "ok"]


@pytest.mark.full
def test_rounds_and_requests_in_one_run(tmp_path, model):
    """Two prompts in two rounds: a process per round, each of which makes both, and the same twice."""
    options = [f"--{name}={value}" for name, value in REQUEST.items() if name != "seed"]
    finished = python(
        *("-m", "e2e.compare", f"--model={model}", f"--model-id={tiny_wan.MODEL_ID}", "--arms=torch_sdpa"),
        *("--prompts=2", "--seeds=3", "--rounds=2", "--warmup=1", f"--output={tmp_path}", *options),
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    arm = json.loads((tmp_path / "report.json").read_text())["arms"]["torch_sdpa"]
    assert arm["repeatable"] is True and len(arm["runs"]) == 4
    assert arm["timing"]["total_s"]["count"] == 4 and arm["timing"]["step_s"]["count"] == 8
    assert len({run["digest"] for run in arm["runs"]}) == 2
    assert len(list(tmp_path.rglob("frames"))) == 2 and len(list(tmp_path.rglob("job.json"))) == 2


def test_same_seed_same_model_other_seed_another(tmp_path, model):
    again = tiny_wan.make(tmp_path / "again")
    files = sorted(file.relative_to(model) for file in model.rglob("*") if file.is_file())
    assert files == sorted(file.relative_to(again) for file in again.rglob("*") if file.is_file())
    assert all((model / file).read_bytes() == (again / file).read_bytes() for file in files)
    other = tiny_wan.make(tmp_path / "other", seed=1)
    weights = "transformer/diffusion_pytorch_model.safetensors"
    assert (model / weights).read_bytes() != (other / weights).read_bytes()
    assert sum(file.stat().st_size for file in model.rglob("*") if file.is_file()) < 8 << 20


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("affine", [False, True])
def test_fused_operators_of_the_cpu_host(kind, affine):
    cpu_host.define_fused_operators()
    x, residual, gate, scale, shift = torch.randn(5, 1, 7, 24, dtype=torch.float64)
    weight, bias = torch.randn(2, 24, dtype=torch.float64) if affine else (None, None)
    if kind == "rms":
        bias = None

    def expected(t):
        centred = t - t.mean(-1, keepdim=True) if kind == "layer" else t
        normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        normed = normed * (1 if weight is None else weight) + (0 if bias is None else bias)
        return normed * (1 + scale) + shift

    def narrow(t):
        return None if t is None else t.float()

    affine_arguments = (narrow(weight), narrow(bias))
    modulation = (narrow(scale), narrow(shift), kind, 1e-6)
    operators = torch.ops.sgl_kernel
    out = operators.fused_norm_scale_shift_cpu(narrow(x), *affine_arguments, *modulation)
    torch.testing.assert_close(out.double(), expected(x), rtol=1e-5, atol=1e-5)
    for given in (narrow(gate), None):
        out, total = operators.fused_scale_residual_norm_scale_shift_cpu(
            narrow(residual), narrow(x), given, *affine_arguments, *modulation
        )
        exact = residual + x * (1 if given is None else gate)
        torch.testing.assert_close(total.double(), exact, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(out.double(), expected(exact), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=re.escape("kind='batch' (allowed: layer, rms)")):
        cpu_host.norm_scale_shift(narrow(x), None, None, narrow(scale), narrow(shift), "batch", 1e-6)
