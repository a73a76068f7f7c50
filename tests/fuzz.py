"""Fuzzes attention in the simulator: random calls against float64 and AITER's code object, bad arguments, and
damaged code objects.

    python tests/fuzz.py --seconds 60                 # random cases from a new seed, which is printed
    python tests/fuzz.py --seconds 60 --seed 7        # the same cases each time
    python tests/fuzz.py --replay calls:1234          # one case again
    python tests/fuzz.py --lengths --shard 3/8        # every pair of lengths from 1 to 260, an eighth of them

Exit status: 0 where nothing was found, 1 where something was, with the command that replays it for each.
"""

import argparse
import collections
import itertools
import os
import random
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]
os.environ.setdefault("LITEATTENTION_ROCM_SIM_CHECK", "waits,wait_states")
os.environ.setdefault("LITEATTENTION_ROCM_SIM_PROGRESS", "0")
os.environ.setdefault("LITEATTENTION_ROCM_SIM_THREADS", "1")
os.environ.setdefault("LITEATTENTION_ROCM_AITER_HSA", str(HERE.parent / ".aiter"))


def use_package(folder: str) -> None:
    """Has `liteattention_rocm` come from a folder, whatever is installed."""
    sys.path.insert(0, folder)
    # Editable installs answer before sys.path is looked at.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
    import liteattention_rocm

    assert Path(liteattention_rocm.__file__).is_relative_to(folder), liteattention_rocm.__file__


if "FUZZ_PACKAGE" in os.environ:
    use_package(os.environ["FUZZ_PACKAGE"])

import torch  # noqa: E402

import fuzz_attention  # noqa: E402
import fuzz_lists  # noqa: E402
import fuzz_refusals  # noqa: E402

# Kind of case: how it is checked, how it is described.
KINDS = {
    "calls": (
        lambda number: fuzz_attention.check(fuzz_attention.draw(number)),
        lambda number: str(fuzz_attention.draw(number)),
    ),
    "lengths": (
        lambda number: fuzz_attention.check(fuzz_attention.pair(number)),
        lambda number: str(fuzz_attention.pair(number)),
    ),
    "packed": (fuzz_lists.check_packed, lambda number: str(fuzz_lists.draw_packed(number))),
    "lists": (fuzz_lists.check_listed, lambda number: str(fuzz_lists.draw_listed(number))),
    "refusals": (fuzz_refusals.check, fuzz_refusals.describe),
    "robustness": (fuzz_refusals.check_robustness, fuzz_refusals.describe_robustness),
}
ROUND = ("calls",) * 4 + ("packed", "lists") + ("refusals",) * 4 + ("robustness",) * 4
PAIRS = fuzz_attention.LONGEST**2
NUMBERS = 2**40
MOST_FAILURES = 20


def main(words=None) -> int:
    options = parse(words)
    # New tensors hold NaN, so that whatever a kernel leaves unwritten shows.
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    if options.replay:
        kind, number = options.replay
        return run([(kind, number)], options)
    if options.jobs > 1:
        return run_jobs(options)
    if options.lengths:
        first, count = options.shard
        cases = (("lengths", number) for number in spread(first - 1, count))
    else:
        cases = random_cases(options.seed, options.kinds)
    return run(itertools.islice(cases, options.most) if options.most else cases, options)


def spread(first: int, count: int):
    """Every `count`-th pair of lengths, in an order in which any beginning covers all lengths."""
    step = 26_113  # has no divisor in common with 260²
    yield from (position * step % PAIRS for position in range(first, PAIRS, count))


def random_cases(seed: int, kinds):
    """Cases without end: kinds in turn, numbers from the seed."""
    numbers = random.Random(seed)
    while True:
        for kind in ROUND:
            number = numbers.randrange(NUMBERS)
            if kind in kinds:
                yield kind, number


def run(cases, options) -> int:
    """Checks cases until they or the time end. The case at hand is in the trail, for the case of a crash."""
    end = time.monotonic() + options.seconds if options.seconds else float("inf")
    counts, failures = collections.Counter(), 0
    for kind, number in cases:
        if time.monotonic() >= end or failures >= MOST_FAILURES:
            break
        if options.trail:
            written = Path(f"{options.trail}-written")
            written.write_text(f"{kind}:{number}")
            written.replace(options.trail)  # never seen half-written
        check, describe = KINDS[kind]
        try:
            check(number)
        except AssertionError as error:
            failures += 1
            print(
                f"FOUND {kind}:{number} {error}\n  {describe(number)}\n  {replay(kind, number)}", flush=True
            )
        except Exception:
            failures += 1
            print(f"FOUND {kind}:{number}\n  {describe(number)}\n  {replay(kind, number)}", flush=True)
            traceback.print_exc(file=sys.stdout)
        counts[kind] += 1
    checked = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"
    aiter = "" if fuzz_attention.have_aiter() else "; AITER's code objects are missing"
    print(f"checked {checked}; {failures} found{aiter}", flush=True)
    return 1 if failures or not counts else 0


def replay(kind: str, number: int) -> str:
    return f"replay: python tests/fuzz.py --replay {kind}:{number}"


def run_jobs(options) -> int:
    """Shares the cases among processes. One that dies, for whatever reason, is a finding."""
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, {options.jobs} processes", flush=True)
    processes = []
    for job in range(options.jobs):
        trail = options.folder / f"trail-{job}"
        trail.unlink(missing_ok=True)
        command = [
            sys.executable,
            __file__,
            "--jobs",
            "1",
            "--trail",
            str(trail),
            "--seconds",
            str(options.seconds),
            "--most",
            str(options.most),
        ]
        if options.lengths:
            first, count = options.shard
            command += ["--lengths", "--shard", f"{first + job * count}/{count * options.jobs}"]
        else:
            command += ["--seed", str(options.seed + job), "--kinds", *options.kinds]
        processes.append((subprocess.Popen(command), trail))
    worst = 0
    for process, trail in processes:
        status = process.wait()
        if status not in (0, 1):
            kind, _, number = (trail.read_text() if trail.exists() else "").partition(":")
            print(f"FOUND {kind}:{number} the process ended with status {status}", flush=True)
            if number:
                print(f"  {KINDS[kind][1](int(number))}\n  {replay(kind, int(number))}", flush=True)
            status = 1
        worst = max(worst, status)
    return worst


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0, help="stop after this time; 0 for all lengths")
    parser.add_argument("--most", type=int, default=0, help="stop after so many cases a process; 0: don't")
    parser.add_argument("--seed", type=int, default=None, help="of the random cases; a new one by default")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*dict.fromkeys(ROUND)])
    parser.add_argument("--lengths", action="store_true", help="every pair of lengths up to 260")
    parser.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help="the I-th of N parts of them"
    )
    parser.add_argument("--replay", type=case, metavar="KIND:NUMBER", help="one case")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--trail", help="file that always names the case at hand")
    parser.add_argument(
        "--folder", type=Path, default=Path("fuzz-output"), help="where processes leave trails"
    )
    options = parser.parse_args(words)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(2**31)
        if not options.lengths and not options.replay:
            print(f"seed {options.seed}", flush=True)
    if not (options.seconds or options.most or options.lengths or options.replay):
        parser.error("--seconds or --most is missing: random cases have no end")
    return options


def shard(text: str) -> tuple[int, int]:
    first, _, count = text.partition("/")
    if not (first.isdigit() and count.isdigit() and 1 <= int(first) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with 1 <= I <= N")
    return int(first), int(count)


def case(text: str) -> tuple[str, int]:
    kind, _, number = text.partition(":")
    if kind not in KINDS or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not KIND:NUMBER with one of {', '.join(KINDS)}")
    return kind, int(number)


if __name__ == "__main__":
    sys.exit(main())
