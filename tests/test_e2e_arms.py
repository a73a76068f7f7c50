"""That an arm's video, label and model are its own: rounding mode, kernel, frames in the report."""

import base64
import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from e2e import arms, compare, cpu_host, generate, html_report, options, quality, skipping
from e2e.job import Job
from liteattention_rocm import _C
from liteattention_rocm.rounding import ROUNDINGS
from test_e2e_report import arm, full_report, pair, run

cpu_host.prepare()

TEN = "liteattention_rocm@-10"
KERNEL_ARMS = (arms.OURS, arms.OURS_RTZ, TEN, arms.PEER, arms.PEER_RTNE)


def rounding_of(name):
    """AITER's arm is rtz, ours rtne, unless the name says otherwise."""
    return "rtz" if name == arms.PEER or name.endswith("_rtz") else "rtne"


@pytest.mark.parametrize("name", KERNEL_ARMS)
def test_an_arm_is_what_its_name_says(name):
    found = arms.find(name)
    assert found.rounding == rounding_of(name)
    assert found.rounding in found.about
    assert found.backend == ("aiter" if name.startswith("aiter") else "liteattention_rocm")
    assert found.clock == f"{'aiter' if found.backend == 'aiter' else 'ours'}:{found.rounding}"
    assert found.threshold == (-10 if name == TEN else None)


def request(name, device="cpu"):
    fixed = {"height": 16, "width": 16, "frames": 1, "steps": 1, "guidance": 1.0, "seed": 1}
    return Job(arm=name, folder="x", model="m", model_id=None, prompt="p", device=device, **fixed)


def test_every_arm_and_round_has_a_folder_of_its_own(tmp_path):
    chosen = options.parse(["--arms=all", "--rounds=2", f"--output={tmp_path}"])
    jobs = [
        (one, compare.make_job(chosen, one, number, "cpu", "")) for one in chosen.arms for number in range(2)
    ]
    assert len({job.folder for _, job in jobs}) == len(jobs) == 2 * len(arms.FULL)
    for one, job in jobs:
        assert Path(job.folder).parent == tmp_path / one.name and job.arm == one.name
        assert len({request.fingerprint for request in job.each()}) == len(chosen.requests)
    assert len({request.fingerprint for _, job in jobs[::2] for request in job.each()}) == len(arms.FULL)


def described(name, kernels):
    layers = SimpleNamespace(total=4, summary=lambda: [], self_instructions=[])
    job = request(name)
    job.read_sparsity = False
    counts = {kernel: {"launches": launches} for kernel, launches in kernels.items()}
    return generate.describe(job, "x", arms.find(name), layers, counts)


OWN = {
    arms.OURS: {"attention_pingpong_rtne": 4},
    arms.OURS_RTZ: {"attention_forward_split_rtz": 4, "attention_merge_rtz": 4},
    TEN: {"attention_skip_pingpong_rtne": 4, "attention_skip_order": 4},
    arms.PEER: {"_ZN5aiter23fmha_fwd_hd128_bf16_rtzE": 4},
    arms.PEER_RTNE: {"_ZN5aiter24fmha_fwd_hd128_bf16_rtneE": 4},
    arms.SDPA: {},
}


@pytest.mark.parametrize("name", OWN)
def test_kernels_of_another_arm_are_refused(name):
    """Of another project, in another rounding mode, or none."""
    assert described(name, OWN[name])["arm"] == name
    for other, kernels in OWN.items():
        if kernels != OWN[name] and (name, other) not in ((arms.OURS, TEN), (TEN, arms.OURS)):
            with pytest.raises(RuntimeError, match="4 attention calls, but the simulator launched"):
                described(name, kernels)


def test_every_kernel_of_ours_is_of_the_arms_of_its_mode():
    """Those that only prepare lists have none, and belong to every arm of ours."""
    without = []
    for kernel in _C.kernel_names():
        mode = kernel.rpartition("_")[2]
        if mode not in ROUNDINGS:
            without.append(kernel)
        for name in (arms.OURS, arms.OURS_RTZ, TEN):
            arm = arms.find(name)
            assert generate.serves(arm, kernel) is (mode not in ROUNDINGS or mode == arm.rounding), kernel
        assert not generate.serves(arms.find(arms.PEER), kernel)
    assert set(without) == {"attention_skip_order", "attention_skip_pieces"}


def test_layers_that_another_backend_serves_are_refused():
    """One of two suffices."""
    layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(2))
    for layer, backend in zip(layers, ("aiter", "torch_sdpa"), strict=True):
        layer.backend, layer.is_cross_attention, layer.attn_impl = backend, False, torch.nn.Identity()
    pipeline = SimpleNamespace(modules={"transformer": layers})
    for name in (arms.PEER, arms.SDPA, arms.OURS):
        with pytest.raises(RuntimeError, match=f"SGLang chose aiter, torch_sdpa where {name} was asked for"):
            generate.watch(pipeline, request(name), arms.find(name), 1)
    layers[1].backend = "aiter"
    assert generate.watch(pipeline, request(arms.PEER), arms.find(arms.PEER), 1).total == 0


@pytest.mark.parametrize("device", ["cpu", "rocm"])
def test_backends_are_configured_as_the_arm_says(device):
    for name in (*KERNEL_ARMS, arms.SDPA):
        found = generate.backend_config(request(name, device), arms.find(name))
        expected = {}
        if name != arms.SDPA and (device == "cpu" or not name.startswith("aiter")):
            expected = {"rounding": rounding_of(name)}
        if name == TEN:
            expected |= {"threshold": "-10.0", "dump": f"x/{skipping.FOLDER}"}
        assert found == expected, name


@pytest.mark.parametrize(("name", "mode"), [(arms.PEER, 2), (arms.PEER_RTNE, 0)])
def test_sglangs_aiter_backend_rounds_as_the_arm_says(monkeypatch, name, mode):
    package = "sglang.multimodal_gen.runtime.layers.attention.backends"
    module = ModuleType(f"{package}.aiter")
    monkeypatch.setitem(sys.modules, f"{package}.aiter", module)
    monkeypatch.setattr(
        sys.modules.get(package) or __import__(package, fromlist=["x"]), "aiter", module, False
    )
    module.AITER_BF16_CVT_MODE = None
    generate.set_up_aiter(request(name, "rocm"), arms.find(name))
    assert mode == module.AITER_BF16_CVT_MODE


@pytest.mark.parametrize("rounding", ["rtz", "rtne"])
def test_simulated_aiter_rounds_as_configured(monkeypatch, rounding):
    from e2e import aiter_simulated

    monkeypatch.setattr(aiter_simulated, "configured_rounding", lambda: rounding)
    monkeypatch.setattr(aiter_simulated.aiter_kernel, "forward", lambda *_, rounding, layout: rounding)
    layer = aiter_simulated.AiterSimulatedImpl(2, 128, 128**-0.5)
    q = torch.zeros(1, 129, 2, 128, dtype=torch.bfloat16)
    assert layer.forward(q, q, q, None) == rounding


def made(digest, **changes):
    return arm(
        runs=[
            {
                **run(0, "r", {"total_s": 1.0, "steps_s": [1.0], "stages_s": {}, "basis": "b"}),
                "digest": digest,
            }
        ],
        **changes,
    )


def test_two_arms_with_the_same_video_are_found():
    results = {
        arms.PEER: made("a"),
        arms.PEER_RTNE: made("b"),
        arms.OURS: made("c"),
        TEN: {"status": "failed"},
    }
    assert quality.own_videos_check(results)["passed"]
    results[arms.PEER_RTNE] = made("a")
    check = quality.own_videos_check(results)
    assert not check["passed"] and "aiter and aiter_rtne" in check["detail"]
    # Skipping may change nothing: then it is the dense arm's video, but no other's.
    results = {arms.OURS: made("c"), arms.PEER: made("a"), TEN: made("c")}
    assert quality.own_videos_check(results)["passed"]
    results[arms.SDPA] = made("c")
    assert "liteattention_rocm@-10 and torch_sdpa" in quality.own_videos_check(results)["detail"]
    assert quality.own_videos_check({arms.OURS: made("c")}) is None


def test_frames_in_the_report_are_the_arms_own(tmp_path):
    """One grey for each arm; the maps hold the eightfold distance to the reference."""
    greys = {arms.PEER: 100, arms.OURS: 104, arms.PEER_RTNE: 90}
    for name, grey in greys.items():
        folder = tmp_path / name / "frames"
        folder.mkdir(parents=True)
        for index in range(2):
            Image.fromarray(np.full((16, 16, 3), grey + 30 * index, dtype=np.uint8)).save(
                folder / f"{index:04d}.png"
            )
    report = full_report(**{name: arm(requests={"r": name}) for name in greys})
    report["pairs"].append(pair(arms.OURS, arms.PEER_RTNE, 40.0))
    (group,) = html_report.frame_groups(report, tmp_path)
    shown = {}
    for picture in (one for column in group["columns"] for one in column):
        _, encoded = picture["source"].split(",", 1)
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))
        shown[picture["caption"].split(":")[0].split(",")[0], "difference" in picture["caption"]] = (
            pixels.mean()
        )
    expected = {
        (name + " (noise floor)" * (name == arms.PEER_RTNE), False): grey + 30 for name, grey in greys.items()
    }
    expected |= {
        (name, True): 8 * abs(greys[name] - greys[arms.PEER]) for name in (arms.OURS, arms.PEER_RTNE)
    }
    assert shown == pytest.approx(expected, abs=2)
