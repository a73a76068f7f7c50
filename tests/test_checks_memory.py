"""What nothing has written, in memory and in private segments, and where it must not go."""

import re
import struct
from ctypes import c_size_t, c_void_p

import numpy
import pytest

import check_kernels
import device_compiler
from liteattention_rocm import simulator
from simulated_hip import Failed, Hip

WAIT = "s_waitcnt vmcnt(0) lgkmcnt(0)"
STORE = "global_store_dword v1, v2, s[4:5]"
KERNELS = {
    "copy": ("global_load_dword v2, v1, s[6:7]", WAIT, STORE),
    "fill": (STORE.replace("v2", "v0"),),
    "address": (
        "global_load_dword v2, v1, s[6:7]",
        WAIT,
        "v_and_b32_e32 v2, 0xfc, v2",
        "global_load_dword v3, v2, s[6:7]",
        WAIT,
    ),
    "scalar": (
        "s_load_dwordx2 s[8:9], s[6:7], 0x0",
        WAIT,
        "v_mov_b32_e32 v2, s9",
        STORE,
    ),
    "through_lds": (
        "s_mov_b32 m0, 0",
        "s_nop 0",
        "global_load_lds_dword v1, s[6:7]",
        WAIT,
        "ds_read_b32 v2, v1",
        WAIT,
        STORE,
    ),
    "atomic": ("global_atomic_add v1, v0, s[6:7]", WAIT),
    "swap": ("global_atomic_swap v2, v1, v0, s[6:7] sc0", WAIT),
    "swapped": ("global_atomic_swap v2, v1, v0, s[6:7] sc0", WAIT, STORE),
}
# What reaches what, where `in` was never written.
FOUND = {
    "copy": "v2 of lane 0 was never written and reaches a store",
    "address": "v2 of lane 0 was never written and reaches an address",
    "scalar": "v2 of lane 0 was never written and reaches a store",
    "through_lds": "v2 of lane 0 was never written and reaches a store",
    "atomic": r"byte 0x\w+ of memory of lane 0 was never written and reaches an atomic",
    "swapped": "v2 of lane 0 was never written and reaches a store",
}


@pytest.fixture(scope="module")
def hip():
    return Hip()


@pytest.fixture(scope="module")
def module(hip):
    return hip.module(check_kernels.assembled(KERNELS))


@pytest.fixture
def memory(hip):
    """`out` and `in`, as hipMalloc gives them."""
    addresses = [hip.malloc(256) for _ in range(2)]
    yield addresses
    for address in addresses:
        hip.free(address)


def launch(hip, module, name, memory, check="all"):
    with simulator.checking(check):
        hip.launch(hip.function(module, name), (1, 1, 1), (64, 1, 1), struct.pack("<2Q", *memory))


@pytest.mark.parametrize("name", FOUND)
def test_allocations_are_unwritten(hip, module, memory, name):
    with pytest.raises(Failed) as failure:
        launch(hip, module, name, memory)
    message = failure.value.message
    assert re.search(FOUND[name], message), message
    if name != "atomic":
        assert re.search(
            r'; the wave read byte 0x\w+ of memory that nothing has written: ".*" at 0x', message
        )
    launch(hip, module, name, memory, check="waits,races,bounds")


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("how", ["memset", "copy", "kernel", "swap", "unchecked"])
def test_what_writes(hip, module, memory, name, how):
    """Each way to write `in`; a launch that does not look for uninitialised contents may have written all."""
    target = memory[1]
    if how == "memset":
        hip.hipMemset(c_void_p(target), 0, c_size_t(256))
    elif how == "copy":
        hip.hipMemcpyHtoD(c_void_p(target), bytes(256), c_size_t(256))
    elif how == "unchecked":
        launch(hip, module, "fill", memory, check="races")
    else:
        hip.hipMemset(c_void_p(memory[0]), 0, c_size_t(256))
        launch(hip, module, {"kernel": "fill", "swap": "swap"}[how], [target, target])
    launch(hip, module, name, memory)


def test_the_rest_of_an_allocation_stays_unwritten(hip, module, memory):
    hip.hipMemset(c_void_p(memory[1]), 0, c_size_t(160))
    with pytest.raises(Failed, match="v2 of lane 40 was never written"):
        launch(hip, module, "copy", memory)


def test_registered_memory_is_written_unless_declared_otherwise():
    module = simulator.Module(check_kernels.assembled(KERNELS))
    out, source = numpy.zeros(64, numpy.uint32), numpy.arange(64, dtype=numpy.uint32)
    arguments = struct.pack("<2Q", out.ctypes.data, source.ctypes.data)
    for unwritten in (False, True, False):
        with (
            simulator.register(out, "out"),
            simulator.register(source, "in", unwritten=unwritten),
            simulator.checking("all"),
        ):
            if unwritten:
                with pytest.raises(simulator.SimulatorError, match="v2 of lane 0 was never written"):
                    module.launch("copy", (1, 1, 1), (64, 1, 1), arguments)
            else:
                module.launch("copy", (1, 1, 1), (64, 1, 1), arguments)


PRIVATE = """
extern "C" __global__ void private_segment(u32* out, const u32* in, u32 first) {
  volatile u32 row[16];
  const u32 lane = __builtin_amdgcn_workitem_id_x();
  for (u32 i = first; i < 16; ++i) row[i] = i;
  out[lane] = row[in[lane] & 15];
}
"""


@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_private_segments(level):
    module = simulator.Module(device_compiler.compile_hip(PRIVATE, level))
    out, source = numpy.zeros(64, numpy.uint32), (numpy.arange(64) % 8 + 4).astype(numpy.uint32)
    with simulator.register(out, "out"), simulator.register(source, "in", writable=False):
        for first in (0, 4, 6):  # from where on the row is written
            arguments = struct.pack("<2QI", out.ctypes.data, source.ctypes.data, first)
            with simulator.checking("all"):
                if first <= 4:
                    module.launch("private_segment", (1, 1, 1), (64, 1, 1), arguments)
                    assert numpy.array_equal(out, source)
                else:
                    with pytest.raises(
                        simulator.SimulatorError, match="of lane 0 was never written and reaches"
                    ):
                        module.launch("private_segment", (1, 1, 1), (64, 1, 1), arguments)
