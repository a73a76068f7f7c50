"""liteattention_rocm.simulator: registration, options, statistics, modules, and what their errors say."""

import os
import struct
import subprocess
import sys

import pytest
import torch

import liteattention_rocm
from attention_cases import Case, same_bits
from liteattention_rocm import _C, simulator

NAME = "attention_forward_rtne"


@pytest.fixture
def module():
    module = simulator.Module(_C.code_object("gfx942"))
    yield module
    module.close()


def packed(q, k, v, out, lse):
    """ForwardArguments of csrc/device/arguments.hpp for [1, rows, 1, 128] tensors and the scale 0.1."""
    addresses = (t.data_ptr() for t in (q, k, v, out, lse))
    return struct.pack(
        "<5Q12q4i2f2I",
        *addresses,
        *(0, 0, 256) * 4,
        q.shape[1],
        k.shape[1],
        1,
        1,
        0.1,
        0.1 * 1.4426950408889634,
        0,
        0,
    )


def test_a_module_runs_a_kernel(module):
    """The kernel's own arguments, packed by hand, give the bits of the operator."""
    q, k, v = (t.contiguous() for t in Case(130, 70, batch=1, heads=1, kv_heads=1).inputs())
    out, lse = torch.empty_like(q), torch.empty(1, 1, 130)
    with (
        simulator.register(q, "q", False),
        simulator.register(k, "k", False),
        simulator.register(v, "v", False),
        simulator.register(out, "out"),
        simulator.register(lse, "lse"),
    ):
        module.launch(NAME, (2, 1, 1), (256, 1, 1), packed(q, k, v, out, lse))
    expected, expected_lse = liteattention_rocm.attention(q, k, v, scale=0.1, return_lse=True)
    assert same_bits(out, expected)
    assert torch.equal(lse, expected_lse)


@pytest.mark.parametrize("writable", [True, False])
def test_a_fault_names_kernel_and_memory(module, writable):
    """Memory that is not registered, or registered for reading alone."""
    q, k, v = (t.contiguous() for t in Case(4, 4, batch=1, heads=1, kv_heads=1).inputs())
    out, lse = torch.zeros_like(q), torch.empty(1, 1, 4)
    with (
        simulator.register(q, "q", False),
        simulator.register(k, "k", False),
        simulator.register(v, "v", False),
        simulator.register(out[:, :3] if writable else out, "the output", writable),
        simulator.register(lse, "lse"),
        pytest.raises(simulator.SimulatorError, match=f"{NAME}.*buffer_store"),
    ):
        module.launch(NAME, (1, 1, 1), (256, 1, 1), packed(q, k, v, out, lse))


def test_unknown_kernel(module):
    with pytest.raises(simulator.SimulatorError, match=r"kernel 'missing'.*hipErrorNotFound"):
        module.launch("missing", (1, 1, 1), (64, 1, 1), b"")


def test_what_is_no_code_object():
    with pytest.raises(simulator.SimulatorError, match="hipModuleLoadData"):
        simulator.Module(b"\x7fELF" + bytes(200))
    with pytest.raises(simulator.SimulatorError):
        simulator.disassemble(b"text")


def test_options():
    with pytest.raises(simulator.SimulatorError, match=r"option threads='many' was refused: .*1024"):
        simulator.set_option("threads", "many")
    with pytest.raises(simulator.SimulatorError, match=r"no option 'speed'"):
        simulator.set_option("speed", 1)


def test_statistics_count_what_ran():
    q, k, v = Case(200, 64, batch=2, heads=3, kv_heads=3).inputs()
    simulator.reset_statistics()
    assert simulator.statistics()["kernels"] == {}
    for _ in range(2):
        liteattention_rocm.attention(q, k, v, rounding="rtz")
    statistics = simulator.statistics()
    (name,) = statistics["kernels"]
    counted = statistics["kernels"][name]
    assert name == "attention_forward_rtz"
    assert counted["launches"] == 2
    assert counted["workgroups"] == 2 * 2 * 3 * 2
    assert counted["waves"] == 4 * counted["workgroups"]
    # S and O of 128 query rows over 64 KV rows: 2·128·64·128 multiply-adds, 16·16·16 an MFMA.
    assert counted["matrix"] == counted["workgroups"] * 2 * 128 * 64 * 128 // 16**3
    assert counted["instructions"] > counted["matrix"] + counted["vector"]
    assert statistics["hip_calls"]["hipModuleLaunchKernel"] == 2


def test_buffers_can_be_registered():
    memory = bytearray(64)
    with simulator.register(memory, "buffer"):
        pass
    with pytest.raises(ValueError, match="must be contiguous"), simulator.register(memoryview(memory)[::2]):
        pass


def test_exact_matrix_arithmetic_changes_few_bits(exact_matrices):
    """The matrix core's own arithmetic in place of float32 sums: a rounding here and there, no more."""
    q, k, v = Case(128, 200).inputs()
    exact = liteattention_rocm.attention(q, k, v)
    simulator.set_option("matrix", "float32")
    plain = liteattention_rocm.attention(q, k, v)
    assert 0 < (plain != exact).float().mean() < 0.01
    assert torch.allclose(plain.float(), exact.float(), atol=2**-9, rtol=2**-7)


def test_exact_matrix_arithmetic_is_the_default():
    """In a process that asks for nothing; the bits of a sum that float32 ends otherwise tell."""
    script = """if True:
        import torch
        import liteattention_rocm
        from liteattention_rocm import simulator

        generator = torch.Generator().manual_seed(3)
        q, k, v = (torch.randn(1, 128, 2, 128, generator=generator).to(torch.bfloat16) for _ in range(3))
        outputs = [liteattention_rocm.attention(q, k, v)]
        for name in ("exact", "float32"):
            simulator.set_option("matrix", name)
            outputs.append(liteattention_rocm.attention(q, k, v))
        print([torch.equal(outputs[0], other) for other in outputs[1:]])
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "LITEATTENTION_ROCM_SIM_MATRIX"
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[True, False]"
