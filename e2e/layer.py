"""One whole self-attention layer of Wan2.1, our code object and AITER's, simulated, every element compared.

python -m e2e.layer --shape 1,12,32760 --rounding rtz
"""

from __future__ import annotations

import argparse
import json
import time

import torch

import liteattention_rocm
from liteattention_rocm import aiter_kernel, reference, simulator

WAN_480P = "1,12,32760"  # Wan2.1-T2V-1.3B at 480x832, 81 frames: batch, heads, tokens
SAMPLED_ROWS = 64


def bf16_steps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many bfloat16 values lie between two finite bfloat16 tensors, element by element (int32).

    The bit patterns, read as sign and magnitude, count along the number line; +0 and -0 are one value.
    """

    def place(x: torch.Tensor) -> torch.Tensor:
        bits = x.contiguous().view(torch.int16).to(torch.int32)
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (place(a) - place(b)).abs()


def compare(ours: torch.Tensor, theirs: torch.Tensor) -> dict:
    """Shares of elements by distance, and the largest distances, of two bfloat16 outputs [B, S, H, 128]."""
    steps = bf16_steps(ours, theirs)
    difference = (ours.float() - theirs.float()).abs()
    # One bf16 ULP of a row's largest output: the unit in which differences of cancelling sums are bounded.
    largest = theirs.float().abs().amax(-1, keepdim=True)
    row_ulp = torch.exp2(torch.floor(torch.log2(largest)) - 7)
    return {
        "elements": ours.numel(),
        "identical": (steps == 0).float().mean().item(),
        "within_1_ulp": (steps <= 1).float().mean().item(),
        "largest_difference": difference.max().item(),
        "largest_difference_in_ulp_of_the_rows_largest": (difference / row_ulp).max().item(),
        "rmse": difference.double().square().mean().sqrt().item(),
    }


def sampled_rmse(out: torch.Tensor, q, k, v, rows: torch.Tensor) -> float:
    """RMSE of some rows of `out` against float64 attention; q, k, v and out are [B, S, H, 128]."""
    expected, _ = reference.attention(q[:, rows], k, v)
    return reference.rmse(out[:, rows], expected)


def run(name: str, call) -> tuple[torch.Tensor, dict]:
    """The output of one simulated call, with its instructions and its host seconds."""
    simulator.reset_statistics()
    start = time.perf_counter()
    out = call()
    seconds = time.perf_counter() - start
    kernels = simulator.statistics()["kernels"].values()
    return out, {
        "kernel": name,
        "host_seconds": seconds,
        "wave_instructions": sum(kernel["instructions"] for kernel in kernels),
        "mfmas": sum(kernel["matrix"] for kernel in kernels),
    }


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.layer", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default=WAN_480P, help="batch,heads,tokens (default: %(default)s)")
    parser.add_argument("--rounding", default="rtz", choices=("rtne", "rtna", "rtz"))
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--matrix", default="exact", choices=("exact", "float32"), help="arithmetic of MFMA")
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    options = parser.parse_args(arguments)
    batch, heads, tokens = map(int, options.shape.split(","))

    simulator.set_option("matrix", options.matrix)
    generator = torch.Generator().manual_seed(options.seed)
    q, k, v = (
        torch.randn(batch, tokens, heads, 128, generator=generator).to(torch.bfloat16) for _ in range(3)
    )
    rounding = options.rounding
    ours, our_run = run(
        "liteattention_rocm", lambda: liteattention_rocm.attention(q, k, v, rounding=rounding)
    )
    theirs, their_run = run("aiter", lambda: aiter_kernel.forward(q, k, v, rounding=rounding))

    rows = torch.linspace(0, tokens - 1, min(SAMPLED_ROWS, tokens)).long()
    for outcome, out in ((our_run, ours), (their_run, theirs)):
        outcome["sampled_rmse_against_float64"] = sampled_rmse(out, q, k, v, rows)
    result = {
        "shape": [batch, heads, tokens],
        "rounding": rounding,
        "matrix": options.matrix,
        "runs": [our_run, their_run],
        "difference": compare(ours, theirs),
    }

    print(
        f"Self-attention {options.shape}, N(0,1), {rounding}, simulated with {options.matrix} MFMA arithmetic"
    )
    for outcome in result["runs"]:
        print(
            f"  {outcome['kernel']}: {outcome['wave_instructions']:,} wave-instructions, "
            f"{outcome['mfmas']:,} MFMAs, rmse of {len(rows)} rows against float64 "
            f"{outcome['sampled_rmse_against_float64']:.3e}; "
            f"{outcome['host_seconds']:.0f} host seconds (not a speed)"
        )
    difference = result["difference"]
    print(
        f"  all {difference['elements']:,} elements: {difference['identical']:.3%} identical, "
        f"{difference['within_1_ulp']:.3%} within 1 bf16 ULP, largest difference "
        f"{difference['largest_difference_in_ulp_of_the_rows_largest']:.2f} ULP of the row's largest output, "
        f"rmse {difference['rmse']:.3e}"
    )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=2)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
