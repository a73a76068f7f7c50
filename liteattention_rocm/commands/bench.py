"""Times attention on this GPU: ours, AITER's, torch's SDPA and others, interleaved, by device events."""

import json
import sys
from pathlib import Path

from ..rounding import ROUNDINGS
from ..timing.kernels import Shape

# Wan2.1 at 480×832×81: self-attention of the 1.3B model, cross-attention, and self-attention of 14B.
SHAPES = ("1,12,32760", "1,12,32760,512", "1,40,32760")
PUBLISHED = (
    *("2,24,8192", "2,24,16384", "1,32,16384", "4,16,16384", "1,64,16384"),
    *("2,24,32768", "2,16,65536", "2,8,86016", "1,16,131072"),
)


def add_options(parser) -> None:
    parser.add_argument(
        "--shape", action="append", metavar="B,H,Sq[,Skv]", help=f"any number; default: {' '.join(SHAPES)}"
    )
    parser.add_argument("--published", action="store_true", help="also the nine shapes of published tables")
    parser.add_argument(
        "--rounding", default="rtz,rtne", metavar="MODE,…", help="of rtz, rtna, rtne; default: %(default)s"
    )
    parser.add_argument(
        "--rounds", type=int, default=30, help="timed rounds of all contenders; default: %(default)s"
    )
    parser.add_argument("--warmup", type=int, default=5, help="calls of each before; default: %(default)s")
    parser.add_argument("--index", type=int, default=0, help="of the device")
    parser.add_argument(
        "--aiter-hsa", type=Path, metavar="DIR", help="also AITER's code objects in DIR, launched directly"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="no GPU: modelled times, by the simulator's clock"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write bench.json and bench.md there")
    parser.add_argument("--json", action="store_true", help="print JSON in place of Markdown")


def _device(options):
    import torch

    if options.dry_run:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(
            "torch sees no GPU: `liteattention-rocm doctor` says why; --dry-run rehearses with modelled times"
        )
    if not 0 <= options.index < torch.cuda.device_count():
        raise ValueError(f"--index must be below {torch.cuda.device_count()}, got {options.index}")
    return torch.device("cuda", options.index)


def run(options) -> int:
    shapes = [Shape.parse(text) for text in options.shape or SHAPES]
    if options.published:
        shapes += [Shape.parse(text) for text in PUBLISHED]
    roundings = options.rounding.split(",")
    if unknown := [mode for mode in roundings if mode not in ROUNDINGS]:
        raise ValueError(f"--rounding must be of {', '.join(ROUNDINGS)}, got {unknown[0]!r}")
    device = _device(options)

    import torch

    from ..bench import report

    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
    comparisons = []
    for shape in shapes:
        if options.dry_run:
            comparisons.append(report.model(shape, roundings=roundings))
        else:
            with torch.cuda.device(device), torch.inference_mode():
                comparisons.append(
                    report.measure(
                        shape, device, roundings=roundings, rounds=options.rounds, warmup=options.warmup,
                        aiter_hsa=options.aiter_hsa, progress=_progress(shape),
                    )
                )  # fmt: skip
        found = report.document(comparisons, device, ["liteattention-rocm", *sys.argv[1:]])
        as_json, as_markdown = json.dumps(found, indent=1), report.markdown(found)
        if options.output:  # after each shape: a kernel that takes the process along leaves the ones before
            (options.output / "bench.json").write_text(as_json + "\n")
            (options.output / "bench.md").write_text(as_markdown)
    print(as_json if options.json else as_markdown)
    failed = any(result["error"] for one in comparisons for result in one["results"])
    return 1 if failed else 0


def _progress(shape: Shape):
    if not sys.stderr.isatty():
        return None
    sizes = f"{shape.batch},{shape.heads},{shape.seqlen_q},{shape.seqlen_kv}"

    def show(done: int, rounds: int) -> None:
        end = "\n" if done == rounds else ""
        print(f"\r{sizes}: round {done} of {rounds}", end=end, file=sys.stderr, flush=True)

    return show
