"""Reports that concern launches, processes, lengths and choices, by the report's number as in
test_user_reports.py. docs/testing.md says for every number where its tests are.
"""

import ast
import logging
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import hip_stub
import liteattention_rocm
from attention_cases import Case
from liteattention_rocm import _C, LiteAttention, arguments, reference, simulator
from liteattention_rocm.checking import mutants, problems
from liteattention_rocm.lite import fallback, lists
from liteattention_rocm.lite.cost import Costs, Listed

ROOT = Path(__file__).parent.parent


def realistic(operands):
    """Activations as a transformer has them: a few channels carry most of the scores, values reach 30."""
    spikes = torch.ones(128)
    spikes[::17] = 6.0
    operands.q.mul_(spikes)
    operands.k.mul_(2.0)
    operands.v.mul_(4.0)
    return operands


@pytest.mark.parametrize("family", ["forward", "pingpong"])
def test_row_08_buffers_in_lds_are_not_reused_too_early(family):
    """A slot of LDS that is filled again before its last reader is through: repeated runs on realistic
    magnitudes give the same bits however loads are delivered, and without any one of the barriers that guard
    the slots the race detector ends the launch. Results alone need not show it."""
    image = _C.code_object("gfx942")
    kernel = f"attention_{family}_rtne"
    module = simulator.Module(image)
    operands = realistic(problems.Operands.draw(problems.Problem(40, 200)))
    intact = problems.launch(module, kernel, operands)
    simulator.reset_statistics()
    for delivery in problems.deliveries(2):
        with simulator.checking("all", delivery=delivery):
            assert problems.launch(module, kernel, operands) == intact, delivery
    assert operands.out.abs().max() > 4
    executed = set(simulator.executed())
    barriers = [
        one["address"]
        for one in mutants.kernel_instructions(image, kernel)
        if one["op"] == "s_barrier" and one["address"] in executed
    ]
    needed = 0
    for barrier in barriers:
        with simulator.checking("races,waits", mutation=f"skip:{barrier}"):
            try:
                problems.launch(module, kernel, operands)
            except simulator.SimulatorError as error:
                needed += "race on" in str(error)
    assert needed >= 1, f"none of {len(barriers)} barriers is missed"


ALLOWED_IN_A_CALL = {
    "hipModuleLaunchKernel",  # and questions that neither wait nor change anything:
    "hipInit",
    "hipDeviceGetAttribute",
    "hipGetDevice",
}


@pytest.mark.usefixtures("dense_kernel")
def test_row_11_a_call_launches_and_does_nothing_else():
    """Once the code object is loaded, no call allocates, copies, synchronises or loads, whatever its shape:
    what graph capture demands."""
    liteattention_rocm.prepare("cpu")
    shapes = [(1, 1), (130, 70), (400, 300), (130, 70)]
    simulator.reset_statistics()
    for shape in shapes:
        for return_lse in (False, True):
            liteattention_rocm.attention(*Case(*shape).inputs(), return_lse=return_lse)
    calls = simulator.statistics()["hip_calls"]
    assert set(calls) <= ALLOWED_IN_A_CALL
    assert calls["hipModuleLaunchKernel"] >= 2 * len(shapes)


def test_row_11_streams_share_no_state(tmp_path):
    """Calls alternating between two streams differ in the stream alone."""
    stub = hip_stub.Stub(hip_stub.copy(tmp_path / "libhip.so"))
    hip = _C.open_hip(str(stub.path))
    call = hip_stub.forward_arguments()
    _C.prepare(hip, 0, "gfx942", 304)
    stub.clear()
    for stream in (0x5000, 0x6000, 0x5000, 0x6000):
        _C.forward(hip=hip, **call | {"stream": stream})
    launches = stub.launches()
    per_call = len(launches) // 4
    assert per_call and set(stub.functions()) <= ALLOWED_IN_A_CALL | {"hipSetDevice", "hipStreamIsCapturing"}
    streams = [launch.pop("stream") for launch in launches]
    assert streams == [s for s in (0x5000, 0x6000, 0x5000, 0x6000) for _ in range(per_call)]
    assert all(launch == launches[index % per_call] for index, launch in enumerate(launches))


WATCHED = """
import os, sys
import torch
import liteattention_rocm.ops, liteattention_rocm.lite
events = []
def watch(event, arguments):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork"):
        events.append((event, str(arguments[0])))
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & writes:
        events.append((event, str(arguments[0])))
    if event in ("os.mkdir", "fcntl.flock", "fcntl.lockf"):
        events.append((event, str(arguments[0])))
sys.addaudithook(watch)
q = torch.randn(1, 40, 2, 128).bfloat16()
print("STARTED", flush=True)
liteattention_rocm.prepare("cpu")
for _ in range(int(sys.argv[1])):
    liteattention_rocm.attention(q, q, q)
liteattention_rocm.LiteAttention()(q, q, q)
print("EVENTS", events)
"""


def test_row_12_the_compiled_module_can_not_write_lock_or_start_anything():
    """It imports no function that opens a file or starts a process; the simulator reads /proc."""
    from elftools.elf.elffile import ELFFile

    able = (
        r"f?open(at)?(64)?|creat(64)?|mkstemp.*|mkdir(at)?|flock|lockf|fcntl(64)?|v?fork|exec.*|posix_spawn.*"
    )
    for library, permitted in ((Path(_C.__file__), ()), (simulator.path(), ("filebuf", "ifstream"))):
        with library.open("rb") as file:
            symbols = list(ELFFile(file).get_section_by_name(".dynsym").iter_symbols())
        imported = {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"}
        assert "memcpy" in imported, library
        named = {name for name in imported if re.fullmatch(able, name)}
        named |= {name for name in imported if re.search("filebuf|fstream|filesystem", name)}
        assert not {name for name in named if not any(word in name for word in permitted)}, library


def test_row_12_nothing_is_compiled_or_locked_at_run_time(tmp_path):
    """The first call writes no file, takes no lock and starts no compiler, so that a process killed in the
    middle of it leaves nothing that the next one could wait for."""
    empty = {"PATH": str(tmp_path), "HOME": str(tmp_path / "home"), "LITEATTENTION_ROCM_SIM_PROGRESS": "0"}
    command = [sys.executable, "-c", WATCHED]
    killed = subprocess.Popen([*command, "1000000"], env=empty, stdout=subprocess.PIPE, text=True)
    assert killed.stdout.readline() == "STARTED\n"
    time.sleep(0.5)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    killed.stdout.close()
    finished = subprocess.run([*command, "2"], env=empty, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "EVENTS []"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("dense_kernel")
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_row_13_compiled_graphs_and_fakes(layout):
    """A whole graph with inputs of unusual strides: no break, the strides that the fakes promised, the bits
    of contiguous inputs; and torch's own check of an operator passes."""
    q, k, v = Case(33, 70, layout=layout, heads=4, kv_heads=2).inputs()
    q = q.transpose(0, 3).contiguous().transpose(0, 3)
    assert not q.is_contiguous()

    def model(q, k, v):
        out, lse = liteattention_rocm.attention(q, k, v, layout=layout, return_lse=True)
        return out.transpose(1, 2).flatten(2), lse, liteattention_rocm.attention(q, k, v, layout=layout)

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected = model(*(t.contiguous() for t in (q, k, v)))
    for results in (compiled(q, k, v), model(q, k, v)):
        for got, one in zip(results, expected, strict=True):
            assert torch.equal(got, one) and got.stride() == one.stride()
    operators = torch.ops.liteattention_rocm
    torch.library.opcheck(operators.attention.default, (q, k, v), {"layout": layout, "return_lse": True})
    for operator, inputs in (
        (operators.attention_output.default, (q, k, v)),
        (operators.attention_out.default, (q, k, v, torch.empty_like(expected[2]))),
    ):
        torch.library.opcheck(operator, inputs, {"layout": layout}, test_utils=("test_faketensor",))


LONG = 133_120  # tokens of a video of 81 frames at 1080p, and four times what int16 counts


def picked_tiles(query_tiles: int, kv_tiles: int) -> torch.Tensor:
    """Which two KV tiles each query tile visits: the last one and one that wanders over all of them."""
    return torch.tensor([(tile * 7919 % (kv_tiles - 1), kv_tiles - 1) for tile in range(query_tiles)])


def test_row_22_lists_of_133120_tokens():
    """Lists name tiles, not tokens, and tiles beyond what an int16 holds are refused. A call of 133,120² with
    two tiles listed for each query tile is right in every part: first and last rows, and around 32,768."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, LONG, 1, 128, generator=generator).bfloat16() for _ in range(3))
    query_tiles, kv_tiles = lists.query_tiles(LONG), lists.kv_tiles(LONG)
    assert LONG > 4 * 32768 and kv_tiles < 32768
    picked = picked_tiles(query_tiles, kv_tiles)
    kept = torch.zeros(query_tiles, kv_tiles, dtype=torch.bool).scatter_(1, picked, True)
    layer = LiteAttention(threshold=-math.inf, break_even=0)
    layer.read_list = lists.to_ranges(lists.pack(kept[None, None]), kv_tiles, 1)
    out, lse = layer(q, k, v, return_softmax_lse=True)
    rows_q, rows_kv = LONG // query_tiles, LONG // kv_tiles
    for tile in (0, 1, 32767 // rows_q, 32768 // rows_q, 65536 // rows_q, query_tiles - 2, query_tiles - 1):
        rows = slice(tile * rows_q, (tile + 1) * rows_q)
        keys = torch.cat([torch.arange(rows_kv) + kv_tile * rows_kv for kv_tile in picked[tile].tolist()])
        expected, expected_lse = reference.attention(q[:, rows], k[:, keys], v[:, keys])
        replica, _ = reference.replica(q[:, rows], k[:, keys], v[:, keys])
        bar = 1.05 * reference.rmse(replica, expected)
        assert reference.rmse(out[:, rows], expected) <= bar, tile
        assert (lse[:, :, rows].double() - expected_lse).abs().max() <= 5e-6, tile
    with pytest.raises(ValueError, match="at most 32767 KV tiles"):
        lists.to_ranges(lists.full((1, 1, 1), 32768), 32768, 0)


def plain(q, k, v):
    """Attention of single heads in float32, with one softmax over all keys."""
    q, k, v = (t[0, :, 0].float() for t in (q, k, v))
    return (torch.softmax(q @ k.T * 128**-0.5, -1) @ v)[None, :, None]


@pytest.mark.usefixtures("dense_kernel")
def test_row_22_133120_rows_on_either_side():
    """Each of three queries is close to one key alone: the first, one beyond 2^16, and the last."""
    generator = torch.Generator().manual_seed(1)
    far = torch.randn(1, LONG, 1, 128, generator=generator).bfloat16()
    places = [0, 70_001, LONG - 1]
    near = 4 * far[:, places]
    out = liteattention_rocm.attention(near, far, far)
    # P and O are off by a step of bfloat16 each.
    assert (out.float() - plain(near, far, far)).abs().max() <= 2 * 2**-8 * far.abs().max()
    assert (out - far[:, places]).abs().max() <= 0.05
    out = liteattention_rocm.attention(far, near, near)
    assert (out.float() - plain(far, near, near)).abs().max() <= 2 * 2**-8 * near.abs().max()


def test_row_23_the_break_even_sparsity_is_reported(caplog, monkeypatch):
    """A layer that skips less than what pays says so with both numbers, and turns dense."""
    monkeypatch.setattr(fallback, "_told", set())
    sizes = arguments.Sizes(1, 40, 40, 75600, 75600)
    costs = Costs(sizes, 304)
    modelled = costs.break_even("forward")
    assert 0 < modelled < 1
    listed = Listed(1 - modelled, 1 - modelled)
    assert costs.clocks("forward", listed) == pytest.approx(costs.dense)
    layer = LiteAttention(name="blocks.3", break_even=modelled)
    q, k, v = (torch.randn(1, 256, 1, 128).bfloat16() for _ in range(3))
    with caplog.at_level(logging.INFO, "liteattention_rocm"):
        for _ in range(fallback.PATIENCE + 1):
            layer(q, k, v)
    assert layer.is_dense
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"0.0 % of the tiles can be skipped and skipping pays from {100 * modelled:.1f} %" in message


# Where every report's tests are

TABLE = ROOT / "docs" / "testing.md"
REPORTS = range(1, 27)


def rows_with_tests() -> dict[int, set[str]]:
    """The tests whose name bears a report's number, of every module."""
    found = {}
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and (named := re.match(r"test_row_(\d\d)_\w", node.name)):
                found.setdefault(int(named[1]), set()).add(f"{file.name}::{node.name}")
    return found


def test_every_report_has_a_test_and_the_table_names_them_all():
    found = rows_with_tests()
    assert sorted(found) == list(REPORTS)
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", TABLE.read_text(), re.MULTILINE)
    named = {int(number): set(re.findall(r"`(test_\w+\.py::test_row_\w+)`", cell)) for number, cell in rows}
    assert named == found
