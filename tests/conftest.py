"""What every test shares: where AITER's code objects are, seeds and thread caps."""

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parent.parent
STUBBED = ("aiter", "amdsmi", "max")  # packages that tests put stubs in the place of

# Read by the simulator at its first use, so before anything imports it. Both checks bind every test.
os.environ.setdefault("LITEATTENTION_ROCM_SIM_CHECK", "waits,wait_states")
os.environ.setdefault("LITEATTENTION_ROCM_SIM_PROGRESS", "0")
os.environ.setdefault("LITEATTENTION_ROCM_SIM_THREADS", str(os.cpu_count() or 1))
os.environ.setdefault("LITEATTENTION_ROCM_AITER_HSA", str(REPOSITORY / ".aiter"))
# Verdicts of a self-test belong to the tests alone.
_cache = tempfile.TemporaryDirectory(prefix="liteattention-rocm-tests-")
os.environ["LITEATTENTION_ROCM_CACHE"] = _cache.name

torch.set_num_threads(min(os.cpu_count() or 1, 2))  # the references are small


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _state() -> dict[str, object]:
    """What tests change for a while and have to put back: every test runs in one process."""
    from liteattention_rocm import runtime

    backend = sys.modules.get("sglang_integration.backend")
    named = {name: module for name, module in list(sys.modules.items()) if name.split(".")[0] in STUBBED}
    stubs = {name for name, module in named.items() if getattr(module, "__spec__", None) is None}
    if backend is not None and "aiter" not in sys.modules and backend.AITER_MODULE in sys.modules:
        stubs.add(backend.AITER_MODULE)  # which can't be imported without AITER
    return {
        "environment": {name: value for name, value in os.environ.items() if "LITEATTENTION" in name},
        "working directory": os.getcwd(),
        "handler of SIGINT": signal.getsignal(signal.SIGINT),
        "stubs": stubs,
        "forced kernel": (runtime.forced_family, runtime.forced_pieces),
        "torch": (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()),
        "failed launches": list(backend._failures) if backend else [],
    }


@pytest.fixture(autouse=True)
def _left_as_it_was(request):
    before = _state()
    yield
    after = _state()
    changed = [f"{name} ({was}: {after[name]})" for name, was in before.items() if was != after[name]]
    assert not changed, f"{request.node.nodeid} leaves changed: {'; '.join(changed)}"


@pytest.fixture(params=["forward", "pingpong"])
def dense_kernel(request, monkeypatch):
    """Each of the dense kernels, whichever the plan would choose."""
    from liteattention_rocm import runtime

    monkeypatch.setattr(runtime, "forced_family", request.param)
    return request.param


@pytest.fixture(scope="session")
def aiter():
    """`liteattention_rocm.aiter_kernel`, with AITER's code objects found. Without them a test fails."""
    from liteattention_rocm import aiter_kernel

    try:
        aiter_kernel.find()
    except FileNotFoundError as error:
        pytest.fail(str(error))
    return aiter_kernel


@pytest.fixture(scope="module")
def hip():
    """The simulator's HIP functions."""
    from simulated_hip import Hip

    return Hip()


@pytest.fixture(scope="module")
def image():
    """The code object of `simulator_kernels.SOURCE`."""
    import device_compiler
    import simulator_kernels

    return device_compiler.compile_hip(simulator_kernels.SOURCE)


@pytest.fixture(scope="module")
def module(hip, image):
    return hip.module(image)


def _matrix_arithmetic(name):
    from liteattention_rocm import simulator

    simulator.set_option("matrix", name)
    yield
    simulator.set_option("matrix", os.environ.get("LITEATTENTION_ROCM_SIM_MATRIX", "exact"))


@pytest.fixture
def exact_matrices():
    """MFMA as the matrix core rounds, whatever the environment asks for."""
    yield from _matrix_arithmetic("exact")


@pytest.fixture
def float32_matrices():
    """MFMA in float32 sums, as replicas in plain PyTorch have them."""
    yield from _matrix_arithmetic("float32")
