"""The structure of our code object beside AITER's and beside what the compiler makes otherwise."""

import json
from pathlib import Path

import pytest

import device_compiler
from code_object_edits import Edited
from liteattention_rocm import _C, cli, structure
from liteattention_rocm.commands import inspect

OURS = _C.code_object("gfx942")
DEVICE = Path(__file__).parent.parent / "csrc" / "device"
# What differs from AITER's objects and the loader goes by. Each is explained by the table of the command.
LOADER_DIFFERENCES = {
    "segments: PT_LOAD",
    "symbols: descriptors in .symtab",
    "symbols: descriptors in .dynsym",
    "descriptors: kernarg_size",
    "metadata: amdhsa.target",
    "metadata: amdhsa.version",
    "metadata: kernel .reqd_workgroup_size",
    "metadata: kernel .kernarg_segment_align",
    "metadata: argument kinds",
}
OTHER_DIFFERENCES = {
    "sections: .bss",
    "sections: .AMDGPU.gpr_maximums",
    "symbols: kernels in .symtab",
    "symbols: kernels in .dynsym",
    "symbols: variables in .symtab",
    "symbols: variables in .dynsym",
    "descriptors: FLOAT_DENORM_MODE_32",
    "descriptors: ENABLE_DX10_CLAMP",
    "descriptors: ENABLE_IEEE_MODE",
    "metadata: kernel .agpr_count",
    "metadata: kernel .sgpr_spill_count",
    "metadata: kernel .vgpr_spill_count",
    "metadata: kernel .uniform_work_group_size",
    "metadata: kernel .uses_dynamic_stack",
    "metadata: argument .actual_access",
    "metadata: argument .address_space",
    "metadata: argument .name",
    "metadata: argument .value_type",
}
# Numbers of the kernels themselves: registers, LDS, workgroups, and the grid's dimensions.
OF_THE_KERNELS = {
    "descriptors: ENABLE_SGPR_WORKGROUP_ID_Y",
    "descriptors: ENABLE_SGPR_WORKGROUP_ID_Z",
    "descriptors: group_segment_fixed_size",
    "descriptors: GRANULATED_WORKITEM_VGPR_COUNT",
    "descriptors: GRANULATED_WAVEFRONT_SGPR_COUNT",
    "descriptors: ACCUM_OFFSET",
    "metadata: kernel .group_segment_fixed_size",
    "metadata: kernel .kernarg_segment_size",
    "metadata: kernel .max_flat_workgroup_size",
    "metadata: kernel .sgpr_count",
    "metadata: kernel .vgpr_count",
}


def differing(rows, loader=None):
    return {
        f"{row['group']}: {row['field']}"
        for row in rows
        if row["differs"] and (loader is None or row["loader"] == loader)
    }


def compared(*images):
    return inspect.comparison([(str(i), image) for i, image in enumerate((OURS, *images))])


@pytest.mark.parametrize("rounding", ["rtne", "rtna", "rtz"])
def test_differences_from_aiter_are_the_known_ones(aiter, rounding):
    report = compared((aiter.find() / aiter.file_name(rounding)).read_bytes())
    assert report["unexplained"] == []
    assert [one["refusal"] for one in report["code_objects"]] == [None, None]
    assert differing(report["rows"], loader=True) == LOADER_DIFFERENCES
    others = differing(report["rows"], loader=False)
    assert others - OF_THE_KERNELS == OTHER_DIFFERENCES


def test_ours_has_nothing_that_a_loader_could_trip_over(aiter):
    ours = structure.structure(OURS)
    theirs = structure.structure((aiter.find() / aiter.file_name("rtz")).read_bytes())
    assert ours["ELF header"] == theirs["ELF header"]
    assert ours["segments"].keys() == theirs["segments"].keys()
    assert set(ours["segments"]["PT_LOAD"].split()) == set(theirs["segments"]["PT_LOAD"].split())
    assert ours["dynamic table"] == theirs["dynamic table"]  # no relocations, no libraries
    assert ours["notes"] == theirs["notes"]
    assert set(ours["sections"]) - set(theirs["sections"]) <= {".bss", ".AMDGPU.gpr_maximums"}
    assert ours["descriptors"].keys() == theirs["descriptors"].keys()
    keys = {field for field in ours["metadata"] if field.startswith("kernel ")}
    assert keys == {
        f"kernel .{key}"
        for key in (
            *("name", "symbol", "args", "kernarg_segment_size", "kernarg_segment_align", "wavefront_size"),
            *("group_segment_fixed_size", "private_segment_fixed_size", "max_flat_workgroup_size"),
            *("sgpr_count", "vgpr_count", "agpr_count", "sgpr_spill_count", "vgpr_spill_count"),
            *("uniform_work_group_size", "uses_dynamic_stack"),
        )
    }
    assert ours["metadata"]["argument kinds"] == "by_value"  # no hidden arguments


@pytest.mark.parametrize(
    ("flags", "version", "expected"),
    [
        (("-O2",), 5, set()),
        (("-O3",), 4, {"ELF header: EI_ABIVERSION", "metadata: amdhsa.version"}),
        (("-O3",), 6, {"ELF header: EI_ABIVERSION"}),
    ],
    ids=["O2", "v4", "v6"],
)
def test_the_same_source_compiled_otherwise(flags, version, expected):
    """Only what was asked for differs, apart from the kernels' own numbers."""
    source = '#include "attention.hip"\n#include "varlen.hip"\n'
    other = device_compiler.compile_hip(source, *flags, f"-I{DEVICE}", code_object_version=version)
    report = compared(other)
    assert report["unexplained"] == []
    assert [one["refusal"] for one in report["code_objects"]] == [None, None]
    assert differing(report["rows"], loader=True) == expected
    free = OF_THE_KERNELS | {row for row in OTHER_DIFFERENCES if not row.startswith("descriptors")}
    assert differing(report["rows"], loader=False) <= free


def run(capsys, *arguments):
    code = cli.main(["inspect", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_command(capsys, aiter):
    file = aiter.find() / aiter.file_name("rtz")
    code, out, _ = run(capsys, "--compare", file)
    assert code == 0
    assert "[1] embedded gfx942: no rule of the loader is broken" in out and str(file) in out
    assert "  ! PT_LOAD " in out and "  ~ .bss " in out and "0 of them without explanation" in out
    code, out, _ = run(capsys, "--compare", file, file, "--json")
    report = json.loads(out)
    assert code == 0 and len(report["code_objects"]) == 3
    assert all(len(row["values"]) == 3 for row in report["rows"])


def test_what_is_not_explained_is_said(capsys, tmp_path):
    def change(root):
        root["amdhsa.kernels"][-1].pop(".uses_dynamic_stack")
        root["vendor.key"] = 1

    file = tmp_path / "other.co"
    file.write_bytes(bytes(Edited(OURS).metadata(change)))
    code, out, _ = run(capsys, "--compare", file)
    assert code == 1
    assert "  ? vendor.key" in out and "no explanation" in out


def test_what_the_loader_refuses_is_said(capsys, tmp_path):
    file = tmp_path / "other.co"
    file.write_bytes(bytes(Edited(OURS).program("PT_LOAD", 1, "p_flags", 7)))
    code, out, _ = run(capsys, "--compare", file)
    assert code == 1
    assert "p_flags of program header 2 is RWX" in out


@pytest.mark.parametrize("content", [b"", b"text", OURS[:300], OURS[:2000]])
def test_other_files(capsys, tmp_path, content):
    file = tmp_path / "other.co"
    file.write_bytes(content)
    code, _, err = run(capsys, "--compare", file)
    assert code == 1 and str(file) in err
