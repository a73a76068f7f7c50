"""Bits, the field's int16 ranges, token ranges."""

import pytest
import torch

from liteattention_rocm.commands import doctor
from liteattention_rocm.lite import lists


def walked(row, phase: int) -> list[int]:
    """The tiles that a row of ranges visits, in order, by the format's own definition."""
    step = 1 if phase == 1 else -1
    entries = row[1 : 1 + int(row[0])].tolist()
    tiles = []
    for index in range(len(entries) - 2, -1, -2):
        end, start = entries[index : index + 2]
        tiles += range(start + step, end + step, step)
    return tiles


@pytest.mark.parametrize("phase", [0, 1])
@pytest.mark.parametrize("tiles", [1, 2, 31, 32, 33, 64, 100])
def test_ranges_and_bits_say_the_same(tiles, phase):
    kept = torch.rand(2, 3, 8, tiles) < torch.rand(2, 3, 8, 1)
    kept[..., torch.randint(tiles, ())] = True
    bits = lists.pack(kept)
    assert bits.shape == (2, 3, 8, -(-tiles // 32)) and bits.dtype == torch.int32
    assert torch.equal(lists.unpack(bits, tiles), kept)
    assert torch.equal(lists.count(bits), kept.sum(-1))
    ranges = lists.to_ranges(bits, tiles, phase)
    assert ranges.shape == (2, 3, 8, tiles + 2) and ranges.dtype == torch.int16
    for row, expected in zip(ranges.flatten(0, 2), kept.flatten(0, 2), strict=True):
        visited = expected.nonzero().flatten().tolist()
        assert walked(row, phase) == (visited if phase == 1 else visited[::-1])
    back, number = lists.from_ranges(ranges, phase)
    assert number == tiles and torch.equal(back, bits)


def test_everything_kept():
    full = lists.full((1, 1, 1), 40)
    assert lists.to_ranges(full, 40, 1)[0, 0, 0, :3].tolist() == [2, 39, -1]
    assert lists.to_ranges(full, 40, 0)[0, 0, 0, :3].tolist() == [2, 0, 40]


def test_as_many_ranges_as_fit():
    kept = torch.zeros(1, 1, 1, 9, dtype=torch.bool)
    kept[..., ::2] = True
    ranges = lists.to_ranges(lists.pack(kept), 9, 1)
    assert ranges[0, 0, 0].tolist() == [10, 8, 7, 6, 5, 4, 3, 2, 1, 0, -1]


# For 8 tiles and phase 1; a row of 10 entries.
BAD_ROWS = {
    "empty": ([0], "visits no tile: its length is 0"),
    "negative length": ([-2], "visits no tile: its length is -2"),
    "odd length": ([3, 7, -1, 0], "has the odd length 3"),
    "too long": ([10, 1], "has the length 10, more than the row's 9 entries"),
    "empty range": ([2, 3, 3], "has a range at entry 1 that is empty"),
    "backward": ([2, 0, 7], "has a range at entry 1 that is empty"),
    "before the first tile": ([2, 3, -2], "has a range at entry 1 that leaves the 8 KV tiles"),
    "behind the last tile": ([2, 8, -1], "has a range at entry 1 that leaves the 8 KV tiles"),
    "overlapping": ([4, 6, 2, 4, -1], "has a range at entry 3 that overlaps the next or is misplaced"),
    "misplaced": ([4, 2, -1, 7, 4], "has a range at entry 3 that overlaps the next or is misplaced"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_refused_by_number_and_reason(case):
    row, reason = BAD_ROWS[case]
    ranges = lists.to_ranges(lists.full((2, 3, 4), 8), 8, 1)
    ranges[1, 2, 3, : len(row)] = torch.tensor(row, dtype=torch.int16)
    with pytest.raises(ValueError) as caught:
        lists.from_ranges(ranges, 1)
    assert str(caught.value) == f"row (batch 1, head 2, query tile 3) {reason}"


def test_a_list_of_the_other_phase_is_refused():
    for phase in (0, 1):
        ranges = lists.to_ranges(lists.full((1, 1, 1), 8), 8, phase)
        lists.from_ranges(ranges, phase)
        with pytest.raises(ValueError, match=r"that (is empty|leaves)"):
            lists.from_ranges(ranges, 1 - phase)


def test_no_such_list():
    with pytest.raises(TypeError, match=r"must be an int16 tensor, got torch\.int32"):
        lists.from_ranges(torch.ones(1, 1, 1, 4, dtype=torch.int32), 1)
    with pytest.raises(TypeError, match="must be an int16 tensor, got <class 'list'>"):
        lists.from_ranges([[2, 0, 1]], 1)
    with pytest.raises(ValueError, match=r"must have shape .*, got \(4,\)"):
        lists.from_ranges(torch.ones(4, dtype=torch.int16), 1)


def test_int16_names_32767_tiles_at_most():
    full = lists.full((1, 1, 1), 32767)
    assert lists.to_ranges(full, 32767, 0)[0, 0, 0, :3].tolist() == [2, 0, 32767]
    with pytest.raises(ValueError, match=r"at most 32767 KV tiles \(2097088 rows\), got 32768"):
        lists.to_ranges(lists.full((1, 1, 1), 32768), 32768, 0)


@pytest.mark.parametrize(
    ("tokens", "tiles"),
    [
        ([0, 1], {0}),
        ([0, 64], {0}),
        ([0, 65], {0, 1}),
        ([63, 65], {0, 1}),
        ([64, 128, 100, 200], {1, 2, 3}),
        ([320, 321, 5, 6], {0, 5}),
        ((300, 330), {4, 5}),
        ([], set()),
    ],
)
def test_token_ranges_cover_whole_tiles(tokens, tiles):
    before = list(tokens)
    kept = lists.tiles_of_tokens("must_do_list", tokens, 330)
    assert set(kept.nonzero().flatten().tolist()) == tiles and kept.shape == (6,)
    assert list(tokens) == before


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ([1], ValueError, "must have an even number of entries, got 1"),
        ([1, 2, 3], ValueError, "must have an even number of entries, got 3"),
        ([-1, 3], ValueError, r"must not be negative, got the range \[-1, 3\)"),
        ([3, 3], ValueError, r"must have ranges that are not empty, got \[3, 3\)"),
        ([9, 3], ValueError, r"must have ranges that are not empty, got \[9, 3\)"),
        ([0, 331], ValueError, r"must end within the 330 rows of k, got \[0, 331\)"),
        ([0.5, 3], TypeError, "must be a sequence of integers"),
        (7, TypeError, "must be a sequence of integers"),
        (["a", "b"], TypeError, "must be a sequence of integers"),
    ],
)
def test_bad_token_ranges(tokens, error, message):
    with pytest.raises(error, match=f"must_skip_list {message}"):
        lists.tiles_of_tokens("must_skip_list", tokens, 330)


def test_memory_is_a_sixteenth_of_the_ranges():
    for entry in doctor.skip_list_memory():
        assert 16 * entry["bytes"] <= entry["int16_bytes"], entry
    sizes = {(entry["model"], entry["size"]): entry for entry in doctor.skip_list_memory()}
    assert sizes["14B", "720p"]["tokens"] == 75600
    assert sizes["14B", "720p"]["bytes"] == 2 * 2 * 40 * 40 * 591 * 37 * 4
