"""The comparison's report, its check against the noise floor, and its command line."""

import json

import pytest

from e2e import arms, compare, report, structured_wan


def arm(**changes):
    kernels = {"attention_forward_rtz": {"launches": 8, "instructions": 1200, "matrix": 300}}
    entry = {
        "status": "ok",
        "about": "this project's code object, rtz",
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
        "times": {
            "basis": "host seconds, simulated on this CPU: not a speed",
            "total_s": 3.5,
            "stages_s": {"DenoisingStage": 2.0},
            "steps_s": [0.5, 1.0, 9.0],
        },
        "video": "video.mp4",
        "frame_folder": "frames",
        "log": "x/log.txt",
    }
    return {**entry, **changes}


def pair(a, b, psnr):
    return {
        "a": a,
        "b": b,
        "noise_floor": {a, b} == {arms.PEER, arms.PEER_RTNE},
        "psnr_db": psnr,
        "ssim": 0.99,
        "largest_pixel_difference": 3,
        "differing_values": 0.5,
        "latents": {"rmse": [0.1, 0.2]},
    }


def full_report(ours=40.0, floor=40.5):
    compared = [pair(arms.OURS, arms.PEER, ours), pair(arms.PEER, arms.PEER_RTNE, floor)]
    return {
        "simulated": True,
        "device": "simulated MI300X (gfx942)",
        "model": {"description": "tiny"},
        "request": {
            "frames": 5,
            "width": 176,
            "height": 128,
            "steps": 3,
            "guidance": 5.0,
            "seed": 1,
            "prompt": "p",
        },
        "arms": {
            arms.OURS: arm(),
            arms.PEER: {"status": "failed", "error": "no | file", "log": "aiter/log.txt"},
        },
        "pairs": compared,
        "checks": [report.noise_floor_check(compared)],
        "skipping": None,
    }


@pytest.mark.parametrize(
    ("ours", "floor", "passed"),
    [(40.0, 40.9, True), (40.0, 41.1, False), (None, 40.0, True), (40.0, None, False), (None, None, True)],
)
def test_noise_floor_check(ours, floor, passed):
    check = report.noise_floor_check(
        [pair(arms.PEER, arms.OURS, ours), pair(arms.PEER_RTNE, arms.PEER, floor)]
    )
    assert check["passed"] is passed
    assert report.verdict(check).startswith("pass: " if passed else "FAIL: ")


def test_noise_floor_check_needs_all_three_arms():
    assert report.noise_floor_check([pair(arms.OURS, arms.PEER, 40.0)]) is None
    assert report.noise_floor_check([pair(arms.PEER, arms.PEER_RTNE, 40.0)]) is None


def test_pairs_have_ours_and_the_peer_against_every_other_arm_once():
    found = list(report.pairs(list(arms.DEFAULT)))
    assert len(found) == len({frozenset(pair) for pair in found}) == 5
    assert (arms.OURS, arms.PEER) in found and (arms.PEER, arms.PEER_RTNE) in found
    assert frozenset((arms.PEER_RTNE, arms.SDPA)) not in {frozenset(pair) for pair in found}
    assert list(report.pairs(["a", "b", "c"])) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert list(report.pairs([arms.OURS])) == []


def test_report_files(tmp_path):
    written = full_report(ours=None)
    report.write(written, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text()) == written
    text = (tmp_path / "report.md").read_text()
    assert "simulated on this CPU: not a speed" in text
    assert "4 self [1, 176, 2, 128] x 176 (V strided), 4 cross [1, 176, 2, 128] x 512" in text
    assert "| liteattention_rocm | 4 + 4 | 8 x attention_forward_rtz | 1,200 | 300 | 1.00 | 3.50 |" in text
    assert "wave-instructions (simulated)" in text
    assert "| aiter / aiter_rtne (noise floor) | 40.50 dB |" in text
    assert "infinite (identical)" in text
    assert "Failed: no | file. See `aiter/log.txt`." in text


def test_terminal_output_names_failures_and_checks():
    from rich.console import Console

    console = Console(record=True, width=160, file=open("/dev/null", "w"))  # noqa: SIM115
    report.show(full_report(ours=30.0), console)
    text = console.export_text()
    assert "aiter failed: no | file (log: aiter/log.txt)" in text
    assert "FAIL: PSNR(liteattention_rocm, aiter) >= PSNR(aiter, aiter_rtne) - 1 dB" in text
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
        (["--arms", "ours"], "unknown arm 'ours' (allowed: liteattention_rocm"),
        (["--arms", "aiter,aiter"], "'aiter' is named 2 times"),
        (["--arms", ","], "--arms is empty"),
        (["--arms", "aiter@-6"], "unknown arm 'aiter@-6'"),
        (["--arms", "liteattention_rocm@6"], "unknown arm 'liteattention_rocm@6'"),
        (["--arms", "liteattention_rocm@"], "liteattention_rocm@T with a threshold T < 0"),
        (["--sweep=-6,deep"], "unknown arm 'liteattention_rocm@deep'"),
        (["--height", "100"], "--height 100 (allowed: positive multiples of 16)"),
        (["--width", "0"], "--width 0 (allowed: positive multiples of 16)"),
        (["--frames", "16"], "--frames 16 (allowed: 4·n + 1)"),
        (["--frames", "-3"], "--frames -3 (allowed: 4·n + 1)"),
        (["--steps", "0"], "--steps 0 (allowed: 1 or more)"),
        (["--sglang", "[1]"], "--sglang [1] (allowed: a JSON object)"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        compare.parse(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_default_request_has_live_tails_and_a_given_model_its_own():
    tiny = compare.parse([])
    tokens = ((tiny.frames - 1) // 4 + 1) * (tiny.height // 16) * (tiny.width // 16)
    assert tokens == 1080 and all(tokens % tile for tile in (16, 32, 64, 128, 256))
    given = compare.parse(["--model", "somewhere", "--steps", "3"])
    assert (given.height, given.width, given.frames, given.steps) == (480, 832, 81, 3)
    assert [arm.name for arm in tiny.arms] == list(arms.DEFAULT)


def test_structured_model_has_its_own_request_and_arms():
    options = compare.parse(["--model", "structured", "--sweep=-12, -6.0,-4"])
    grid = ((options.frames - 1) // 4 + 1, options.height // 16, options.width // 16)
    assert grid == structured_wan.SIZES["tiny"].grid
    assert [arm.name for arm in options.arms] == [
        *arms.SKIPPING,
        "liteattention_rocm@-12",
        "liteattention_rocm@-4",  # −6 is among the default arms
    ]
    assert [arm.threshold for arm in options.arms] == [None, -10, -6, None, None, -12, -4]
