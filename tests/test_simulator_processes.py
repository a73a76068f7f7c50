"""Launches from several threads and processes, failing and interrupted ones; options and statistics."""

import ctypes
import re
import struct
import subprocess
import sys
import threading
from ctypes import c_size_t, c_void_p
from pathlib import Path

import numpy as np
import pytest

import device_compiler
import simulated_hip as codes
from simulated_hip import Failed, pointer, run_python, words


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
