"""The host layer against a HIP library that records its calls."""

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from hip_stub import ROOT, Stub, copy, forward_arguments
from liteattention_rocm import _C

LAUNCH_FAILURE = 719
REQUIRED = (
    "hipInit",
    "hipGetDevice",
    "hipSetDevice",
    "hipDeviceGetAttribute",
    "hipModuleLoadData",
    "hipModuleUnload",
    "hipModuleGetFunction",
    "hipModuleLaunchKernel",
    "hipStreamIsCapturing",
    "hipGetErrorName",
    "hipGetErrorString",
    "hipGetLastError",
)


@pytest.fixture
def stub(tmp_path):
    stub = Stub(copy(tmp_path / "libhip_stub.so"))
    stub.hip = _C.open_hip(str(stub.path))
    return stub


@pytest.fixture
def simulator_stub(tmp_path):
    stub = Stub(copy(tmp_path / "libsimulator_stub.so", simulator=True))
    stub.hip = _C.open_hip(str(stub.path))
    return stub


def forward(stub, **changes):
    _C.forward(hip=stub.hip, **forward_arguments(**changes))


def run_python(script, *arguments, **environment):
    """A fresh process that may import the stub's Python side and the installed package."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")} | environment
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd="/")


# What one call does


def test_first_call_loads_once_and_later_calls_only_launch(stub):
    forward(stub)
    functions = stub.functions()
    assert functions.count("hipModuleLoadData") == 1
    assert functions[-1] == "hipModuleLaunchKernel"
    stub.clear()
    forward(stub)
    assert stub.functions() == ["hipGetDevice", "hipModuleLaunchKernel"]  # nothing waits, copies or allocates


def test_the_image_is_the_embedded_elf_page_aligned(stub):
    forward(stub)
    (load,) = [call for call in stub.log() if call["function"] == "hipModuleLoadData"]
    assert load["elf"]
    assert load["image"] % 4096 == 0


def test_launch_carries_the_callers_stream_and_every_argument(stub):
    forward(stub, lse=0x50000000, heads=4, kv_heads=2, rounding=2, scale=0.3, stream=0xABC0)
    (launch,) = stub.launches()
    assert launch["stream"] == 0xABC0
    assert launch["kernel"] == "attention_forward_rtz"
    assert launch["grid"] == [3, 4, 2]
    assert launch["block"] == [256, 1, 1]
    assert launch["lds"] == 0
    arguments = launch["arguments"]
    assert math.isclose(arguments.pop("scale"), 0.3, rel_tol=1e-7)
    assert math.isclose(arguments.pop("scale_log2e"), 0.3 * math.log2(math.e), rel_tol=1e-7)
    assert arguments == {
        "query": 0x10000000,
        "key": 0x20000000,
        "value": 0x30000000,
        "out": 0x40000000,
        "lse": 0x50000000,
        "query_strides": [300 * 4 * 256, 256, 4 * 256],
        "key_strides": [100 * 4 * 256, 256, 4 * 256],
        "value_strides": [100 * 4 * 256, 256, 4 * 256],
        "out_strides": [300 * 4 * 256, 256, 4 * 256],
        "seqlen_q": 300,
        "seqlen_kv": 100,
        "heads": 4,
        "heads_per_kv_head": 2,
        "query_sign_mask": 0,
    }


@pytest.mark.parametrize("rounding", range(3))
def test_rounding_selects_the_kernel(stub, rounding):
    forward(stub, rounding=rounding)
    assert stub.launches()[0]["kernel"] == _C.kernel_names()[rounding]


def test_a_negative_scale_flips_the_query(stub):
    forward(stub, scale=-0.25)
    arguments = stub.launches()[0]["arguments"]
    assert arguments["scale"] == 0.25
    assert arguments["query_sign_mask"] == 0x80008000


def test_a_scale_of_zero_is_a_factor_that_keeps_the_mask(stub):
    forward(stub, scale=0.0)
    arguments = stub.launches()[0]["arguments"]
    assert arguments["scale"] == 0
    assert 0 < arguments["scale_log2e"] < 1e-37  # 0 would turn masked scores of -inf into NaN


def test_strides_beyond_32_bits_arrive_whole(stub):
    forward(stub, key_strides=(2**40, 2**36, 1024), value_strides=(3 * 2**33, 128, 512))
    arguments = stub.launches()[0]["arguments"]
    assert arguments["key_strides"] == [2**41, 2**37, 2048]
    assert arguments["value_strides"] == [3 * 2**34, 256, 1024]


def test_a_stride_of_a_single_entry_means_nothing(stub):
    odd = (3, 5, 2**40 + 1)
    forward(stub, batch=1, heads=1, kv_heads=1, seqlen_q=1, seqlen_kv=1, query_strides=odd, out_strides=odd)
    arguments = stub.launches()[0]["arguments"]
    assert arguments["query_strides"] == arguments["out_strides"] == [0, 0, 256]


def test_large_batches_are_split_where_the_grid_ends(stub):
    entry = 128
    strides = {f"{name}_strides": (entry, 128, 128) for name in ("query", "key", "value", "out")}
    forward(stub, batch=65537, heads=1, kv_heads=1, seqlen_q=1, seqlen_kv=1, lse=0x50000000, **strides)
    first, second = stub.launches()
    assert first["grid"] == [1, 1, 65535]
    assert second["grid"] == [1, 1, 2]
    for name in ("query", "key", "value", "out"):
        assert second["arguments"][name] - first["arguments"][name] == 65535 * entry * 2
    assert second["arguments"]["lse"] - first["arguments"]["lse"] == 65535 * 4


@pytest.mark.parametrize("empty", [{"batch": 0}, {"seqlen_q": 0}])
def test_nothing_to_write_calls_nothing(stub, empty):
    forward(stub, **empty)
    assert stub.log() == []


# Devices and errors


def test_current_device_is_put_back(stub):
    forward(stub, device=3)
    assert stub.launches()[0]["device"] == 3
    assert stub.launches()[0]["loaded_on"] == 3
    assert stub.device == 0


def test_each_device_has_kernels_of_its_own(stub):
    for device in (0, 2, 0, 2):
        forward(stub, device=device)
    assert [launch["loaded_on"] for launch in stub.launches()] == [0, 2, 0, 2]
    assert stub.functions().count("hipModuleLoadData") == 2


@pytest.mark.parametrize(
    "function",
    ["hipModuleLaunchKernel", "hipModuleLoadData", "hipModuleGetFunction", "hipDeviceGetAttribute"],
)
def test_a_failure_names_function_and_error_and_leaves_no_trace(stub, function):
    stub.set(f"fail.{function}", LAUNCH_FAILURE)
    with pytest.raises(RuntimeError) as failure:
        forward(stub, device=1)
    for part in (function, "hipErrorLaunchFailure", "(719)", "what the runtime says"):
        assert part in str(failure.value)
    assert stub.device == 0
    assert stub.last_error == 0
    stub.set(f"fail.{function}", 0)
    forward(stub, device=1)  # nothing half-loaded stays behind
    assert stub.launches()[-1]["loaded_on"] == 1


def test_a_module_without_our_kernels_is_unloaded(stub):
    stub.set("fail.hipModuleGetFunction", 500)
    with pytest.raises(RuntimeError, match="attention_forward_rtne"):
        forward(stub)
    assert stub.functions()[-1] == "hipModuleUnload"


def test_a_device_that_cannot_be_selected(stub):
    stub.set("fail.hipSetDevice", 101)
    with pytest.raises(RuntimeError, match=r"hipSetDevice\(7\)"):
        forward(stub, device=7)
    assert stub.launches() == []


def test_the_simulators_diagnostic_is_in_the_message(simulator_stub):
    simulator_stub.set("fail.hipModuleLaunchKernel", LAUNCH_FAILURE)
    with pytest.raises(RuntimeError, match=r"grid 3x4x2.*\n?.*wave 3 of workgroup \(1, 0, 0\)"):
        forward(simulator_stub)


def test_attribute_numbers_of_another_hip_are_noticed(stub):
    stub.set("warp_size", 32)
    with pytest.raises(RuntimeError, match="warp size of 32"):
        forward(stub)
    assert stub.launches() == []


# Architectures


@pytest.mark.parametrize("arch", ["gfx942", "gfx942:sramecc+:xnack-", "gfx942:xnack-"])
def test_every_spelling_of_the_architecture(stub, arch):
    forward(stub, arch=arch)
    assert len(stub.launches()) == 1
    assert _C.code_object(arch) == _C.code_object("gfx942")


@pytest.mark.parametrize("arch", ["gfx90a:sramecc+:xnack-", "gfx950", "gfx1100", "gfx9422", "sm_90", ""])
def test_other_architectures_are_refused_by_a_sentence(stub, arch):
    for call in (
        lambda: forward(stub, arch=arch),
        lambda: _C.prepare(stub.hip, 0, arch, 304),
        lambda: _C.code_object(arch),
    ):
        with pytest.raises(RuntimeError, match=f"'{re.escape(arch)}' is not supported: .* gfx942"):
            call()
    assert stub.log() == []


# Refused arguments


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hip": 1023}, "hip is 1023"),
        ({"hip": 1024}, "hip is 1024"),
        ({"hip": -1}, "hip is -1"),
        ({"device": -1}, "device is -1"),
        ({"device": 256}, "device is 256"),
        ({"compute_units": -4}, "compute_units is -4"),
        ({"batch": -1}, "batch is -1"),
        ({"heads": 0}, "heads is 0"),
        ({"heads": 65536, "kv_heads": 1}, "heads is 65536"),
        ({"kv_heads": 0}, "kv_heads is 0"),
        ({"kv_heads": 3}, "kv_heads is 3, allowed are divisors of heads"),
        ({"kv_heads": 8}, "kv_heads is 8"),
        ({"seqlen_q": -1}, "seqlen_q is -1"),
        ({"seqlen_q": 2**31 - 1}, "seqlen_q is 2147483647"),
        ({"seqlen_kv": 0}, "seqlen_kv is 0"),
        ({"seqlen_kv": 2**31 - 1}, "seqlen_kv is 2147483647"),
        ({"query": 0}, "query address is 0x0"),
        ({"key": 0x20000008}, "key address is 0x20000008, allowed is a nonzero multiple of 16"),
        ({"value": 0x30000002}, "value address"),
        ({"out": 0x40000004}, "out address"),
        ({"lse": 0x50000002}, "lse address is 0x50000002, allowed is a nonzero multiple of 4"),
        ({"query_strides": (153600, 128, 516)}, "query stride of dimension row is 516 elements"),
        ({"key_strides": (51200, 132, 512)}, "key stride of dimension head is 132"),
        ({"value_strides": (51204, 128, 512)}, "value stride of dimension batch is 51204"),
        ({"value_strides": (51200, 128, -512)}, "value stride of dimension row is -512"),
        (
            {"key_strides": (51200, 128, 2**23 + 8)},
            "key stride of dimension row is 8388616 .* 8388608",
        ),
        ({"out_strides": (0, 128, 512)}, "out stride of dimension batch is 0 .*overlap"),
        ({"out_strides": (153600, 128, 64)}, "out stride of dimension row is 64 .*overlap"),
        ({"key_strides": (2**62, 128, 512)}, "key stride of dimension batch is 4611686018427387904"),
        ({"key": 2**64 - 16}, "key address is 0xfffffffffffffff0, allowed is one whose tensor ends"),
        ({"scale": math.nan}, "scale is nan"),
        ({"scale": math.inf}, "scale is inf"),
        ({"scale": -math.inf}, "scale is -inf"),
        ({"scale": 3e38}, "scale is 3"),
        ({"rounding": 3}, "rounding is 3"),
        ({"rounding": -1}, "rounding is -1"),
    ],
)
def test_bad_arguments_are_named_before_hip_is_called(stub, changes, message):
    with pytest.raises(ValueError, match=message):
        _C.forward(**({"hip": stub.hip} | forward_arguments(**changes)))
    assert stub.log() == []


def test_expanded_inputs_are_served(stub):
    forward(stub, key_strides=(0, 0, 0), value_strides=(0, 0, 0), query_strides=(0, 0, 0))
    assert stub.launches()[0]["arguments"]["key_strides"] == [0, 0, 0]


# Graph capture


def test_no_load_during_capture(stub):
    stub.set("capturing.20480", 1)  # 0x5000
    with pytest.raises(RuntimeError, match=r"liteattention_rocm\.prepare\(device\) before the capture"):
        forward(stub, stream=0x5000)
    assert stub.functions() == ["hipStreamIsCapturing"]
    _C.prepare(stub.hip, 0, "gfx942", 304)
    stub.clear()
    forward(stub, stream=0x5000)
    assert stub.functions() == ["hipGetDevice", "hipModuleLaunchKernel"]


@pytest.mark.parametrize("stream", [0, 1])
def test_the_legacy_stream_is_never_asked(stub, stream):
    forward(stub, stream=stream)
    assert "hipStreamIsCapturing" not in stub.functions()


def test_prepare_is_idempotent_and_launches_nothing(stub):
    for _ in range(3):
        _C.prepare(stub.hip, 1, "gfx942", 304)
    assert stub.functions().count("hipModuleLoadData") == 1
    assert stub.launches() == []
    assert stub.device == 0


# Threads, signals, fork


def test_threads_load_once(stub):
    stub.set("hipModuleLoadData.ms", 50)
    errors = []

    def work():
        try:
            forward(stub)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert stub.functions().count("hipModuleLoadData") == 1
    assert len(stub.launches()) == 8


@pytest.mark.parametrize("function", ["hipModuleLaunchKernel", "hipModuleLoadData"])
def test_the_interpreter_runs_meanwhile(stub, function):
    stub.set(f"{function}.ms", 400)
    thread = threading.Thread(target=forward, args=(stub,))
    start = time.monotonic()
    thread.start()
    steps = 0
    while thread.is_alive() and time.monotonic() - start < 0.3:
        time.sleep(0.01)
        steps += 1
    thread.join()
    assert steps >= 10


def test_ctrl_c_ends_a_simulated_launch(simulator_stub):
    _C.set_interrupt_check(simulator_stub.hip)
    simulator_stub.set("raise", signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        forward(simulator_stub)
    forward(simulator_stub)  # and leaves nothing pending
    assert simulator_stub.last_error == 0


def test_an_error_of_a_signal_handler_comes_through(simulator_stub):
    _C.set_interrupt_check(simulator_stub.hip)

    def handler(number, frame):
        raise LookupError("from the handler")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        simulator_stub.set("raise", signal.SIGUSR1)
        with pytest.raises(LookupError, match="from the handler"):
            forward(simulator_stub)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_interrupt_checks_in_many_threads_do_not_deadlock(simulator_stub):
    _C.set_interrupt_check(simulator_stub.hip)
    simulator_stub.set("hipModuleLoadData.ms", 5)
    finished = []

    def work(first):
        for device in range(8):
            forward(simulator_stub, device=(first + device) % 8)
        finished.append(first)

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert sorted(finished) == list(range(8))
    assert simulator_stub.functions().count("hipModuleLoadData") == 8


def in_child(work):
    """Exit status of a forked child that runs `work`; 99 when it hangs."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not pytest-timeout's
        signal.alarm(10)
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return 99 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def test_a_forked_child_launches(stub):
    forward(stub)

    def work():
        stub.clear()
        forward(stub)
        forward(stub, device=1)
        assert [launch["loaded_on"] for launch in stub.launches()] == [0, 1]

    assert in_child(work) == 0


def test_a_fork_during_a_load_leaves_no_lock_behind(stub):
    stub.set("hipModuleLoadData.ms", 500)
    thread = threading.Thread(target=forward, args=(stub,))
    thread.start()
    while "hipModuleLoadData" not in stub.functions():
        time.sleep(0.01)
    time.sleep(0.05)

    def work():
        stub.set("hipModuleLoadData.ms", 0)
        forward(stub)

    assert in_child(work) == 0
    thread.join()


# Which library


def test_one_library_has_one_number(stub, tmp_path):
    assert _C.open_hip(str(stub.path)) == stub.hip
    link = tmp_path / "link.so"
    link.symlink_to(stub.path)
    assert _C.open_hip(str(link)) == stub.hip
    assert _C.library_path(stub.hip) == str(stub.path)
    other = Stub(copy(tmp_path / "other.so"))
    other.hip = _C.open_hip(str(other.path))
    assert other.hip != stub.hip
    forward(other)
    assert stub.log() == []


def test_the_simulator_is_known_by_its_functions(stub, simulator_stub):
    assert not _C.is_simulator(stub.hip)
    assert _C.is_simulator(simulator_stub.hip)
    _C.set_interrupt_check(stub.hip)  # nothing to install, no error


@pytest.mark.parametrize("function", REQUIRED)
def test_a_missing_function_is_named(tmp_path, function):
    library = copy(tmp_path / "libpartial.so")
    image = library.read_bytes()
    name = b"\0" + function.encode() + b"\0"
    assert image.count(name) >= 1
    library.write_bytes(image.replace(name, name[:-2] + b"_\0"))
    with pytest.raises(RuntimeError, match=rf"libpartial\.so has no function {function}$"):
        _C.open_hip(str(library))


def test_a_missing_library_is_named(tmp_path):
    with pytest.raises(RuntimeError, match=r"nowhere\.so"):
        _C.open_hip(str(tmp_path / "nowhere.so"))


OPEN_ROCM = """
import ctypes, sys
import os
for path in sys.argv[1:]:
    ctypes.CDLL(path)
from liteattention_rocm import _C
number = _C.open_hip("")
assert number == _C.open_hip("")
print(os.path.realpath(_C.library_path(number)))
"""


def test_rocm_is_the_copy_already_loaded(tmp_path):
    elsewhere = copy(tmp_path / "rocm" / "libamdhip64.so")
    loaded = copy(tmp_path / "torch" / "libamdhip64.so.7")
    result = run_python(OPEN_ROCM, loaded, LD_LIBRARY_PATH=str(elsewhere.parent))
    assert result.stdout.strip() == str(loaded), result.stderr


def test_rocm_is_the_copy_that_torch_is_linked_with(tmp_path):
    first = copy(tmp_path / "rocm" / "libamdhip64.so.6")
    torchs = copy(tmp_path / "torch" / "libamdhip64.so")
    c10 = tmp_path / "torch" / "libc10_hip.so"
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "/dev/null", "-x", "none", "-Wl,--no-as-needed"]
    subprocess.run([*command, str(torchs), "-o", str(c10)], check=True)
    result = run_python(OPEN_ROCM, first, c10)
    assert result.stdout.strip() == str(torchs), result.stderr


@pytest.mark.parametrize("name", ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"])
def test_rocm_is_opened_by_name_when_none_is_loaded(tmp_path, name):
    library = copy(tmp_path / name)
    result = run_python(
        "from liteattention_rocm import _C; print(_C.library_path(_C.open_hip('')))",
        LD_LIBRARY_PATH=str(tmp_path),
    )
    assert result.stdout.strip() == library.name, result.stderr


def test_no_rocm_at_all_is_a_sentence():
    result = run_python("from liteattention_rocm import _C; _C.open_hip('')", LD_LIBRARY_PATH="")
    assert "RuntimeError: no HIP runtime" in result.stderr
    for name in ("libamdhip64.so:", "libamdhip64.so.7:", "libamdhip64.so.6:"):
        assert name in result.stderr
