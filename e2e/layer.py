"""One whole self-attention layer of Wan2.1, our code object and AITER's, simulated, every element compared.

python -m e2e.layer --shape 1,12,32760 --rounding rtz --json layer.json

Head by head, on views of the layer's whole tensors: our kernel, AITER's, the comparison, and a line with the
time that has passed and the time that is left. With --json an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import time
from pathlib import Path

import torch

import liteattention_rocm
from liteattention_rocm import _C, aiter_kernel, reference, runtime, simulator

WAN_480P = "1,12,32760"  # Wan2.1-T2V-1.3B at 480x832, 81 frames: batch, heads, tokens
SAMPLED_ROWS = 64  # of a head, for the errors against float64
KERNELS = ("liteattention_rocm", "aiter")


def bf16_steps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many bfloat16 values lie between two finite bfloat16 tensors, element by element (int32).

    The bit patterns, read as sign and magnitude, count along the number line; +0 and -0 are one value.
    """

    def place(x: torch.Tensor) -> torch.Tensor:
        bits = x.contiguous().view(torch.int16).to(torch.int32)
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (place(a) - place(b)).abs()


def tally(ours: torch.Tensor, theirs: torch.Tensor) -> dict:
    """Counts of elements by distance, and the largest distances, of two bfloat16 outputs [B, S, H, 128]."""
    steps = bf16_steps(ours, theirs)
    difference = (ours.float() - theirs.float()).abs()
    # One bf16 ULP of a row's largest output: the unit in which differences of cancelling sums are bounded.
    largest = theirs.float().abs().amax(-1, keepdim=True)
    row_ulp = torch.exp2(torch.floor(torch.log2(largest)) - 7)
    return {
        "elements": ours.numel(),
        "identical": (steps == 0).sum().item(),
        "within_1_ulp": (steps <= 1).sum().item(),
        "largest_difference": difference.max().item(),
        "largest_difference_in_ulp_of_the_rows_largest": (difference / row_ulp).max().item(),
        "squared_difference": difference.double().square().sum().item(),
    }


def shares(tallies: list[dict]) -> dict:
    """What `tally` counted in all of them together, as shares of the elements."""
    elements = sum(one["elements"] for one in tallies)
    found = {"elements": elements}
    for name in ("identical", "within_1_ulp"):
        found[name] = sum(one[name] for one in tallies) / elements
    for name in ("largest_difference", "largest_difference_in_ulp_of_the_rows_largest"):
        found[name] = max(one[name] for one in tallies)
    found["rmse"] = math.sqrt(sum(one["squared_difference"] for one in tallies) / elements)
    return found


def run(call) -> tuple[torch.Tensor, dict]:
    """The output of one simulated call, with its instructions and its host time."""
    simulator.reset_statistics()
    start, core_start = time.perf_counter(), time.process_time()
    out = call()
    host = {"host_seconds": time.perf_counter() - start, "core_seconds": time.process_time() - core_start}
    kernels = simulator.statistics()["kernels"].values()
    return out, {
        **host,
        "wave_instructions": sum(kernel["instructions"] for kernel in kernels),
        "mfmas": sum(kernel["matrix"] for kernel in kernels),
    }


def run_head(q, k, v, rounding: str) -> dict:
    """Both kernels on one head, [1, tokens, 1, 128]: their costs, errors and differences."""
    outputs, found = [], {}
    rows = torch.linspace(0, q.shape[1] - 1, min(SAMPLED_ROWS, q.shape[1])).long()
    expected, _ = reference.attention(q[:, rows], k, v)
    for name, kernel in zip(KERNELS, (liteattention_rocm.attention, aiter_kernel.forward), strict=True):
        out, found[name] = run(lambda kernel=kernel: kernel(q, k, v, rounding=rounding))
        found[name]["squared_error"] = (out[:, rows].double() - expected).square().mean().item()
        outputs.append(out)
    return {**found, "difference": tally(*outputs)}


@contextlib.contextmanager
def kernel_of(batch: int, heads: int, tokens: int):
    """The kernel that a launch of the whole layer would take, for its heads one at a time."""
    units = simulator.compute_units(str(simulator.path()))
    before = runtime.forced_family
    runtime.forced_family = before or _C.plan(batch, heads, heads, tokens, tokens, units)["kernel"]
    try:
        yield runtime.forced_family
    finally:
        runtime.forced_family = before


def settings(options, family: str) -> dict:
    """What a result depends on: heads of another are not taken over."""

    def digest(content: bytes) -> str:
        return hashlib.sha256(content).hexdigest()

    aiter = aiter_kernel.find() / aiter_kernel.file_name(options.rounding)
    return {
        "shape": options.shape,
        "rounding": options.rounding,
        "matrix": options.matrix,
        "seed": options.seed,
        "kernel": runtime.kernel_symbol(family, options.rounding),
        "code_object": digest(_C.code_object(simulator.ARCHITECTURE)),
        "aiter": digest(aiter.read_bytes()),
        "simulator": digest(simulator.path().read_bytes()),
    }


def finished_heads(path: Path | None, wanted: dict) -> list[dict]:
    """The heads that a report of the same settings holds."""
    if path is None or not path.exists():
        return []
    try:
        report = json.loads(path.read_text())
        return report["heads"] if report["settings"] == wanted else []
    except (ValueError, KeyError, TypeError):
        return []  # not a report of this program: a new one replaces it


def save(path: Path, report: dict) -> None:
    """In one step, so that an interruption leaves the earlier report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(report, indent=2))
    os.replace(partial, path)


def summary(heads: list[dict], options) -> dict:
    runs = []
    for name in KERNELS:
        sums = {
            key: sum(head[name][key] for head in heads)
            for key in ("host_seconds", "core_seconds", "wave_instructions", "mfmas")
        }
        rmse = math.sqrt(sum(head[name]["squared_error"] for head in heads) / len(heads))
        runs.append({"kernel": name, **sums, "sampled_rmse_against_float64": rmse})
    return {"runs": runs, "difference": shares([head["difference"] for head in heads])}


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02}"


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.layer", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default=WAN_480P, help="batch,heads,tokens (default: %(default)s)")
    parser.add_argument("--heads", type=int, metavar="N", help="only the first N of batch x heads")
    parser.add_argument("--rounding", default="rtz", choices=("rtne", "rtna", "rtz"))
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--matrix", default="exact", choices=("exact", "float32"), help="arithmetic of MFMA")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the report; heads found there are kept")
    options = parser.parse_args(arguments)
    sizes = options.shape.split(",")
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        parser.error(f"--shape must be three positive integers B,H,S, got {options.shape!r}")
    batch, heads, tokens = map(int, sizes)
    wanted = batch * heads if options.heads is None else options.heads
    if not 1 <= wanted <= batch * heads:
        parser.error(f"--heads must be from 1 to {batch * heads}, got {options.heads}")

    simulator.set_option("matrix", options.matrix)
    generator = torch.Generator().manual_seed(options.seed)
    q, k, v = (
        torch.randn(batch, tokens, heads, 128, generator=generator).to(torch.bfloat16) for _ in range(3)
    )
    with kernel_of(batch, heads, tokens) as family:
        return compare(options, family, wanted, q, k, v)


def compare(options, family: str, wanted: int, q, k, v) -> int:
    """Both kernels on the first `wanted` heads of [batch, tokens, heads, 128], and what they show."""
    heads, tokens = q.shape[2], q.shape[1]
    report = {"settings": settings(options, family)}
    done = finished_heads(options.json, report["settings"])[:wanted]
    kept = f", {len(done)} of them from {options.json}" if done else ""
    print(
        f"Self-attention {options.shape}, N(0,1), simulated with {options.matrix} MFMA arithmetic, "
        f"{report['settings']['kernel']} and AITER's: {wanted} heads{kept}",
        flush=True,
    )
    start, before = time.perf_counter(), len(done)
    for index in range(before, wanted):
        one, head = divmod(index, heads)
        views = (x[one : one + 1, :, head : head + 1] for x in (q, k, v))
        done.append(run_head(*views, options.rounding))
        if options.json:
            save(options.json, {**report, "heads": done, **summary(done, options)})
        elapsed = time.perf_counter() - start
        left = elapsed / (index + 1 - before) * (wanted - index - 1)
        spent = ", ".join(f"{name} {clock(done[-1][name]['host_seconds'])}" for name in KERNELS)
        print(
            f"  head {index + 1}/{wanted}: {spent}; {clock(elapsed)} passed, {clock(left)} left", flush=True
        )

    result = summary(done, options)
    for outcome in result["runs"]:
        print(
            f"  {outcome['kernel']}: {outcome['wave_instructions']:,} wave-instructions, "
            f"{outcome['mfmas']:,} MFMAs, rmse of {min(SAMPLED_ROWS, tokens)} rows a head against float64 "
            f"{outcome['sampled_rmse_against_float64']:.3e}; "
            f"{clock(outcome['host_seconds'])} on the host, {outcome['core_seconds'] / 60:.1f} core-minutes "
            f"(not a speed)"
        )
    difference = result["difference"]
    print(
        f"  all {difference['elements']:,} elements: {difference['identical']:.3%} identical, "
        f"{difference['within_1_ulp']:.3%} within 1 bf16 ULP, largest difference "
        f"{difference['largest_difference_in_ulp_of_the_rows_largest']:.2f} ULP of the row's largest output, "
        f"rmse {difference['rmse']:.3e}"
    )
    total = sum(outcome["host_seconds"] for outcome in result["runs"])
    print(f"  the layer took {clock(total)} minutes on {len(os.sched_getaffinity(0))} cores")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
