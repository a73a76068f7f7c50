"""Launches of the skipping kernels, against a HIP library that records its calls."""

import itertools
import math

import pytest

from hip_stub import Stub, copy, forward_arguments
from liteattention_rocm import _C

LISTS = {"read_list": 0x60000000, "write_list": 0x70000000, "order": 0x80000000}
WORKSPACE = 0x90000000
SKIP = LISTS | {"threshold": -10.0, "backward": True, "votes_count": False}
ORDER = {"device": 0, "arch": "gfx942", "compute_units": 304, "stream": 0x5000} | {
    "list": 0x60000000,
    "counts": 0x70000000,
    "order": 0x80000000,
    "heads": 8,
    "query_tiles": 5000,
    "words": 3,
}


@pytest.fixture
def stub(tmp_path):
    stub = Stub(copy(tmp_path / "libhip_stub.so"))
    stub.hip = _C.open_hip(str(stub.path))
    return stub


def skip_forward(stub, skip=(), **changes):
    _C.skip_forward(hip=stub.hip, **forward_arguments(**changes), **(SKIP | dict(skip)))


def test_launch_carries_every_argument(stub):
    skip_forward(stub, rounding=2, kv_heads=2, heads=4, seqlen_kv=64 * 33, stream=0xABC0)
    (launch,) = stub.launches()
    assert launch["kernel"] == "attention_skip_forward_rtz"
    assert (launch["grid"], launch["block"], launch["stream"]) == ([3, 4, 2], [256, 1, 1], 0xABC0)
    arguments = launch["arguments"]
    forward = arguments.pop("forward")
    assert (forward["seqlen_q"], forward["seqlen_kv"], forward["heads_per_kv_head"]) == (300, 64 * 33, 2)
    assert arguments == LISTS | {"threshold": "-10", "words": 2, "backward": 1, "votes_count": 0}


def test_out_of_phase_launch(stub):
    skip_forward(stub, {"kernel": "pingpong"}, rounding=1, kv_heads=2, heads=4, seqlen_q=1000, batch=65536)
    first, second = stub.launches()
    assert first["kernel"] == "attention_skip_pingpong_rtna"
    assert (first["grid"], first["block"]) == ([3, 4, 65535], [512, 1, 1])
    first, second = first["arguments"], second["arguments"]
    assert second["read_list"] - first["read_list"] == 65535 * 4 * 8 * first["words"] * 4
    assert second["order"] - first["order"] == 65535 * 4 * 3 * 4


def test_later_calls_only_launch(stub):
    skip_forward(stub)
    _C.skip_order(hip=stub.hip, **ORDER)
    stub.clear()
    skip_forward(stub)
    _C.skip_order(hip=stub.hip, **ORDER)
    assert stub.functions() == 2 * ["hipGetDevice", "hipModuleLaunchKernel"]


@pytest.mark.parametrize(
    ("threshold", "votes_count", "expected"),
    [(-math.inf, True, ("nan", 1)), (math.inf, True, ("inf", 0)), (-2.5, True, ("-2.5", 1))],
)
def test_infinite_thresholds(stub, threshold, votes_count, expected):
    """−Inf is NaN to the kernel, which no comparison is below; with +Inf votes never count."""
    skip_forward(stub, {"threshold": threshold, "votes_count": votes_count})
    arguments = stub.launches()[0]["arguments"]
    assert (
        arguments["threshold"].lstrip("-") if expected[0] == "nan" else arguments["threshold"]
    ) == expected[0]
    assert arguments["votes_count"] == expected[1]


def test_large_batches_take_lists_along(stub):
    skip_forward(stub, batch=65536, heads=1, kv_heads=1, seqlen_q=300, seqlen_kv=64 * 65)
    first, second = (launch["arguments"] for launch in stub.launches())
    rows = 65535 * 3
    assert second["read_list"] - first["read_list"] == rows * 3 * 4
    assert second["write_list"] - first["write_list"] == rows * 3 * 4
    assert second["order"] - first["order"] == rows * 4
    assert second["forward"]["query"] > first["forward"]["query"]
    skip_forward(stub, {"order": 0}, batch=65536, heads=1, kv_heads=1)
    assert [launch["arguments"]["order"] for launch in stub.launches()[2:]] == [0, 0]


def test_order_launch(stub):
    _C.skip_order(hip=stub.hip, **ORDER)
    (launch,) = stub.launches()
    assert (launch["kernel"], launch["grid"], launch["block"]) == (
        "attention_skip_order",
        [2, 8, 1],
        [256, 1, 1],
    )
    names = ("list", "counts", "order", "query_tiles", "words")
    assert launch["arguments"] == {name: ORDER[name] for name in names} | {"merged": 1}
    stub.clear()
    _C.skip_order(hip=stub.hip, **(ORDER | {"heads": 70000}))
    first, second = stub.launches()
    assert (first["grid"][1], second["grid"][1]) == (65535, 4465)
    assert second["arguments"]["list"] - first["arguments"]["list"] == 65535 * 5000 * 3 * 4
    assert second["arguments"]["order"] - first["arguments"]["order"] == 65535 * 5000 * 4
    stub.clear()
    _C.skip_order(hip=stub.hip, **(ORDER | {"heads": 70000, "merged": 3}))
    first, second = stub.launches()
    assert first["grid"] == [1, 65535, 1] and first["arguments"]["merged"] == 3
    assert second["arguments"]["list"] - first["arguments"]["list"] == 65535 * 5000 * 3 * 4
    assert second["arguments"]["order"] - first["arguments"]["order"] == 65535 * 1667 * 4


def test_split_launches(stub):
    """The lists of the pieces, attention and the merge: one struct, one workspace, the caller's stream."""
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "seqlen_q": 1000, "seqlen_kv": 64 * 33}
    plan = _C.skip_plan(*sizes.values(), 304, "pingpong", 5)
    assert (plan["pieces"], plan["split_blocks"], plan["whole_blocks"]) == (5, 24, 0)
    split = {"pieces": 5, "workspace": WORKSPACE, "workspace_bytes": plan["workspace_bytes"]}
    skip_forward(stub, {"kernel": "pingpong"} | split, rounding=1, stream=0xABC0, **sizes)
    launches = stub.launches()
    assert [launch["kernel"] for launch in launches] == [
        "attention_skip_pieces",
        "attention_skip_pingpong_split_rtna",
        "attention_skip_merge_rtna",
    ]
    assert [(tuple(one["grid"]), tuple(one["block"])) for one in launches] == [
        ((120 // 4, 1, 1), (256, 1, 1)),  # four pieces a workgroup
        ((120, 1, 1), (512, 1, 1)),
        ((24 * 384 // 64, 1, 1), (256, 1, 1)),
    ]
    assert {launch["stream"] for launch in launches} == {0xABC0}
    arguments = launches[0]["arguments"]
    assert [launch["arguments"] for launch in launches] == 3 * [arguments]
    forward = arguments.pop("forward")
    assert (forward["seqlen_q"], forward["seqlen_kv"], forward["heads_per_kv_head"]) == (1000, 64 * 33, 2)
    offsets = [
        arguments.pop(name) - WORKSPACE for name in ("partials", "list_pieces", "piece_lists", "votes")
    ]
    sizes = [120 * 24 * 8704, 120 * 16, 120 * 3 * 2 * 4, 120 * 26 * 2 * 4]
    assert offsets == [sum(sizes[:i]) for i in range(4)] and plan["workspace_bytes"] == sum(sizes)
    assert arguments == LISTS | {
        "query_tiles": 3, "whole_blocks": 0, "split_blocks": 24, "pieces": 5, "fragments": 24,
        "threshold": "-10", "words": 2, "backward": 1, "votes_count": 0, "lists": 3,
    }  # fmt: skip


def test_later_split_calls_only_launch(stub):
    """Also where the number of compute units is the device's own."""
    plan = _C.skip_plan(2, 4, 4, 300, 100, 304, "forward", 2)
    split = {"pieces": 2, "workspace": WORKSPACE, "workspace_bytes": plan["workspace_bytes"]}
    skip_forward(stub, split)
    stub.clear()
    skip_forward(stub, split)
    assert stub.functions() == ["hipGetDevice"] + 3 * ["hipModuleLaunchKernel"]
    skip_forward(stub, split, compute_units=0)


def test_the_plan_of_a_full_list_is_that_of_dense_attention():
    """And of shorter walks, what dense attention over as many KV tiles would be split into, if it pays."""
    for sizes in (
        (1, 12, 12, 32760, 32760),
        (2, 24, 24, 8192, 8192),
        (1, 1, 1, 128, 32768),
        (1, 2, 2, 99, 99),
    ):
        for kernel in ("forward", "pingpong"):
            for units in (304, 38):
                for tiles in (0, 100, 17, 1):
                    if tiles * 64 > sizes[4]:
                        continue
                    dense = _C.plan(*sizes[:4], 64 * tiles or sizes[4], units, kernel, 0)
                    plan = _C.skip_plan(*sizes, units, kernel, 0, tiles)
                    names = ("pieces", "split_blocks", "whole_blocks")
                    assert [plan[name] for name in names] == [dense[name] for name in names]
                    more = 10_000 * (plan["pieces"] > 1)
                    assert plan["modelled_clocks"] == dense["modelled_clocks"] + more
                    assert (plan["workspace_bytes"] > dense["workspace_bytes"]) == (plan["pieces"] > 1)


def test_no_split_is_slower_than_none():
    """One launch more than dense attention makes is counted, but where the list is full."""
    unsplit = 0
    for heads, rows, tiles in itertools.product((1, 5, 12, 40), (1, 128, 900, 4000), (2, 6, 20, 65, 400)):
        for kernel, units in itertools.product(("forward", "pingpong"), (304, 80)):
            sizes = 1, heads, heads, rows, 64 * tiles, units, kernel
            for visited in {1, tiles // 3, tiles // 2, tiles - 1} - {0}:
                planned, whole = (_C.skip_plan(*sizes, pieces, visited) for pieces in (0, 1))
                assert planned["modelled_clocks"] <= whole["modelled_clocks"]
                dense = _C.plan(1, heads, heads, rows, 64 * visited, units, kernel, 0)
                unsplit += planned["pieces"] == 1 < dense["pieces"]
    assert unsplit > 20


def test_nothing_to_do(stub):
    skip_forward(stub, batch=0)
    skip_forward(stub, seqlen_q=0)
    _C.skip_order(hip=stub.hip, **(ORDER | {"heads": 0}))
    _C.skip_order(hip=stub.hip, **(ORDER | {"query_tiles": 0}))
    assert stub.log() == []


@pytest.mark.parametrize(
    ("skip", "message"),
    [
        ({"threshold": 0.0}, "threshold is 0.* allowed are numbers below 0"),
        ({"threshold": math.nan}, "threshold is -?nan"),
        ({"read_list": 0}, "read_list address is 0x0"),
        ({"write_list": 0x70000002}, "write_list address is 0x70000002, allowed is a nonzero multiple of 4"),
        ({"order": 0x80000001}, "order address is 0x80000001"),
        ({"write_list": 0x60000000}, "write_list is read_list"),
        ({"kernel": "fast"}, "kernel is 'fast'"),
        ({"kernel": "pingpong", "votes_count": True}, "votes_count is true"),
        ({"kernel": "aiter_exact"}, "kernel is 'aiter_exact'"),
        ({"pieces": -1}, "pieces is -1, allowed are 0 to"),
        ({"visited": 3}, "visited is 3, allowed are 0 to 2 KV tiles"),
        ({"pieces": 2}, "workspace address is 0x0, allowed is a nonzero multiple of 16"),
        ({"pieces": 2, "workspace": WORKSPACE}, "workspace is 0 bytes, allowed is at least"),
    ],
)
def test_refusals_come_before_any_call(stub, skip, message):
    with pytest.raises(ValueError, match=message):
        skip_forward(stub, skip)
    assert stub.log() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": -1}, "heads is -1"),
        ({"query_tiles": 2**31}, "query_tiles is 2147483648"),
        ({"words": -1}, "words is -1"),
        ({"merged": 0}, "merged is 0"),
        ({"list": 2}, "list address is 0x2"),
        ({"counts": 0}, "counts address is 0x0"),
    ],
)
def test_refusals_of_an_order(stub, changes, message):
    with pytest.raises(ValueError, match=message):
        _C.skip_order(hip=stub.hip, **(ORDER | changes))
    assert stub.log() == []


def test_errors_name_the_kernel(stub):
    skip_forward(stub)
    stub.set("fail.hipModuleLaunchKernel", 719)
    with pytest.raises(RuntimeError, match=r"attention_skip_forward_rtne, grid 3x4x2.*hipErrorLaunchFailure"):
        skip_forward(stub)
    split = {"pieces": 2, "workspace": WORKSPACE, "workspace_bytes": 1 << 30}
    with pytest.raises(RuntimeError, match=r"attention_skip_pieces, grid 12x1x1.*hipErrorLaunchFailure"):
        skip_forward(stub, split)
    with pytest.raises(RuntimeError, match=r"attention_skip_order, grid 2x8x1"):
        _C.skip_order(hip=stub.hip, **ORDER)
