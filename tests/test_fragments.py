"""The constexpr maps of csrc/device/fragments.hpp, compiled for the host: every element has one place."""

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

DEVICE = Path(__file__).parents[1] / "csrc" / "device"

PROGRAM = r"""
#include <cstdio>
#include "fragments.hpp"
using namespace liteattention_rocm;
using namespace liteattention_rocm::fragments;
static void row(const char* name, bool first) { std::printf("%s\"%s\": [", first ? "" : "], ", name); }
int main() {
  std::printf("{");
  row("key_lds", true);
  for (int r = 0; r < kKvRowsPerTile; ++r)
    for (int c = 0; c < kChunksPerRow; ++c)
      std::printf("%s[%d, %d, %d]", r + c ? ", " : "", r, c, key_lds_offset(r, c));
  row("value_lds", false);
  for (int q = 0; q < kKvRowsPerTile / 4; ++q)
    for (int d = 0; d < kHeadDim; ++d)
      std::printf("%s[%d, %d, %d]", q + d ? ", " : "", q, d, value_lds_offset(q, d));
  row("value_operand", false);
  for (int l = 0; l < kWaveSize; ++l)
    for (int p = 0; p < 2; ++p)
      for (int t = 0; t < kDimTiles; ++t)
        std::printf("%s[%d, %d, %d, %d]", l + p + t ? ", " : "", l, p, t, value_operand_offset(l, p, t));
  row("lane", false);
  for (int l = 0; l < kWaveSize; ++l)
    std::printf("%s[%d, %d, %d, %d, %d]", l ? ", " : "", lane_column(l), lane_group(l), operand_chunk(l, 1),
                score_row(l, 2, 3), output_dim(l, 1));
  std::printf("]}\n");
}
"""


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fragments")
    (folder / "maps.cpp").write_text(PROGRAM)
    compiler = shutil.which("g++")
    subprocess.run(
        [compiler, "-std=c++17", "-I", str(DEVICE), "maps.cpp", "-o", "maps"], cwd=folder, check=True
    )
    return json.loads(subprocess.run([folder / "maps"], check=True, capture_output=True).stdout)


def test_every_key_chunk_has_its_own_place(maps):
    offsets = sorted(offset for _, _, offset in maps["key_lds"])
    assert offsets == list(range(0, 64 * 256, 16))


def test_every_value_cell_has_its_own_place(maps):
    offsets = sorted(offset for _, _, offset in maps["value_lds"])
    assert offsets == list(range(0, 64 * 256, 8))


def test_a_lane_reads_the_values_that_its_probabilities_meet(maps):
    """16 bytes hold kv rows 4g..4g+3 of kv tile 2p and of 2p+1, at head dim 8·column + dim tile."""
    cells = {(quad, dim): offset for quad, dim, offset in maps["value_lds"]}
    for lane, pair, dim_tile, offset in maps["value_operand"]:
        group, dim = lane // 16, 8 * (lane % 16) + dim_tile
        assert cells[8 * pair + group, dim] == offset
        assert cells[8 * pair + 4 + group, dim] == offset + 8


@pytest.mark.parametrize("group", range(4))
def test_sixteen_lanes_read_without_bank_conflicts(maps, group):
    """A b128 access of 16 lanes moves 256 bytes: each of the 32 banks serves it exactly twice."""
    keys = {(row, chunk): offset for row, chunk, offset in maps["key_lds"]}
    for step in range(4):
        offsets = [keys[row, 4 * step + group] for row in range(16)]
        banks = Counter((offset // 4 + i) % 32 for offset in offsets for i in range(4))
        assert set(banks.values()) == {2}
    for pair in range(2):
        for dim_tile in range(8):
            here = (group, pair, dim_tile)
            offsets = [o for lane, p, t, o in maps["value_operand"] if (lane // 16, p, t) == here]
            banks = Counter((offset // 4 + i) % 32 for offset in offsets for i in range(4))
            assert set(banks.values()) == {2}


def test_lanes_follow_the_mfma_layout(maps):
    for lane, (column, group, chunk, row, dim) in enumerate(maps["lane"]):
        assert (column, group) == (lane % 16, lane // 16)
        assert chunk == 4 + lane // 16
        assert row == 2 * 16 + 4 * (lane // 16) + 3
        assert dim == 32 * (lane // 16) + 8
