"""The simulator behind its HIP functions: launches, kernel arguments, memory, threads, errors."""

import ctypes
import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import pytest

import device_compiler
import simulated_hip as codes
import simulator_kernels
from liteattention_rocm import simulator
from simulated_hip import Failed, Hip

POISON = 0xFFFFFFFF


@pytest.fixture(scope="module")
def hip():
    return Hip()


@pytest.fixture(scope="module", params=[4, 5, 6])
def any_version(request):
    """The kernels as code object v4, v5 and v6."""
    return device_compiler.compile_hip(simulator_kernels.SOURCE, code_object_version=request.param)


@pytest.fixture(scope="module")
def image():
    return device_compiler.compile_hip(simulator_kernels.SOURCE)


@pytest.fixture(scope="module")
def module(hip, image):
    return hip.module(image)


def words(hip, address, count):
    return np.frombuffer(hip.download(address, 4 * count), np.uint32)


def pointer(*addresses):
    return struct.pack(f"<{len(addresses)}Q", *addresses)


def run_python(script, **environment):
    """Runs a script that has `hip` and `image` in another interpreter."""
    preamble = f"""
    import sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import ctypes, os, struct, threading
    from ctypes import byref, c_int, c_size_t, c_void_p
    import device_compiler, simulator_kernels
    from simulated_hip import Failed, Hip
    hip = Hip({str(simulator.path())!r})
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(preamble) + textwrap.dedent(script)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=50)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # forked children too
        raise
    # Decoded here, since text mode turns carriage returns into line feeds.
    return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())


# Launches and arguments


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


# Memory


def test_overruns_hit_a_guard_zone(hip, module):
    store, load = hip.function(module, "store_byte"), hip.function(module, "load_byte")
    blocks = [hip.malloc(size) for size in (1, 100, 4096, 5000)]
    out = hip.malloc(4)
    for address, size in zip(blocks, (1, 100, 4096, 5000), strict=True):
        assert address % 256 == 0
        assert all(abs(address - other) >= 4096 + min(size, 4096) for other in blocks if other > address)
        hip.launch(store, (1, 1, 1), (64, 1, 1), struct.pack("<Qq", address, size - 1))
        assert hip.download(address, size) == b"\xff" * (size - 1) + b"\x2a"
        for offset in (size, -1, 1 << 40):
            for kernel, arguments in ((store, ()), (load, (out,))):
                with pytest.raises(Failed) as failure:
                    hip.launch(
                        kernel,
                        (1, 1, 1),
                        (64, 1, 1),
                        struct.pack("<Qq", address, offset) + pointer(*arguments),
                    )
                assert failure.value.code == codes.ILLEGAL_ADDRESS
                assert f"{(address + offset) % 2**64:x}" in failure.value.message.lower()
                assert re.search("store_byte|load_byte", failure.value.message)
        assert hip.download(address, size) == b"\xff" * (size - 1) + b"\x2a"


def test_freed_memory_is_out_of_bounds(hip, module):
    address = hip.malloc(64)
    hip.free(address)
    with pytest.raises(Failed) as failure:
        hip.launch(hip.function(module, "store_byte"), (1, 1, 1), (64, 1, 1), struct.pack("<Qq", address, 0))
    assert failure.value.code == codes.ILLEGAL_ADDRESS
    with pytest.raises(Failed, match="was freed"):
        hip.free(address)


def test_code_and_kernel_arguments_are_read_only(hip, module):
    load, store = hip.function(module, "load_byte"), hip.function(module, "store_byte")
    out = hip.malloc(64)
    hip.launch(hip.function(module, "dispatch_packet"), (1, 1, 1), (64, 1, 1), pointer(out))
    descriptor = struct.unpack_from("<Q", hip.download(out, 64), 32)[0]
    hip.launch(load, (1, 1, 1), (64, 1, 1), struct.pack("<QqQ", descriptor, 0, out))
    with pytest.raises(Failed) as failure:
        hip.launch(store, (1, 1, 1), (64, 1, 1), struct.pack("<Qq", descriptor, 0))
    assert failure.value.code == codes.ILLEGAL_ADDRESS
    with pytest.raises(Failed, match="code or constant memory"):
        hip.hipMemcpyHtoD(c_void_p(descriptor), b"x", c_size_t(1))


def test_overlapping_registrations(hip, module):
    """Views of one fused qkv buffer overlap: each is reachable to its own end, and their union no further."""
    memory = np.zeros(1000, np.uint8)
    base = memory.ctypes.data
    store, load = hip.function(module, "store_byte"), hip.function(module, "load_byte")
    load_word = hip.function(module, "load_word")
    out = hip.malloc(4)

    def reaches(kernel, offset):
        extra = b"" if kernel is store else pointer(out)
        try:
            hip.launch(kernel, (1, 1, 1), (64, 1, 1), struct.pack("<Qq", base, offset) + extra)
        except Failed as failure:
            assert failure.code == codes.ILLEGAL_ADDRESS
            return False
        return True

    def register(begin, end, label, writable=0):
        hip.gfx942sim_register_memory(c_void_p(base + begin), c_size_t(end - begin), label, writable)

    register(100, 400, b"query")
    register(200, 600, b"key")
    register(150, 300, b"value")
    register(250, 260, b"out", 1)
    for offset, readable in [(99, False), (100, True), (399, True), (400, True), (599, True), (600, False)]:
        assert reaches(load, offset) == readable, offset
    # An access may not begin in one registration and end in another, nor end outside.
    for offset, readable in [(97, False), (100, True), (398, True), (596, True), (597, False), (599, False)]:
        assert reaches(load_word, offset) == readable, offset
    for offset, writable in [(249, False), (250, True), (259, True), (260, False), (150, False)]:
        assert reaches(store, offset) == writable, offset
    register(250, 260, b"out", 1)
    hip.gfx942sim_unregister_memory(c_void_p(base + 250))
    assert reaches(store, 255)
    hip.gfx942sim_unregister_memory(c_void_p(base + 250))
    assert not reaches(store, 255)
    hip.gfx942sim_unregister_memory(c_void_p(base + 200))
    assert reaches(load, 399) and not reaches(load, 400)
    register(400, 410, b"next to query")
    assert reaches(load_word, 396) and reaches(load_word, 400) and not reaches(load_word, 398)
    hip.gfx942sim_unregister_memory(c_void_p(base + 400))
    hip.gfx942sim_unregister_memory(c_void_p(base + 100))
    hip.gfx942sim_unregister_memory(c_void_p(base + 150))
    assert not reaches(load, 200)
    with pytest.raises(Failed) as failure:
        hip.gfx942sim_unregister_memory(c_void_p(base + 150))
    assert failure.value.code == codes.NOT_REGISTERED
    assert np.flatnonzero(memory).tolist() == [250, 255, 259]


def test_host_registration(hip, module):
    memory = np.zeros(64, np.uint8)
    address, store = c_void_p(memory.ctypes.data), hip.function(module, "store_byte")
    hip.hipHostRegister(address, c_size_t(64), 0)
    with pytest.raises(Failed) as failure:
        hip.hipHostRegister(address, c_size_t(64), 0)
    assert failure.value.code == codes.ALREADY_REGISTERED
    hip.launch(store, (1, 1, 1), (64, 1, 1), struct.pack("<Qq", address.value, 5))
    assert memory[5] == 42
    hip.hipHostUnregister(address)
    with pytest.raises(Failed) as failure:
        hip.hipHostUnregister(address)
    assert failure.value.code == codes.NOT_REGISTERED
    with pytest.raises(Failed):
        hip.launch(store, (1, 1, 1), (64, 1, 1), struct.pack("<Qq", address.value, 6))
    assert memory[6] == 0


def test_copies_and_fills(hip):
    first, second = hip.malloc(64), hip.malloc(64)
    hip.hipMemsetD32(c_void_p(first), 0x01020304, c_size_t(16))
    hip.hipMemsetD16Async(c_void_p(first + 4), 0x0506, c_size_t(2), None)
    hip.hipMemset(c_void_p(first + 8), 0x07, c_size_t(3))
    hip.hipMemcpyDtoD(c_void_p(second), c_void_p(first), c_size_t(64))
    expected = b"\x04\x03\x02\x01\x06\x05\x06\x05\x07\x07\x07\x01" + b"\x04\x03\x02\x01" * 13
    assert hip.download(second, 64) == expected
    buffer = ctypes.create_string_buffer(64)
    hip.hipMemcpy(buffer, c_void_p(second), c_size_t(64), 4)
    assert buffer.raw == expected
    for call, message in [
        (lambda: hip.hipMemcpyHtoD(c_void_p(first + 1), bytes(64), c_size_t(64)), "exceeds the memory there"),
        (lambda: hip.hipMemcpyDtoH(buffer, c_void_p(first + 60), c_size_t(5)), "exceeds the memory there"),
        (lambda: hip.hipMemcpyDtoH(buffer, buffer, c_size_t(5)), "no device memory"),
        (lambda: hip.hipMemset(c_void_p(first), 0, c_size_t(65)), "exceeds the memory there"),
        (lambda: hip.hipMemsetD32(c_void_p(first + 2), 0, c_size_t(1)), "not aligned"),
        (lambda: hip.hipMemcpy(buffer, c_void_p(first), c_size_t(4), 9), "kind 9"),
    ]:
        with pytest.raises(Failed, match=message):
            call()
    assert hip.download(second, 64) == expected


def test_memory_accounting(hip):
    free, total = c_size_t(), c_size_t()
    hip.hipMemGetInfo(byref(free), byref(total))
    before = free.value
    address = hip.malloc(1 << 20)
    hip.hipMemGetInfo(byref(free), byref(total))
    assert total.value == 192 << 30 and before - free.value == 1 << 20
    hip.free(address)
    hip.hipMemGetInfo(byref(free), byref(total))
    assert free.value == before
    with pytest.raises(Failed) as failure:
        hip.malloc(193 << 30)
    assert failure.value.code == codes.OUT_OF_MEMORY
    assert hip.malloc(0) is None
    hip.hipFree(None)


# Device, streams, events


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


# Threads, failures, interruption


def test_concurrent_launches(hip, module):
    kernel = hip.function(module, "indices")
    failures = []

    def work():
        try:
            out = hip.malloc(4 * 640)
            for _ in range(10):
                hip.hipMemsetD8(c_void_p(out), 0, c_size_t(4 * 640))
                hip.launch(kernel, (10, 1, 1), (64, 1, 1), pointer(out))
                np.testing.assert_array_equal(words(hip, out, 640) & 0xFF, np.arange(640) & 0xFF)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("count", ["1", "2", "4"])
def test_the_lowest_failing_workgroup_is_reported(hip, module, count):
    """However many threads there are, and although higher workgroups fail sooner."""
    kernel, out = hip.function(module, "fail_from"), hip.malloc(4 * 40)
    hip.set_option("threads", count)
    try:
        messages = set()
        for _ in range(3):
            with pytest.raises(Failed) as failure:
                hip.launch(kernel, (40, 1, 1), (64, 1, 1), struct.pack("<QII", out, 17, 40))
            assert failure.value.code == codes.ILLEGAL_ADDRESS
            messages.add(failure.value.message)
    finally:
        hip.set_option("threads", "2")
    assert len(messages) == 1
    assert re.search(r"fail_from.*\b17\b", messages.pop(), re.DOTALL)
    assert (words(hip, out, 17) == 1).all()


def test_a_failed_launch_leaves_the_simulator_usable(hip, module):
    out = hip.malloc(4 * 64)
    with pytest.raises(Failed):
        hip.launch(hip.function(module, "fail_from"), (4, 1, 1), (64, 1, 1), struct.pack("<QII", out, 0, 4))
    hip.launch(hip.function(module, "indices"), (1, 1, 1), (64, 1, 1), pointer(out))
    np.testing.assert_array_equal(words(hip, out, 64), np.arange(64))


def test_interrupt_and_progress():
    done = run_python(
        """
        import time
        image = device_compiler.compile_hip(simulator_kernels.SOURCE)
        function, out = hip.kernel(image, "spin"), hip.upload(bytes(4))
        start = time.monotonic()
        calls = []
        callback = ctypes.CFUNCTYPE(c_int)(lambda: calls.append(time.monotonic()) or calls[-1] - start > 2.8)
        hip.library.gfx942sim_set_interrupt_callback(callback)
        try:
            hip.launch(function, (3, 1, 1), (64, 1, 1), struct.pack("<Q", out))
        except Failed as failure:
            print(failure.code, failure.message)
        print(len(calls), time.monotonic() - start)
        """,
        LITEATTENTION_ROCM_SIM_PROGRESS="1",
    )
    assert done.returncode == 0, done.stderr
    message, timing = done.stdout.splitlines()
    assert message.startswith(str(codes.LAUNCH_FAILURE)) and "interrupted" in message and "spin" in message
    calls, seconds = timing.split()
    assert 10 <= int(calls) <= 60 and float(seconds) < 5
    assert re.search(r"\rsimulating spin: 0 of 3 workgroups", done.stderr)


def test_freeing_and_unloading_during_a_launch():
    done = run_python(
        """
        import time
        image = device_compiler.compile_hip(simulator_kernels.SOURCE)
        module, out = hip.module(image), hip.upload(bytes(4))
        function = hip.function(module, "spin")
        stop, result = [], []
        callback = ctypes.CFUNCTYPE(c_int)(lambda: len(stop))
        hip.library.gfx942sim_set_interrupt_callback(callback)
        def launch():
            try:
                hip.launch(function, (2, 1, 1), (64, 1, 1), struct.pack("<Q", out))
            except Failed as failure:
                result.append(failure.message)
        thread = threading.Thread(target=launch)
        thread.start()
        time.sleep(0.3)
        hip.free(out)
        hip.hipModuleUnload(module)
        time.sleep(0.3)
        stop.append(1)
        thread.join()
        print(result[0])
        """
    )
    assert done.returncode == 0, done.stderr
    assert "interrupted" in done.stdout


def test_fork():
    """A child forked while another thread launches can launch; the parent's launches go on."""
    done = run_python(
        """
        image = device_compiler.compile_hip(simulator_kernels.SOURCE)
        kernel = hip.kernel(image, "indices")
        def launch():
            out = hip.malloc(4 * 640)
            hip.launch(kernel, (10, 1, 1), (64, 1, 1), struct.pack("<Q", out))
            assert struct.unpack("<640I", hip.download(out, 2560))[-1] == 639
            hip.free(out)
        launch()
        stop = []
        def background():
            while not stop:
                launch()
        thread = threading.Thread(target=background)
        thread.start()
        children = []
        for _ in range(5):
            child = os.fork()
            if not child:
                launch()
                launch()
                grandchild = os.fork()
                if not grandchild:
                    launch()
                    os._exit(0)
                os._exit(os.waitpid(grandchild, 0)[1])
            children.append(child)
        results = [os.waitpid(child, 0)[1] for child in children]
        stop.append(1)
        thread.join()
        launch()
        print(results)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0, 0, 0, 0, 0]"


def test_exit_during_a_launch():
    """Worker threads that still run don't disturb the end of the process."""
    done = run_python(
        """
        image = device_compiler.compile_hip(simulator_kernels.SOURCE)
        function, out = hip.kernel(image, "spin"), hip.upload(bytes(4))
        arguments = (function, (2, 1, 1), (64, 1, 1), struct.pack("<Q", out))
        threading.Thread(target=hip.launch, args=arguments, daemon=True).start()
        import time
        time.sleep(0.3)
        print("end")
        """
    )
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


# Options, statistics, inspection


def test_options(hip):
    hip.set_option("compute_units", "80")
    hip.set_option("xcds", "4")
    assert hip.attribute(63) == 80 and hip.attribute(10018) == 4
    hip.set_option("compute_units", "304")
    hip.set_option("xcds", "8")
    assert hip.attribute(63) == 304 and hip.attribute(10018) == 8
    for name, value in [
        ("threads", "0"),
        ("threads", "two"),
        ("threads", "-1"),
        ("threads", ""),
        ("check", "wait"),
        ("check", "waits,"),
        ("matrix", "float64"),
        ("progress", "yes"),
        ("compute_units", "1025"),
        ("speed", "1"),
    ]:
        with pytest.raises(Failed, match=f"'{value if name != 'speed' else name}'.*allowed") as failure:
            hip.set_option(name, value)
        assert failure.value.code == codes.INVALID_VALUE


def test_options_from_the_environment():
    good = run_python("print(hip.attribute(63))", LITEATTENTION_ROCM_SIM_COMPUTE_UNITS="38")
    assert good.stdout.strip() == "38"
    bad = run_python("hip.hipInit(0)", LITEATTENTION_ROCM_SIM_THREADS="many")
    assert bad.returncode != 0
    assert "LITEATTENTION_ROCM_SIM_THREADS" in bad.stderr and "'many'" in bad.stderr


def test_statistics(hip, module):
    out = hip.malloc(4 * 640)
    hip.library.gfx942sim_reset_statistics()
    for _ in range(2):
        hip.launch(hip.function(module, "indices"), (5, 1, 1), (128, 1, 1), pointer(out))
    hip.library.hipGetLastError()
    statistics = hip.text("statistics")
    kernel = statistics["kernels"]["indices"]
    assert (kernel["launches"], kernel["workgroups"], kernel["waves"]) == (2, 10, 20)
    categories = ["scalar", "scalar_memory", "vector", "transcendental", "matrix", "lds", "vector_memory"]
    assert kernel["instructions"] == sum(kernel[name] for name in [*categories, "control", "wait", "barrier"])
    assert kernel["vector_memory"] == 20 and kernel["matrix"] == 0
    assert kernel["bytes_stored"] == 2 * 4 * 640 and kernel["seconds"] > 0
    calls = {"hipGetLastError": 1, "hipModuleGetFunction": 2, "hipModuleLaunchKernel": 2}
    assert statistics["hip_calls"] == calls
    hip.library.gfx942sim_reset_statistics()
    assert hip.text("statistics") == {"kernels": {}, "hip_calls": {}}


def test_text_is_cut_to_the_buffer(hip):
    needed = hip.library.gfx942sim_coverage_json(None, c_size_t(0))
    buffer = ctypes.create_string_buffer(b"#" * 20, 20)
    assert hip.library.gfx942sim_coverage_json(buffer, c_size_t(10)) == needed
    assert buffer.raw[9:] == b"\0" + b"#" * 10


def test_coverage(hip):
    rows = {row["name"]: row for row in hip.text("coverage")}
    assert rows["v_add_f32"]["encodings"] == ["VOP2", "SDWA", "DPP", "VOP3"]
    assert rows["v_add_f32"]["implemented"] and rows["s_endpgm"]["implemented"]
    assert rows["v_mfma_f32_16x16x16_bf16"]["encodings"] == ["MFMA"]


def test_disassembly(hip, image):
    listing = hip.text("disassemble", image, c_size_t(len(image)))
    kernels = {kernel["name"]: kernel for kernel in listing["kernels"]}
    assert {"indices", "sort", "spin"} <= kernels.keys()
    by_address = {row["address"]: row for row in listing["instructions"]}
    spin = kernels["spin"]
    address, ops = spin["address"], []
    while address < spin["address"] + spin["size"]:
        ops.append(by_address[address]["op"])
        address += by_address[address]["size"]
    assert ops[0] == "s_load_dwordx2" and ops[-1] == "s_endpgm" and None not in ops
    assert hip.text("disassemble", b"garbage" * 20, c_size_t(140)) == {}
    assert b"hipErrorInvalidImage" in hip.library.gfx942sim_last_error()


def test_the_documented_example(tmp_path):
    """docs/simulator.md: its kernel, compiled, and its program, run as they stand there."""
    text = (Path(__file__).parent.parent / "docs" / "simulator.md").read_text()
    kernel, program = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("cpp", "python"))
    (tmp_path / "scale.hsaco").write_bytes(device_compiler.compile_hip(kernel))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "7.5\n", done.stderr
