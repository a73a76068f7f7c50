"""The plan of a KV split: what it covers, what it costs, and when it is not worth it."""

import math
import os
import subprocess
import sys

import pytest

from liteattention_rocm import _C, arguments, runtime, timing
from liteattention_rocm.lite.cost import Costs, Listed
from liteattention_rocm.rounding import ROUNDINGS
from liteattention_rocm.timing import parameters

COMPUTE_UNITS = [304, 80, 38, 20]
# The nine published shapes, Wan's, cross attention, and small grids.
SHAPES = [
    *[(2, 24, 8192, 8192), (2, 24, 16384, 16384), (1, 32, 16384, 16384), (4, 16, 16384, 16384)],
    *[(1, 64, 16384, 16384), (2, 24, 32768, 32768), (2, 16, 65536, 65536), (2, 8, 86016, 86016)],
    *[(1, 16, 131072, 131072), (1, 12, 32760, 32760), (2, 12, 75600, 75600), (1, 12, 32760, 512)],
    *[(1, 1, 128, 32768), (1, 12, 1000, 100_000), (1, 40, 1, 4096), (1, 2, 200, 200), (3, 5, 129, 63)],
]
# Query rows of a workgroup; (fixed, per KV tile) clocks of one alone and of two at once; places on a unit.
FAMILIES = {
    "forward": (128, (5500, 5400), (7700, 7750), 2),
    "pingpong": (384, (11900, 6590), None, 1),
}
BYTES_PER_CLOCK, LAUNCH, PER_PIECE = 8, 10_000, 1_000


def plan(sizes, compute_units=304, kernel="", pieces=0):
    batch, heads, seqlen_q, seqlen_kv = sizes
    return _C.plan(batch, heads, heads, seqlen_q, seqlen_kv, compute_units, kernel, pieces)


def partial_bytes(family):
    """Of a query block: 128 float32 a row, a maximum and a sum for each of the four lanes that share it."""
    return FAMILIES[family][0] * (128 + 8) * 4


def clocks_by_hand(family, sizes, compute_units, whole, split, pieces):
    """Of the busiest unit: its whole blocks, its pieces and their stores, then launch and merge."""
    _, alone, paired, _ = FAMILIES[family]
    kv_tiles = math.ceil(sizes[3] / 64)

    def dealt(workgroups, tiles, store):
        share = math.ceil(workgroups / compute_units)
        pairs = share // 2 if paired else 0
        total = (share - 2 * pairs) * (alone[0] + alone[1] * tiles + store)
        return total + (pairs * (paired[0] + paired[1] * tiles + 2 * store) if pairs else 0)

    total = dealt(whole, kv_tiles, 0)
    if split:
        store = partial_bytes(family) / BYTES_PER_CLOCK
        merge = max(store * split * pieces / compute_units, PER_PIECE * pieces)
        total += dealt(split * pieces, math.ceil(kv_tiles / pieces), store) + LAUNCH + merge
    return total


@pytest.mark.parametrize("compute_units", COMPUTE_UNITS)
@pytest.mark.parametrize("sizes", SHAPES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_the_cheapest_is_chosen(sizes, compute_units):
    """Against every number of pieces of the last round's blocks, in either kernel, by a model of its own."""
    batch, heads, seqlen_q, seqlen_kv = sizes
    chosen = plan(sizes, compute_units)
    family = chosen["kernel"]
    parts = [chosen[name] for name in ("whole_blocks", "split_blocks", "pieces")]
    assert chosen["modelled_clocks"] == pytest.approx(clocks_by_hand(family, sizes, compute_units, *parts))
    assert parts[0] + parts[1] == chosen["workgroups"]
    assert chosen["workspace_bytes"] == (parts[2] > 1) * parts[1] * parts[2] * partial_bytes(family)
    for other in FAMILIES:
        blocks = batch * heads * math.ceil(seqlen_q / FAMILIES[other][0])
        unsplit = clocks_by_hand(other, sizes, compute_units, blocks, 0, 1)
        assert chosen["modelled_clocks"] <= unsplit
        rest = blocks % (compute_units * FAMILIES[other][3])
        most = min(256, math.ceil(seqlen_kv / 64))
        rounds = FAMILIES[other][3] * compute_units / rest if rest else 0
        for pieces in range(2, most + 1) if rest else ():
            if pieces > 8 * rounds:
                continue
            clocks = clocks_by_hand(other, sizes, compute_units, blocks - rest, rest, pieces)
            # The search takes numbers that fill rounds, others are at most a little better.
            assert chosen["modelled_clocks"] <= 1.02 * clocks, (other, pieces)


def test_full_rounds_stay_whole():
    result = plan((1, 12, 32760, 32760))
    assert (result["kernel"], result["whole_blocks"], result["split_blocks"]) == ("pingpong", 3 * 304, 120)
    assert (
        result["pieces"] == 5
    )  # 600 workgroups in two rounds of a fifth, where one round took a whole block
    assert plan((1, 12, 32760, 32760), pieces=1)["modelled_clocks"] > 1.15 * result["modelled_clocks"]


@pytest.mark.parametrize(
    "sizes",
    [
        (2, 16, 65536, 65536),  # 18 rounds exactly
        (1, 12, 32760, 512),  # cross attention: storing and merging cost more than the tail
        (1, 2, 200, 200),  # over before a second kernel would start
    ],
)
def test_what_does_not_pay_is_left_whole(sizes):
    result = plan(sizes)
    assert (result["pieces"], result["workspace_bytes"], len(result["launches"])) == (1, 0, 1)
    assert result["modelled_clocks"] == plan(sizes, pieces=1)["modelled_clocks"]


def test_small_grids_are_split():
    for sizes, family in (((1, 1, 128, 32768), "forward"), ((1, 12, 1000, 100_000), "pingpong")):
        result = plan(sizes)
        assert result["kernel"] == family and result["whole_blocks"] == 0 and result["pieces"] > 1
        assert plan(sizes, pieces=1)["modelled_clocks"] > 4 * result["modelled_clocks"]


def test_launches():
    result = plan((2, 24, 8192, 8192))
    splitting, merge = result["launches"]
    assert splitting["kernel"] == "pingpong_split" and splitting["block"] == (512, 1, 1)
    assert splitting["grid"] == (912 + 2 * 144, 1, 1)
    assert merge["kernel"] == "merge" and merge["block"] == (256, 1, 1)
    assert merge["grid"] == (144 * 384 // 64, 1, 1)  # four waves of 16 query rows


def test_pieces_that_are_asked_for():
    result = plan((2, 3, 300, 200), kernel="forward", pieces=3)
    assert (result["whole_blocks"], result["split_blocks"], result["pieces"]) == (0, 18, 3)
    assert plan((2, 3, 300, 200), kernel="forward", pieces=100)["pieces"] == 4  # a KV tile each
    assert plan((2, 3, 300, 64), kernel="forward", pieces=2)["pieces"] == 1
    assert plan((0, 3, 300, 200), pieces=3)["launches"] == []
    # A kernel that is named runs unsplit unless told otherwise.
    assert _C.plan(1, 12, 12, 32760, 32760, 304, "pingpong")["pieces"] == 1
    assert _C.plan(1, 12, 12, 32760, 32760, 304)["pieces"] == 5
    assert _C.workspace_bytes(1, 12, 12, 32760, 32760, 304) == 600 * partial_bytes("pingpong")
    assert _C.workspace_bytes(1, 12, 12, 32760, 32760, 304, pieces=1) == 0


def test_the_profile_counts_the_split():
    """The clock's stages are the plan's launches, and together take less than the unsplit kernel does."""
    shape = timing.Shape(1, 5, 7000, 2048)
    profiles = {}
    for source in ("ours:rtz", "pingpong:rtz"):
        profiles[source] = timing.profile(timing.KERNELS[source].planned(shape), shape, top=0)
    ours, unsplit = profiles["ours:rtz"], profiles["pingpong:rtz"]
    planned = plan((1, 5, 7000, 2048))
    assert planned["kernel"] == "pingpong" and planned["pieces"] > 1
    workgroups = [stage["workgroups"] for stage in ours["stages"]]
    assert workgroups == [planned["split_blocks"] * planned["pieces"], planned["launches"][1]["grid"][0]]
    assert [stage["kernel"] for stage in ours["stages"]] == [
        f"attention_{launch['kernel']}_rtz" for launch in planned["launches"]
    ]
    assert [stage["name"] for stage in unsplit["stages"]] == ["all"]
    for name, result in ours["sets"].items():
        total = sum(stage["time_ms"][name] for stage in ours["stages"])
        assert result["time_ms"] == pytest.approx(total)
        assert result["time_ms"] < unsplit["sets"][name]["time_ms"]
        # Both kernels are there: what is launched takes its gap, and partial results move over HBM.
        merge = ours["stages"][1]["time_ms"][name]
        assert merge >= 5e-3 + planned["workspace_bytes"] / 5.3e12 * 1e3
    waves = [launch["grid"][0] * launch["block"][0] // 64 for launch in planned["launches"]]
    assert ours["counters"]["SQ_WAVES"] == sum(waves)
    assert ours["device"]["quantisation_efficiency"] > unsplit["device"]["quantisation_efficiency"]


def test_the_profile_counts_the_split_of_lists():
    """Of a call that skips: three launches as planned for the tiles that it visits, and their work alone."""
    shape, tiles = timing.Shape(1, 5, 7000, 6400), 100
    kernels = ["skipping:rtz@0.5", "skip-pingpong:rtz@0.5", "skip-pingpong:rtz"]
    planned, unsplit, everything = (timing.Kernel.parse(name).planned(shape) for name in kernels)
    assert planned.name == "skip-pingpong_split:rtz@0.5" and unsplit.name == kernels[1]
    split, unsplit, everything = (
        timing.profile(kernel, shape, top=0) for kernel in (planned, unsplit, everything)
    )
    expected = _C.skip_plan(1, 5, 5, 7000, 6400, 304, "pingpong", 0, tiles // 2)
    assert expected["pieces"] > 1 and expected["whole_blocks"] == 0
    assert [stage["kernel"] for stage in split["stages"]] == [
        f"attention_{launch['kernel']}" + ("_rtz" if launch["kernel"] != "skip_pieces" else "")
        for launch in expected["launches"]
    ]
    assert [stage["name"] for stage in split["stages"]] == ["lists", "pieces", "merge"]
    assert [stage["workgroups"] for stage in split["stages"]] == [
        launch["grid"][0] for launch in expected["launches"]
    ]
    waves = sum(launch["grid"][0] * launch["block"][0] // 64 for launch in expected["launches"])
    assert split["counters"]["SQ_WAVES"] == waves
    # Half of the MFMAs, up to a tile a piece.
    mfma = [one["counters"]["SQ_INSTS_MFMA"] for one in (split, unsplit, everything)]
    assert mfma[1] == mfma[2] / 2 and mfma[1] <= mfma[0] <= mfma[1] * (1 + 2 * expected["pieces"] / tiles)
    for name, result in split["sets"].items():
        assert result["time_ms"] == pytest.approx(sum(stage["time_ms"][name] for stage in split["stages"]))
        assert result["time_ms"] < unsplit["sets"][name]["time_ms"]
        for stage in split["stages"][1:]:
            assert stage["time_ms"][name] >= 5e-3  # launched behind another
    # What is not split is what it was.
    small = timing.Shape(1, 1, 100, 200)
    assert timing.Kernel.parse("skipping:rtz").planned(small).name == "skip:rtz"


@pytest.mark.full
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_skipping_at_wans_shape(rounding):
    """Against dense calls, both split: what lists cost, what half of them saves, and that the plan's model,
    which decides where skipping pays, says the same."""
    shape = timing.Shape(1, 12, 32760, 32760)
    times = [
        timing.profile(timing.Kernel.parse(name).planned(shape), shape, top=0)["sets"]
        for name in (f"ours:{rounding}", f"skipping:{rounding}", f"skipping:{rounding}@0.5")
    ]
    costs = Costs(arguments.Sizes(1, 12, 12, 32760, 32760), 304)
    for name in times[0]:
        dense, full, half = (one[name]["time_ms"] for one in times)
        assert full <= 1.03 * dense and half <= dense / 2 / 0.9
        if name == "D0":
            assert costs.clocks("pingpong", Listed()) / costs.dense == pytest.approx(full / dense, abs=0.02)
            half_listed = costs.clocks("pingpong", Listed(0.5, 0.5)) / costs.dense
            assert half_listed == pytest.approx(half / dense, abs=0.02)


def test_pieces_in_the_environment():
    environment = {**os.environ, runtime.PIECES_VARIABLE: "-1"}
    command = [sys.executable, "-c", "import liteattention_rocm.runtime"]
    refused = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert refused.returncode == 1
    assert "must be a number from 0 to 2147483647 or empty, got '-1'" in refused.stderr


@pytest.mark.full
@pytest.mark.parametrize(("mode", "bar"), [("rtz", 1.20), ("rtna", 1.20), ("rtne", 1.20)])
def test_wans_shape_against_aiter(aiter, mode, bar):
    """Modelled: AITER's time over ours, in the mean of the ensemble's members."""
    shape = timing.Shape(1, 12, 32760, 32760)
    ours = timing.profile(timing.KERNELS[f"ours:{mode}"].planned(shape), shape, top=0)
    answer = timing.ratio(ours, timing.profile(timing.KERNELS[f"aiter:{mode}"], shape, top=0))
    members = [answer["sets"][name] for name in parameters.ensemble()]
    assert sum(members) / len(members) >= bar
    assert answer["faster"] == ours["name"] and ours["name"].startswith("pingpong_split")
