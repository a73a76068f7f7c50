"""Wan2.1-T2V-1.3B with structured weights on a real GPU: torch SDPA against ours, dense and skipping.

python tools/gpu_wan.py --output wan

Runs `python -m e2e.compare --engine diffusers --model structured-1.3b`, which writes its report there, and
prints from it what docs/triton.md has. The weights (e2e/structured_wan.py) make attention local and drifting;
they say nothing about picture quality.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import numpy as np

from e2e import amdahl, arms, compare

SKIPPING = tuple(arms.OURS_RTZ + arms.AT + threshold for threshold in ("-10", "-6"))
ARMS = (arms.SDPA, arms.OURS_RTZ, arms.OURS, *SKIPPING)


def median(values, first: int = 1) -> float:
    """Leaves out the first step: it reads a full list, and in it a kernel may still be compiled."""
    return statistics.median(values[first:])


def rows(report: dict, folder: Path) -> list[dict]:
    """One row an arm, all beside torch SDPA."""
    base = report["arms"][arms.SDPA]
    base_step = median(base["times"]["steps_s"])
    own, cross = (median([step[role] for step in base["times"]["attention_s"]]) for role in ("self", "cross"))
    expected = latents_of(report, folder, arms.SDPA)
    found = []
    for name, arm in report["arms"].items():
        if arm["status"] != "ok":
            continue
        times, latents = arm["times"], latents_of(report, folder, name)
        step = median(times["steps_s"])
        attention = median([step["self"] for step in times["attention_s"]])
        distances = [
            float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(latents, expected, strict=True)
        ]
        shares = arm["sparsity"]["per_step"] if arm["sparsity"] else [0.0] * len(distances)
        found.append(
            {
                "arm": name,
                "step_ms": 1000 * step,
                "self_attention_ms": 1000 * attention,
                "attention_share": (own + cross) / base_step if name == arms.SDPA else None,
                "sparsity": statistics.mean(shares[1:]),
                "gain": base_step / step,
                # Only self-attention changes: as much faster as it is measured to be.
                "amdahl": amdahl.gain(own / base_step, own / attention),
                "limit": amdahl.limit(own / base_step),
                "distance": distances[-1],
                "sparsity_by_step": [round(share, 3) for share in shares],
                "distance_by_step": [round(value, 4) for value in distances],
                "peak_GB": arm["timing"]["peak_bytes"] / 1e9,
            }
        )
    return found


def latents_of(report: dict, folder: Path, name: str) -> np.ndarray:
    (place,) = report["arms"][name]["requests"].values()
    return np.load(folder / place / "latents.npy").astype(np.float64)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="structured-1.3b")
    parser.add_argument("--steps", default="8")
    parser.add_argument("--output", type=Path, default=Path("gpu-wan"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    command = ["--engine=diffusers", f"--model={options.model}", f"--steps={options.steps}"]
    command += ["--warmup-steps=2"]  # a walk in either direction
    status = compare.main([*command, f"--arms={','.join(ARMS)}", f"--output={options.output}"])
    report = json.loads((options.output / "report.json").read_text())
    table = rows(report, options.output)
    print(report["device"])
    for row in table:
        print({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()})
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))
    return status


if __name__ == "__main__":
    sys.exit(main())
