"""The fuzzer: a minute of it, every pair of lengths, a sanitized build, and that it finds what is broken."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fuzz
import fuzz_attention
import fuzz_lists
import fuzz_refusals
import fuzz_sanitized
import liteattention_rocm
from liteattention_rocm import _C, LiteAttention, arguments, runtime

SCRIPT = Path(fuzz.__file__)
SECONDS = 55
MOST = 560  # cases a process: what 55 s of a quiet core are good for


@pytest.fixture(autouse=True)
def _forced(monkeypatch):
    """Cases force a kernel and a number of pieces for all of their process: not beyond the test."""
    for name in ("forced_family", "forced_pieces"):
        monkeypatch.setattr(runtime, name, getattr(runtime, name))


def fuzzed(*words: str, **environment: str) -> tuple[int, str]:
    """Status and output of the fuzzer."""
    finished = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env={**os.environ, "LITEATTENTION_ROCM_SIM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return finished.returncode, finished.stdout


def checked(output: str) -> dict[str, int]:
    """How many cases of each kind all processes have checked."""
    counts = {}
    for line in re.findall(r"^checked (.*); 0 found$", output, re.MULTILINE):
        for count, kind in re.findall(r"(\d+) (\w+)", line):
            counts[kind] = counts.get(kind, 0) + int(count)
    return counts


def test_a_minute(tmp_path, aiter):
    """The same cases each time, on fast machines too: a red run is the change's doing. `make fuzz` takes
    new ones."""
    words = ["--seconds", str(SECONDS), "--most", str(MOST), "--seed", "1", "--jobs", "2"]
    words += ["--folder", str(tmp_path)]
    status, output = fuzzed(*words)
    assert status == 0, output[-5000:]
    assert min(checked(output)[kind] for kind in ("calls", "refusals", "robustness")) >= 20, output


@pytest.mark.full
def test_every_pair_of_lengths(tmp_path, aiter):
    status, output = fuzzed("--lengths", "--jobs", "2", "--folder", str(tmp_path))
    assert status == 0, output[-5000:]
    assert checked(output) == {"lengths": 260**2}


def test_shards_are_a_partition():
    parts = [list(fuzz.spread(first, 7)) for first in range(7)]
    assert sorted(number for part in parts for number in part) == list(range(260**2))
    beginning = [fuzz_attention.pair(number) for number in parts[3][:1500]]
    assert len({call.seqlen_q for call in beginning}) == len({call.seqlen_kv for call in beginning}) == 260


def test_a_number_stands_for_one_case():
    assert fuzz_attention.draw(99) == fuzz_attention.draw(99) != fuzz_attention.draw(100)
    first = [case for case, _ in zip(fuzz.random_cases(5, fuzz.KINDS), range(40), strict=False)]
    again = [case for case, _ in zip(fuzz.random_cases(5, fuzz.KINDS), range(40), strict=False)]
    assert first == again
    with pytest.raises(SystemExit):
        fuzz.parse(["--replay", "calls:x"])
    with pytest.raises(SystemExit):
        fuzz.parse(["--lengths", "--shard", "9/8"])
    with pytest.raises(SystemExit):
        fuzz.parse([])


# What is broken is found


def one_key_short(attend):
    def broken(q, k, v, *, layout, **options):
        rows = 1 if layout == "bshd" else 2
        if k.shape[rows] > 1:
            k, v = (t.narrow(rows, 0, t.shape[rows] - 1) for t in (k, v))
        return attend(q, k, v, layout=layout, **options)

    return broken


def strides_of_v_ignored(attend):
    def broken(q, k, v, **options):
        packed = v.new_empty(v.shape, device="meta").stride()
        fits = v.storage_offset() + v.numel() <= v.untyped_storage().nbytes() // 2
        return attend(q, k, v.as_strided(v.shape, packed) if fits else v, **options)

    return broken


def last_row_unwritten(attend):
    def broken(q, k, v, *, layout, out=None, **options):
        if out is None or q.shape[1 if layout == "bshd" else 2] < 2:
            return attend(q, k, v, layout=layout, out=out, **options)
        rows = 1 if layout == "bshd" else 2
        answer = attend(q, k, v, layout=layout, **options)
        got, *rest = answer if isinstance(answer, tuple) else (answer,)
        out.narrow(rows, 0, out.shape[rows] - 1).copy_(got.narrow(rows, 0, out.shape[rows] - 1))
        return (out, *rest) if rest else out

    return broken


def one_element_beyond_out(attend):
    def broken(q, k, v, *, out=None, **options):
        answer = attend(q, k, v, out=out, **options)
        if out is not None:
            out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(1.0)
        return answer

    return broken


def no_nan(attend):
    def broken(*inputs, **options):
        answer = attend(*inputs, **options)
        (answer[0] if isinstance(answer, tuple) else answer).nan_to_num_(0.0)
        return answer

    return broken


def scale_forgotten(attend):
    return lambda *inputs, scale, **options: attend(*inputs, **options)


def lse_in_base_2(attend):
    def broken(*inputs, **options):
        answer = attend(*inputs, **options)
        return (answer[0], answer[1] * 1.4427) if isinstance(answer, tuple) else answer

    return broken


@pytest.mark.parametrize(
    "fault",
    [one_key_short, strides_of_v_ignored, last_row_unwritten, one_element_beyond_out, no_nan, scale_forgotten]
    + [lse_in_base_2],
)
def test_a_wrong_kernel_is_found(monkeypatch, aiter, fault):
    monkeypatch.setattr(runtime, "forced_family", "")
    monkeypatch.setattr(liteattention_rocm, "attention", fault(liteattention_rocm.attention))
    calls = [fuzz_attention.draw(number) for number in range(400)]
    calls = [call for call in calls if call.seqlen_q <= 129 and call.seqlen_kv <= 65]
    calls.sort(key=lambda call: "specials" not in call.values)
    with pytest.raises(fuzz_attention.Disagreement):
        for call in calls:
            fuzz_attention.check(call)


def test_wrong_sequences_and_lists_are_found(monkeypatch):
    attend = liteattention_rocm.attention_varlen

    def ends_moved(q, k, v, at_q, at_kv, *longest, **options):
        moved = at_kv.clone()
        moved[1:-1] = (moved[1:-1] + 1).clamp(max=int(moved[-1]))
        return attend(q, k, v, at_q, moved, longest[0], k.shape[0], **options)

    numbers = [number for number in range(60) if len(fuzz_lists.draw_packed(number).rows_q) > 1][:12]
    with monkeypatch.context() as patch:
        patch.setattr(liteattention_rocm, "attention_varlen", ends_moved)
        with pytest.raises(fuzz_attention.Disagreement):
            for number in numbers:
                fuzz_lists.check_packed(number)
    monkeypatch.setattr(LiteAttention, "read_list", property(LiteAttention.read_list.fget, lambda *_: None))
    with pytest.raises(fuzz_attention.Disagreement):
        for number in range(12):
            fuzz_lists.check_listed(number)


def test_a_refusal_that_is_missing_is_found(monkeypatch):
    def check_all():
        for number in range(400):
            fuzz_refusals.check(number)

    check_all()
    with monkeypatch.context() as patch:
        patch.setattr(arguments, "_check_inference", lambda name, tensor: None)
        with pytest.raises(fuzz_attention.Disagreement, match="gradient: the call was not refused"):
            check_all()
    monkeypatch.setattr(arguments, "check_scale", lambda scale: 1 / 0)
    with pytest.raises(fuzz_attention.Disagreement, match="ZeroDivisionError"):
        check_all()


@pytest.mark.full
def test_a_crash_is_reported_with_its_case(tmp_path):
    words = [
        "--seconds",
        "60",
        "--seed",
        "3",
        "--jobs",
        "2",
        "--folder",
        str(tmp_path),
        "--kinds",
        "refusals",
    ]
    process = subprocess.Popen([sys.executable, str(SCRIPT), *words], stdout=subprocess.PIPE, text=True)
    trails = [tmp_path / "trail-0", tmp_path / "trail-1"]
    while not all(trail.exists() for trail in trails):
        assert process.poll() is None
        time.sleep(0.2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[1]), signal.SIGSEGV)
    os.kill(int(children[0]), signal.SIGSEGV)
    output, _ = process.communicate()
    assert process.returncode == 1
    assert len(re.findall(r"FOUND refusals:\d+ the process ended with status -11\n", output)) == 2
    assert len(re.findall(r"replay: python tests/fuzz\.py --replay refusals:\d+\n", output)) == 2


OVERREAD = """
import fuzz  # takes the sanitized package
from liteattention_rocm import _C, simulator
image = _C.code_object("gfx942")
short = image[:-16]  # an ELF file ends with its section headers
print("READY", flush=True)
simulator.library().gfx942sim_disassemble_json(short, len(image), None, 0)
"""


@pytest.mark.full
def test_a_sanitized_build(tmp_path, aiter):
    """Some minutes to compile, then a hundred cases. That the sanitizers watch is shown by an overread."""
    package = fuzz_sanitized.build(tmp_path / "package")
    variables = fuzz_sanitized.environment(package)
    caught = subprocess.run(
        [sys.executable, "-c", OVERREAD], env=variables, cwd=SCRIPT.parent, capture_output=True, text=True
    )
    assert "READY" in caught.stdout and caught.returncode == fuzz_sanitized.FOUND, caught.stderr[-3000:]
    assert "AddressSanitizer: " in caught.stderr and "libgfx942sim.so" in caught.stderr
    words = ["--most", "56", "--seed", "2", "--jobs", "2", "--folder", str(tmp_path)]
    status, output = fuzzed(*words, **variables)
    assert status == 0, output[-5000:]
    counts = checked(output)
    assert sum(counts.values()) == 112 and counts["robustness"] >= 20
    assert _C.__file__ != str(package)
