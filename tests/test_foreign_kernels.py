"""Kernels that are not the package's own, through the HIP functions: plain, wave-wide and matrix attention.

The oracle is float64. Block shapes, launch forms, optimisation levels and code object versions vary.
"""

import ctypes
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import device_compiler
from liteattention_rocm import simulator
from simulated_hip import NOT_SUPPORTED, Failed, Hip

FOLDER = Path(__file__).parent / "foreign"
# Optimisation, code object version, other flags.
BUILDS = [
    ("-O0", 5, ()),
    ("-O1", 6, ()),
    ("-O2", 4, ("-ffast-math",)),
    ("-O3", 5, ("-mllvm", "-amdgpu-kernarg-preload-count=8")),
]
# Kernel, type, head dim, block, rows of a block. Tolerances: of the type's rounding of P and O.
KERNELS = [
    ("naive_f32", torch.float32, 32, (32, 1, 1), 32),
    ("naive_f16", torch.float16, 40, (5, 3, 7), 105),
    ("naive_bf16", torch.bfloat16, 128, (1024, 1, 1), 1024),
    ("naive_f64", torch.float64, 16, (64, 1, 1), 64),
    ("wave_f32", torch.float32, 64, (64, 2, 2), 4),
    ("wave_f32", torch.float32, 64, (32, 2, 16), 16),
    ("tiled_f16_16", torch.float16, 64, (256, 1, 1), 64),
    ("tiled_bf16_16", torch.bfloat16, 64, (16, 2, 4), 32),
    ("tiled_f16_32", torch.float16, 64, (64, 1, 1), 32),
    ("tiled_bf16_32", torch.bfloat16, 64, (256, 1, 1), 128),
    ("direct_f32", torch.float32, 64, (64, 1, 1), 16),
]
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
BATCH, HEADS, ROWS, COLUMNS = 2, 2, 50, 71


@pytest.fixture(scope="module")
def hip():
    return Hip()


def upload(hip, tensor):
    return hip.upload(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def download(hip, address, like):
    content = bytearray(hip.download(address, like.nbytes))
    return torch.frombuffer(content, dtype=like.dtype).view(like.shape)


def exact(query, key, value, scale):
    scores = query.double() @ key.double().transpose(-1, -2) * scale
    return torch.softmax(scores, -1) @ value.double()


@pytest.fixture(scope="module", params=BUILDS, ids=lambda build: f"{build[0]}-v{build[1]}")
def module(request, hip):
    level, version, flags = request.param
    source = (FOLDER / "attention.hip").read_text()
    try:
        image = device_compiler.compile_hip(source, level, *flags, code_object_version=version)
    except RuntimeError as error:  # clang 19's scheduler crashes in direct_f32
        if "direct_f32" not in str(error):
            raise
        flags += ("-DWITHOUT_DIRECT",)
        image = device_compiler.compile_hip(source, level, *flags, code_object_version=version)
    return hip.module(image)


def attend(hip, module, name, dtype, size, block, rows, shape):
    """Runs a kernel on random [batch, heads, rows or columns, size]; what it got, and what it should have.

    Args:
        shape: batch, heads, rows, columns.
    """
    batch, heads, count, columns = shape
    generator = torch.Generator().manual_seed(size)
    shapes = [(batch, heads, length, size) for length in (count, columns, columns)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    scale = size**-0.5
    addresses = [upload(hip, tensor) for tensor in tensors]
    out = hip.malloc(tensors[0].nbytes)
    grid = (-(-count // rows), heads, batch)
    function = hip.function(module, name)
    sizes = struct.pack("<iiif", heads, count, columns, scale)
    expected = exact(*tensors, scale)
    if name == "wave_f32":
        counters = hip.upload(bytes(16))
        arguments = struct.pack("<4Q", *addresses, out) + sizes + struct.pack("<2Q", counters, counters + 8)
        hip.launch(function, grid, block, arguments, dynamic_lds=4 * block[0] * block[1] * block[2])
        cycles, total = struct.unpack("<Qf", hip.download(counters, 12))
        assert cycles > 0
        assert total == pytest.approx(float(expected.sum()), abs=1e-3)
    else:
        parameters = [ctypes.c_void_p(address) for address in (*addresses, out)]
        hip.launch_parameters(
            function, grid, block, [*parameters, ctypes.create_string_buffer(sizes, len(sizes))]
        )
    got = download(hip, out, tensors[0]).double()
    for address in (*addresses, out):
        hip.free(address)
    return got, expected


@pytest.mark.parametrize(("name", "dtype", "size", "block", "rows"), KERNELS)
def test_attention(hip, module, name, dtype, size, block, rows):
    got, expected = attend(hip, module, name, dtype, size, block, rows, (BATCH, HEADS, ROWS, COLUMNS))
    assert (got - expected).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize(("name", "dtype", "size", "block", "rows"), KERNELS)
def test_no_check_finds_anything(hip, module, name, dtype, size, block, rows):
    """Whatever the optimisation and the order in which loads complete; the bits are the same."""
    shape = (1, 2, 18, 21)
    plain, _ = attend(hip, module, name, dtype, size, block, rows, shape)
    for delivery in ("early", "late", "random:1"):
        simulator.reset_statistics()
        with simulator.checking("all", delivery=delivery, findings="all"):
            got, _ = attend(hip, module, name, dtype, size, block, rows, shape)
        assert [finding["message"] for finding in simulator.findings()] == []
        assert torch.equal(got, plain)


@pytest.fixture(scope="module")
def numbers(hip):
    return hip.module(device_compiler.compile_hip((FOLDER / "numbers.hip").read_text()))


SMALL = {"fp8": torch.float8_e4m3fnuz, "bf8": torch.float8_e5m2fnuz}


def run(hip, module, name, blocks, inputs, out_like):
    addresses = [upload(hip, tensor) for tensor in inputs]
    out = upload(hip, torch.full_like(out_like, -1))
    arguments = struct.pack(f"<{len(addresses) + 1}Q", *addresses, out)
    hip.launch(hip.function(module, name), (blocks, 1, 1), (64, 1, 1), arguments)
    return download(hip, out, out_like)


@pytest.mark.parametrize("name", SMALL)
def test_narrowing_to_8_bits(hip, numbers, name):
    """Every float32 around the format's values and their midpoints, PyTorch's conversion being the oracle."""
    values = torch.arange(256, dtype=torch.uint8).view(SMALL[name]).float()
    values = values[values.isfinite()].sort().values
    middles = (values[1:] + values[:-1]) / 2
    edges = torch.tensor([0.0, -0.0, 1e-30, -1e-42, 1e6, -3e38, float("inf"), float("nan")])
    one = torch.cat([values, middles, middles * (1 + 2**-20), middles * (1 - 2**-20), edges])
    one = torch.cat([one, torch.zeros(-len(one) % 128)])
    random = torch.zeros(len(one) // 2, dtype=torch.int32)
    like = torch.zeros(len(one) // 2, 3, dtype=torch.int32)
    got = run(hip, numbers, f"narrow_{name}", len(one) // 128, [one, random], like).view(torch.uint8)
    expected = one.to(SMALL[name]).view(torch.uint8).view(-1, 2)
    torch.testing.assert_close(got[:, 0:2], expected)
    torch.testing.assert_close(got[:, 6:8], expected)
    rest = torch.cat([got[:, 2:6], got[:, 8:10], got[:, 11:]], 1)
    assert (rest == 0x5A).all()


@pytest.mark.parametrize("name", SMALL)
def test_stochastic_rounding(hip, numbers, name):
    """Over evenly spread random words the mean of the results is the value."""
    count, value = 4096, 1.3
    one = torch.full((2 * count,), value)
    random = (torch.arange(count) * (1 << 20)).to(torch.uint32).view(torch.int32)
    like = torch.zeros(count, 3, dtype=torch.int32)
    got = run(hip, numbers, f"narrow_{name}", count // 64, [one, random], like).view(torch.uint8)
    results = got[:, 10].contiguous().view(SMALL[name]).float()
    assert len(results.unique()) == 2
    assert results.mean().item() == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize("name", SMALL)
def test_widening_from_8_bits(hip, numbers, name):
    codes = torch.arange(256, dtype=torch.uint8)
    got = run(hip, numbers, f"widen_{name}", 1, [codes], torch.zeros(64, 8))
    expected = codes.view(SMALL[name]).float().view(64, 4)
    torch.testing.assert_close(got, torch.cat([expected, expected], 1), rtol=0, atol=0, equal_nan=True)


def test_legacy_multiply_adds_clear_the_upper_half(hip, numbers):
    generator = np.random.default_rng(3)
    words = generator.integers(0, 2**32, (64, 3), dtype=np.uint32)
    words[32:] = generator.standard_normal((32, 6)).astype(np.float16).view(np.uint32)
    like = torch.zeros(64, 7, dtype=torch.int32)
    got = (
        run(hip, numbers, "legacy", 1, [torch.from_numpy(words.view(np.int32))], like).numpy().view(np.uint32)
    )
    assert (got >> 16 == 0).all()
    a, b, c = (words & 0xFFFF).astype(np.int64).T
    signed = [column.astype(np.uint16).view(np.int16).astype(np.int64) for column in (a, b, c)]
    np.testing.assert_array_equal(got[:, 0], a * b + c & 0xFFFF)
    np.testing.assert_array_equal(got[:, 1], a * b + c & 0xFFFF)
    np.testing.assert_array_equal(got[:, 2], np.minimum(a * b + c, 0xFFFF))
    clamped = np.clip(signed[0] * signed[1] + signed[2], -0x8000, 0x7FFF)
    np.testing.assert_array_equal(got[:, 3].astype(np.uint16).view(np.int16), clamped)
    x, y, z = (column[32:].astype(np.uint16).view(np.float16).astype(np.float64) for column in (a, b, c))
    np.testing.assert_array_equal(got[32:, 4], (x * y + z).astype(np.float16).view(np.uint16))
    product = (x * y).astype(np.float16).astype(np.float64)
    np.testing.assert_array_equal(got[32:, 5], (product + z).astype(np.float16).view(np.uint16))
    # The quotient's magnitude with the sign of numerator over denominator.
    signs = (b[32:] ^ c[32:]) & 0x8000
    np.testing.assert_array_equal(got[32:, 6], (a[32:] & 0x7FFF) | signs)


@pytest.mark.parametrize(("size", "depth"), [(16, 8), (32, 4)])
def test_reduced_matrix_product(hip, numbers, size, depth):
    """Ten fraction bits of each factor, those below dropped; then float32."""
    generator = torch.Generator().manual_seed(size)
    a, b = torch.randn(size, depth, generator=generator), torch.randn(depth, size, generator=generator)
    a[0, 0], a[1, 0], a[2, 0] = 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20
    got = run(hip, numbers, f"reduced_{size}", 1, [a, b], torch.zeros(size, size))

    def reduced(x):
        mantissa, exponent = np.frexp(x.double().numpy())
        return torch.from_numpy(np.ldexp(np.trunc(mantissa * 2**11), exponent - 11))

    torch.testing.assert_close(got.double(), 1 + reduced(a) @ reduced(b), rtol=0, atol=2e-6)
    assert (got.double() - (1 + a.double() @ b.double())).abs().max() > 5e-5


def test_what_is_not_implemented_is_not_supported(hip, numbers):
    with pytest.raises(Failed, match=r"v_trig_preop_f64.*not implemented") as caught:
        hip.launch(
            hip.function(numbers, "unsupported"),
            (1, 1, 1),
            (64, 1, 1),
            struct.pack("<Q", hip.upload(bytes(8))),
        )
    assert caught.value.code == NOT_SUPPORTED
