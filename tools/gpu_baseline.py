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
from liteattention_rocm import dispatch, reference, simulator
from liteattention_rocm.lite import lists
from liteattention_rocm.rounding import ROUNDINGS

TIMED = ((1, 12, 32760, 32760), (2, 12, 75600, 75600), (1, 12, 32760, 512))
SKIPPED = (0.0, 0.25, 0.5, 0.75)
SKIPPING_TURNS = 5
SAMPLE_MS = 10
GRAPHED = 20  # calls
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
VOTED = ((300, 500), (130, 64 * 37 + 5), (1023, 1024), (4096, 1024), (1024, 4096))
SIMULATED_SCORES = 1 << 19  # a head's, up to which the HIP kernel is simulated too
VOTE_ROUNDING = 1e-3  # log2 units; scores here reach 100

# Query rows, KV rows, warps, stages, descriptors.
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

    Each sample is a run of calls behind one that is not timed: the device is busy while the host launches.
    """
    for _ in range(warmup):
        call()

    def sample(calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
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


def captured(call, calls: int):
    """A replay of a graph of so many calls: what the device takes, without what the host takes to launch."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph.replay


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
    """Ours and SDPA, interleaved; where a call is short, in a graph of 20 calls too."""
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
        shape = f"{batch},{heads},{seqlen_q}x{seqlen_kv}"
        if flop < 1e12:
            rows += compare_arms(f"{shape}, graph", calls, flop, repeats, GRAPHED)
        rows += compare_arms(shape, calls, flop, repeats)
    return rows


def compare_arms(shape: str, calls: dict, flop: float, repeats: int, graphed: int = 0) -> list[dict]:
    """A row an arm. graphed: calls of a graph that is timed instead."""
    measured, rows = {}, []
    if graphed:
        calls = {name: captured(call, graphed) for name, call in calls.items()}
    # Interleaved: every round times each arm once more.
    for _ in range(2):
        for name, call in calls.items():
            try:
                ms, _ = median_ms(call, max(1, repeats // 2))
            except RuntimeError as error:
                print(f"{name} does not run at {shape}: {error}", file=sys.stderr)
                continue
            measured.setdefault(name, []).append(ms / (graphed or 1))
    best = min(statistics.mean(pair) for name, pair in measured.items() if name.startswith("SDPA"))
    for name, pair in measured.items():
        ms = statistics.mean(pair)
        rows.append(
            {
                "shape": shape,
                "arm": name,
                "ms": ms,
                "spread_ms": max(pair) - min(pair),
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
    """Time of a launch over lists that leave out a share of the tiles, against the dense one's share.

    Dense and listed kernels of the three modes are timed in turns, so that all meet the same clocks.
    """
    batch, heads, seqlen, _ = TIMED[0]
    q, k, v = tensors(batch, heads, seqlen, seqlen)
    tiles = lists.kv_tiles(seqlen)
    generator = torch.Generator("cuda").manual_seed(1)
    keys = torch.rand((batch, heads, lists.query_tiles(seqlen), tiles), generator=generator, device="cuda")
    order = keys.argsort(-1).argsort(-1)
    rows = []
    for share in SKIPPED:
        read = lists.pack(order >= round(share * tiles))
        write = torch.zeros_like(read)
        measured = {rounding: [] for rounding in ROUNDINGS}
        for _, rounding in itertools.product(range(SKIPPING_TURNS), ROUNDINGS):
            dense = functools.partial(liteattention_rocm.attention, q, k, v, rounding=rounding)
            listed = functools.partial(
                torch.ops.liteattention_rocm.attention_skip,
                q, k, v, read, write, threshold=-math.inf, backward=False, rounding=rounding,
            )  # fmt: skip
            measured[rounding].append((median_ms(dense, 5)[0], median_ms(listed, 5)[0]))
        for rounding, pairs in measured.items():
            dense_ms, ms = (statistics.median(times) for times in zip(*pairs, strict=True))
            rows.append(
                {
                    "rounding": rounding,
                    "skipped": share,
                    "ms": ms,
                    "spread_ms": max(pair[1] for pair in pairs) - min(pair[1] for pair in pairs),
                    "dense_ms": dense_ms,
                    "ideal_over_this": dense_ms * (1 - share) / ms,
                    "pass": bool(torch.equal(read, write)),
                }
            )
    return sorted(rows, key=lambda row: ROUNDINGS[row["rounding"]].value)


def local_tensors(heads: int, seqlen_q: int, seqlen_kv: int, step: int):
    """Attention that is local and drifts by 24 rows a step: scores are sums of cosines of the distance."""
    generator = torch.Generator("cuda").manual_seed(7)
    frequency = 2 * math.pi / 600 * 32.0 ** -torch.rand((heads, 64), generator=generator, device="cuda")

    def rotor(rows: int, drift: int):
        phase = (torch.arange(rows, device="cuda")[:, None, None] + drift) * frequency
        noise = torch.randn((1, rows, heads, 128), generator=generator, device="cuda")
        return (torch.cat([phase.cos(), phase.sin()], -1)[None] * 1.7 + 0.3 * noise).to(torch.bfloat16)

    v = torch.randn((1, seqlen_kv, heads, 128), generator=generator, device="cuda").to(torch.bfloat16)
    return rotor(seqlen_q, 24 * step), rotor(seqlen_kv, 0), v


def votes() -> list[dict]:
    """Four calls each of which reads the list that the one before wrote, against the votes and outputs of the
    float64 reference; and where the simulator is built, against the HIP kernel's on the same inputs.

    A vote may differ where the deciding row is within rounding of the threshold; any other fails.
    """
    from liteattention_rocm.lite.reference import step as expected_step

    rows = []
    for (seqlen_q, seqlen_kv), threshold in itertools.product(VOTED, (-10.0, -6.0)):
        row = {"shape": f"4,{seqlen_q}x{seqlen_kv}", "threshold": threshold, "votes": 0, "dropped": 0}
        row |= {"differ": 0, "beyond_rounding": 0, "rmse": 0.0, "hip_votes": 0, "hip_differ": 0}
        kept = torch.ones(
            (1, 4, lists.query_tiles(seqlen_q), lists.kv_tiles(seqlen_kv)), dtype=torch.bool, device="cuda"
        )
        for number in range(4):
            q, k, v = local_tensors(4, seqlen_q, seqlen_kv, number)
            options = {"threshold": threshold, "backward": number % 2 == 1}
            rounding = ("rtne", "rtna", "rtz", "rtne")[number]
            read = lists.pack(kept)

            def launch(*inputs, read=read, tiles=kept.shape[-1], options=options, rounding=rounding):
                write = torch.zeros_like(read, device=inputs[0].device)
                out, _ = torch.ops.liteattention_rocm.attention_skip(
                    *inputs, read.to(inputs[0].device), write, rounding=rounding, **options
                )
                return out, lists.unpack(write, tiles)

            out, written = launch(q, k, v)
            expected = expected_step(q, k, v, kept, **options)
            different = written != expected.kept
            row["votes"] += int(kept.sum())
            row["dropped"] += int(kept.sum() - written.sum())
            row["differ"] += int(different.sum())
            row["beyond_rounding"] += int((different & (expected.margin > VOTE_ROUNDING)).sum())
            row["rmse"] = max(row["rmse"], reference.rmse(out, expected.out))
            if seqlen_q * seqlen_kv <= SIMULATED_SCORES and simulator.path().exists():
                _, simulated = launch(*(x.cpu() for x in (q, k, v)))
                apart = simulated != written.cpu()
                row["hip_votes"] += int(kept.sum())
                row["hip_differ"] += int(apart.sum())
                row["beyond_rounding"] += int((apart & (expected.margin.cpu() > VOTE_ROUNDING)).sum())
            kept = written
        row["pass"] = row["beyond_rounding"] == 0 and row["rmse"] < 4e-3 and row["dropped"] > 0
        rows.append(row)
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
    q, k, v = local_tensors(4, 1000, 777, 0)
    read = lists.full((1, 4, lists.query_tiles(1000)), lists.kv_tiles(777), "cuda")

    def skip():
        write = torch.zeros_like(read)
        return torch.ops.liteattention_rocm.attention_skip(
            q, k, v, read, write, threshold=-6.0, backward=False, return_lse=True
        ), write

    (eager, eager_lse), eager_list = skip()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out, lse), written = skip()
    for tensor in (out, lse, written):
        tensor.fill_(-1)
    graph.replay()
    torch.cuda.synchronize()
    same = all(map(torch.equal, (out, lse, written), (eager, eager_lse, eager_list)))
    rows.append(
        {
            "case": "graph replay of a skip-list call: output, LSE and list",
            "pass": same and not torch.equal(read, written),
        }
    )
    return rows


def memory() -> list[dict]:
    """Bytes that a call allocates at its peak, of which the output is what it returns."""
    batch, heads, seqlen, _ = TIMED[0]
    q, k, v = tensors(batch, heads, seqlen, seqlen)
    read = lists.full((batch, heads, lists.query_tiles(seqlen)), lists.kv_tiles(seqlen), "cuda")
    write = torch.zeros_like(read)
    rows = []
    for name, call in {
        "dense": functools.partial(liteattention_rocm.attention, q, k, v),
        "skip list": functools.partial(
            torch.ops.liteattention_rocm.attention_skip, q, k, v, read, write, threshold=-10.0, backward=False
        ),
    }.items():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        peak = torch.cuda.max_memory_allocated() - before
        rows.append(
            {
                "case": f"{batch},{heads},{seqlen}, {name}",
                "peak_beyond_inputs": peak,
                "output": q.numel() * 2,
                "lists": read.numel() * 4 * 2,
            }
        )
    return rows


def table(title: str, rows: list[dict]) -> str:
    if not rows:
        return f"## {title}\nnothing\n"
    keys = list(rows[0])

    def text(x):
        return f"{x:.4g}" if isinstance(x, float) else str(x)

    lines = [f"## {title}", "| " + " | ".join(keys) + " |", "|" + " --- |" * len(keys)]
    lines += ["| " + " | ".join(text(row.get(key, "")) for key in keys) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def summary(report: dict) -> list[dict]:
    """One row a result, of the topics that ran."""
    rows = []

    def add(what: str, result: str) -> None:
        rows.append({"what": what, "result": result})

    def passed(topic: str) -> str:
        return f"{sum(row['pass'] for row in report[topic])} of {len(report[topic])} pass"

    if "correctness" in report:
        add("outputs and LSE against float64, beside the float32 replica", passed("correctness"))
    if "edges" in report:
        add("logits of -1e6, NaN", passed("edges"))
    if "votes" in report:
        total = {
            key: sum(row[key] for row in report["votes"]) for key in report["votes"][0] if "shape" not in key
        }
        add(
            "votes of chained skip-list calls against float64",
            f"{total['votes']} votes, {total['differ']} differ, {total['beyond_rounding']} beyond rounding",
        )
        add(
            "the same against the HIP kernel, simulated",
            f"{total['hip_votes']} votes, {total['hip_differ']} differ",
        )
    for row in report.get("graphs", ()):
        add(row["case"], "yes" if row["pass"] else "NO")
    for row in report.get("memory", ()):
        add(
            f"peak memory beyond inputs, {row['case']}",
            f"{row['peak_beyond_inputs'] / 2**20:.1f} MiB, output {row['output'] / 2**20:.1f} MiB",
        )
    for shape in dict.fromkeys(row["shape"] for row in report.get("times", ())):
        arms = {row["arm"]: row for row in report["times"] if row["shape"] == shape}
        times = ", ".join(f"{name} {row['ms']:.4g} ms" for name, row in arms.items())
        shares = ", ".join(
            f"{row['best_sdpa_over_this']:.2f}" for name, row in arms.items() if name.startswith("ours")
        )
        add(f"time, {shape}", f"{times}; best SDPA / ours {shares}")
    for row in report.get("skipping", ()):
        add(
            f"skipping {row['skipped']:.0%}, {row['rounding']}",
            f"{row['ms']:.2f} ms, ideal / time {row['ideal_over_this']:.2f} (dense {row['dense_ms']:.2f} ms)",
        )
    return rows


TOPICS = {
    "correctness": correctness,
    "edges": edges,
    "votes": votes,
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
    print(table(f"{report['device']}: summary", summary(report)), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
