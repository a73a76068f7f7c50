"""Measures how fast the simulator executes on one core, or with --launch what a call costs before it."""

import json
import time

from .. import simulator
from ..rounding import ROUNDINGS
from . import launch_overhead

MATRICES = ("exact", "float32")
_SHORTEST = 0.05  # seconds of CPU time below which a clock's resolution would show


def add_options(parser) -> None:
    parser.add_argument("--rounding", default="rtne", choices=ROUNDINGS, help="default: %(default)s")
    parser.add_argument(
        "--rows", default="256,4096", metavar="SQ,SKV", help="of one head of 128; default: %(default)s"
    )
    parser.add_argument("--repeats", type=int, default=5, help="the fastest counts; default: %(default)s")
    parser.add_argument(
        "--check", default="waits,wait_states", help="checks that are on meanwhile; default: %(default)s"
    )
    parser.add_argument(
        "--launch",
        action="store_true",
        help="instead: microseconds from Python to hipModuleLaunchKernel, and where they go",
    )
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")


def measure(call, *, matrix: str, repeats: int = 5) -> dict:
    """Wave-instructions a second and core of a call that launches kernels in the simulator.

    CPU time of the process is what counts, so that other load on the machine matters little; of `repeats`
    measurements the fastest. Sets the simulator's options `threads` and `matrix` and resets its statistics.

    Returns:
        {"wave_instructions", "mfmas", "core_seconds", "millions_a_second"}, the counts of one call.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    simulator.set_option("threads", "1")
    simulator.set_option("matrix", matrix)
    call()  # code objects are decoded at their first launch
    best = None
    for _ in range(repeats):
        simulator.reset_statistics()
        calls, start, seconds = 0, time.process_time(), 0.0
        while seconds < _SHORTEST:
            call()
            calls += 1
            seconds = time.process_time() - start
        kernels = simulator.statistics()["kernels"].values()
        if best is None or seconds / calls < best["core_seconds"]:
            instructions = sum(kernel["instructions"] for kernel in kernels)
            best = {
                "wave_instructions": instructions // calls,
                "mfmas": sum(kernel["matrix"] for kernel in kernels) // calls,
                "core_seconds": seconds / calls,
                "millions_a_second": instructions / seconds / 1e6,
            }
    return best


def kernel_calls(rounding: str, seqlen_q: int, seqlen_kv: int) -> dict:
    """Calls of one head of N(0, 1) operands by kernel name; AITER's only where its code object is found."""
    import torch

    import liteattention_rocm
    from liteattention_rocm import aiter_kernel

    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, rows, 1, 128, generator=generator).to(torch.bfloat16)
        for rows in (seqlen_q, seqlen_kv, seqlen_kv)
    )
    calls = {f"ours {rounding}": lambda: liteattention_rocm.attention(q, k, v, rounding=rounding)}
    try:
        aiter_kernel.find()
    except FileNotFoundError:
        return calls
    return {f"AITER {rounding}": lambda: aiter_kernel.forward(q, k, v, rounding=rounding), **calls}


def run(options) -> int:
    if options.launch:
        found = launch_overhead.split()
        print(json.dumps(found, indent=1) if options.json else launch_overhead.text(found))
        return 0
    sizes = options.rows.split(",")
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ValueError(f"--rows must be two positive integers SQ,SKV, got {options.rows!r}")
    seqlen_q, seqlen_kv = map(int, sizes)
    simulator.set_option("check", options.check)
    calls = kernel_calls(options.rounding, seqlen_q, seqlen_kv)
    rows = [
        {"kernel": name, "matrix": matrix, **measure(call, matrix=matrix, repeats=options.repeats)}
        for name, call in calls.items()
        for matrix in MATRICES
    ]
    report = {"seqlen_q": seqlen_q, "seqlen_kv": seqlen_kv, "check": options.check, "measurements": rows}
    if options.json:
        print(json.dumps(report, indent=1))
        return 0
    print(f"Simulated on one core, 1 head, {seqlen_q} x {seqlen_kv} rows, checks: {options.check}")
    print(
        f"{'kernel':<14}{'matrix':<10}{'wave-instructions':>18}{'MFMAs':>10}{'core-s':>9}{'M/s a core':>12}"
    )
    for row in rows:
        print(
            f"{row['kernel']:<14}{row['matrix']:<10}{row['wave_instructions']:>18,}{row['mfmas']:>10,}"
            f"{row['core_seconds']:>9.3f}{row['millions_a_second']:>12.2f}"
        )
    if len(calls) == 1:
        print("AITER's code objects were not found: `python tools/fetch_aiter.py` gets them")
    return 0
