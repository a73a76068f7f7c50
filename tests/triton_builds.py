"""The Triton kernels of the package, compiled for architectures that aren't here."""

import ctypes
import functools
import math
import tempfile

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from liteattention_rocm import arguments
from liteattention_rocm.lite import lists
from liteattention_rocm.triton import attention, kernels

POINTERS = {"query": "*bf16", "key": "*bf16", "value": "*bf16", "out": "*bf16"}
POINTERS |= {"lse": "*fp32", "trace": "*fp32"}
FLOATS = ("scale", "scale_log2e", "threshold")


def target(architecture: str) -> GPUTarget:
    if architecture.startswith("sm_"):
        return GPUTarget("cuda", int(architecture[3:]), 32)
    return GPUTarget("hip", architecture, 64)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="triton-builds-")


def _compile(kernel, architecture: str, constants: dict, options: dict):
    """As Triton's launcher specialises it for aligned tensors, whose strides are multiples of 16."""
    signature, attributes = {}, {}
    for place, name in enumerate(kernel.arg_names):
        kind = name.split("_")[0]
        if name in constants:
            signature[name] = "constexpr"
        elif name in ("key", "value") and constants.get("DESCRIBED"):
            block = [1, 1, 1, arguments.HEAD_DIM]
            block[arguments.LAYOUTS[constants["DESCRIBED"]][2]] = constants["WIDE"]
            signature[name] = f"tensordesc<bf16{block}>"
        elif name in FLOATS:
            signature[name] = "fp32"
        elif name in POINTERS or name in ("indices", "counts", "votes", "read_list", "write_list"):
            signature[name] = POINTERS.get(name, "*i32")
        elif kind in ("q", "k", "v", "o"):
            signature[name] = "i32" if name.endswith("_row") else "i64"
        else:
            signature[name] = "i32"
        if signature[name].startswith("*") or kind in ("q", "k", "v", "o"):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = _folder().name
        return triton.compile(source, target=target(architecture), options=options), signature


@functools.cache
def forward(
    architecture: str,
    rounding="rtne",
    *,
    listed=False,
    backward=False,
    short=False,
    negative=False,
    described="",
):
    """(compiled kernel, types of its arguments by name, configuration).

    described: layout of keys and values where tensor descriptors give them.
    """
    chosen = attention.configuration(architecture, 1 if short else 1 << 20, listed)
    constants = {
        "ROUNDING": rounding, "NEGATIVE": negative, "LSE": True, "LISTED": listed, "BACKWARD": backward,
        "TALL": chosen.query_rows, "WIDE": chosen.kv_rows, "INTERPRETED": False, "DESCRIBED": described,
        "FUSED": chosen.fused and rounding != "rtz", "TRACE": False,
    }  # fmt: skip
    return *_compile(
        kernels.attention_forward, architecture, constants, chosen.options(bool(described))
    ), chosen


@functools.cache
def list_kernel(architecture: str, name: str, **constants):
    """unpack_list or pack_list."""
    constants = {"CHUNK": attention.CHUNK} | constants
    return _compile(getattr(kernels, name), architecture, constants, {})


TYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}


class Simulated:
    """Launches of compiled gfx942 kernels through the simulator's HIP functions."""

    def __init__(self, hip):
        self.hip = hip
        self.kernels = {}

    def launch(self, compiled, signature, grid, **arguments) -> None:
        """Tensors among the arguments are copied to the device and back, so that the ends of their memory are
        the ends of allocations."""
        names = [name for name, kind in signature.items() if kind != "constexpr"]
        assert set(names) == set(arguments), set(names) ^ set(arguments)
        parameters, tensors = [], {}
        for name in names:
            value = arguments[name]
            if isinstance(value, torch.Tensor):
                storage = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
                key = storage.data_ptr()
                if key not in tensors:
                    tensors[key] = (storage, self.hip.upload(storage.numpy().tobytes()))
                offset = value.data_ptr() - key
                parameters.append(ctypes.c_void_p(tensors[key][1] + offset))
            else:
                parameters.append(TYPES[signature[name]](value))
        parameters += [ctypes.c_void_p(0), ctypes.c_void_p(0)]  # Triton's own scratch
        metadata = compiled.metadata
        if compiled not in self.kernels:
            self.kernels[compiled] = self.hip.kernel(compiled.asm["hsaco"], metadata.name)
        block = (64 * metadata.num_warps, 1, 1)
        try:
            self.hip.launch_parameters(
                self.kernels[compiled], grid, block, parameters, dynamic_lds=metadata.shared
            )
            for storage, address in tensors.values():
                after = self.hip.download(address, storage.numel())
                storage.copy_(torch.frombuffer(bytearray(after), dtype=torch.uint8))
        finally:
            for _, address in tensors.values():
                self.hip.free(address)

    def forward(self, q, k, v, out, lse, sizes, *, layout, scale, rounding, lists_=None, **options):
        """As `attention.forward`; lists_: indices, counts, votes."""
        compiled, signature, chosen = forward(
            "gfx942", rounding, listed=lists_ is not None, negative=math.copysign(1, scale) < 0,
            backward=options.get("backward", False), short=options.get("short", False),
        )  # fmt: skip
        arguments = attention.launch_arguments(
            q, k, v, out, lse, sizes, layout=layout, scale=scale, lists=lists_,
            threshold=options.get("threshold", 0.0),
        )  # fmt: skip
        grid = (-(-sizes.seqlen_q // chosen.query_rows), sizes.heads, sizes.batch)
        self.launch(compiled, signature, grid, **arguments)

    def skip_forward(
        self, q, k, v, out, lse, sizes, read_list, write_list, *, threshold, backward, layout, scale, rounding
    ):
        """As `attention.skip_forward`."""
        tiles = lists.kv_tiles(sizes.seqlen_kv)
        words, whole = read_list.shape[-1], sizes.seqlen_kv // lists.KV_ROWS_PER_TILE
        rows = read_list.numel() // words
        indices = torch.full((rows * tiles,), -1, dtype=torch.int32)
        counts = torch.full((rows,), -1, dtype=torch.int32)
        chosen = attention.configuration("gfx942", sizes.seqlen_kv, listed=True)
        splits = attention.QUERY_ROWS_PER_LIST_ROW // chosen.query_rows
        votes = torch.zeros(rows * splits * (words + 1), dtype=torch.int32)
        extent = {"tiles": tiles, "words": words, "whole": whole}
        work = {"indices": indices, "counts": counts, "votes": votes}
        unpack = list_kernel("gfx942", "unpack_list", SPLITS=splits, BACKWARD=backward)
        self.launch(*unpack, (rows, 1, 1), read_list=read_list, **work, **extent)
        self.forward(
            q, k, v, out, lse, sizes, layout=layout, scale=scale, rounding=rounding,
            lists_=tuple(work.values()), backward=backward,
            threshold=math.nan if threshold == -math.inf else threshold,
        )  # fmt: skip
        pack = list_kernel("gfx942", "pack_list", SPLITS=splits, PARTIAL_FIRST=backward)
        self.launch(*pack, (rows, 1, 1), write_list=write_list, **work, **extent)
