"""The simulator behind its HIP functions: launches, kernel arguments, handles, devices, streams."""

import ctypes
import struct
from ctypes import byref, c_int, c_size_t, c_void_p

import numpy as np
import pytest

import device_compiler
import simulated_hip as codes
import simulator_kernels
from simulated_hip import Failed, pointer, words

POISON = 0xFFFFFFFF


@pytest.fixture(scope="module", params=[4, 5, 6])
def any_version(request):
    """The kernels as code object v4, v5 and v6."""
    return device_compiler.compile_hip(simulator_kernels.SOURCE, code_object_version=request.param)


@pytest.mark.parametrize(
    "grid, block", [((1, 1, 1), (1, 1, 1)), ((3, 2, 2), (8, 4, 2)), ((2, 1, 1), (1024, 1, 1))]
)
def test_every_work_item_runs_once(hip, any_version, grid, block):
    count = int(np.prod(grid) * np.prod(block))
    out = hip.malloc(4 * count)
    assert (words(hip, out, count) == POISON).all()
    hip.launch(hip.kernel(any_version, "indices"), grid, block, pointer(out))
    nx, ny, nz = (g * b for g, b in zip(grid, block, strict=True))
    z, y, x = np.mgrid[:nz, :ny, :nx]
    np.testing.assert_array_equal(words(hip, out, count), (x | y << 8 | z << 16).ravel())


@pytest.mark.parametrize("version", [5, 6])
def test_implicit_arguments_of_v5(hip, version):
    # Offsets: AMDGPU user guide, "Code Object V5 Metadata".
    image = device_compiler.compile_hip(simulator_kernels.SOURCE, code_object_version=version)
    out = hip.malloc(256)
    hip.launch(hip.kernel(image, "implicit"), (3, 2, 1), (64, 2, 1), pointer(out), dynamic_lds=1040)
    implicit = hip.download(out, 256)
    assert struct.unpack_from("<3I6H", implicit) == (3, 2, 1, 64, 2, 1, 0, 0, 0)
    assert struct.unpack_from("<3QH", implicit, 40) == (0, 0, 0, 2)
    printf, hostcall, multigrid, heap, queue, completion = struct.unpack_from("<6Q", implicit, 72)
    assert printf == hostcall == multigrid == heap == queue == completion == 0
    assert struct.unpack_from("<Q", implicit, 200)[0] != 0  # queue pointer


def test_implicit_arguments_of_v4(hip):
    image = device_compiler.compile_hip(simulator_kernels.SOURCE, code_object_version=4)
    out = hip.malloc(56)
    hip.launch(hip.kernel(image, "implicit_v4"), (2, 1, 1), (64, 1, 1), pointer(out))
    assert hip.download(out, 56) == bytes(56)


def test_dispatch_packet(hip, module):
    out = hip.malloc(64)
    hip.launch(hip.function(module, "dispatch_packet"), (3, 5, 1), (64, 2, 1), pointer(out), dynamic_lds=16)
    packet = struct.unpack("<HH3HH3III4Q", hip.download(out, 64))
    assert packet[2:5] == (64, 2, 1) and packet[6:9] == (192, 10, 1)
    assert packet[10] == 16  # group segment
    assert packet[12] % 64 == 0 and packet[12] != 0  # kernel arguments


def test_pointers_and_packed_buffer_pass_the_same_arguments(hip, module):
    class Triple(ctypes.Structure):
        _fields_ = [(name, c_int) for name in "abc"]

    out, kernel = hip.malloc(72), hip.function(module, "mixed")
    parameters = [
        ctypes.c_uint64(out),
        ctypes.c_uint8(200),
        ctypes.c_uint16(60000),
        ctypes.c_uint32(1 << 31),
        ctypes.c_uint64(0x123456789ABCDEF0),
        ctypes.c_float(1.5),
        ctypes.c_double(-2.25),
        Triple(-1, 2, 3),
    ]
    f32, f64 = (
        struct.unpack("<I", struct.pack("<f", 1.5))[0],
        struct.unpack("<Q", struct.pack("<d", -2.25))[0],
    )
    expected = (200, 60000, 1 << 31, 0x123456789ABCDEF0, f32, f64, 0xFFFFFFFF, 2, 3)
    hip.launch_parameters(kernel, (1, 1, 1), (64, 1, 1), parameters)
    assert struct.unpack("<9Q", hip.download(out, 72)) == expected
    hip.hipMemsetD8(c_void_p(out), 0xEE, c_size_t(72))
    packed = struct.pack("<QBxHIQf4xd3i", out, 200, 60000, 1 << 31, 0x123456789ABCDEF0, 1.5, -2.25, -1, 2, 3)
    hip.launch(kernel, (1, 1, 1), (64, 1, 1), packed)
    assert struct.unpack("<9Q", hip.download(out, 72)) == expected
    hip.launch(kernel, (1, 1, 1), (64, 1, 1), packed + b"\xff" * 40)  # longer than the arguments is fine
    with pytest.raises(
        Failed, match=f"has {len(packed) - 1} bytes, its arguments take {len(packed)}"
    ) as failure:
        hip.launch(kernel, (1, 1, 1), (64, 1, 1), packed[:-1])
    assert failure.value.code == codes.INVALID_VALUE


def test_dynamic_lds(hip, module):
    out = hip.malloc(2 * 256 * 4)
    hip.launch(hip.function(module, "reverse"), (2, 1, 1), (256, 1, 1), pointer(out), dynamic_lds=1024)
    np.testing.assert_array_equal(words(hip, out, 512), np.tile(np.arange(256)[::-1] * 3, 2))


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("optimisation", ["-O0", "-O1"])
def test_scratch_and_calls(hip, version, optimisation):
    image = device_compiler.compile_hip(simulator_kernels.SOURCE, optimisation, code_object_version=version)
    values = np.random.default_rng(3).integers(0, 2**32, (3 * 96, 24), np.uint32)
    source, out = hip.upload(values.tobytes()), hip.malloc(values.nbytes)
    function = hip.kernel(image, "sort")
    scratch = c_int()
    hip.hipFuncGetAttribute(byref(scratch), 3, function)
    assert scratch.value >= 96
    hip.launch(function, (3, 1, 1), (96, 1, 1), pointer(source, out))
    mixed = np.arange(24, dtype=np.uint32)
    for _ in range(5):
        mixed = mixed * np.uint32(1664525) + np.uint32(1013904223)
    np.testing.assert_array_equal(words(hip, out, values.size).reshape(-1, 24), np.sort(values) ^ mixed)


def test_unoptimised_kernels_give_the_same(hip):
    image = device_compiler.compile_hip(simulator_kernels.SOURCE, "-O0")
    out = hip.malloc(4 * 192)
    hip.launch(hip.kernel(image, "indices"), (3, 1, 1), (64, 1, 1), pointer(out))
    np.testing.assert_array_equal(words(hip, out, 192), np.arange(192))
    hip.launch(hip.kernel(image, "reverse"), (1, 1, 1), (64, 1, 1), pointer(out), dynamic_lds=256)
    np.testing.assert_array_equal(words(hip, out, 64), np.arange(64)[::-1] * 3)


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("optimisation", ["-O0", "-O3"])
def test_attention_built_by_clang(hip, version, optimisation):
    """Hidden arguments, scratch, a masked last wave, float arithmetic: against float64."""
    image = device_compiler.compile_hip(simulator_kernels.SOURCE, optimisation, code_object_version=version)
    function, scratch = hip.kernel(image, "attention"), c_int()
    hip.hipFuncGetAttribute(byref(scratch), 3, function)
    assert scratch.value >= 192
    rows, keys, dim = 150, 37, 40
    rng = np.random.default_rng(11)
    q, k, v = (rng.standard_normal((count, dim), np.float32) for count in (rows, keys, keys))
    out = hip.malloc(4 * rows * dim)
    scale = dim**-0.5
    arguments = pointer(*(hip.upload(x.tobytes()) for x in (q, k, v)), out)
    arguments += struct.pack("<3if", rows, keys, dim, scale * np.log2(np.e))
    hip.launch(function, (3, 1, 1), (64, 1, 1), arguments)
    scores = np.exp(q.astype(float) @ k.astype(float).T * scale)
    expected = scores @ v.astype(float) / scores.sum(1, keepdims=True)
    result = np.frombuffer(hip.download(out, 4 * rows * dim), np.float32).reshape(rows, dim)
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6)


def test_module_variables(hip, any_version):
    module = hip.module(any_version)
    out = hip.malloc(8)
    address, size = c_void_p(), c_size_t()
    hip.hipModuleGetGlobal(byref(address), byref(size), module, b"counter")
    assert size.value == 4 and hip.download(address.value, 4) == struct.pack("<i", 5)
    for before in (5, 45):
        hip.launch(hip.function(module, "variables"), (1, 1, 1), (64, 1, 1), pointer(out))
        assert struct.unpack("<2i", hip.download(out, 8)) == (before, 30)
    hip.hipMemcpyHtoD(address, struct.pack("<i", 7), c_size_t(4))
    hip.launch(hip.function(module, "variables"), (1, 1, 1), (64, 1, 1), pointer(out))
    assert struct.unpack("<2i", hip.download(out, 8)) == (7, 30)
    with pytest.raises(Failed, match="no variable 'missing'") as failure:
        hip.hipModuleGetGlobal(byref(address), byref(size), module, b"missing")
    assert failure.value.code == codes.NOT_FOUND


@pytest.mark.parametrize(
    "kernel, grid, block, lds, code, message",
    [
        ("indices", (0, 1, 1), (64, 1, 1), 0, codes.INVALID_CONFIGURATION, "grid 0x1x1 is empty"),
        ("indices", (1, 1, 0), (64, 1, 1), 0, codes.INVALID_CONFIGURATION, "grid 1x1x0 is empty"),
        ("indices", (1, 1, 1), (64, 0, 1), 0, codes.INVALID_CONFIGURATION, "block 64x0x1"),
        ("indices", (1, 1, 1), (1025, 1, 1), 0, codes.INVALID_CONFIGURATION, "block 1025x1x1"),
        (
            "indices",
            (1, 1, 1),
            (64, 8, 4),
            0,
            codes.INVALID_CONFIGURATION,
            "2048 work-items; allowed are 1024",
        ),
        ("indices", (1 << 31, 1, 1), (64, 1, 1), 0, codes.INVALID_CONFIGURATION, r"2\^32 - 1 work-items"),
        ("indices", (1 << 31, 1 << 31, 1 << 31), (1, 1, 1), 0, codes.INVALID_CONFIGURATION, r"2\^48"),
        ("at_most_128", (1, 1, 1), (129, 1, 1), 0, codes.INVALID_CONFIGURATION, "allowed are 128"),
        ("reverse", (1, 1, 1), (64, 1, 1), 65537, codes.OUT_OF_RESOURCES, "65537 of dynamic LDS"),
        ("large_lds", (1, 1, 1), (64, 1, 1), 5540, codes.OUT_OF_RESOURCES, "60000 bytes of static"),
    ],
)
def test_bad_launches_are_refused(hip, module, kernel, grid, block, lds, code, message):
    out = hip.malloc(256)
    with pytest.raises(Failed, match=message) as failure:
        hip.launch(hip.function(module, kernel), grid, block, pointer(out), dynamic_lds=lds)
    assert failure.value.code == code
    assert kernel in failure.value.message
    assert hip.library.hipPeekAtLastError() == code
    assert hip.library.hipGetLastError() == code
    assert hip.library.hipGetLastError() == 0
    assert hip.download(out, 256) == b"\xff" * 256


def test_required_workgroup_size(hip):
    kernel = hip.kernel(device_compiler.assemble(simulator_kernels.ASSEMBLY), "exactly_64x2")
    out = hip.malloc(4)
    hip.launch(kernel, (1, 1, 1), (64, 2, 1), pointer(out))
    assert words(hip, out, 1) == 7
    with pytest.raises(Failed, match="block 128x1x1, the kernel requires 64x2x1"):
        hip.launch(kernel, (1, 1, 1), (128, 1, 1), pointer(out))


def test_bad_argument_lists_are_refused(hip, module):
    kernel = hip.function(module, "indices")
    out = c_void_p(hip.malloc(256))
    one, sizes = (c_void_p * 1)(ctypes.addressof(out)), [1, 1, 1, 64, 1, 1, 0]
    size = c_size_t(8)
    good = (c_void_p * 5)(1, ctypes.addressof(out), 2, ctypes.addressof(size), 3)
    unknown_key = (c_void_p * 5)(9, ctypes.addressof(out), 2, ctypes.addressof(size), 3)
    endless = (c_void_p * 16)(*[1, ctypes.addressof(out)] * 8)
    no_buffer = (c_void_p * 3)(2, ctypes.addressof(size), 3)
    for parameters, extra, message in [
        (one, good, "both"),
        (None, None, "has 0 bytes"),
        (None, unknown_key, "unknown key 0x9"),
        (None, endless, "HIP_LAUNCH_PARAM_END"),
        (None, no_buffer, "no buffer"),
        ((c_void_p * 1)(None), None, r"kernelParams\[0\] is null"),
    ]:
        with pytest.raises(Failed, match=message) as failure:
            hip.hipModuleLaunchKernel(kernel, *sizes, None, parameters, extra)
        assert failure.value.code == codes.INVALID_VALUE
    hip.hipModuleLaunchKernel(kernel, *sizes, None, None, good)


def test_handles_are_checked(hip, image):
    module = hip.module(image)
    function = hip.function(module, "indices")
    with pytest.raises(Failed, match=r"no kernel 'nothing' .* it has: .*indices") as failure:
        hip.function(module, "nothing")
    assert failure.value.code == codes.NOT_FOUND
    hip.hipModuleUnload(module)
    for call in [
        lambda: hip.hipModuleUnload(module),
        lambda: hip.function(module, "indices"),
        lambda: hip.launch(function, (1, 1, 1), (64, 1, 1), pointer(0)),
        lambda: hip.launch(c_void_p(4096), (1, 1, 1), (64, 1, 1), pointer(0)),
        lambda: hip.hipStreamDestroy(c_void_p(4096)),
        lambda: hip.hipStreamSynchronize(c_void_p(4096)),
        lambda: hip.hipEventRecord(c_void_p(4096), None),
        lambda: hip.hipEventDestroy(None),
    ]:
        with pytest.raises(Failed) as failure:
            call()
        assert failure.value.code == codes.INVALID_HANDLE
    for call in [
        lambda: hip.hipModuleLoadData(None, image),
        lambda: hip.hipModuleLoadData(byref(module), None),
        lambda: hip.hipMalloc(None, c_size_t(4)),
        lambda: hip.hipFree(c_void_p(4096)),
        lambda: hip.hipInit(1),
    ]:
        with pytest.raises(Failed) as failure:
            call()
        assert failure.value.code == codes.INVALID_VALUE


def test_device(hip):
    assert hip.attribute(87) == 64 and hip.attribute(74) == 65536
    name = ctypes.create_string_buffer(100)
    hip.hipDeviceGetName(name, 100, 0)
    assert b"gfx942" in name.value
    hip.hipDeviceGetName(name, 4, 0)
    assert name.value == b"gfx"
    with pytest.raises(Failed, match="device 1") as failure:
        hip.hipSetDevice(1)
    assert failure.value.code == codes.INVALID_DEVICE
    with pytest.raises(Failed, match="attribute 12345 is not simulated"):
        hip.attribute(12345)
    assert hip.library.hipGetErrorName(719) == b"hipErrorLaunchFailure"
    assert hip.library.hipGetErrorName(424242) == b"hipErrorUnknown"


def test_streams_and_events(hip, module):
    stream, start, stop, milliseconds = c_void_p(), c_void_p(), c_void_p(), ctypes.c_float(-1)
    hip.hipStreamCreateWithFlags(byref(stream), 1)
    hip.hipEventCreate(byref(start))
    hip.hipEventCreateWithFlags(byref(stop), 0)
    with pytest.raises(Failed):
        hip.hipEventElapsedTime(byref(milliseconds), start, stop)
    out = hip.malloc(256)
    hip.hipEventRecord(start, stream)
    hip.launch(hip.function(module, "indices"), (1, 1, 1), (64, 1, 1), pointer(out), stream=stream)
    hip.hipEventRecord(stop, stream)
    hip.hipStreamWaitEvent(stream, stop, 0)
    hip.hipEventSynchronize(stop)
    hip.hipStreamQuery(stream)
    hip.hipEventElapsedTime(byref(milliseconds), start, stop)
    assert 0 < milliseconds.value < 60_000
    capturing = c_int(7)
    hip.hipStreamIsCapturing(stream, byref(capturing))
    assert capturing.value == 0
    hip.hipStreamDestroy(stream)
    with pytest.raises(Failed):
        hip.launch(hip.function(module, "indices"), (1, 1, 1), (64, 1, 1), pointer(out), stream=stream)


def test_function_attributes(hip, module):
    def attribute(name, number):
        value = c_int()
        hip.hipFuncGetAttribute(byref(value), number, hip.function(module, name))
        return value.value

    assert attribute("at_most_128", 0) == 128
    assert attribute("large_lds", 1) == 60000 and attribute("large_lds", 8) == 5536
    assert attribute("indices", 3) == 0 and 0 < attribute("indices", 4) <= 64
    blocks = c_int()
    hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        byref(blocks), hip.function(module, "large_lds"), 64, c_size_t(0)
    )
    assert blocks.value == 1
    hip.hipFuncSetAttribute(hip.function(module, "large_lds"), 8, 5536)
    with pytest.raises(Failed, match="allowed are 0 to 5536"):
        hip.hipFuncSetAttribute(hip.function(module, "large_lds"), 8, 5537)
