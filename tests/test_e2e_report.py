"""The comparison's report, its check against the noise floor, and its command line."""

import importlib.util
import json
from pathlib import Path

import pytest

from e2e import answer, arms, compare, options, quality, report, structured_wan, timings

TIMES = {
    "basis": "host seconds, simulated on this CPU: not a speed",
    "total_s": 3.5,
    "stages_s": {"DenoisingStage": 2.0},
    "steps_s": [0.5, 1.0, 9.0],
}


def run(number, request, times, memory=2_000_000_000, reads=False):
    memory = {"bytes": memory, "basis": "host memory of the process"}
    return {
        "round": number,
        "request": request,
        "times": times,
        "memory": memory,
        "digest": "d",
        "reads_sparsity": reads,
    }


def arm(**changes):
    kernels = {"attention_forward_rtne": {"launches": 8, "instructions": 1200, "matrix": 300}}
    entry = {
        "status": "ok",
        "about": "this project's code object, rtne",
        "backend": "liteattention_rocm",
        "rounding": "rtne",
        "choice": [
            "--attention-backend",
            "liteattention_rocm",
            "--attention-backend-config",
            '{"rounding": "rtne"}',
        ],
        "simulated": True,
        "attention": [
            {
                "role": role,
                "backend": "x",
                "calls": 4,
                "query_shape": [1, 176, 2, 128],
                "kv_length": length,
                "value_strided": role == "self",
            }
            for role, length in (("self", 176), ("cross", 512))
        ],
        "kernels": kernels,
        "instructions": 1200,
        "matrix_instructions": 300,
        "times": TIMES,
        "sparsity": None,
        "repeatable": None,
        "runs": [run(0, "r", TIMES), run(1, "r", {**TIMES, "total_s": 4.5})],
        "requests": {"r": "liteattention_rocm/round-1/r"},
        "log": "x/log.txt",
    }
    entry = {**entry, **changes}
    return {**entry, "timing": timings.summarise(entry)}


def pair(a, b, psnr, ssim=0.99, perceptual=None):
    one = {
        "identical": psnr is None,
        "psnr_db": psnr,
        "motion_psnr_db": psnr,
        "ssim": ssim,
        "largest_pixel_difference": 3,
        "differing_values": 0.5,
        "worst_frame": {"frame": 1, "psnr_db": psnr, "ssim": ssim},
        "latents": {"rmse": [0.1, 0.2, 0.3], "cosine": [1.0, 0.9, 0.8]},
        **({} if perceptual is None else {"perceptual": perceptual}),
    }
    floor = {a, b} == {arms.PEER, arms.PEER_RTNE}
    return {"a": a, "b": b, "noise_floor": floor, "requests": {"r": one}, **quality.pool({"r": one})}


def full_report(ours=40.0, floor=40.5, **results):
    results = results or {
        arms.OURS: arm(),
        arms.PEER: {"status": "failed", "error": "no | file", "log": "aiter/log.txt"},
    }
    compared = [
        pair(arms.OURS, arms.PEER, 39.0),
        pair(arms.OURS, arms.PEER_RTNE, ours),
        pair(arms.PEER, arms.PEER_RTNE, floor),
    ]
    written = {
        "simulated": True,
        "created": "2030-01-01T00:00:00+00:00",
        "command": "python -m e2e.compare",
        "versions": {"aiter": "0.1.7"},
        "settings": {"dit_cpu_offload": False},
        "device": "simulated MI300X (gfx942)",
        "model": {"description": "tiny <model>"},
        "request": {"frames": 5, "width": 176, "height": 128, "steps": 3, "guidance": 5.0},
        "requests": [{"name": "r", "prompt": "p", "seed": 1}],
        "rounds": 2,
        "arms": results,
        "pairs": compared,
        "metrics_missing": {"lpips": "lpips is not installed"},
        "gate": quality.gate(compared, results, quality.GATE),
        "modelled": None,
        "checks": quality.noise_floor_checks(compared),
        "skipping": None,
    }
    written["gains"] = answer.gains(written)
    written["answer"] = answer.line(written)
    return written


@pytest.mark.parametrize(
    ("ours", "floor", "passed"),
    [(40.0, 40.9, True), (40.0, 41.1, False), (None, 40.0, True), (40.0, None, False), (None, None, True)],
)
def test_noise_floor_check(ours, floor, passed):
    (check,) = quality.noise_floor_checks(
        [
            pair(arms.PEER_RTNE, arms.OURS, ours),
            pair(arms.OURS, arms.PEER, 1.0),  # another mode
            pair(arms.PEER_RTNE, arms.PEER, floor),
        ]
    )
    assert check["passed"] is passed
    assert report.verdict(check).startswith("pass: " if passed else "FAIL: ")


def test_noise_floor_check_needs_an_arm_of_ours_and_both_of_aiters():
    assert quality.noise_floor_checks([pair(arms.OURS, arms.PEER_RTNE, 40.0)]) == []
    floor = pair(arms.PEER, arms.PEER_RTNE, 40.0)
    assert quality.noise_floor_checks([floor, pair(arms.OURS, arms.PEER, 40.0)]) == []
    both = [floor, pair(arms.OURS, arms.PEER_RTNE, 38.0), pair(arms.PEER, arms.OURS_RTZ, 39.5)]
    rtne, rtz = quality.noise_floor_checks(both)
    assert rtne["name"].startswith("PSNR(liteattention_rocm, aiter_rtne) >= ") and not rtne["passed"]
    assert rtz["name"].startswith("PSNR(liteattention_rocm_rtz, aiter) >= ") and rtz["passed"]


def test_rounding_modes_of_the_arms():
    assert arms.find(arms.OURS).rounding == arms.find(arms.PEER_RTNE).rounding == "rtne"
    assert arms.find(arms.PEER).rounding == arms.find(arms.OURS_RTZ).rounding == "rtz"
    assert arms.same_mode() == [(arms.OURS, arms.PEER_RTNE), (arms.OURS_RTZ, arms.PEER)]
    skipping = arms.find("liteattention_rocm_rtz@-6")
    assert (skipping.rounding, skipping.clock, skipping.threshold) == ("rtz", "ours:rtz", -6)
    assert arms.dense("liteattention_rocm_rtz@-6") == arms.OURS_RTZ and arms.dense(arms.SDPA) == arms.SDPA
    assert (arms.moded("liteattention_rocm@-6"), arms.moded(arms.SAGE)) == (
        "liteattention_rocm@-6 (rtne)",
        "aiter_sage",
    )


def test_pairs_have_ours_and_the_peer_against_every_other_arm_once():
    found = list(quality.pairs(list(arms.DEFAULT)))
    assert len(found) == len({frozenset(pair) for pair in found}) == 7
    assert {(arms.OURS, arms.PEER), (arms.PEER, arms.PEER_RTNE), *arms.same_mode()[:1]} <= set(found)
    assert (arms.PEER, arms.OURS_RTZ) in found
    assert frozenset((arms.PEER_RTNE, arms.SDPA)) not in {frozenset(pair) for pair in found}
    assert list(quality.pairs(["a", "b", "c"])) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert list(quality.pairs([arms.OURS])) == []
    ten = "liteattention_rocm_rtz@-10"
    assert list(quality.pairs([arms.OURS, ten, arms.OURS_RTZ]))[-1] == (arms.OURS_RTZ, ten)


def test_report_files(tmp_path):
    written = full_report(ours=None)
    report.write(written, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text()) == written
    text = (tmp_path / "report.md").read_text()
    assert "simulated on this CPU: not a speed" in text
    assert "4 self [1, 176, 2, 128] x 176 (V strided), 4 cross [1, 176, 2, 128] x 512" in text
    row = "| liteattention_rocm | rtne | 4 + 4 | 8 x attention_forward_rtne | 1,200 | 300 "
    assert row + "| 1.00 (0.50–9.00) | 4.00 (3.50–4.50) | 2.0 |" in text
    assert "wave-instructions (simulated)" in text
    given = """--attention-backend liteattention_rocm --attention-backend-config '{"rounding": "rtne"}'"""
    assert f"- SGLang: `{given}`" in text
    assert "| aiter (rtz) / aiter_rtne (rtne) (noise floor) | 40.50 dB |" in text
    assert "infinite (identical)" in text
    assert "failed: no | file (log: aiter/log.txt)" in text


def test_aiters_mode_is_told_where_sglang_has_no_word_for_it():
    peer = arm(backend="aiter", rounding="rtz", choice=["--attention-backend", "aiter"])
    assert report.choice_text(peer) == "--attention-backend aiter (AITER_BF16_CVT_MODE 2)"
    assert report.choice_text({"backend": "torch_sdpa"}) == "not used"


def test_terminal_output_names_failures_and_checks():
    from rich.console import Console

    console = Console(record=True, width=160, file=open("/dev/null", "w"))  # noqa: SIM115
    report.show(full_report(ours=30.0), console)
    text = console.export_text()
    assert "aiter failed: no | file (log: aiter/log.txt)" in text
    assert "FAIL: PSNR(liteattention_rocm, aiter_rtne) >= PSNR(aiter, aiter_rtne) - 1 dB" in text
    assert "30.00 dB against a noise floor of 40.50 dB" in text


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN5aiter23fmha_fwd_hd128_bf16_rtzE", "aiter::fmha_fwd_hd128_bf16_rtz"),
        ("attention_forward_rtz", "attention_forward_rtz"),
        ("_ZN5aiter99shortE", "_ZN5aiter99shortE"),
        ("_ZNE", "_ZNE"),
    ],
)
def test_kernel_names_are_readable(symbol, name):
    assert report.demangle(symbol) == name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", "ours"], "unknown arm 'ours' (allowed: all, liteattention_rocm"),
        (["--arms", "aiter,aiter"], "'aiter' is named 2 times"),
        (["--arms", ","], "--arms is empty"),
        (["--arms", "aiter@-6"], "unknown arm 'aiter@-6'"),
        (["--arms", "liteattention_rocm@6"], "unknown arm 'liteattention_rocm@6'"),
        (["--arms", "liteattention_rocm@"], "liteattention_rocm_rtz@T with a threshold T < 0"),
        (["--sweep=-6,deep"], "unknown arm 'liteattention_rocm@deep'"),
        (["--height", "100"], "--height 100 (allowed: positive multiples of 16)"),
        (["--width", "0"], "--width 0 (allowed: positive multiples of 16)"),
        (["--frames", "16"], "--frames 16 (allowed: 4·n + 1)"),
        (["--frames", "-3"], "--frames -3 (allowed: 4·n + 1)"),
        (["--steps", "0"], "--steps 0 (allowed: 1 or more)"),
        (["--rounds", "0"], "--rounds 0 (allowed: 1 or more)"),
        (["--jobs", "0"], "--jobs 0 (allowed: 1 or more)"),
        (["--warmup", "-1"], "--warmup -1 (allowed: 0 or more)"),
        (["--warmup-steps", "0"], "--warmup-steps 0 (allowed: 1 or more)"),
        (["--seeds", "1,x"], "--seeds 1,x (allowed: different integers from 0 on"),
        (["--seeds", "7,7"], "--seeds 7,7 (allowed: different integers from 0 on"),
        (["--prompts", "0"], "--prompts 0 (allowed: 1 to 8, or a text file)"),
        (["--prompts", "nowhere.txt"], "--prompts nowhere.txt: "),
        (["--sglang", "[1]"], "--sglang [1] (allowed: a JSON object)"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        options.parse(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_default_request_has_live_tails_and_a_given_model_its_own():
    tiny = options.parse([])
    tokens = ((tiny.frames - 1) // 4 + 1) * (tiny.height // 16) * (tiny.width // 16)
    assert tokens == 1080 and all(tokens % tile for tile in (16, 32, 64, 128, 256))
    given = options.parse(["--model", "somewhere", "--steps", "3"])
    assert (given.height, given.width, given.frames, given.steps) == (480, 832, 81, 3)
    assert [arm.name for arm in tiny.arms] == list(arms.DEFAULT)
    assert [arm.name for arm in given.arms] == list(arms.FULL)


def test_every_prompt_with_every_seed(tmp_path):
    (tmp_path / "prompts.txt").write_text("a cat\n\n  a dog \n")
    chosen = options.parse([f"--prompts={tmp_path / 'prompts.txt'}", "--seeds=7,9"])
    assert [(one["name"], one["prompt"], one["seed"]) for one in chosen.requests] == [
        ("prompt-1-seed-7", "a cat", 7),
        ("prompt-1-seed-9", "a cat", 9),
        ("prompt-2-seed-7", "a dog", 7),
        ("prompt-2-seed-9", "a dog", 9),
    ]
    assert options.describe_requests(chosen.requests) == "2 prompts, seeds 7, 9"
    assert len({one["prompt"] for one in options.parse(["--prompts=8"]).requests}) == 8
    assert [one["prompt"] for one in options.parse(["--prompt=mine"]).requests] == ["mine"]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(SystemExit):
        options.parse([f"--prompts={tmp_path / 'empty.txt'}"])


def test_structured_model_has_its_own_request_and_arms():
    chosen = options.parse(["--model", "structured", "--sweep=-12, -6.0,-4"])
    grid = ((chosen.frames - 1) // 4 + 1, chosen.height // 16, chosen.width // 16)
    assert grid == structured_wan.SIZES["tiny"].grid
    assert [arm.name for arm in chosen.arms] == [
        *arms.SKIPPING,
        "liteattention_rocm@-12",
        "liteattention_rocm@-4",  # −6 is among the default arms
    ]
    assert [arm.threshold for arm in chosen.arms] == [None, -10, -6, None, None, -12, -4]


def test_aiters_version_is_that_of_the_wheel_which_is_unpacked(monkeypatch, tmp_path):
    tool = Path(__file__).resolve().parent.parent / "tools" / "fetch_aiter.py"
    spec = importlib.util.spec_from_file_location("fetch_aiter", tool)
    fetch_aiter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fetch_aiter)
    assert {
        fetch_aiter.SHA256["MI300/fwd_hd128_bf16_rtz.co"]: fetch_aiter.REQUIREMENT.replace("==", " ")
    } == compare.AITER_OBJECTS
    monkeypatch.setattr(compare, "_version", lambda name: "1.2" if name == "amd-aiter" else None)
    assert compare.versions()["aiter"] == "1.2" and compare.versions()["sglang"] == "not installed"
    monkeypatch.setattr(compare, "_version", lambda name: None)
    monkeypatch.setenv("LITEATTENTION_ROCM_AITER_HSA", str(tmp_path))
    assert compare.versions()["aiter"] == "not installed"
