"""The search for thresholds, and its TOML files."""

import math

import pytest
import torch

import liteattention_rocm
from attention_cases import same_bits
from lite_cases import inputs
from liteattention_rocm import LiteAttention, runtime
from liteattention_rocm.lite import Calibration, ThresholdSearch, calibration


@pytest.fixture(autouse=True)
def _dense_kernel_with_the_same_order_of_rounding(monkeypatch):
    """Dense calls run attention_forward, whatever kernel a plan would choose."""
    monkeypatch.setattr(runtime, "forced_family", "forward")


def test_thresholds_hold_the_error(tmp_path):
    """On the run that they were found on, LiteAttention stays within the target, and skips."""
    target = 0.02
    run = [inputs(1, 2, 256, 1000, noise=0.2, drift=0.5 * step) for step in range(4)]
    search = ThresholdSearch(target)
    for q, k, v in run:
        assert same_bits(search(q, k, v), liteattention_rocm.attention(q, k, v))
    assert len(search.thresholds) == 4
    pairs = list(zip(search.thresholds, search.errors, strict=True))
    assert all(error <= target for threshold, error in pairs if threshold != -math.inf)
    assert search.thresholds[0] > -10
    Calibration(target, {"layer": search.thresholds}).save(tmp_path / "thresholds.toml")
    loaded = Calibration.load(tmp_path / "thresholds.toml")
    attention = LiteAttention(threshold=loaded.thresholds["layer"], break_even=0)
    for q, k, v in run:
        out = attention(q, k, v)
        # The pattern moves between the call that votes and the one that skips.
        assert calibration.relative_error(out, liteattention_rocm.attention(q, k, v)) < 2 * target
    assert attention.calc_percentage() > 0.1


def test_a_tighter_target_gives_lower_thresholds():
    q, k, v = inputs(1, 2, 256, 1000, noise=0.2)
    found = []
    for target in (0.2, 0.02, 0.005):
        search = ThresholdSearch(target)
        search(q, k, v)
        found += search.thresholds
    assert found == sorted(found, reverse=True) and found[0] > found[-1]


def test_nothing_can_be_dropped():
    """Not even at the lowest threshold: the list is kept as it is."""
    q, k, v = inputs(1, 1, 128, 640)
    search = ThresholdSearch(1e-12)
    _, lse = search(q, k, v, return_softmax_lse=True)
    assert search.thresholds == [-math.inf] and lse.shape == (1, 1, 128)
    search.reset_skip_state()
    assert search.thresholds == []


def test_files(tmp_path):
    path = tmp_path / "thresholds.toml"
    thresholds = {'blocks.0."attn1"': [-10.0, -math.inf, -3.5], "ß\\": [math.inf]}
    Calibration(0.01, thresholds).save(path)
    assert Calibration.load(path) == Calibration(0.01, thresholds)


BAD_FILES = {
    "no TOML": ("thresholds = [", "is no TOML file"),
    "unknown key": ("target_error = 1\nthreshold = 3", "unknown key 'threshold'"),
    "no target": ("[thresholds]", "target_error must be a number above 0, got None"),
    "target": ("target_error = 'x'\n[thresholds]", "target_error must be a number above 0, got 'x'"),
    "no thresholds": ("target_error = 1", "thresholds must be a table, got None"),
    "no list": ("target_error = 1\n[thresholds]\na = -3", "thresholds of layer 'a' must be a list, got -3"),
    "empty list": ("target_error = 1\n[thresholds]\na = []", "thresholds of layer 'a' must be a list"),
    "positive": (
        "target_error = 1\n[thresholds]\na = [-1, 3]",
        "layer 'a', step 1: threshold must be below 0",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files(case, tmp_path):
    content, message = BAD_FILES[case]
    (tmp_path / "bad.toml").write_text(content)
    with pytest.raises(ValueError, match=message):
        Calibration.load(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("target", "error"), [(0, ValueError), (-1, ValueError), ("x", TypeError), (math.nan, ValueError)]
)
def test_targets(target, error):
    with pytest.raises(error, match="target_error must be"):
        ThresholdSearch(target)


def test_relative_error():
    assert calibration.relative_error(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 4.0])) == 0.75
