"""The package's kernels and AITER's under all checks, and mutants of the package's."""

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


@pytest.mark.parametrize("kernel", KERNELS)
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


@pytest.mark.parametrize("kernel", [KERNELS[0], "attention_skip_forward_rtne", "attention_skip_order"])
def test_a_sample_of_mutants(code_object, kernel):
    report = check.mutate_kernel(code_object, kernel, problems.problems_for(kernel), every=9)
    assert report["mutants"] > (15 if "forward" in kernel else 1)
    assert report["share"] >= 0.95, report["survivors"]


@pytest.mark.full
@pytest.mark.parametrize("kernel", KERNELS)
def test_all_mutants(code_object, kernel):
    report = check.mutate_kernel(code_object, kernel, problems.problems_for(kernel))
    assert {"delete s_waitcnt", "delete s_barrier", "LDS offset"} <= set(report["kinds"])
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
