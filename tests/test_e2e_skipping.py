"""The comparison's part on skipping, and the model in which it engages."""

import json
import math

import numpy as np
import pytest
import torch

from e2e import arms, cpu_host, skipping, structured_wan
from e2e import plot as charts
from e2e.plot import Line, Panel

cpu_host.prepare()


def calls(shares, actions=None):
    return [
        {
            "layer": f"blocks.{index % 2}.attn1",
            "step": index // 2,
            "skipped": share,
            "action": (actions or {}).get(index, "skip"),
        }
        for index, share in enumerate(shares)
    ]


def write_dump(folder, shares, actions=None, name="sparsity-0-0001.json"):
    (folder / skipping.FOLDER).mkdir(parents=True, exist_ok=True)
    (folder / skipping.FOLDER / name).write_text(json.dumps({"calls": calls(shares, actions)}))


def skipping_arm(folder, threshold, shares, instructions, actions=None):
    write_dump(folder, shares, actions)
    return {
        "status": "ok",
        "threshold": threshold,
        "self_instructions": instructions,
        "sparsity": skipping.read(folder),
    }


def compared(**psnr):
    named = {"ten": "liteattention_rocm@-10", "two": "liteattention_rocm@-2"}
    pairs = [
        {
            "a": arms.OURS,
            "b": named[key],
            "psnr_db": value,
            "ssim": 0.9,
            "identical": value is None,
            "noise_floor": False,
        }
        for key, value in psnr.items()
    ]
    floor = {"a": arms.PEER, "b": arms.PEER_RTNE, "psnr_db": 45.0, "ssim": 0.9, "identical": False}
    return [*pairs, {**floor, "noise_floor": True}]


@pytest.fixture
def results(tmp_path):
    """Dense executes 1,000 instructions a call; skipping 1,100·(1 − s)."""
    dense = {"status": "ok", "threshold": None, "self_instructions": [1000] * 4}
    ten = skipping_arm(tmp_path / "ten", -10.0, [0.0, 0.0, 0.5, 0.3], [1100, 1100, 550, 770])
    two = skipping_arm(tmp_path / "two", -2.0, [0.0, 0.0, 0.8, 0.6], [1100, 1100, 220, 440])
    failed = {"status": "failed"}
    return {
        arms.OURS: dense,
        "liteattention_rocm@-2": two,
        "liteattention_rocm@-10": ten,
        arms.PEER: failed,
    }


def test_the_last_dump_is_read_by_step_and_layer(tmp_path):
    write_dump(tmp_path, [0.9, 0.9])
    write_dump(tmp_path, [0.0, 0.0, 0.5, 0.3], name="sparsity-0-0002.json")
    found = skipping.read(tmp_path)
    assert found["skipped"] == pytest.approx(0.2)
    assert found["per_step"] == pytest.approx([0.0, 0.4])
    assert found["per_layer"] == pytest.approx({"blocks.0.attn1": 0.25, "blocks.1.attn1": 0.15})
    with pytest.raises(FileNotFoundError, match="no self-attention kept a list"):
        skipping.read(tmp_path / "nowhere")


def test_summary_break_even_and_checks(results):
    summary = skipping.summarise(results, compared(ten=44.5, two=30.0))
    assert list(summary["arms"]) == ["liteattention_rocm@-10", "liteattention_rocm@-2"]
    ten = summary["arms"]["liteattention_rocm@-10"]
    assert ten["instructions"] == 3520 and ten["instructions_over_dense"] == pytest.approx(0.88)
    assert summary["break_even"] == pytest.approx(1 - 1000 / 1100)
    (check,) = skipping.checks(summary)  # −2 is bold: no check of it
    assert check["passed"] and "@-10" in check["name"]
    (check,) = skipping.checks(skipping.summarise(results, compared(ten=43.9, two=30.0)))
    assert not check["passed"]
    (check,) = skipping.checks(skipping.summarise(results, compared(ten=None, two=30.0)))
    assert check["passed"]
    _, (first, second) = skipping.rows(summary)
    assert first[0] == "liteattention_rocm@-10 (rtne)" and second[6] == "30.00 dB"
    assert first[1:6] == ["20.0%", "40.0%", "0 of 4", "3,520", "88.0%"]
    assert "Break-even sparsity, by executed instructions (simulated): 9.1%." in skipping.remarks(summary)


def test_dense_calls_of_an_arm_take_no_part_in_break_even(results, tmp_path):
    arm = skipping_arm(
        tmp_path / "x", -8.0, [0.0, 0.0, 0.5, 0.3], [1, 1, 550, 770], dict.fromkeys((0, 1), "dense")
    )
    assert skipping.break_even([arm], results[arms.OURS]) == pytest.approx(1 - 1000 / 1100)
    assert skipping.break_even([arm], {}) is None
    summary = skipping.summarise({**results, "liteattention_rocm@-8": arm}, [])
    assert skipping.rows(summary)[1][1][:4] == ["liteattention_rocm@-8 (rtne)", "20.0%", "40.0%", "2 of 4"]
    level = skipping_arm(tmp_path / "y", -8.0, [0.2] * 4, [880] * 4)
    assert skipping.break_even([level], results[arms.OURS]) is None


def test_without_arms_that_skip_there_is_nothing_to_say(results):
    assert skipping.summarise({arms.OURS: results[arms.OURS]}, []) is None
    assert skipping.checks(None) == []
    assert skipping.checks(skipping.summarise(results, [])) == []


def test_sweep_is_drawn(results, tmp_path):
    from PIL import Image

    summary = skipping.summarise(results, compared(ten=44.5, two=30.0))
    assert skipping.plot(summary, tmp_path) == skipping.PLOT
    shares, quality = skipping.chart(summary).axes
    assert [line.get_label() for line in quality.lines] == ["PSNR to dense, dB", "noise floor, dB"]
    assert quality.lines[0].get_xydata().tolist() == [[-10, 44.5], [-2, 30]]
    assert shares.lines[0].get_ydata() == pytest.approx([20, 35])
    picture = np.asarray(Image.open(tmp_path / skipping.PLOT).convert("L"))
    assert picture.std() > 10
    del summary["arms"]["liteattention_rocm@-2"]
    assert skipping.plot(summary, tmp_path) is None


def test_charts_hold_what_they_are_given():
    figure = charts.lines([1, 2, 3], "step", [Panel("y", [Line("a", [1.0, 2.0, 4.0], [0, 1, 3], [2, 3, 5])])])
    (axes,) = figure.axes
    assert axes.lines[0].get_ydata().tolist() == [1, 2, 4] and axes.get_ylabel() == "y"
    assert charts.svg(figure) == charts.svg(figure) and "<svg" in charts.svg(figure)
    (axes,) = charts.bars("ms", {"one": (1.0, 3.0), "two": (4.0, 4.0)}).axes
    assert [bar.get_width() for bar in axes.patches] == [2, 4]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["one", "two"]


def test_sparsity_of_several_requests_is_their_mean(tmp_path):
    write_dump(tmp_path / "a", [0.0, 0.0, 0.5, 0.3])
    write_dump(tmp_path / "b", [0.0, 0.0, 0.7, 0.5])
    merged = skipping.merge([skipping.read(tmp_path / name) for name in "ab"])
    assert merged["skipped"] == pytest.approx(0.25) and merged["per_step"] == pytest.approx([0, 0.5])
    assert merged["per_layer"]["blocks.0.attn1"] == pytest.approx(0.3) and len(merged["calls"]) == 8
    skipping.forget(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        skipping.read(tmp_path / "a")


@pytest.fixture(scope="module")
def structured():
    torch.manual_seed(0)
    return structured_wan.build("tiny").to(torch.bfloat16)


def latents(size="tiny"):
    frames, rows, columns = structured_wan.SIZES[size].grid
    return torch.randn(1, 16, frames, 2 * rows, 2 * columns, dtype=torch.bfloat16)


def test_structured_models_skippable_share_is_on_target(structured):
    """30 to 60 % at −10 to −6, at both ends of the schedule."""
    for timestep in (999.0, 50.0):
        inputs = structured_wan.attention_inputs(structured, latents(), timestep, 2)
        shares = torch.stack(
            [
                structured_wan.skippable(q[:, head], k[:, head], 128**-0.5, [-10.0, -6.0])
                for q, k in inputs
                for head in range(2)
            ]
        ).mean(0)
        assert 0.3 < shares[0] < shares[1] < 0.6, shares


def test_random_model_has_nothing_to_skip():
    from e2e import tiny_wan

    transformer = tiny_wan.build().to(torch.bfloat16)
    ((q, k),) = structured_wan.attention_inputs(transformer, latents(), 500.0, 1)
    assert structured_wan.skippable(q[:, 0], k[:, 0], 128**-0.5, [-10.0]).item() == 0


def test_heads_look_where_they_are_built_to_and_drift(structured):
    """Averaged over the tokens, a head's score peaks at its own time and place, moved by its drift."""
    frames, rows, columns = structured_wan.SIZES["tiny"].grid
    peaks = {}
    for timestep in (1000.0, 0.0):
        ((q, k),) = structured_wan.attention_inputs(structured, latents(), timestep, 1)
        for head in range(2):
            scores = (q[:, head].double() @ k[:, head].double().T).reshape(frames, rows * columns, frames, -1)
            by_time = torch.stack(
                [
                    torch.stack([scores[t, :, t + d].mean() for t in range(1, frames - 1)]).mean()
                    for d in (-1, 0, 1)
                ]
            )
            # The vertex of the parabola through the three.
            peaks[timestep, head] = (
                (by_time[0] - by_time[2]) / 2 / (by_time[0] - 2 * by_time[1] + by_time[2])
            ).item()
    for head in range(2):
        drift = structured_wan.head_kind(0, head).drift
        assert peaks[0.0, head] - peaks[1000.0, head] == pytest.approx(drift, rel=0.25), peaks
        assert abs(peaks[0.0, head] + peaks[1000.0, head]) < 0.1


def test_skippable_share_of_a_known_attention():
    """Block-diagonal scores: a query tile of 128 rows needs 2 of the 5 KV tiles, the last one 1."""
    block = torch.arange(300) // 64
    q = 20 * torch.nn.functional.one_hot(block, 128).float()
    share = structured_wan.skippable(q, q, 1.0, [-100.0, -1000.0])
    assert share.tolist() == pytest.approx([(3 + 3 + 4) / 15, 0.0])


def test_true_shape_by_construction():
    """One layer as wide as Wan2.1-T2V-1.3B's."""
    transformer = structured_wan.build("1.3b", layers=1)
    attention = transformer.blocks[0].attn1
    assert attention.heads == 12 and attention.to_q.weight.shape == (1536, 1536)
    assert transformer.blocks[0].ffn.net[0].proj.out_features == 8960
    assert math.prod(structured_wan.SIZES["1.3b"].grid) == 32760
    with pytest.raises(ValueError, match=r"size '14b' \(allowed: tiny, 1.3b\)"):
        structured_wan.build("14b")
