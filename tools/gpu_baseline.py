"""The Triton kernel on a real GPU: correctness, time against torch SDPA, skipping, graphs, streams, memory.

python tools/gpu_baseline.py --json baseline.json
Prints one Markdown table a topic; the device is named. Times are medians of device events.
"""

import argparse
import functools
import itertools
import json
import math
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import liteattention_rocm
from liteattention_rocm import dispatch, reference
from liteattention_rocm.rounding import ROUNDINGS

TIMED = ((1, 12, 32760, 32760), (2, 12, 75600, 75600), (1, 12, 32760, 512))
SKIPPED = (0.0, 0.25, 0.5, 0.75)
SAMPLE_MS = 10
LENGTHS = (
    (1, 1),
    (1, 64),
    (64, 1),
    (113, 203),
    (128, 64),
    (239, 1),
    (257, 129),
    (384, 256),
    (799, 3),
    (1023, 1024),
)


CANDIDATES = (
    (64, 64, 4, 3, False),
    (64, 64, 4, 3, True),
    (64, 64, 4, 4, True),
    (128, 64, 8, 3, False),
    (128, 64, 8, 3, True),
    (128, 64, 8, 4, True),
    (128, 128, 8, 3, False),
    (128, 128, 8, 3, True),
)


def median_ms(call, repeats: int, warmup: int = 3) -> tuple[float, float]:
    """Median and interquartile range of a call's milliseconds, by device events.

    Each sample is a run of calls long enough to hide what the host takes to launch the first.
    """
    for _ in range(warmup):
        call()

    def sample(calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls

    calls = max(1, min(50, int(SAMPLE_MS / sample(1))))
    times = [sample(calls) for _ in range(repeats)]
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
    return statistics.median(times), quartiles[2] - quartiles[0]


def tensors(batch, heads, seqlen_q, seqlen_kv, seed=0, kv_heads=None, layout="bshd"):
    generator = torch.Generator("cuda").manual_seed(seed)

    def one(rows, count):
        shape = (batch, rows, count, 128) if layout == "bshd" else (batch, count, rows, 128)
        return torch.randn(shape, generator=generator, device="cuda").to(torch.bfloat16)

    kv_heads = kv_heads or heads
    return one(seqlen_q, heads), one(seqlen_kv, kv_heads), one(seqlen_kv, kv_heads)


def correctness() -> list[dict]:
    """RMSE against float64 beside that of the float32 replica of the same rounding rules."""
    rows = []
    cases = list(itertools.product(LENGTHS, ROUNDINGS, ("bshd", "bhsd")))
    for seed, ((seqlen_q, seqlen_kv), rounding, layout) in enumerate(cases):
        q, k, v = tensors(2, 4, seqlen_q, seqlen_kv, seed, kv_heads=2, layout=layout)
        out = torch.full_like(q, math.nan)
        _, lse = liteattention_rocm.attention(
            q, k, v, out=out, layout=layout, rounding=rounding, return_lse=True
        )
        expected, expected_lse = reference.attention(q, k, v, layout=layout)
        replica, _ = reference.replica(q, k, v, layout=layout, rounding=rounding)
        error, bound = reference.rmse(out, expected), reference.rmse(replica, expected)
        rows.append(
            {
                "shape": f"{seqlen_q}x{seqlen_kv}",
                "rounding": rounding,
                "layout": layout,
                "rmse": error,
                "replica_rmse": bound,
                "lse_error": (lse.double() - expected_lse).abs().max().item(),
                "pass": error <= 1.02 * bound + 1e-9
                and (lse.double() - expected_lse).abs().max().item() < 1e-4,
            }
        )
    return rows


def edges() -> list[dict]:
    # -111 per score: a product with log2(e) that rounds, which a power of two would hide.
    q = torch.full((1, 200, 1, 128), 1.0, device="cuda", dtype=torch.bfloat16)
    k = torch.full((1, 333, 1, 128), -111 / 128, device="cuda", dtype=torch.bfloat16)
    v = torch.ones_like(k)
    rows = []
    for rounding in ROUNDINGS:
        out = liteattention_rocm.attention(q, k, v, scale=1e6 / 111, rounding=rounding)
        rows.append({"case": "all logits -1e6, V = 1", "rounding": rounding, "pass": bool((out == 1).all())})
    q, k, v = tensors(1, 1, 130, 130, 5)
    k[0, 7] = math.nan
    out = liteattention_rocm.attention(q, k, v)
    rows.append({"case": "NaN in one K row", "rounding": "rtne", "pass": bool(out.isnan().all())})
    return rows


def backends():
    yield "SDPA flash", SDPBackend.FLASH_ATTENTION
    yield "SDPA cuDNN", SDPBackend.CUDNN_ATTENTION


def times() -> list[dict]:
    rows = []
    for batch, heads, seqlen_q, seqlen_kv in TIMED:
        q, k, v = tensors(batch, heads, seqlen_q, seqlen_kv)
        flop = 4 * batch * heads * seqlen_q * seqlen_kv * 128
        repeats = 5 if flop > 2e14 else 20
        calls = {
            f"ours {rounding}": functools.partial(liteattention_rocm.attention, q, k, v, rounding=rounding)
            for rounding in ROUNDINGS
        }
        views = [x.transpose(1, 2) for x in (q, k, v)]
        for name, backend in backends():

            def sdpa(backend=backend, views=views):
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(*views)

            calls[name] = sdpa
        measured = {}
        # Interleaved: every round times each arm once more.
        for name, call in calls.items():
            try:
                measured[name] = [median_ms(call, max(1, repeats // 2))]
            except RuntimeError as error:
                print(f"{name} does not run at {seqlen_q}x{seqlen_kv}: {error}", file=sys.stderr)
        for name in list(measured):
            measured[name].append(median_ms(calls[name], max(1, repeats // 2)))
        best = min(min(t[0] for t in v) for n, v in measured.items() if n.startswith("SDPA"))
        for name, pair in measured.items():
            ms = statistics.median(t[0] for t in pair)
            rows.append(
                {
                    "shape": f"{batch},{heads},{seqlen_q}x{seqlen_kv}",
                    "arm": name,
                    "ms": ms,
                    "spread_ms": abs(pair[0][0] - pair[1][0]),
                    "tflops": flop / ms / 1e9,
                    "best_sdpa_over_this": best / ms,
                }
            )
    return rows


def configurations() -> list[dict]:
    """Candidates of the launch configuration, for whoever edits the table."""
    from liteattention_rocm.triton import attention as launches

    rows = []
    original = launches.configuration
    for shape in (TIMED[0], TIMED[2]):
        q, k, v = tensors(*shape)
        for candidate in CANDIDATES:
            chosen = launches.Configuration(*candidate)
            launches.configuration = lambda *a, chosen=chosen, **b: chosen
            try:
                ms, _ = median_ms(functools.partial(liteattention_rocm.attention, q, k, v), 5, 2)
            except Exception as error:  # a candidate may not fit
                rows.append(
                    {
                        "shape": str(shape),
                        "configuration": str(chosen),
                        "ms": math.nan,
                        "error": str(error)[:80],
                    }
                )
                continue
            rows.append({"shape": str(shape), "configuration": str(chosen), "ms": ms})
    launches.configuration = original
    return rows


def skipping() -> list[dict]:
    """Time of a launch over lists that leave out a share of the tiles, against the dense one's share."""
    from liteattention_rocm.triton import attention as launches

    batch, heads, seqlen, _ = TIMED[0]
    q, k, v = tensors(batch, heads, seqlen, seqlen)
    from liteattention_rocm import arguments

    sizes = arguments.check_inputs(q, k, v, "bshd")
    out, lse = torch.empty_like(q), q.new_empty(0, dtype=torch.float32)
    tiles, query_tiles = -(-seqlen // 64), -(-seqlen // 128)
    words = -(-tiles // 32)
    options = {"layout": "bshd", "scale": 128**-0.5, "rounding": "rtne"}
    dense, rows = None, []
    original = launches.configuration
    for share in SKIPPED:
        generator = torch.Generator().manual_seed(1)
        keys = torch.rand((batch, heads, query_tiles, tiles), generator=generator)
        order = keys.argsort(-1).argsort(-1)
        kept = order >= round(share * tiles)
        bits = torch.nn.functional.pad(kept, (0, words * 32 - tiles)).unflatten(-1, (words, 32)).long()
        value = (bits << torch.arange(32)).sum(-1)
        read = torch.where(value >= 1 << 31, value - (1 << 32), value).int().cuda()
        write = torch.zeros_like(read)

        def call(read=read, write=write):
            launches.skip_forward(
                q, k, v, out, lse, sizes, read, write, threshold=-math.inf, backward=False, **options
            )

        ms, spread = median_ms(call, 10)
        same = bool(torch.equal(read, write))
        if share == 0:
            # The same tile and the same loop over every tile, and the best configuration of the dense kernel.
            listed = original(launches.architecture(q.device), seqlen, True)
            launches.configuration = lambda *_, listed=listed, **__: listed
            like, _ = median_ms(lambda: launches.forward(q, k, v, out, lse, sizes, **options), 10)
            launches.configuration = original
            dense, _ = median_ms(lambda: launches.forward(q, k, v, out, lse, sizes, **options), 10)
        ideal = dense * (1 - share)
        rows.append(
            {
                "skipped": share,
                "ms": ms,
                "spread_ms": spread,
                "dense_ms": dense,
                "dense_same_tile_ms": like,
                "ideal_over_this": ideal / ms,
                "list_unchanged": same,
            }
        )
    return rows


def graphs_and_streams() -> list[dict]:
    q, k, v = tensors(1, 4, 1000, 777)
    eager = liteattention_rocm.attention(q, k, v, rounding="rtz")
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(q)
    with torch.cuda.graph(graph):
        liteattention_rocm.attention(q, k, v, out=out, rounding="rtz")
    out.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    rows = [{"case": "graph replay bit-identical to eager", "pass": bool(torch.equal(out, eager))}]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(liteattention_rocm.attention(q, k, v, rounding="rtz"))
    torch.cuda.synchronize()
    rows.append(
        {"case": "two streams bit-identical to one", "pass": all(torch.equal(r, eager) for r in results)}
    )
    repeats = [liteattention_rocm.attention(q, k, v, rounding="rtz") for _ in range(20)]
    rows.append({"case": "20 repeats bit-identical", "pass": all(torch.equal(r, eager) for r in repeats)})
    return rows


def memory() -> list[dict]:
    batch, heads, seqlen, _ = TIMED[0]
    q, k, v = tensors(batch, heads, seqlen, seqlen)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = liteattention_rocm.attention(q, k, v)
    peak = torch.cuda.max_memory_allocated() - before
    return [{"shape": f"{batch},{heads},{seqlen}", "peak_beyond_inputs": peak, "output": out.numel() * 2}]


def table(title: str, rows: list[dict]) -> str:
    if not rows:
        return f"## {title}\nnothing\n"
    keys = list(rows[0])

    def text(x):
        return f"{x:.4g}" if isinstance(x, float) else str(x)

    lines = [f"## {title}", "| " + " | ".join(keys) + " |", "|" + " --- |" * len(keys)]
    lines += ["| " + " | ".join(text(row.get(key, "")) for key in keys) + " |" for row in rows]
    return "\n".join(lines) + "\n"


TOPICS = {
    "correctness": correctness,
    "edges": edges,
    "graphs": graphs_and_streams,
    "memory": memory,
    "skipping": skipping,
    "times": times,
    "configurations": configurations,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", default=",".join(TOPICS))
    parser.add_argument("--json")
    options = parser.parse_args()
    device = torch.device("cuda", 0)
    served = dispatch.serving(device)
    report = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "triton": __import__("triton").__version__,
        "kernel": served.name,
    }
    print(report, flush=True)
    failed = False
    for name in options.topics.split(","):
        report[name] = TOPICS[name]()
        failed |= any(row.get("pass") is False for row in report[name])
        shown = report[name]
        if name == "correctness":
            shown = [row for row in shown if not row["pass"]] or shown[:3]
            print(f"correctness: {sum(r['pass'] for r in report[name])} of {len(report[name])} pass")
        print(table(name, shown), flush=True)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(report, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
