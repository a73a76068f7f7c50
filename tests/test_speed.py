"""How fast the simulator executes, in process CPU time: a bar with room for a slower machine."""

import json
import os

import pytest

from liteattention_rocm import cli, simulator
from liteattention_rocm.commands import speed

BAR = 1.0  # million wave-instructions a second and core, AITER rtne in exact arithmetic


@pytest.fixture(autouse=True)
def _options():
    yield
    for name, default in (("threads", None), ("check", None), ("matrix", "exact")):
        simulator.set_option(name, os.environ.get(f"LITEATTENTION_ROCM_SIM_{name.upper()}", default))


def test_aiter_rtne_in_exact_arithmetic_holds_the_bar(aiter):
    call = speed.kernel_calls("rtne", 256, 1024)["AITER rtne"]
    found = speed.measure(call, matrix="exact")
    assert found["mfmas"] == 2 * 256 * 1024 * 128 // (32 * 32 * 8)
    assert found["millions_a_second"] >= BAR, found


def test_command(capsys, aiter):
    arguments = ["speed", "--rows", "32,64", "--repeats", "1"]
    assert cli.main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = report["measurements"]
    assert [(row["kernel"], row["matrix"]) for row in rows] == [
        (kernel, matrix) for kernel in ("AITER rtne", "ours rtne") for matrix in ("exact", "float32")
    ]
    for row in rows:
        assert row["wave_instructions"] > row["mfmas"] > 0
        assert row["millions_a_second"] * row["core_seconds"] * 1e6 == pytest.approx(row["wave_instructions"])
    assert cli.main([*arguments, "--rounding", "rtz", "--check", "none"]) == 0
    assert "AITER rtz" in capsys.readouterr().out


def test_command_without_aiter(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LITEATTENTION_ROCM_AITER_HSA", str(tmp_path))
    assert cli.main(["speed", "--rows", "32,64", "--repeats", "1"]) == 0
    out = capsys.readouterr().out
    assert "ours rtne" in out and "fetch_aiter" in out and "AITER rtne" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "256"], "--rows"),
        (["--rows", "0,64"], "--rows"),
        (["--repeats", "0"], "repeats"),
        (["--check", "everything"], "check"),
    ],
)
def test_wrong_options(capsys, arguments, message):
    assert cli.main(["speed", *arguments]) == 1
    assert message in capsys.readouterr().err
