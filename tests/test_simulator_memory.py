"""Which memory a simulated kernel may touch, and HIP's memory functions."""

import ctypes
import re
import struct
from ctypes import byref, c_size_t, c_void_p

import numpy as np
import pytest

import simulated_hip as codes
from simulated_hip import Failed, pointer


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
