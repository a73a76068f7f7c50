"""Interleaved timing by device events, and how far each output is from float64."""

import math
import random
import statistics
import time

import torch

from ..timing.kernels import Shape
from .contenders import Contender, sentence

SHORTEST_MS = 1.0  # what an event pair spans at least, so that its own few microseconds don't show
MAX_CALLS = 1000
REFERENCE_ROWS = 64


def inputs(shape: Shape, device, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """N(0, 1) in bfloat16 [batch, sequence, heads, 128], drawn on the device."""
    generator = torch.Generator(device=device).manual_seed(seed)
    sizes = (shape.seqlen_q, shape.seqlen_kv, shape.seqlen_kv)
    return tuple(
        torch.randn(shape.batch, rows, shape.heads, 128, generator=generator, device=device).bfloat16()
        for rows in sizes
    )


def spread(values: list[float]) -> dict:
    """Median, quartiles and extremes."""
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {
        "median": statistics.median(values),
        "low_quartile": quartiles[0],
        "high_quartile": quartiles[2],
        "min": min(values),
        "max": max(values),
        "count": len(values),
    }


def _milliseconds_of(contender: Contender, calls: int):
    """Puts calls on the stream. What it returns gives milliseconds a call, once the device is done."""
    if contender.own_stream:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            contender.call()
        elapsed = (time.perf_counter() - start) * 1e3 / calls
        return lambda: elapsed
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    for _ in range(calls):
        contender.call()
    events[1].record()
    return lambda: events[0].elapsed_time(events[1]) / calls


def warm_up(contender: Contender, calls: int) -> int:
    """Calls it so often, and then finds how many calls fill the shortest span that is timed."""
    for _ in range(max(1, calls)):
        contender.call()
    torch.cuda.synchronize()
    once = _milliseconds_of(contender, 3)
    torch.cuda.synchronize()
    return max(1, min(MAX_CALLS, math.ceil(SHORTEST_MS / max(once(), 1e-6))))


def interleave(contenders: list[Contender], *, rounds: int, warmup: int, progress=None) -> dict[str, dict]:
    """Milliseconds a call of each contender, taken in turns, in an order drawn anew for every round.

    Args:
        rounds: so many times each contender is timed.
        warmup: calls of each before any is timed.
        progress: called with (round, rounds).

    Returns:
        {name: {"milliseconds": one a round, "calls": in one timed span, "error": why it is out, or None}}

    Raises:
        ValueError: rounds or warmup below 1.
        RuntimeError: the device failed outside any one contender's calls.
    """
    if rounds < 1 or warmup < 1:
        raise ValueError(f"rounds and warm-up must be at least 1, got {rounds} and {warmup}")
    results = {one.name: {"milliseconds": [], "calls": 0, "error": None} for one in contenders}

    def guarded(one: Contender, work):
        try:
            return work()
        except Exception as error:  # whatever its package raises; the others go on
            results[one.name]["error"] = sentence(error)
            return None

    for one in contenders:
        results[one.name]["calls"] = guarded(one, lambda one=one: warm_up(one, warmup)) or 0
    order, draw = list(contenders), random.Random(0)
    for number in range(rounds):
        draw.shuffle(order)
        pending = {}
        for one in order:
            if not results[one.name]["error"]:
                calls = results[one.name]["calls"]
                answer = guarded(one, lambda one=one, calls=calls: _milliseconds_of(one, calls))
                if answer is not None:
                    pending[one.name] = answer
        torch.cuda.synchronize()
        for name, answer in pending.items():
            results[name]["milliseconds"].append(answer())
        if progress is not None:
            progress(number + 1, rounds)
    return results


def kernels_of(contender: Contender) -> list[str]:
    """Names of the device kernels that one call runs, by torch's profiler; empty where it sees none."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            contender.call()
            torch.cuda.synchronize()
        events = seen.key_averages()
    except Exception:  # a build without a profiler, or one that another tool holds: names are a courtesy
        return []
    on_device = {event.key for event in events if event.device_type == torch.autograd.DeviceType.CUDA}
    return sorted(name for name in on_device if not name.startswith(("Memset", "Memcpy")))


def reference_rows(q, k, v) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of some query rows, first and last among them, and their attention in float64.

    Returns:
        int64 [rows], float64 [batch, rows, heads, 128].
    """
    rows = torch.linspace(0, q.shape[1] - 1, min(REFERENCE_ROWS, q.shape[1])).round().long().to(q.device)
    group = q.shape[2] // k.shape[2]
    out = torch.empty(q.shape[0], len(rows), q.shape[2], q.shape[3], dtype=torch.float64, device=q.device)
    for batch in range(q.shape[0]):
        for head in range(q.shape[2]):
            scores = q[batch, rows, head].double() @ k[batch, :, head // group].double().T
            weights = torch.softmax(scores * q.shape[3] ** -0.5, -1)
            out[batch, :, head] = weights @ v[batch, :, head // group].double()
    return rows, out


def error_of(output, rows, expected) -> dict[str, float]:
    """Root mean square and largest absolute error of the sampled rows."""
    difference = output[:, rows].double() - expected
    return {"rmse": difference.square().mean().sqrt().item(), "max": difference.abs().max().item()}
