"""The package's kernels and AITER's under all checks, and mutants of the package's."""

import json

import pytest

import check_kernels
from liteattention_rocm import _C, simulator
from liteattention_rocm.checking import mutants, problems
from liteattention_rocm.cli import main
from liteattention_rocm.commands import check

KERNELS = _C.kernel_names()


@pytest.fixture(scope="module")
def code_object():
    return _C.code_object("gfx942")


def in_default_run(kernel):
    """rtna's kernels that split or merge differ from rtne's in how they round alone; of skipping ones, rtz's
    too."""
    modes = ("rtna", "rtz") if kernel.startswith("attention_skip") else ("rtna",)
    rare = kernel.endswith(modes) and ("split" in kernel or "merge" in kernel)
    return pytest.param(kernel, marks=pytest.mark.full) if rare else kernel


@pytest.mark.parametrize("kernel", [in_default_run(kernel) for kernel in KERNELS])
def test_intact_kernels_are_clean(code_object, kernel):
    module = simulator.Module(code_object)
    report = check.check_kernel(
        kernel,
        lambda operands: problems.launch(module, kernel, operands),
        problems.problems_for(kernel),
    )
    assert report["findings"] == [] and report["failures"] == []


@pytest.mark.parametrize("rounding", ["rtne", "rtna", "rtz"])
def test_findings_in_aiter_are_explained(aiter, rounding):
    report = check.check_kernel(
        rounding, lambda operands: problems.launch_aiter(rounding, operands), problems.PROBLEMS
    )
    assert report["failures"] == []
    assert [finding["message"] for finding in report["findings"] if not finding["explanation"]] == []


def test_wide_problems(code_object, aiter):
    module = simulator.Module(code_object)
    kernel = KERNELS[0]
    ours = check.check_kernel(
        kernel, lambda operands: problems.launch(module, kernel, operands), problems.WIDE_PROBLEMS, seeds=1
    )
    assert ours["findings"] == [] and ours["failures"] == []
    theirs = check.check_kernel(
        "rtne", lambda operands: problems.launch_aiter("rtne", operands), problems.WIDE_PROBLEMS, seeds=1
    )
    assert theirs["failures"] == []
    assert [finding["message"] for finding in theirs["findings"] if not finding["explanation"]] == []
    strides = {problems.Operands.draw(problem).q.stride(2) for problem in problems.WIDE_PROBLEMS}
    assert len(strides) > 1


def test_results_are_those_of_the_package(code_object):
    import torch

    from liteattention_rocm import attention

    for problem in problems.PROBLEMS:
        operands = problems.Operands.draw(problem)
        out, lse = problems.launch(simulator.Module(code_object), KERNELS[2], operands)
        wanted, wanted_lse = attention(operands.q, operands.k, operands.v, rounding="rtz", return_lse=True)
        assert out == wanted.view(torch.uint8).numpy().tobytes()
        if problem.lse:
            assert lse == wanted_lse.view(torch.uint8).numpy().tobytes()


def test_command(capsys):
    assert main(["check", "--kernel", KERNELS[0], "--shape", "1,1,5,70"]) == 0
    assert f"{KERNELS[0]}: clean" in capsys.readouterr().out
    assert main(["check", "--kernel", "other"]) == 1
    assert "kernel must be one of" in capsys.readouterr().err
    assert main(["check", "--shape", "1,1"]) == 1
    assert "shape must be" in capsys.readouterr().err


def test_command_on_another_object(tmp_path, capsys):
    """Kernels with the package's arguments in any file: intact ones are clean, a damaged one is not."""
    image = bytearray(_C.code_object("gfx942"))
    path = tmp_path / "kernels.co"
    path.write_bytes(image)
    command = [
        "check",
        "--object",
        str(path),
        "--kernel",
        KERNELS[1],
        "--shape",
        "1,2,33,70,1",
        "--seeds",
        "1",
    ]
    assert main(command) == 0
    assert f"{KERNELS[1]}: clean" in capsys.readouterr().out
    waits = [
        one
        for one in mutants.kernel_instructions(bytes(image), KERNELS[1])
        if one["text"] == "s_waitcnt vmcnt(0)"
    ]
    for wait in waits:  # s_nop 0 instead
        place = mutants._file_offset(bytes(image), wait["address"])
        image[place : place + 4] = (0xBF800000).to_bytes(4, "little")
    path.write_bytes(image)
    assert main([*command, "--json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert {finding["check"] for finding in report["findings"]} & {"waits", "races"}
    assert report["deliveries"] == ["early", "late", "random:1"]
    assert main(["check", "--object", str(path), "--kernel", "none_such"]) == 1
    assert "kernel must be one of" in capsys.readouterr().err


def test_a_result_that_depends_on_the_order_is_a_failure(code_object):
    module = simulator.Module(code_object)
    waits = [
        one["address"]
        for one in mutants.kernel_instructions(code_object, KERNELS[0])
        if one["text"].startswith("s_waitcnt vmcnt(")
    ]
    chosen = (problems.Problem(40, 130),)
    failures = []
    for address in waits:

        def launch(operands, address=address):
            simulator.set_option("mutation", f"skip:{address}")
            return problems.launch(module, KERNELS[0], operands)

        failures += check.check_kernel("mutant", launch, chosen, "none")["failures"]
    assert any("the results depend on when loads are delivered" in text for text in failures)


@pytest.mark.parametrize(
    "kernel",
    [
        KERNELS[0],
        "attention_aiter_exact_rtz",
        "attention_skip_forward_rtne",
        "attention_skip_order",
        pytest.param("attention_skip_pingpong_rtne", marks=pytest.mark.full),
        pytest.param("attention_pingpong_split_rtz", marks=pytest.mark.full),
        "attention_merge_rtna",
        "attention_skip_pieces",
        pytest.param("attention_skip_merge_rtne", marks=pytest.mark.full),
        pytest.param("attention_skip_forward_split_rtne", marks=pytest.mark.full),
        pytest.param("attention_skip_pingpong_split_rtz", marks=pytest.mark.full),
        pytest.param("attention_varlen_rtne", marks=pytest.mark.full),
    ],
)
def test_a_sample_of_mutants(code_object, kernel):
    every = 3 if "merge" in kernel or "pieces" in kernel else 9
    report = check.mutate_kernel(code_object, kernel, problems.problems_for(kernel), every=every)
    assert report["mutants"] > (1 if kernel.endswith("order") else 15)
    assert report["share"] >= 0.95, report["survivors"]


@pytest.mark.full
@pytest.mark.parametrize("kernel", KERNELS)
def test_all_mutants(code_object, kernel):
    report = check.mutate_kernel(code_object, kernel, problems.problems_for(kernel))
    local = set() if "merge" in kernel or "pieces" in kernel else {"delete s_barrier", "LDS offset"}
    assert {"delete s_waitcnt"} | local <= set(report["kinds"])
    assert report["share"] >= 0.95, report["survivors"]


BODY = (
    "global_load_dword v2, v1, s[6:7]",
    "s_waitcnt vmcnt(0)",
    "s_waitcnt vmcnt(0)",
    "v_rcp_f32_e32 v3, v2",
    "s_nop 0",
    "s_nop 0",
    "v_add_f32_e32 v4, v3, v3",
    "global_store_dword v1, v4, s[4:5]",
)


def test_proofs():
    """Of two waits, or two idle states, either may go but not both."""
    twice = check_kernels.assembled({"twice": BODY})
    once = check_kernels.assembled({"once": (*BODY[:2], *BODY[3:5], *BODY[6:])})
    for op in ("s_waitcnt", "s_nop"):
        places = [one["address"] for one in mutants.kernel_instructions(twice, "twice") if one["op"] == op]
        answers = [simulator.prove(twice, "twice", f"skip:{place}") for place in places]
        # The first s_waitcnt covers the kernel's arguments.
        assert [answer["proven"] for answer in answers] == [False] * (op == "s_waitcnt") + [True, True]
        (place,) = [one["address"] for one in mutants.kernel_instructions(once, "once") if one["op"] == op][
            -1:
        ]
        answer = simulator.prove(once, "once", f"skip:{place}")
        assert not answer["proven"]
        assert (
            "v_rcp_f32_e32 v3, v2" in answer["reason"] if op == "s_nop" else "outstanding" in answer["reason"]
        )


@pytest.mark.parametrize(
    ("use", "states"),
    [
        ("v_mov_b32_e32 v2, v8", 6),
        ("v_mov_b32_e32 v9, v1", 6),
        ("global_store_dword v1, v8, s[4:5]", 9),
        ("v_mfma_f64_4x4x4_4b_f64 v[12:13], v[8:9], v[4:5], 0", 6),
        ("v_mfma_f64_4x4x4_4b_f64 v[8:9], v[4:5], v[4:5], v[8:9]", 4),
        ("v_mfma_f64_16x16x4_f64 v[16:23], v[4:5], v[4:5], v[8:15]", 4),
    ],
)
def test_small_float64_products_need_wait_states(use, states):
    """As the static proof counts them; tests/test_execute_checks.py has the check's own count."""
    product = "v_mfma_f64_4x4x4_4b_f64 v[8:9], v[4:5], v[4:5], 0"
    for idle, proven in ((states, True), (states - 1, False)):
        image = check_kernels.assembled({"double": (product, f"s_nop {idle - 1}", "s_nop 15", use)})
        instructions = mutants.kernel_instructions(image, "double")
        (place,) = (one["address"] for one in instructions if one["text"] == "s_nop 15")
        assert simulator.prove(image, "double", f"skip:{place}")["proven"] is proven


@pytest.mark.parametrize("kept", [True, False])
def test_proofs_tell_paths_apart(kept):
    """The load is issued under a condition, and what touches its result without a wait runs under the
    opposite one; unless the condition changes in between."""
    body = (
        "s_cmp_eq_u32 s2, 1",
        "s_cselect_b64 s[8:9], -1, 0",
        "v_mov_b32_e32 v2, 0",
        "s_mov_b64 vcc, s[8:9]",
        "s_cbranch_vccnz 1f",
        "global_load_dword v2, v1, s[6:7]",
        "1:",
        "s_nop 3" if kept else "s_cselect_b64 s[8:9], 0, -1",
        "s_mov_b64 vcc, s[8:9]",
        "s_cbranch_vccz 2f",
        "s_waitcnt vmcnt(0)",
        "global_store_dword v1, v2, s[4:5]",
        "s_endpgm",
        "2:",
        "s_waitcnt vmcnt(0)",
        "global_store_dword v1, v2, s[4:5]",
    )
    image = check_kernels.assembled({"paths": body})
    _, first, second = (
        one["address"] for one in mutants.kernel_instructions(image, "paths") if one["op"] == "s_waitcnt"
    )
    assert simulator.prove(image, "paths", f"skip:{first}")["proven"] is kept
    assert not simulator.prove(image, "paths", f"skip:{second}")["proven"]


def test_proofs_look_at_paths_that_do_not_execute():
    """The second wait is needed on the path that jumps over the first."""
    body = (
        "global_load_dword v2, v1, s[6:7]",
        "s_cmp_eq_u32 s2, 1",
        "s_cbranch_scc1 1",
        "s_waitcnt vmcnt(0)",
        "s_waitcnt vmcnt(0)",
        "global_store_dword v1, v2, s[4:5]",
    )
    image = check_kernels.assembled({"jump": body})
    _, first, second = (
        one["address"] for one in mutants.kernel_instructions(image, "jump") if one["op"] == "s_waitcnt"
    )
    assert simulator.prove(image, "jump", f"skip:{first}")["proven"]
    assert not simulator.prove(image, "jump", f"skip:{second}")["proven"]
    assert not simulator.prove(image, "jump", f"vmcnt:{second}:1")["proven"]
