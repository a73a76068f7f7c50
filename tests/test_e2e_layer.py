"""The whole-layer comparison, on a small layer; its distances on values known by hand."""

import json

import pytest
import torch

from e2e import layer
from liteattention_rocm import _C, runtime, simulator


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
    found = layer.shares([layer.tally(ours, theirs)])
    assert found["elements"] == 128
    assert found["identical"] == pytest.approx(126 / 128)
    assert found["within_1_ulp"] == pytest.approx(127 / 128)
    assert found["largest_difference"] == 2**-7
    assert found["largest_difference_in_ulp_of_the_rows_largest"] == 1
    assert found["rmse"] == pytest.approx((2 * 2**-14 / 128) ** 0.5)


def test_shares_of_several_heads():
    theirs = torch.ones(1, 1, 1, 128, dtype=torch.bfloat16)
    ours = theirs + 2**-7
    found = layer.shares([layer.tally(theirs, theirs), layer.tally(ours, theirs)])
    assert found["elements"] == 256
    assert found["identical"] == 0.5 and found["within_1_ulp"] == 1
    assert found["largest_difference"] == 2**-7
    assert found["rmse"] == pytest.approx((2**-14 / 2) ** 0.5)


@pytest.fixture
def options(monkeypatch):
    """The simulator's options that the program sets, kept from the tests that follow."""
    chosen = {}
    monkeypatch.setattr(simulator, "set_option", chosen.__setitem__)
    return chosen


def test_a_small_layer(tmp_path, capsys, options):
    """Both kernels run and agree; a layer of 300 rows has a tail in every tile."""
    path = tmp_path / "new" / "layer.json"
    assert layer.main(["--shape", "1,2,300", "--rounding", "rtne", "--json", str(path)]) == 0
    assert options == {"matrix": "exact"}
    result = json.loads(path.read_text())
    ours, theirs = result["runs"]
    assert ours["mfmas"] > 0 and theirs["mfmas"] > 0
    assert ours["sampled_rmse_against_float64"] < 1.05 * theirs["sampled_rmse_against_float64"]
    # Both round the same sums, P relative to different running maxima: facts of rounding, not of luck.
    assert result["difference"]["elements"] == 2 * 300 * 128
    assert result["difference"]["identical"] > 0.5
    assert result["difference"]["largest_difference_in_ulp_of_the_rows_largest"] <= 2
    out = capsys.readouterr().out
    assert "simulated" in out and "head 2/2" in out and "core-minutes" in out


def test_an_interrupted_layer_goes_on(tmp_path, capsys, monkeypatch, options):
    path = tmp_path / "layer.json"
    arguments = ["--shape", "2,1,70", "--json", str(path)]
    assert layer.main([*arguments, "--heads", "1"]) == 0
    first = json.loads(path.read_text())["heads"]
    assert len(first) == 1

    ran = []
    run_head = layer.run_head
    monkeypatch.setattr(layer, "run_head", lambda *given: ran.append(given) or run_head(*given))
    assert layer.main(arguments) == 0
    report = json.loads(path.read_text())
    assert len(ran) == 1 and len(report["heads"]) == 2 and report["heads"][0] == first[0]
    assert report["difference"]["elements"] == 2 * 70 * 128
    assert "1 of them from" in capsys.readouterr().out

    # Other settings, or a file that holds something else, start anew.
    assert layer.main([*arguments, "--seed", "7"]) == 0
    assert len(ran) == 3
    path.write_text("[]")
    assert layer.main([*arguments, "--heads", "1"]) == 0
    assert len(ran) == 4


def test_heads_are_views_of_the_whole_tensors(monkeypatch, options):
    """The kernels see the strides of the layer, and each head of each batch element once."""
    seen = []

    def run_head(q, k, v, rounding):
        assert q.shape == (1, 5, 1, 128) and q.stride() == (5 * 3 * 128, 3 * 128, 128, 1)
        seen.append(q.storage_offset())
        raise LookupError

    monkeypatch.setattr(layer, "run_head", run_head)
    monkeypatch.setattr(layer, "finished_heads", lambda *_: [{}] * len(seen))
    for _ in range(6):
        with pytest.raises(LookupError):
            layer.main(["--shape", "2,3,5"])
    assert seen == [batch * 5 * 3 * 128 + head * 128 for batch in range(2) for head in range(3)]


def test_the_kernel_is_that_of_the_whole_layer(monkeypatch, options):
    """12 heads of 5120 rows fill the device otherwise than one: the plan takes another kernel."""
    monkeypatch.setattr(runtime, "forced_family", "")
    seen = []

    def run_head(q, *_):
        plan = _C.plan(1, q.shape[2], 1, q.shape[1], q.shape[1], 304)["kernel"]
        seen.append((runtime.forced_family, plan))
        raise LookupError

    monkeypatch.setattr(layer, "run_head", run_head)
    with pytest.raises(LookupError):
        layer.main(["--shape", "1,12,5120"])
    assert seen == [("pingpong", "forward")]
    assert runtime.forced_family == ""


@pytest.mark.parametrize("arguments", [["--shape", "1,2"], ["--shape", "1,0,64"], ["--heads", "13"]])
def test_wrong_options(capsys, arguments):
    with pytest.raises(SystemExit):
        layer.main(arguments)
    assert arguments[0] in capsys.readouterr().err
