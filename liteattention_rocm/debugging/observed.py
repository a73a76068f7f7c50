"""What the HIP and the Triton kernel compute on the way, as tensors by stage."""

import contextlib
import functools
import importlib.util
import math
import struct

import torch

from .. import _C, arguments, simulator, views
from ..lite import lists

ARCHITECTURE = simulator.ARCHITECTURE
NARROW, WIDE = 2, 3  # planes of a trace


def trace_elements(sizes) -> int:
    return _rows(sizes) * lists.kv_tiles(sizes.seqlen_kv) * (WIDE * lists.KV_ROWS_PER_TILE + NARROW)


def _rows(sizes) -> int:
    return sizes.batch * sizes.heads * sizes.seqlen_q


def _stages(trace, sizes, out, lse, layout: str) -> dict:
    """A trace, taken apart. csrc/device/observed.hip and triton/kernels.py say how it is laid out."""
    tiles = lists.kv_tiles(sizes.seqlen_kv)
    shape = (sizes.batch, sizes.heads, sizes.seqlen_q)
    wide, narrow = _rows(sizes) * tiles * lists.KV_ROWS_PER_TILE, _rows(sizes) * tiles
    parts = trace.cpu().split([wide] * WIDE + [narrow] * NARROW)
    names = ("S", "P", "packed P", "row maximum", "row sum")
    values = {name: part.view(*shape, -1) for name, part in zip(names, parts, strict=True)}
    out = out.cpu().transpose(1, 2) if layout == "bshd" else out.cpu()
    return values | {"LSE": lse.cpu(), "O": out}


def _outputs(q, sizes, layout: str):
    """out, LSE and trace, all NaN."""
    device = q.device
    out = torch.full(sizes.out_shape(layout), math.nan, dtype=torch.bfloat16, device=device)
    lse = torch.full(sizes.lse_shape(), math.nan, device=device)
    return out, lse, torch.full((trace_elements(sizes),), math.nan, device=device)


@functools.cache
def _module() -> simulator.Module:
    return simulator.Module(_C.observed_code_object(ARCHITECTURE))


def hip(q, k, v, sizes, *, scale: float, layout: str, rounding: str) -> dict:
    """The forward kernel of csrc/device/attention.hip with stores behind what it computes, simulated.

    Raises:
        SimulatorError: a fault, or what a check found.
    """
    dimensions = arguments.LAYOUTS[layout]
    q, k, v = (views.addressable(tensor.cpu(), dimensions[2]) for tensor in (q, k, v))
    out, lse, trace = _outputs(q, sizes, layout)
    strides = [2 * stride for x in (q, k, v, out) for stride in views.kernel_strides(x, dimensions)]
    magnitude = abs(scale)
    packed = struct.pack(
        "<5Q12q4i2f2IQq",
        *(tensor.data_ptr() for tensor in (q, k, v, out, lse)),
        *strides,
        sizes.seqlen_q,
        sizes.seqlen_kv,
        sizes.heads,
        sizes.heads // sizes.kv_heads,
        magnitude,
        max(magnitude * math.log2(math.e), torch.finfo(torch.float32).tiny),
        0x80008000 if math.copysign(1.0, scale) < 0 else 0,
        0,
        trace.data_ptr(),
        _rows(sizes),
    )
    grid = (lists.query_tiles(sizes.seqlen_q), sizes.heads, sizes.batch)
    with contextlib.ExitStack() as memory:
        for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out), ("lse", lse), ("trace", trace)):
            memory.enter_context(simulator.register(tensor, name, name in ("out", "lse", "trace")))
        _module().launch(f"attention_observed_{rounding}", grid, (256, 1, 1), packed)
    return _stages(trace, sizes, out, lse, layout)


def triton(q, k, v, sizes, *, scale: float, layout: str, rounding: str) -> dict:
    """The Triton kernel with the same stores: on the tensors' GPU, or for CPU tensors in its interpreter.

    Raises:
        RuntimeError: Triton is not installed, or its interpreter failed.
    """
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError("Triton is not installed")
    row_dim = arguments.LAYOUTS[layout][2]
    q, k, v = (views.addressable(tensor, row_dim) for tensor in (q, k, v))
    out, lse, trace = _outputs(q, sizes, layout)
    call = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "trace": trace, "sizes": sizes}
    call |= {"scale": scale, "layout": layout, "rounding": rounding}
    if q.device.type == "cpu":
        from ..triton import interpreter

        (made,) = interpreter.run([("intermediates", call)])
        return _stages(made["trace"], sizes, made["out"], made["lse"], layout)
    from ..triton import attention

    with torch.cuda.device(q.device):
        attention.intermediates(**call)
    return _stages(trace, sizes, out, lse, layout)
