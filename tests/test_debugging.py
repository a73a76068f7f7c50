"""The debug aid: what agrees, and for one fault at each stage, the stage, tile and row that it names."""

import json
import math

import pytest
import torch

import liteattention_rocm
from attention_cases import LAYOUTS, ROUNDINGS, Case, same_bits
from liteattention_rocm import _C, cli, debugging, runtime, simulator
from liteattention_rocm.debugging import comparison, observed, stages


def inputs(**changes):
    case = Case(70, 150, **{"batch": 2, "heads": 2, "kv_heads": 1} | changes)
    return case.inputs()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_observed_kernel_is_the_one_that_runs(monkeypatch, rounding, layout):
    """O and LSE have the bits of the kernel without stores, so that what lies between is what it computes."""
    monkeypatch.setattr(runtime, "forced_family", "forward")
    for scale, (seqlen_q, seqlen_kv) in ((None, (257, 150)), (-0.3, (1, 64)), (1.5, (129, 65))):
        case = Case(seqlen_q, seqlen_kv, rounding, layout, heads=4, kv_heads=2)
        q, k, v = case.inputs()
        options = {"scale": scale, "layout": layout, "rounding": rounding}
        sizes = comparison.arguments.check_inputs(q, k, v, layout)
        made = observed.hip(q, k, v, sizes, **options | {"scale": scale or 128**-0.5})
        out, lse = liteattention_rocm.attention(q, k, v, return_lse=True, **options)
        out = out.transpose(1, 2) if layout == "bshd" else out
        assert same_bits(made["O"], out)
        assert torch.equal(made["LSE"], lse)
        assert not any(made[stage].isnan().any() for stage in stages.STAGES)


@pytest.mark.parametrize(
    ("rounding", "scale", "factor"), [("rtne", None, 1), ("rtna", -0.3, 2), ("rtz", 1.0, 4), ("rtz", 0.0, 1)]
)
def test_hip_and_float64_agree(rounding, scale, factor):
    q, k, v = inputs()
    found = debugging.compare(q * factor, k * factor, v, rounding=rounding, scale=scale, kernels=("hip",))
    assert found.first is None and found.partings == []
    assert all(one.beyond == 0 and one.share < 1 for one in found.agreements)
    assert [one.stage for one in found.agreements if one.pair == ("hip", "float64")] == list(stages.STAGES)
    assert "no pair parts" in found.text()


def test_all_three_agree():
    pytest.importorskip("triton", reason="Triton is not installed")
    found = debugging.compare(*inputs(layout="bhsd"), layout="bhsd", rounding="rtz")
    assert found.first is None and not found.absent
    pairs = {one.pair for one in found.agreements}
    assert pairs == {("hip", "float64"), ("triton", "float64"), ("launched", "float64"), ("hip", "triton")}
    assert "interpreter" in found.ran["triton"]


def broken(monkeypatch, change):
    """compare() with a HIP kernel whose arguments pass through `change` first."""
    hip = observed.hip

    def changed(q, k, v, sizes, **options):
        tensors, options = change([q.clone(), k.clone(), v.clone()], options)
        return hip(*tensors, sizes, **options)

    monkeypatch.setitem(comparison.KERNELS, "hip", changed)


def other_key(tensors, options):
    tensors[1][1, 70] += 0.5
    return tensors, options


def smaller_scale(tensors, options):
    return tensors, options | {"scale": options["scale"] * (1 + 1e-4)}


def other_rounding(tensors, options):
    return tensors, options | {"rounding": "rtna" if options["rounding"] == "rtz" else "rtz"}


def other_value(tensors, options):
    tensors[2][1, 70, 0, 7] += 1.0
    return tensors, options


@pytest.mark.parametrize(
    ("change", "stage", "place"),
    [
        (other_key, "S", {"tile": 1, "batch": 1, "column": 70}),
        (smaller_scale, "P", {"tile": 0, "batch": 0}),
        (other_rounding, "packed P", {"tile": 0, "batch": 0}),
        (other_value, "O", {"tile": None, "batch": 1, "column": 7}),
    ],
    ids=["S", "P", "packed P", "O"],
)
def test_a_fault_is_named_by_stage_and_place(monkeypatch, change, stage, place):
    broken(monkeypatch, change)
    found = debugging.compare(*inputs(), kernels=("hip",))
    assert found.first.stage == stage and found.first.pair == ("hip", "float64")
    assert place.items() <= vars(found.first).items()
    assert found.first.ulps > 0
    assert abs(found.first.values[0] - found.first.values[1]) > 0
    assert f"hip and float64 part at {stage}, " in found.text()
    # What ran without the fault doesn't part.
    assert [parting.pair for parting in found.partings] == [("hip", "float64")]


def change_of(monkeypatch, stage, place, by):
    hip = observed.hip

    def changed(*arguments, **options):
        made = hip(*arguments, **options)
        made[stage] = made[stage].clone()
        made[stage][place] += by
        return made

    monkeypatch.setitem(comparison.KERNELS, "hip", changed)


@pytest.mark.parametrize(
    ("stage", "place", "by"),
    [
        ("row maximum", (1, 1, 33, 2), 1e-3),
        ("row sum", (0, 1, 69, 1), 1e-2),
        ("LSE", (1, 0, 5), 1e-3),
    ],
)
def test_a_fault_in_what_stands_for_a_row(monkeypatch, stage, place, by):
    change_of(monkeypatch, stage, place, by)
    first = debugging.compare(*inputs(), kernels=("hip",)).first
    assert first.stage == stage
    assert (first.batch, first.head, first.row) == place[:3]
    assert first.tile == (place[3] if len(place) > 3 else None)
    assert first.column is None


def mfmas(name):
    """Addresses of the matrix instructions of an observed kernel, in order."""
    listing = simulator.disassemble(_C.observed_code_object("gfx942"))
    (kernel,) = (kernel for kernel in listing["kernels"] if kernel["name"] == name)
    inside = range(kernel["address"], kernel["address"] + kernel["size"])
    return [
        instruction["address"]
        for instruction in listing["instructions"]
        if instruction["address"] in inside and instruction["text"].startswith("v_mfma")
    ]


@pytest.mark.parametrize(("share", "stage"), [(0.25, "S"), (0.75, "O")])
def test_a_lost_instruction_is_named_by_stage(share, stage):
    """One matrix instruction of the first or of the second product is not executed."""
    addresses = mfmas("attention_observed_rtne")
    assert len(addresses) == 128  # half of them for each product
    address = addresses[int(share * len(addresses))]
    with simulator.checking("none", mutation=f"skip:{address:#x}"):
        found = debugging.compare(*inputs(), kernels=("hip",))
    # The launched kernel lost what it has at that address.
    (parting,) = (parting for parting in found.partings if parting.pair == ("hip", "float64"))
    assert parting.stage == stage
    assert parting.tile == (0 if stage == "S" else None)


def test_triton_that_is_not_there(monkeypatch):
    monkeypatch.setattr(observed.importlib.util, "find_spec", lambda name: None)
    found = debugging.compare(*inputs())
    assert found.absent == {"triton": "Triton is not installed"}
    assert "triton   absent: Triton is not installed" in found.text()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"kernels": ("cuda",)}, ValueError, "kernels must be among hip, triton, got 'cuda'"),
        ({"scale": math.inf}, ValueError, "scale"),
        ({"rounding": "up"}, ValueError, "rounding must be one of"),
        ({"layout": "sbhd"}, ValueError, "layout must be one of"),
    ],
    ids=str,
)
def test_refused_options(change, error, message):
    with pytest.raises(error, match=message):
        debugging.compare(*inputs(), **change)


def test_refused_tensors():
    q, k, v = inputs()
    k[0, 3, 0, 5] = math.nan
    with pytest.raises(ValueError, match="k must be finite"):
        debugging.compare(q, k, v)
    with pytest.raises(ValueError, match=r"q must have rows, got shape \(2, 0, 2, 128\)"):
        debugging.compare(q[:, :0], v, v)
    q = q[:1, :1, :1].expand(1, 5000, 1, 128)
    with pytest.raises(ValueError, match=r"at most 4194304 scores .*, got 25000000"):
        debugging.compare(q, q, q)


def test_command(capsys, monkeypatch):
    arguments = ["debug", "--shape", "1,2,70,130", "--kv-heads", "1", "--kernels", "hip", "--seed", "3"]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "no pair parts" in out and "hip–float64" in out
    broken(monkeypatch, smaller_scale)
    assert cli.main([*arguments, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["partings"][0]["stage"] == "P"
    assert cli.main(["debug", "--shape", "1,2"]) == 1
    assert "--shape must be B,H,Sq" in capsys.readouterr().err
