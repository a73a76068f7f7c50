"""What a call costs before its kernel runs: `liteattention-rocm speed --launch`."""

import contextlib
import functools
import statistics
import time

from .. import simulator

_ROUNDS, _CALLS = 7, 300
SHAPE = (1, 128, 2, 128)  # small, so that the output comes from the allocator's lists as on a GPU


def median_us(call) -> float:
    """Median microseconds of a call: of several rounds the lowest, since other load only ever adds."""
    clock = time.perf_counter_ns
    for _ in range(_CALLS):
        call()
    medians = []
    for _ in range(_ROUNDS):
        times = []
        for _ in range(_CALLS):
            start = clock()
            call()
            times.append(clock() - start)
        medians.append(statistics.median(times))
    return min(medians) / 1e3


@contextlib.contextmanager
def nothing_executed():
    """Simulated launches are validated and counted, and execute nothing, within the `with` block."""
    simulator.set_option("execute", "0")
    try:
        yield
    finally:
        simulator.set_option("execute", "1")


@functools.cache
def _operators():
    """Operators of attention's signature that do nothing: by define and impl, and by custom_op."""
    import torch

    from .. import ops

    answer = torch.empty(SHAPE, dtype=torch.bfloat16)
    name = "liteattention_rocm_speed::defined"
    torch.library.define(name, f"({ops._INPUTS}, {ops._OPTIONS}) -> Tensor")
    torch.library.impl(name, "default")(lambda q, k, v, *options: answer)

    def custom(q, k, v, scale=None, layout="bshd", rounding="rtne", variant="fast"):
        return torch.empty_like(q)

    signature = dict.fromkeys(("q", "k", "v", "return"), torch.Tensor)
    options = {"scale": float | None, "layout": str, "rounding": str, "variant": str}
    custom.__annotations__ = signature | options
    return (
        torch.ops.liteattention_rocm_speed.defined.default,
        torch.library.custom_op("liteattention_rocm_speed::custom", custom, mutates_args=()),
    )


def split() -> dict[str, float]:
    """Median microseconds of `attention` on CPU tensors whose launch executes nothing, and of its parts.

    Returns:
        "attention", "attention(out=)" and "attention(return_lse=True)", whose second tensor costs its
        allocation and its wrapping; of the first "torch.library" (dispatcher, boxing and unboxing),
        "checks" (arguments against those of earlier calls), "kernel choice", "output" (its allocation),
        "launch" (addresses, plan, kernel arguments, memory made known to the simulator, and
        hipModuleLaunchKernel), and "custom_op": what torch.library.custom_op would take instead of
        define and impl, less the allocation.
    """
    import torch

    from .. import arguments, attention, dispatch

    q = torch.zeros(SHAPE, dtype=torch.bfloat16)
    k, v, out = (torch.zeros_like(q) for _ in range(3))
    defined, custom = _operators()
    with nothing_executed():
        call = arguments.check_call(q, k, v, None, "bshd", "rtz")
        kernel = dispatch.serving(q.device)
        allocate = functools.partial(torch.empty_like, q, memory_format=torch.contiguous_format)
        parts = {
            "attention": lambda: attention(q, k, v, rounding="rtz"),
            "attention(out=)": lambda: attention(q, k, v, rounding="rtz", out=out),
            "attention(return_lse=True)": lambda: attention(q, k, v, rounding="rtz", return_lse=True),
            "torch.library": lambda: defined(q, k, v, None, "bshd", "rtz", "fast"),
            "checks": lambda: arguments.check_call(q, k, v, None, "bshd", "rtz"),
            "kernel choice": lambda: dispatch.serving(q.device),
            "output": allocate,
            "launch": lambda: kernel.launch(call, q, k, v, out, None),
            "custom_op": lambda: custom(q, k, v, None, "bshd", "rtz", "fast"),
        }
        found = {name: median_us(part) for name, part in parts.items()}
    found["custom_op"] -= found["output"]
    return found


def text(found: dict[str, float]) -> str:
    """The split for a reader."""
    lines = [
        "Python to hipModuleLaunchKernel, launches that execute nothing, median microseconds on this CPU"
    ]
    lines += [f"  {name:<26}{value:7.2f}" for name, value in found.items()]
    return "\n".join(lines)
