"""Which processes a comparison starts, in which order, and what it takes over from an interrupted run."""

import io
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from e2e import arms, generate, runner
from e2e.job import RESULT, Job, identity

REQUESTS = [{"name": f"prompt-1-seed-{seed}", "prompt": "p", "seed": seed} for seed in (1, 2)]


def job(folder, arm="aiter", **changes):
    given = {
        "arm": arm,
        "folder": str(folder),
        "model": "m",
        "model_id": None,
        "prompt": "p",
        "height": 16,
        "width": 16,
        "frames": 1,
        "steps": 1,
        "guidance": 1.0,
        "seed": 1,
        "device": "cpu",
        "requests": REQUESTS,
        "identity": "today",
    }
    return Job(**{**given, **changes})


def write_result(request, **changes):
    times = {"total_s": 1.0, "steps_s": [1.0], "stages_s": {}, "basis": "b"}
    result = {
        "fingerprint": request.fingerprint,
        "times": times,
        "memory": {"bytes": 1, "basis": "b"},
        "digest": "d",
        "reads_sparsity": False,
        "settings": {},
        "sparsity": None,
        "self_instructions": [1],
        **changes,
    }
    Path(request.folder).mkdir(parents=True, exist_ok=True)
    (Path(request.folder) / RESULT).write_text(json.dumps(result))


@pytest.fixture
def started(monkeypatch):
    """Processes that write their results at once; those of arms in ``broken`` fail."""
    log = []

    def run(child):
        log.append((child.job.arm, Path(child.job.folder).name))
        if child.job.arm in broken:
            return "it broke"
        for request in child.job.each():
            if request.finished() is None:
                write_result(request)
        return None

    broken = set()
    monkeypatch.setattr(runner.Child, "run", run)
    log_and_broken = log, broken
    return log_and_broken


def make(folder, names=("aiter", "torch_sdpa", "liteattention_rocm"), rounds=3, **changes):
    return runner.pieces(
        [arms.find(name) for name in names],
        rounds,
        lambda arm, number: job(folder / arm.name / f"round-{number + 1}", arm.name, **changes),
    )


def run(todo, device="cpu"):
    console = Console(file=io.StringIO(), width=200)
    runner.run(todo, device, 1, console)
    return console.file.getvalue()


def test_arms_take_turns_and_every_second_round_goes_backwards(tmp_path, started):
    run(make(tmp_path))
    log, _ = started
    forth = ["aiter", "torch_sdpa", "liteattention_rocm"]
    assert [name for name, _ in log] == [*forth, *forth[::-1], *forth]
    assert [folder for _, folder in log] == [f"round-{1 + index // 3}" for index in range(9)]


def test_progress_bars_follow_the_arms(tmp_path, monkeypatch):
    """Of all arms, and of each by its attention calls, drawn on a terminal as messages come."""

    def work(child):
        for message in ({"stage": "loading sglang"}, {"stage": "generating", "expected": 8}, {"calls": 6}):
            child.on_message(message)
        time.sleep(0.5)  # bars are drawn ten times a second
        for request in child.job.each():
            write_result(request)

    monkeypatch.setattr(runner.Child, "run", work)
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    runner.run(make(tmp_path, names=("aiter", "torch_sdpa"), rounds=1), "cpu", 1, console)
    text = console.file.getvalue()
    assert re.search(r"aiter: generating .*6/8", text) and re.search(r"torch_sdpa: generating .*6/8", text)
    assert re.search(r"all arms .*0/2", text) and re.search(r"all arms .*1/2", text)


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, started):
    log, _ = started
    todo = make(tmp_path, rounds=1)
    for request in todo[0].job.each():  # aiter is finished
        write_result(request)
    write_result(next(todo[1].job.each()))  # one of two requests
    (half,) = list(todo[1].job.each())[1:]
    Path(half.folder).mkdir(parents=True)
    (Path(half.folder) / "frames").mkdir()
    text = run(todo)
    assert [name for name, _ in log] == ["torch_sdpa", "liteattention_rocm"]
    assert "aiter: kept from the interrupted run" in text
    assert not (Path(half.folder) / "frames").exists()
    results = runner.results(todo, tmp_path)
    assert all(arm["status"] == "ok" and len(arm["runs"]) == 2 for arm in results.values())
    assert results["aiter"]["self_instructions"] == [1, 1] and results["aiter"]["repeatable"] is None


def test_results_are_of_each_arms_own_folders(tmp_path, started):
    """Arms whose names begin alike, too."""
    names = (arms.PEER, arms.PEER_RTNE, arms.OURS, "liteattention_rocm@-10", arms.OURS_RTZ)
    todo = make(tmp_path, names, 2)
    run(todo)
    for name, arm in runner.results(todo, tmp_path).items():
        assert arm["requests"] == {one["name"]: f"{name}/round-1/{one['name']}" for one in REQUESTS}
        assert [one["folder"] for one in arm["runs"]] == [
            f"{name}/round-{number}/{one['name']}" for number in (1, 2) for one in REQUESTS
        ]


@pytest.mark.parametrize("change", [{"steps": 2}, {"identity": "tomorrow"}, {"sglang": {"a": 1}}])
def test_results_of_another_request_or_code_are_made_again(tmp_path, started, change):
    log, _ = started
    run(make(tmp_path, rounds=1))
    log.clear()
    run(make(tmp_path, rounds=1))
    assert not log
    run(make(tmp_path, rounds=1, **change))
    assert len(log) == 3


def test_broken_arm_is_reported_once_and_the_others_finish(tmp_path, started):
    log, broken = started
    broken.add("torch_sdpa")
    todo = make(tmp_path, rounds=2)
    text = run(todo)
    assert [name for name, _ in log].count("torch_sdpa") == 1 and len(log) == 5
    assert "torch_sdpa, round 1: FAILED: it broke" in text or "torch_sdpa, round 2: FAILED: it broke" in text
    results = runner.results(todo, tmp_path)
    assert results["torch_sdpa"]["status"] == "failed" and results["torch_sdpa"]["error"] == "it broke"
    assert results["aiter"]["status"] == "ok" and results["aiter"]["repeatable"] is True


def test_arm_that_needs_a_gpu_is_unavailable_without_one(tmp_path, started):
    log, _ = started
    todo = make(tmp_path, ("aiter_sage", "aiter"), 1)
    assert "aiter_sage: needs a GPU: " in run(todo)
    results = runner.results(todo, tmp_path)
    assert results["aiter_sage"]["status"] == "unavailable" and results["aiter"]["status"] == "ok"
    assert [name for name, _ in log] == ["aiter"]
    run(make(tmp_path / "device", ("aiter_sage",), 1, device="rocm"), "rocm")
    assert log[-1][0] == "aiter_sage"


def test_rounds_that_differ_are_not_repeatable():
    runs = [{"round": 0, "request": "r", "digest": "a"}, {"round": 1, "request": "r", "digest": "b"}]
    assert runner.repeatable(runs) is False and runner.repeatable(runs[:1]) is None
    assert runner.repeatable([runs[0], {**runs[1], "digest": "a"}]) is True


def test_a_process_is_followed_and_its_last_error_kept(tmp_path, monkeypatch):
    real = subprocess.Popen
    script = (
        "import sys; print('@e2e {\"calls\": 3}'); print('[rank0]: ValueError: no such thing'); sys.exit(2)"
    )
    monkeypatch.setattr(
        runner.subprocess, "Popen", lambda command, **named: real([sys.executable, "-c", script], **named)
    )
    seen = []
    child = runner.Child(job(tmp_path / "x"), tmp_path / "x" / "log.txt", {}, seen.append)
    assert child.run() == "ValueError: no such thing"
    assert seen == [{"calls": 3}] and "ValueError" in (tmp_path / "x" / "log.txt").read_text()
    child = runner.Child(job(tmp_path / "y"), tmp_path / "y" / "log.txt")
    child.stop()
    assert child.run() == "interrupted"


def test_a_process_that_fails_behind_its_results_is_no_broken_arm(tmp_path, monkeypatch):
    """They count, the failure is said, and later rounds run."""

    def work(child):
        for request in child.job.each():
            write_result(request)
        return "exit status -6"

    monkeypatch.setattr(runner.Child, "run", work)
    todo = make(tmp_path, names=("torch_sdpa",), rounds=2)
    text = run(todo)
    for number in (1, 2):
        assert f"torch_sdpa, round {number}: done, 2.0 s of simulation; the results were complete" in text
    assert text.count("exit status -6") == 2 and "FAILED" not in text and "left out" not in text
    assert [piece.error for piece in todo] == [None, None]
    assert runner.results(todo, tmp_path)["torch_sdpa"]["status"] == "ok"


def test_a_process_that_fails_before_its_results_is_broken(tmp_path, monkeypatch):
    def work(child):
        write_result(next(child.job.each()))
        return "exit status -6"

    monkeypatch.setattr(runner.Child, "run", work)
    todo = make(tmp_path, names=("torch_sdpa",), rounds=2)
    assert "round 2: left out: it failed before" in run(todo)
    assert [piece.error for piece in todo] == ["exit status -6"] * 2


def test_messages_that_others_wrote_into_are_log_text(tmp_path, monkeypatch):
    real = subprocess.Popen
    lines = ['@e2e {"calls": 1}', '@e2e {"calls": 2}a warning', "@e2e ", "@e2e 3", '@e2e {"calls": 4}']
    script = f"print({chr(10).join(lines)!r})"
    monkeypatch.setattr(
        runner.subprocess, "Popen", lambda command, **named: real([sys.executable, "-c", script], **named)
    )
    seen = []
    child = runner.Child(job(tmp_path / "x"), tmp_path / "x" / "log.txt", {}, seen.append)
    assert child.run() is None
    assert seen == [{"calls": 1}, {"calls": 4}]
    assert (tmp_path / "x" / "log.txt").read_text().splitlines() == lines[1:4]


def test_a_message_is_one_write(monkeypatch):
    """Text and line end apart would let another thread's output come between them."""
    writes = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=writes.append, flush=lambda: None))
    generate.tell(calls=3)
    monkeypatch.undo()
    assert writes == ['@e2e {"calls": 3}\n']


def test_fingerprint_is_of_what_is_made_not_of_where(tmp_path):
    here, there = job(tmp_path / "a"), job(tmp_path / "b")
    assert [one.fingerprint for one in here.each()] == [one.fingerprint for one in there.each()]
    assert len({one.fingerprint for one in here.each()}) == 2
    assert replace(here, keep_frames=False).fingerprint != here.fingerprint
    assert [Path(one.folder).name for one in here.each()] == [one["name"] for one in REQUESTS]
    (only,) = replace(here, requests=None).each()
    assert Path(only.folder) == tmp_path / "a"


def test_identity_changes_with_a_source(tmp_path):
    (tmp_path / "a.py").write_text("1")
    before = identity({"torch": "2"}, [tmp_path])
    assert identity({"torch": "2"}, [tmp_path]) == before != identity({"torch": "3"}, [tmp_path])
    (tmp_path / "a.py").write_text("2")
    assert identity({"torch": "2"}, [tmp_path]) != before
