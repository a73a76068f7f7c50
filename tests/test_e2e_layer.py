"""The whole-layer comparison, on a small layer; its distances on values known by hand."""

import json

import pytest
import torch

from e2e import layer
from liteattention_rocm import simulator


def test_bf16_steps_count_along_the_number_line():
    def bf16(*bits):
        return torch.tensor([b - (1 << 16) if b >= 1 << 15 else b for b in bits], dtype=torch.int16).view(
            torch.bfloat16
        )

    a = bf16(0x3F80, 0x3F80, 0x0000, 0x0001, 0x3F7F)
    b = bf16(0x3F80, 0x3F81, 0x8000, 0x8001, 0x3F81)
    assert layer.bf16_steps(a, b).tolist() == [0, 1, 0, 2, 2]


def test_distances_of_known_outputs():
    theirs = torch.ones(1, 1, 1, 128, dtype=torch.bfloat16)
    ours = theirs.clone()
    ours[..., 0] = 1 + 2**-7  # one step up
    ours[..., 1] = 1 - 2**-7  # two steps of half the size down
    found = layer.compare(ours, theirs)
    assert found["elements"] == 128
    assert found["identical"] == pytest.approx(126 / 128)
    assert found["within_1_ulp"] == pytest.approx(127 / 128)
    assert found["largest_difference"] == 2**-7
    assert found["largest_difference_in_ulp_of_the_rows_largest"] == 1
    assert found["rmse"] == pytest.approx((2 * 2**-14 / 128) ** 0.5)


def test_a_small_layer(tmp_path, capsys, monkeypatch):
    """Both kernels run and agree; a layer of 300 rows has a tail in every tile."""
    report = tmp_path / "layer.json"
    monkeypatch.setattr(simulator, "set_option", lambda *_: None)  # it would stay for the tests that follow
    assert layer.main(["--shape", "1,2,300", "--rounding", "rtne", "--json", str(report)]) == 0
    result = json.loads(report.read_text())
    ours, theirs = result["runs"]
    assert ours["mfmas"] > 0 and theirs["mfmas"] > 0
    assert ours["sampled_rmse_against_float64"] < 1.05 * theirs["sampled_rmse_against_float64"]
    # Both round the same sums, P relative to different running maxima: facts of rounding, not of luck.
    assert result["difference"]["identical"] > 0.5
    assert result["difference"]["largest_difference_in_ulp_of_the_rows_largest"] <= 2
    assert "simulated" in capsys.readouterr().out
