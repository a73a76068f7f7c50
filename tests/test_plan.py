"""The plan: which launches a forward call makes, for any device."""

import pytest

from liteattention_rocm import _C

COMPUTE_UNITS = [304, 80, 38, 20]  # MI300X, MI308X, and the partition modes of either
SHAPES = [
    (1, 12, 32760, 32760),
    (2, 24, 8192, 8192),
    (1, 1, 1, 1),
    (3, 5, 129, 63),
    (1, 24, 119056, 119056),
]


KERNELS = {"forward": (128, 256), "pingpong": (384, 512)}  # query rows and threads of a workgroup


def plan(batch, heads, seqlen_q, seqlen_kv, compute_units=304, kernel="forward", pieces=1):
    return _C.plan(batch, heads, heads, seqlen_q, seqlen_kv, compute_units, kernel, pieces)


@pytest.mark.parametrize("kernel", ["", *KERNELS])
@pytest.mark.parametrize("compute_units", COMPUTE_UNITS)
@pytest.mark.parametrize(("batch", "heads", "seqlen_q", "seqlen_kv"), SHAPES)
def test_every_query_row_has_one_workgroup(batch, heads, seqlen_q, seqlen_kv, compute_units, kernel):
    result = plan(batch, heads, seqlen_q, seqlen_kv, compute_units, kernel)
    assert result["kernel"] == kernel or kernel == ""
    rows, threads = KERNELS[result["kernel"]]
    tiles, grid_heads, grid_batch = result["grid"]
    assert (grid_heads, grid_batch) == (heads, batch)
    assert (tiles - 1) * rows < seqlen_q <= tiles * rows
    assert (result["kv_tiles"] - 1) * 64 < seqlen_kv <= result["kv_tiles"] * 64
    assert result["block"] == (threads, 1, 1)
    assert result["workgroups"] == tiles * heads * batch
    (launch,) = result["launches"]
    assert launch == {
        "kernel": result["kernel"],
        "grid": result["grid"],
        "block": result["block"],
        "first_batch": 0,
    }
    assert (result["pieces"], result["split_blocks"], result["workspace_bytes"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("compute_units", "rounds"),
    [(304, 11), (80, 39), (38, 81), (20, 154)],  # ceil(64 · 24 · 2 / compute units)
)
def test_the_spread_follows_the_device(compute_units, rounds):
    result = plan(2, 24, 8192, 8192, compute_units)
    assert result["workgroups_per_compute_unit"] == rounds
    assert result["occupancy"] == pytest.approx(3072 / (rounds * compute_units), rel=1e-12)


def busiest_unit_clocks(kernel, sizes, compute_units):
    """The model by hand: workgroups dealt out evenly, the 128-row kernel's run in pairs on a compute unit."""
    batch, heads, seqlen_q, seqlen_kv = sizes
    rows = KERNELS[kernel][0]
    share = -(-batch * heads * -(-seqlen_q // rows) // compute_units)
    tiles = -(-seqlen_kv // 64)
    if kernel == "pingpong":
        return share * (11900 + 6590 * tiles)
    return share // 2 * (7700 + 7750 * tiles) + share % 2 * (5500 + 5400 * tiles)


@pytest.mark.parametrize("compute_units", COMPUTE_UNITS)
@pytest.mark.parametrize("sizes", [*SHAPES, (1, 12, 32760, 512), (1, 1, 32760, 32760), (2, 3, 4000, 900)])
def test_the_kernel_that_is_modelled_as_faster_is_chosen(sizes, compute_units):
    modelled = {}
    for kernel in KERNELS:
        modelled[kernel] = plan(*sizes, compute_units, kernel)["modelled_clocks"]
        assert modelled[kernel] == busiest_unit_clocks(kernel, sizes, compute_units)
    chosen = plan(*sizes, compute_units, "")
    assert chosen["modelled_clocks"] == min(modelled.values())
    assert chosen["kernel"] == min(modelled, key=lambda kernel: (modelled[kernel], kernel))


@pytest.mark.parametrize(
    ("sizes", "kernel"),
    [
        ((1, 12, 32760, 32760), "pingpong"),  # Wan's self-attention
        ((1, 12, 32760, 512), "pingpong"),  # and its cross-attention
        ((2, 24, 8192, 8192), "pingpong"),
        ((1, 12, 128, 128), "forward"),
        ((1, 12, 1000, 100_000), "forward"),  # 96 small workgroups spread over more units than 36 large ones
    ],
)
def test_kernels_of_known_shapes(sizes, kernel):
    assert plan(*sizes, 304, "")["kernel"] == kernel


def test_unknown_kernels_are_refused():
    with pytest.raises(ValueError, match="kernel is 'fast', allowed are forward, pingpong, aiter_exact and"):
        plan(1, 1, 1, 1, 304, "fast")


def test_a_device_with_more_units_than_work():
    result = plan(1, 1, 100, 100, 304)
    assert result["workgroups_per_compute_unit"] == 1
    assert result["occupancy"] == pytest.approx(1 / 304)


def test_sizes_beyond_32_bits():
    longest = 2**31 - 1 - 128
    for kernel, (rows, threads) in KERNELS.items():
        result = plan(65535, 65535, longest, longest, kernel=kernel)
        tiles = -(-longest // rows)
        assert result["grid"] == (tiles, 65535, 65535)
        assert result["workgroups"] == tiles * 65535**2 > 2**53
        assert tiles * threads < 2**32  # work-items of a dispatch are counted in 32 bits
    assert result["kv_tiles"] == -(-longest // 64)


def test_batches_beyond_the_grid_take_more_launches():
    result = plan(200_000, 2, 300, 64)
    assert [launch["first_batch"] for launch in result["launches"]] == [0, 65535, 131070, 196605]
    assert [launch["grid"] for launch in result["launches"]] == [(3, 2, 65535)] * 3 + [(3, 2, 3395)]


@pytest.mark.parametrize(("batch", "seqlen_q"), [(0, 128), (2, 0)])
def test_nothing_to_write_is_no_launch(batch, seqlen_q):
    result = plan(batch, 4, seqlen_q, 64)
    assert result["launches"] == []
    assert result["workgroups"] == 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((-1, 4, 4, 1, 1, 304), "batch is -1"),
        ((2**31, 4, 4, 1, 1, 304), "batch is 2147483648"),
        ((1, 0, 1, 1, 1, 304), "heads is 0, allowed are 1 to 65535"),
        ((1, 65536, 1, 1, 1, 304), "heads is 65536"),
        ((1, 4, 5, 1, 1, 304), "kv_heads is 5"),
        ((1, 4, 3, 1, 1, 304), "kv_heads is 3, allowed are divisors of heads"),
        ((1, 4, 4, -1, 1, 304), "seqlen_q is -1"),
        ((1, 4, 4, 2**31 - 128, 1, 304), "seqlen_q is 2147483520"),
        ((1, 4, 4, 1, 0, 304), "seqlen_kv is 0, allowed are 1 to 2147483519"),
        ((1, 4, 4, 1, 2**40, 304), "seqlen_kv is 1099511627776"),
        ((1, 4, 4, 1, 1, 0), "compute_units is 0"),
        ((1, 4, 4, 1, 1, 304, "", -1), "pieces is -1, allowed are 0 to 2147483647"),
        ((1, 4, 4, 2**20, 2**20, 304, "forward", 2**14), "pieces is 16384: more than 2.31 work-items"),
        ((2**31 - 1, 65535, 1, 2**31 - 129, 1, 304), "more than 2.63 workgroups"),
    ],
)
def test_sizes_out_of_range_are_named(sizes, message):
    with pytest.raises(ValueError, match=message):
        _C.plan(*sizes)
