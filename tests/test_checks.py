"""Each check of the simulator finds the fault it is for, and nothing in the twin without it."""

import os
import re
import struct

import numpy
import pytest

import check_kernels
from liteattention_rocm import simulator
from liteattention_rocm.checking import mutants

ALL = "waits,wait_states,races,uninitialised,bounds,resources"


@pytest.fixture(scope="module")
def module():
    return simulator.Module(check_kernels.code_object())


@pytest.fixture
def one_thread():
    """Workgroups one after the other."""
    simulator.set_option("threads", 1)
    yield
    simulator.set_option("threads", os.cpu_count())


def launch(module, kernel, case, **options):
    """Runs a kernel of check_kernels; what it stored."""
    items = case.block * case.grid
    out = numpy.full(items, 0xFFFFFFFF, numpy.uint32)
    source = numpy.arange(items, dtype=numpy.uint32)
    arguments = struct.pack("<2Q", out.ctypes.data, source.ctypes.data)
    with (
        simulator.register(out, "out"),
        simulator.register(source, "in", writable=False),
        simulator.checking(**options),
    ):
        module.launch(kernel, (case.grid, 1, 1), (case.block, 1, 1), arguments)
    return out


@pytest.mark.parametrize("name", check_kernels.CASES)
def test_a_fault_is_found_and_its_repair_is_clean(module, name):
    case = check_kernels.CASES[name]
    observed = f"{case.check},bounds"
    for check in (observed if case.contested else case.check, observed, "all", ALL):
        with pytest.raises(simulator.SimulatorError) as failure:
            launch(module, f"{name}_broken", case, check=check)
        message = str(failure.value)
        # Other checks may find the same fault first.
        assert check in ("all", ALL) or re.search(case.words, message), message
        assert f"kernel {name}_broken, workgroup (" in message
        launch(module, f"{name}_kept", case, check=check)


REPORT = re.compile(
    r"kernel (\w+), workgroup \(([01]), 0, 0\), wave ([01]), "
    r'"(?P<text>[^"]+)" at (?P<address>0x[0-9a-f]+): (?P<reason>.*)'
)
# Where in a wave or in memory: a vector register and a lane, a lane and a byte, a scalar register, or a part
# of the wave's state that is none of these.
PLACE = re.compile(
    r"\b[va]\d+ of lane \d+|lane \d+ touches (v\d+|LDS byte \d+)|byte (0x)?[0-9a-f]+\b.*lane \d+"
    r"|\bs\d+\b|vcc_lo|SCC|EXEC|M0|s_[gs]etreg|float64|byte \d+ of its \d+"
)


@pytest.mark.parametrize("name", check_kernels.CASES)
def test_a_finding_says_where(module, name):
    """Kernel, workgroup, wave, address, the instruction there, lane, and register or byte."""
    case = check_kernels.CASES[name]
    with pytest.raises(simulator.SimulatorError) as failure:
        launch(module, f"{name}_broken", case, check=f"{case.check},bounds")
    found = REPORT.search(str(failure.value))
    assert found and found[1] == f"{name}_broken" and PLACE.search(found["reason"]), failure.value
    listed = mutants.kernel_instructions(check_kernels.code_object(), f"{name}_broken")
    assert {one["address"]: one["text"] for one in listed}[int(found["address"], 16)] == found["text"]
    # The other instruction of a pair is named in the same way.
    for text, address in re.findall(r'"([^"]+)" at (0x[0-9a-f]+)', found["reason"]):
        assert {one["address"]: one["text"] for one in listed}[int(address, 16)] == text


@pytest.mark.parametrize("name", check_kernels.CASES)
def test_a_check_that_is_off_says_nothing(module, name):
    case = check_kernels.CASES[name]
    others = ",".join(check for check in ALL.split(",") if check != case.check)
    if name == "uninitialised_address":
        for check in (others, "none"):  # what lies in the register is no address
            with pytest.raises(simulator.SimulatorError, match="no registered memory there"):
                launch(module, f"{name}_broken", case, check=check)
        return
    launch(module, f"{name}_broken", case, check=others)
    launch(module, f"{name}_broken", case, check="none")


@pytest.mark.parametrize("name", [name for name, case in check_kernels.CASES.items() if case.contested])
def test_contested_rules_need_observation(module, name):
    launch(module, f"{name}_broken", check_kernels.CASES[name], check="waits,wait_states")


@pytest.mark.parametrize("delivery", ["late", "random:0", "random:7"])
@pytest.mark.parametrize("name", check_kernels.CASES)
def test_findings_do_not_depend_on_the_order_of_completion(module, one_thread, name, delivery):
    case = check_kernels.CASES[name]
    places = []
    for how in ("early", delivery):
        simulator.reset_statistics()
        launch(module, f"{name}_kept", case, check="all", delivery=how)
        if name == "uninitialised_address":
            continue  # its findings are followed by an access to nowhere
        launch(module, f"{name}_broken", case, check="all", delivery=how, findings="all")
        places.append({(one["check"], one["address"]) for one in simulator.findings()})
    assert not places or (places[0] == places[1] and places[0])


def test_random_orders_of_completion_differ(module):
    """Loads into registers appear in their order; what is used too early differs by the seed, what is not
    does not."""
    case = check_kernels.CASES["waits_load"]
    outputs = {
        launch(module, "waits_load_broken", case, check="none", delivery=f"random:{seed}").tobytes()
        for seed in range(40)
    }
    assert len(outputs) == 2
    wanted = launch(module, "waits_load_kept", case, check="none")
    for seed in range(10):
        got = launch(module, "waits_load_kept", case, check="none", delivery=f"random:{seed}")
        assert numpy.array_equal(got, wanted)


def test_loads_appear_in_order():
    """Of two loads into registers the second is never there without the first; a scalar load may overtake."""
    body = (
        "v_mov_b32_e32 v2, -1",
        "v_mov_b32_e32 v3, -1",
        "s_mov_b32 s8, -1",
        "s_mov_b32 s9, -1",
        "s_load_dword s8, s[6:7], 0x4",
        "s_load_dword s9, s[6:7], 0x8",
        "global_load_dword v2, v1, s[6:7]",
        "global_load_dword v3, v1, s[6:7]",
        "{wait}",
        "v_mov_b32_e32 v4, v2",
        "v_mov_b32_e32 v5, v3",
        "s_mov_b32 s10, s8",
        "s_mov_b32 s11, s9",
        "s_waitcnt vmcnt(0) lgkmcnt(0)",
        "v_mov_b32_e32 v6, 1",
        "v_mov_b32_e32 v7, 0",
        "v_cmp_eq_u32_e32 vcc, v4, v0",  # 1: the first load was there
        "s_nop 1",
        "v_cndmask_b32_e32 v8, v7, v6, vcc",
        "v_cmp_eq_u32_e32 vcc, v5, v0",  # 2: the second
        "v_mov_b32_e32 v6, 2",
        "s_nop 1",
        "v_cndmask_b32_e32 v9, v7, v6, vcc",
        "v_or_b32_e32 v8, v8, v9",
        "s_cmp_eq_u32 s10, 1",  # 4, 8: the scalar loads
        "s_cselect_b32 s10, 4, 0",
        "s_cmp_eq_u32 s11, 2",
        "s_cselect_b32 s11, 8, 0",
        "s_or_b32 s10, s10, s11",
        "v_or_b32_e32 v8, s10, v8",
        "global_store_dword v1, v8, s[4:5]",
    )
    case = check_kernels.Case("", (), (), "")
    image = check_kernels.assembled({"order": [line.replace("{wait}", "s_nop 7") for line in body]})
    module = simulator.Module(image)
    seen = {
        int(value)
        for seed in range(120)
        for value in launch(module, "order", case, check="none", delivery=f"random:{seed}")
    }
    assert all(value & 1 or not value & 2 for value in seen)
    assert {value & 3 for value in seen} == {0, 1, 3}
    assert {value & 12 for value in seen} == {0, 4, 8, 12}


def test_findings_are_listed(module):
    simulator.reset_statistics()
    name = "races_lds"
    launch(module, f"{name}_broken", check_kernels.CASES[name], check="races", findings="all")
    found = simulator.findings()
    assert {finding["check"] for finding in found} == {"races"}
    assert len({finding["address"] for finding in found}) == len(found)
    finding = found[0]
    assert finding["kernel"] == f"{name}_broken" and finding["occurrences"] > 1
    assert f" at {finding['address']:#x}: race on LDS byte" in finding["message"]
    assert finding["address"] in simulator.executed()
    simulator.reset_statistics()
    assert simulator.findings() == [] and simulator.executed() == []


def test_late_loads_expose_a_use_before_the_wait(module):
    case = check_kernels.CASES["waits_load"]
    early = launch(module, "waits_load_broken", case, check="none")
    late = launch(module, "waits_load_broken", case, check="none", delivery="late")
    assert numpy.array_equal(early, numpy.arange(64))
    assert not numpy.any(late == early)
    kept = launch(module, "waits_load_kept", case, check="none", delivery="late")
    assert numpy.array_equal(kept, early)


@pytest.mark.parametrize("name", ["waits_scalar_order", "waits_lds_transfer"])
def test_late_scalar_loads_and_transfers(module, name):
    case = check_kernels.CASES[name]
    early = launch(module, f"{name}_kept", case, check="none")
    assert numpy.array_equal(launch(module, f"{name}_kept", case, check="none", delivery="late"), early)
    assert not numpy.array_equal(launch(module, f"{name}_broken", case, check="none", delivery="late"), early)


def test_late_transfers_are_late_for_other_waves(module):
    name = "races_lds_transfer_in_flight"
    case = check_kernels.CASES[name]
    early = launch(module, f"{name}_kept", case, check="none")
    assert numpy.array_equal(launch(module, f"{name}_kept", case, check="none", delivery="late"), early)
    assert not numpy.array_equal(launch(module, f"{name}_broken", case, check="none", delivery="late"), early)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("check", "wait"),
        ("check", "all,races"),
        ("mutation", "drop:1"),
        ("mutation", "skip"),
        ("mutation", "skip:x"),
        ("delivery", "never"),
        ("delivery", "random"),
        ("delivery", "random:-1"),
        ("findings", "some"),
    ],
)
def test_bad_options_are_refused(option, value):
    with pytest.raises(simulator.SimulatorError, match=f"option {option}.*'{re.escape(value)}'.*allowed"):
        simulator.set_option(option, value)


MUTABLE = (
    "s_mov_b32 m0, 0",
    "s_nop 0",
    "global_load_lds_dword v1, s[6:7]",
    "s_waitcnt vmcnt(0)",
    "ds_read_b32 v2, v1",
    "s_waitcnt lgkmcnt(0)",
    "s_mov_b64 exec, 0xffff",
    "s_mov_b32 s8, s4",
    "s_mov_b32 s9, s5",
    "s_movk_i32 s10, 0x100",
    "s_mov_b32 s11, 0x20000",
    "buffer_store_dword v2, v1, s[8:11], 0 offen",
)


@pytest.mark.parametrize(
    ("op", "kind", "amount", "stored"),
    [
        ("s_mov_b32", "m0", 4, [None, *range(15)]),
        ("s_mov_b64", "exec", -1, list(range(15))),
        ("s_mov_b64", "exec", 1, list(range(64))),
        ("buffer_store_dword", "records", -240, list(range(4))),
        ("buffer_store_dword", "records", -256, []),
        ("s_mov_b64", "skip", 0, list(range(64))),
    ],
)
def test_mutations_do_what_they_say(op, kind, amount, stored):
    image = check_kernels.assembled({"mutable": MUTABLE})
    (address, *_) = (
        one["address"] for one in mutants.kernel_instructions(image, "mutable") if one["op"] == op
    )
    case = check_kernels.Case("", (), (), "")
    module = simulator.Module(image)
    intact = launch(module, "mutable", case, check="none")
    assert list(intact[:17]) == [*range(16), 0xFFFFFFFF]
    out = launch(module, "mutable", case, check="none", mutation=f"{kind}:{address}:{amount}")
    assert [value for value, wanted in zip(out, stored, strict=False) if wanted is not None] == [
        wanted for wanted in stored if wanted is not None
    ]
    assert numpy.all(out[len(stored) :] == 0xFFFFFFFF)


def test_mutants_of_every_kind_are_listed():
    image = check_kernels.assembled({"mutable": MUTABLE})
    listed = mutants.list_mutants(image, "mutable")
    assert {mutant.kind for mutant in listed} == {
        "delete s_waitcnt",
        "delete s_nop",
        "weaken vmcnt",
        "weaken lgkmcnt",
        "LDS offset",
        "M0",
        "EXEC",
        "num_records",
    }
    (moved,) = (mutant for mutant in listed if mutant.kind == "LDS offset")
    place, patched = moved.patch
    changed = simulator.disassemble(image[:place] + patched + image[place + 4 :])["instructions"]
    assert [one["text"] for one in changed if one["address"] == moved.address] == [
        "ds_read_b32 v2, v1 offset:4"
    ]


def test_lds_beyond_the_allocation_is_refused_by_any_launch():
    image = check_kernels.assembled({"beyond": ("ds_read_b32 v2, v1 offset:4096",)})
    case = check_kernels.Case("", (), (), "")
    for check in ("none", "resources"):
        with pytest.raises(simulator.SimulatorError, match=r"LDS address 0x1000 .*lane 0.* has 4096 bytes"):
            launch(simulator.Module(image), "beyond", case, check=check)


def test_a_mutant_that_runs_away_is_stopped():
    body = ("s_mov_b64 exec, -1", "s_cbranch_execz 1", "s_branch 1", "s_branch 65533")
    image = check_kernels.assembled({"loop": body})
    case = check_kernels.Case("", (), (), "")
    (_, inward, _) = (
        one["address"]
        for one in mutants.kernel_instructions(image, "loop")
        if one["op"] in ("s_cbranch_execz", "s_branch")
    )
    module = simulator.Module(image)
    launch(module, "loop", case)
    with pytest.raises(simulator.SimulatorError, match="the mutant runs away"):
        launch(module, "loop", case, check="none", mutation=f"skip:{inward}")
