"""SGLang's gate, the fastest arm that passes it, and what Amdahl's law allows."""

import copy

import numpy as np
import pytest

from e2e import amdahl, answer, arms, compare, cpu_host, metrics, perceptual, pinned, quality, timings
from test_e2e_report import TIMES, arm, pair, run

cpu_host.prepare()

TEN = "liteattention_rocm@-10"


def lpips(value):
    return {"lpips": {"mean": value, "worst": value, "frames": [0]}}


@pytest.mark.parametrize(
    ("psnr", "ssim", "distance", "passed"),
    [
        (24.0, 0.92, None, True),
        (23.9, 0.99, None, False),
        (40.0, 0.919, None, False),
        (None, 1.0, 0.0, True),
        (30.0, 0.95, 0.15, True),
        (30.0, 0.95, 0.151, False),
    ],
)
def test_gate(psnr, ssim, distance, passed):
    seen = {} if distance is None else lpips(distance)
    compared = [pair(arms.OURS, arms.PEER, psnr, ssim, seen)]
    results = {arms.OURS: arm(), arms.PEER: arm()}
    gate = quality.gate(compared, results, quality.GATE)
    assert gate["reference"] == arms.PEER and gate["arms"][arms.OURS]["passed"] is passed
    assert gate["thresholds"] == {"ssim": 0.92, "psnr_db": 24.0, "lpips": 0.15}


def test_gate_goes_by_the_worst_frame_of_each_arm():
    """A clip that is good in the mean and has a bad frame; beside an arm that passes."""
    bad = pair(TEN, arms.PEER, 40.0, 0.99)
    good = pair(arms.OURS, arms.PEER, 40.0, 0.99)
    for field, value in (("psnr_db", 20.0), ("ssim", 0.9)):
        spoilt = {**bad, "worst_frame": {**bad["worst_frame"], field: value}}
        for compared in ([spoilt, good], [good, spoilt]):
            results = {name: arm() for name in (TEN, arms.OURS, arms.PEER)}
            gate = quality.gate(compared, results, quality.GATE)
            assert {name: one["passed"] for name, one in gate["arms"].items()} == {
                TEN: False,
                arms.OURS: True,
            }


def test_thresholds_of_the_gate_are_those_given():
    compared, results = [pair(arms.OURS, arms.PEER, 30.0, 0.95)], {arms.OURS: arm(), arms.PEER: arm()}
    for thresholds, passed in ((quality.GATE, True), ({**quality.GATE, "psnr_db": 31.0}, False)):
        gate = quality.gate(compared, results, thresholds)
        assert gate["arms"][arms.OURS]["passed"] is passed and gate["thresholds"] == thresholds


def test_summary_judges_by_the_thresholds_written_down_and_makes_every_check(tmp_path, monkeypatch):
    compared = [pair(arms.OURS, arms.PEER, 30.0, 0.95), pair(arms.PEER, arms.PEER_RTNE, 29.5)]
    compared += [pair(arms.OURS, arms.PEER_RTNE, 30.0)]
    monkeypatch.setattr(quality, "compare", lambda *_: compared)
    monkeypatch.setattr(compare.modelled, "summarise", lambda *_: None)
    names = (arms.OURS, arms.PEER, arms.PEER_RTNE)
    results = {name: arm(settings={"vae": "float32"}, threshold=None) for name in names}
    for run_of_arm, digest in zip(results.values(), "abc", strict=True):
        run_of_arm["runs"] = [{**one, "digest": digest} for one in run_of_arm["runs"]]
    for limit, passed in ((29.0, True), (31.0, False)):
        plan = {"simulated": True, "gate_thresholds": {**quality.GATE, "psnr_db": limit}}
        report = compare.summarise(plan, results, tmp_path, lambda text: None)
        assert report["gate"]["arms"][arms.OURS]["passed"] is passed
    settings, own_videos, noise_floor = report["checks"]
    assert settings["passed"] and own_videos["passed"] and noise_floor["passed"]
    assert (
        "settings" in settings["name"]
        and "of its own" in own_videos["name"]
        and "PSNR" in noise_floor["name"]
    )
    results[arms.PEER_RTNE]["runs"] = results[arms.PEER]["runs"]
    results[arms.PEER]["settings"] = {"vae": "bfloat16"}
    compared[1] = pair(arms.PEER, arms.PEER_RTNE, None)
    report = compare.summarise(plan, results, tmp_path, lambda text: None)
    assert not any(check["passed"] for check in report["checks"])


def test_gate_needs_two_arms_and_a_reference():
    assert quality.gate([], {arms.OURS: arm()}, quality.GATE) is None
    assert quality.gate([], {arms.SDPA: arm(), arms.PEER_RTNE: arm()}, quality.GATE) is None


def test_gate_goes_by_the_worst_frame_of_the_worst_request():
    good, bad = (pair("a", "b", value)["requests"]["r"] for value in (40.0, 20.0))
    good["worst_frame"]["ssim"] = 0.5
    found = quality.pool({"good": good, "bad": bad})
    assert found["worst_frame"] == {"request": "bad", "frame": 1, "psnr_db": 20.0, "ssim": 0.5}
    assert found["psnr_db"] == pytest.approx(metrics.pooled_psnr([40.0, 20.0])) and not found["identical"]


def test_clips_of_arms_are_compared_request_by_request(tmp_path):
    """Two frames of noise; one value of the second differs by 8."""
    from PIL import Image

    clip = np.random.default_rng(0).integers(8, 240, (2, 16, 24, 3), dtype=np.uint8)
    other = clip.copy()
    other[1, 3, 4, 0] += 8
    results = {}
    for name, frames in ((arms.OURS, other), (arms.PEER, clip)):
        folder = tmp_path / name / "r"
        (folder / "frames").mkdir(parents=True)
        for index, frame in enumerate(frames):
            Image.fromarray(frame).save(folder / "frames" / f"{index:04d}.png")
        np.save(folder / "latents.npy", np.ones((3, 2, 2)) * (1 if name == arms.OURS else 2))
        results[name] = {"status": "ok", "requests": {"r": f"{name}/r"}}
    (found,) = quality.compare(tmp_path, results)
    assert (found["a"], found["b"], found["noise_floor"]) == (arms.OURS, arms.PEER, False)
    assert found["worst_frame"]["frame"] == 1 and found["requests"]["r"]["psnr_db_per_frame"][0] is None
    assert found["worst_frame"]["psnr_db"] == pytest.approx(10 * np.log10(255**2 * 16 * 24 * 3 / 64))
    assert found["latents"]["rmse"] == [1, 1, 1]
    missing = perceptual.missing()
    assert set(found["perceptual"]) == {*perceptual.NETWORKS, perceptual.VIDEO} - set(missing)
    if "st_lpips" not in missing:
        assert found["requests"]["r"]["perceptual"]["st_lpips"]["frames"] == [0, 1]
        assert 0 < found["perceptual"]["st_lpips"]["worst"] < 0.1


def test_video_metric_is_10_for_the_same_video_and_falls_with_noise_and_flicker():
    clip = np.full((6, 48, 64, 3), 120, dtype=np.uint8)
    noise = np.random.default_rng(0).integers(-12, 13, clip.shape)
    flicker = clip.astype(int)
    flicker[::2] += 12
    assert perceptual.video_quality(clip, clip) == pytest.approx(10)
    assert perceptual.video_quality((clip + noise).astype(np.uint8), clip) < 9.9
    assert perceptual.video_quality(flicker.astype(np.uint8), clip) < 9.5


def test_a_metric_that_fails_is_reported_and_left_out(monkeypatch):
    monkeypatch.setattr(perceptual, "_failed", {})
    monkeypatch.setattr(perceptual, "_has", lambda package: package == "pycvvdp")

    def break_down(a, b):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(perceptual, "video_quality", break_down)
    clip = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    assert perceptual.compare(clip, clip, 0) == {}
    assert perceptual.missing()["cvvdp_jod"] == "RuntimeError: out of memory"


@pytest.mark.full
def test_lpips_is_computed_where_its_weights_are(tmp_path, monkeypatch):
    import torch
    import torchvision

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert "not in torch's cache" in perceptual.missing()["lpips"]
    file = perceptual.alexnet_file()
    file.parent.mkdir(parents=True)
    torch.save(torchvision.models.alexnet(weights=None).state_dict(), file)
    assert "lpips" not in perceptual.missing()
    clip = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3), dtype=np.uint8)
    perceptual.network.cache_clear()
    assert perceptual.distances("lpips", clip, clip, [0]) == [0]
    assert perceptual.distances("lpips", clip, 255 - clip, [0])[0] > 0
    perceptual.network.cache_clear()


def test_amdahl():
    assert amdahl.gain(0.5, 2) == pytest.approx(1 / 0.75) and amdahl.limit(0.3) == pytest.approx(1 / 0.7)
    assert amdahl.limit(1) == float("inf")
    speedup = amdahl.speedup_for(0.3, 1.23)
    assert amdahl.gain(0.3, speedup) == pytest.approx(1.23) and 2.5 < speedup < 2.8
    assert amdahl.speedup_for(0.2, 1.30) is None
    # Dense takes 12, skipping 13 with every tile and 3 with none: 6 needs 70 %.
    assert amdahl.sparsity_for(2.0, 12, 13, -10) == pytest.approx(0.7)
    assert amdahl.sparsity_for(0.9, 12, 13, -10) == 0
    assert amdahl.sparsity_for(6.0, 12, 13, -10) is None and amdahl.sparsity_for(2.0, 12, 13, 1) is None


def test_medians_and_spread():
    runs = [run(0, "r", TIMES), run(1, "r", {**TIMES, "total_s": 9.5, "steps_s": [2.0]}, 3_000_000_000)]
    found = timings.summarise({"runs": runs})
    assert found["total_s"] == {"median": 6.5, "low": 3.5, "high": 9.5, "count": 2}
    assert found["step_s"]["median"] == 1.5 and found["step_s"]["count"] == 4
    assert found["peak_bytes"] == 3_000_000_000
    slower = {"runs": [run(0, "r", {**TIMES, "total_s": 7.0}), run(5, "r", TIMES)]}
    assert timings.gain({"runs": runs}, slower) == {"median": 2.0, "low": 2.0, "high": 2.0, "count": 1}
    reading = [run(0, "r", {**TIMES, "total_s": 99.0}, reads=True), run(1, "r", TIMES)]
    assert timings.summarise({"runs": reading})["total_s"]["high"] == 3.5  # the second round alone counts
    assert timings.gain({"runs": reading}, slower) is None
    assert timings.summarise({"runs": reading[:1]})["reads_sparsity"] is True
    assert timings.text(found["total_s"]) == "6.50 (3.50–9.50)" and timings.text(None) == ""


def device_arm(total, steps, **changes):
    times = {"basis": "measured", "total_s": total, "stages_s": {}, "steps_s": steps}
    return arm(times=times, runs=[run(0, "r", times)], **changes)


def device_report():
    """AITER's step takes 2 s, half of it attention; ours at −10 takes 2 − sparsity; 4 s are elsewhere."""
    results = {
        arms.PEER: device_arm(12.0, [2.0] * 4, kernels={"fmha": {"seconds": 4.0}}, kernels_steps=4),
        arms.OURS: device_arm(11.9, [1.975] * 4),
        TEN: device_arm(
            10.0, [2.0, 1.6, 1.2, 1.2], sparsity={"per_step": [0.0, 0.4, 0.8, 0.8]}, threshold=-10.0
        ),
    }
    compared = [
        pair(arms.OURS, arms.PEER, 40.0),
        pair(TEN, arms.PEER, 30.0),
        pair(arms.OURS, TEN, 30.0),
    ]
    for name in (arms.OURS, TEN):
        results[name]["gain"] = timings.gain(results[name], results[arms.PEER])
    results[arms.PEER]["gain"] = None
    gate = quality.gate(compared, results, quality.GATE)
    return {"simulated": False, "arms": results, "gate": gate, "modelled": None}


def test_answer_on_a_device_is_the_fastest_arm_that_passes():
    report = device_report()
    ends = "1.200x aiter (rtz) end to end (10.00 s against 12.00 s, measured)."
    assert answer.line(report) == f"Fastest arm that passes the gate: {TEN} (rtne), {ends}"
    report["gate"]["arms"][TEN]["passed"] = False
    assert "liteattention_rocm (rtne), 1.008x aiter (rtz)" in answer.line(report)
    report["gate"]["arms"][arms.OURS]["passed"] = False
    assert "aiter (rtz) itself (12.00 s, measured)" in answer.line(report)


def test_gains_on_a_device_are_measured_beside_what_the_share_allows():
    text = "\n".join(answer.gains(device_report()))
    assert "attention is 50% of aiter's step" in text and "2.00x as fast" in text
    assert f"{TEN} obtains 1.200x end to end (measured)" in text
    # 12/1.23 = 9.756 s: steps of 1.439 s, which 2 − s reaches at 56 %; 1.30 at 69 %.
    assert "1.23x end to end needs 56% of KV tiles skipped" in text
    assert "1.30x end to end needs 69% of KV tiles skipped" in text


def modelled_report():
    def one(low, high, faster):
        gains = {f"{s:g}": [amdahl.gain(s, low), amdahl.gain(s, high)] for s in amdahl.STATED_SHARES}
        return {"speedup": {"low": low, "high": high, "faster": faster, "prediction": True}, "gains": gains}

    report = device_report()
    report.update(
        simulated=True,
        modelled={
            "arms": {arms.PEER: {}, arms.OURS: one(1.0, 1.2, None), TEN: one(1.5, 2.0, TEN)},
            "goals": {"1.23": {"0.3": None, "0.5": [0.4, 0.5], "0.7": [0.0, 0.0]}},
        },
    )
    return report


def test_answer_without_a_gpu_is_modelled_and_says_so():
    report = modelled_report()
    line = answer.line(report)
    assert (
        f"{TEN} (rtne), modelled: " in line and "1.50–2.00x aiter (rtz)'s" in line and "measured" not in line
    )
    assert "1.11–1.18x end to end at a share of 30%" in line and "settle" not in line
    text = "\n".join(answer.gains(report))
    assert "1.43x at 30%, 2.00x at 50%, 3.33x at 70% of a step" in text
    assert "out of reach at 30%, 40%–50% at 50%, 0% at 70% (modelled)" in text
    report["modelled"]["arms"][TEN]["speedup"]["prediction"] = False
    assert "too wide for a prediction" in answer.line(report)
    report["gate"]["arms"][TEN]["passed"] = False
    assert "liteattention_rocm (rtne), modelled: " in answer.line(report)
    assert "the model alone does not settle which is faster" in answer.line(report)
    report["gate"] = None
    assert answer.line(report).startswith("No answer: ")


def test_settings_that_differ_between_arms_are_found():
    settings = {"a": dict(pinned.SETTINGS), "b": copy.deepcopy(pinned.SETTINGS)}
    assert pinned.check(settings)["passed"] and pinned.check({"a": {}}) is None
    settings["b"]["vae_cpu_offload"] = True
    check = pinned.check(settings)
    assert not check["passed"] and check["detail"] == "vae_cpu_offload: a False, b True"


def test_both_roles_are_pinned_and_arguments_of_ones_own_win():
    found = pinned.server_arguments("aiter", {"enable_torch_compile": True})
    assert found["component_attention_backends"] == "transformer.self=aiter,transformer.cross=aiter"
    assert found["enable_torch_compile"] is True and found["dit_layerwise_offload"] is False
