"""Triton's attention kernels, compiled for gfx942 by its AMD backend, against float64.

Triton comes with PyTorch's GPU wheels and with SGLang; without it there is nothing to compile.
"""

import ctypes

import pytest
import torch

from simulated_hip import Hip

pytest.importorskip("triton.backends.amd", reason="Triton with its AMD backend is not installed")

from foreign import triton_attention

TYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
# Element, head dim, tile, precision, options, tolerance (of the rounding of P).
CASES = [
    ("bf16", 128, 64, 64, "ieee", {"num_warps": 4}, 2e-3),
    ("bf16", 64, 128, 64, "ieee", {"num_warps": 8, "matrix_instr_nonkdim": 16}, 2e-3),
    ("bf16", 128, 128, 32, "ieee", {"num_warps": 16, "num_stages": 2}, 2e-3),
    ("fp16", 64, 64, 32, "ieee", {"num_warps": 2, "matrix_instr_nonkdim": 32}, 3e-4),
    ("fp16", 32, 16, 64, "ieee", {"num_warps": 1, "kpack": 2}, 3e-4),
    ("fp32", 64, 32, 32, "ieee", {"num_warps": 2}, 2e-6),
    ("fp32", 64, 32, 32, "tf32", {"num_warps": 2}, 2e-3),
    ("fp8e4b8", 64, 64, 32, "ieee", {"num_warps": 4}, 5e-2),
    ("fp8e5b16", 64, 32, 64, "ieee", {"num_warps": 2}, 1e-1),
]
BATCH, HEADS, ROWS, COLUMNS = 1, 2, 70, 150


@pytest.fixture(scope="module")
def hip():
    return Hip()


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize(
    ("element", "size", "tall", "wide", "precision", "options", "tolerance"),
    CASES,
    ids=[f"{case[0]}-{case[1]}-{case[2]}x{case[3]}-{case[4]}" for case in CASES],
)
def test_attention(hip, tmp_path, monkeypatch, element, size, tall, wide, precision, options, tolerance):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiled = triton_attention.build(element, size, tall, wide, precision, **options)
    generator = torch.Generator().manual_seed(size)
    shapes = [(BATCH, HEADS, count, size) for count in (ROWS, COLUMNS, COLUMNS)]
    query, key, value = (torch.randn(shape, generator=generator).to(TYPES[element]) for shape in shapes)
    addresses = [hip.upload(x.view(torch.uint8).numpy().tobytes()) for x in (query, key, value)]
    out, lse = hip.malloc(4 * query.numel()), hip.malloc(4 * BATCH * HEADS * ROWS)
    scale = size**-0.5
    parameters = [ctypes.c_void_p(address) for address in (*addresses, out, lse)]
    parameters += [ctypes.c_float(scale * 1.4426950408889634), *map(ctypes.c_int, (HEADS, ROWS, COLUMNS))]
    parameters += [ctypes.c_void_p(0), ctypes.c_void_p(0)]  # Triton's own scratch
    metadata = compiled.metadata
    kernel = hip.kernel(compiled.asm["hsaco"], metadata.name)
    grid, block = (-(-ROWS // tall), BATCH, HEADS), (64 * metadata.num_warps, 1, 1)
    hip.launch_parameters(kernel, grid, block, parameters, dynamic_lds=metadata.shared)

    def floats(address, shape):
        count = 4 * torch.Size(shape).numel()
        return torch.frombuffer(bytearray(hip.download(address, count)), dtype=torch.float32).view(shape)

    if precision == "tf32":  # the matrix core takes the upper 19 bits
        query, key, value = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (query, key, value))
    scores = query.double() @ key.double().transpose(-1, -2) * scale
    error = (floats(out, query.shape).double() - torch.softmax(scores, -1) @ value.double()).abs().max()
    assert error < tolerance
    log_sum = torch.logsumexp(scores, -1) / 0.6931471805599453
    error = (floats(lse, log_sum.shape).double() - log_sum).abs().max()
    assert error < 3e-6
