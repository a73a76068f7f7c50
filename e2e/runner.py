"""Runs the arms' processes: in turn, or several at a time where times mean nothing; resumes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e import skipping
from e2e.arms import Arm
from e2e.generate import MARK
from e2e.job import Job

RUN_FIELDS = ("times", "memory", "digest", "reads_sparsity")  # of a result, in every round


def _message(line: str) -> dict[str, Any] | None:
    """What :func:`e2e.generate.tell` sent; None where the line is another, or others wrote into it."""
    if not line.startswith(MARK):
        return None
    try:
        message = json.loads(line[len(MARK) :])
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


@dataclass
class Child:
    """A process that makes an arm's videos of one round, as seen from here.

    Attributes:
        log: all that it printed.
        environment: added to this process's.
        on_message: called with each message of :func:`e2e.generate.tell`.
    """

    job: Job
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    on_message: Callable[[dict[str, Any]], None] = lambda message: None
    process: subprocess.Popen | None = None
    stopped: bool = False

    def run(self) -> str | None:
        """Runs to the end; returns the reason where the process failed, and never raises for it."""
        folder = Path(self.job.folder)
        if self.stopped:
            return "interrupted"
        folder.mkdir(parents=True, exist_ok=True)
        self.job.write(folder / "job.json")
        command = [sys.executable, "-u", "-m", "e2e.generate", str(folder / "job.json")]
        last_error = ""
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            try:
                for line in self.process.stdout:
                    if (message := _message(line)) is not None:
                        self.on_message(message)
                        continue
                    log.write(line)
                    log.flush()
                    text = line.strip()
                    last_error = re.sub(r"^\[rank\d+\]: ", "", text) if "Error" in text else last_error
                code = self.process.wait()
            finally:
                self.stop()
        return None if code == 0 else last_error or f"exit status {code}"

    def stop(self) -> None:
        """Ends the process, or keeps it from starting."""
        self.stopped = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Piece:
    """One arm's videos of one round.

    Attributes:
        error: why its process failed.
        unavailable: why it was not started on this host.
    """

    arm: Arm
    round: int
    job: Job
    error: str | None = None
    unavailable: str | None = None

    @property
    def log(self) -> Path:
        return Path(self.job.folder) / "log.txt"

    @property
    def wanted(self) -> list[Job]:
        """The requests without a result."""
        return [request for request in self.job.each() if request.finished() is None]


def pieces(arms: list[Arm], rounds: int, make_job: Callable[[Arm, int], Job]) -> list[Piece]:
    """Every arm in every round, in the order they run: arms in turn, every second round backwards."""
    return [
        Piece(arm, number, make_job(arm, number))
        for number in range(rounds)
        for arm in (arms if number % 2 == 0 else arms[::-1])
    ]


def run(todo: list[Piece], device: str, at_a_time: int, console: Any) -> None:
    """Runs the pieces that have no complete result; each one's ``error`` says whether it failed.

    An arm that fails is not started again in later rounds.

    Args:
        at_a_time: processes at a time; on a device it is always one.
        console: rich's, for progress bars and a line per piece.

    Raises:
        KeyboardInterrupt: all processes are ended first.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    at_a_time = 1 if device != "cpu" else min(at_a_time, len(todo))
    threads = str(max(1, (os.cpu_count() or 1) // at_a_time))
    environment = {}
    if device == "cpu" and at_a_time > 1:
        environment = dict.fromkeys(("LITEATTENTION_ROCM_SIM_THREADS", "OMP_NUM_THREADS"), threads)
    rounds = 1 + max(piece.round for piece in todo)
    children: list[Child] = []
    broken: dict[str, str] = {}
    lock = threading.Lock()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())

    with Progress(*columns, console=console, transient=True) as progress:
        everything = progress.add_task("all arms", total=len(todo))

        def work(piece: Piece) -> None:
            name = piece.arm.name + (f", round {piece.round + 1}" if rounds > 1 else "")
            if not piece.wanted:
                return say(name, "kept from the interrupted run")
            if device == "cpu" and piece.arm.device_only:
                piece.unavailable = f"needs a GPU: {piece.arm.device_only}"
                return say(name, piece.unavailable)
            if piece.arm.name in broken:
                piece.error = broken[piece.arm.name]
                return say(name, "left out: it failed before")
            for folder in Path(piece.job.folder).glob("*"):  # what a piece that was interrupted left
                if folder.is_dir() and folder.name in {Path(job.folder).name for job in piece.wanted}:
                    shutil.rmtree(folder)
            task = progress.add_task(f"{name}: starting", total=None)

            def follow(message: dict[str, Any]) -> None:
                if "stage" in message:
                    progress.update(task, description=f"{name}: {message['stage']}")
                if "expected" in message:
                    progress.update(task, total=message["expected"])
                if "calls" in message:
                    progress.update(task, completed=message["calls"])

            child = Child(piece.job, piece.log, environment, follow)
            with lock:
                children.append(child)
            failure = child.run()
            if piece.wanted:
                piece.error = broken[piece.arm.name] = failure or "the process ended well without a result"
            progress.remove_task(task)
            basis = "simulation" if device == "cpu" else "generation"
            seconds = [job.finished()["times"]["total_s"] for job in piece.job.each() if job.finished()]
            outcome = f"FAILED: {piece.error}" if piece.error else f"done, {sum(seconds):.1f} s of {basis}"
            if failure and not piece.error:  # as where the HIP runtime aborts while it shuts down
                outcome += f"; the results were complete when the process failed: {failure}"
            say(name, outcome)

        def say(name: str, outcome: str) -> None:
            progress.advance(everything)
            console.print(f"{name}: {outcome}", highlight=False, markup=False)

        with ThreadPoolExecutor(at_a_time) as pool:
            futures = [pool.submit(work, piece) for piece in todo]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                with lock:
                    for child in children:
                        child.stop()
                raise


def results(todo: list[Piece], output: Path) -> dict[str, dict[str, Any]]:
    """Per arm, what its processes left: ``status``, which is ``ok``, or ``failed`` or ``unavailable`` with an
    ``error``, and its ``log``.

    A finished arm has what its first video's result says at its top level; sparsity and self-attention's
    instructions there are of all requests. ``runs`` has every round and request, ``results`` the first
    round's results and ``requests`` their folders, relative to ``output``, by the request's name.
    """
    found: dict[str, dict[str, Any]] = {}
    for piece in todo:
        name, log = piece.arm.name, str(piece.log.relative_to(output))
        done = [(job, job.finished()) for job in piece.job.each()]
        entry = found.setdefault(name, {"status": "ok", "log": log, "runs": [], "requests": {}})
        if piece.unavailable:
            entry.update(status="unavailable", error=piece.unavailable)
            continue
        if any(result is None for _, result in done):
            if entry["status"] == "ok":
                entry.update(status="failed", error=piece.error or "not run", log=log)
            continue
        for job, result in done:
            folder = str(Path(job.folder).relative_to(output))
            run = {"round": piece.round, "request": Path(job.folder).name, "folder": folder}
            entry["runs"].append({**run, **{key: result[key] for key in RUN_FIELDS}})
            if piece.round == 0:
                entry["requests"][run["request"]] = folder
                entry.setdefault("results", {})[run["request"]] = result
    for entry in found.values():
        if entry["status"] == "ok":
            made = list(entry["results"].values())
            entry.update({key: value for key, value in made[0].items() if key != "fingerprint"})
            entry["self_instructions"] = [count for one in made for count in one["self_instructions"]]
            if entry["sparsity"] is not None:
                entry["sparsity"] = skipping.merge([one["sparsity"] for one in made])
            entry["repeatable"] = repeatable(entry["runs"])
    return found


def repeatable(runs: list[dict[str, Any]]) -> bool | None:
    """Whether every round made the same frames and latents; None with a single round."""
    if len({run["round"] for run in runs}) < 2:
        return None
    digests: dict[str, set[str]] = {}
    for run in runs:
        digests.setdefault(run["request"], set()).add(run["digest"])
    return all(len(found) == 1 for found in digests.values())
