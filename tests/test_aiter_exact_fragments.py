"""The constexpr maps of csrc/device/aiter_exact_fragments.hpp, compiled for the host."""

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

DEVICE = Path(__file__).parents[1] / "csrc" / "device"

PROGRAM = r"""
#include <cstdio>
#include "aiter_exact_fragments.hpp"
using namespace liteattention_rocm;
using namespace liteattention_rocm::aiter_exact;
static void row(const char* name, bool first) { std::printf("%s\"%s\": [", first ? "" : "], ", name); }
int main() {
  std::printf("{");
  row("value_lds", true);
  for (int q = 0; q < kKvRowsPerTile / 4; ++q)
    for (int d = 0; d < kHeadDim; ++d)
      std::printf("%s[%d, %d, %d]", q + d ? ", " : "", q, d, value_lds_offset(q, d));
  row("value_operand", false);
  for (int l = 0; l < 64; ++l)
    for (int r = 0; r < kKvRowsPerTile / 16; ++r)
      for (int t = 0; t < kDimTiles; ++t)
        std::printf("%s[%d, %d, %d, %d]", l + r + t ? ", " : "", l, r, t, value_operand_offset(l, r, t));
  row("lane", false);
  for (int l = 0; l < 64; ++l)
    std::printf("%s[%d, %d, %d, %d]", l ? ", " : "", lane_column(l), lane_half(l), operand_chunk(l, 3),
                first_row(l, 2));
  std::printf("]}\n");
}
"""


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aiter_exact_fragments")
    (folder / "maps.cpp").write_text(PROGRAM)
    command = [shutil.which("g++"), "-std=c++17", "-I", str(DEVICE), "maps.cpp", "-o", "maps"]
    subprocess.run(command, cwd=folder, check=True)
    return json.loads(subprocess.run([folder / "maps"], check=True, capture_output=True).stdout)


def test_every_value_cell_has_its_own_place(maps):
    assert sorted(offset for _, _, offset in maps["value_lds"]) == list(range(0, 64 * 256, 8))


def test_a_lane_reads_the_values_that_its_probabilities_meet(maps):
    """16 bytes hold kv rows 4h..4h+3 and 8 + 4h.. of a run of 16, h the lane's half, at one head dim."""
    cells = {(quad, dim): offset for quad, dim, offset in maps["value_lds"]}
    for lane, run, dim_tile, offset in maps["value_operand"]:
        half, dim = lane // 32, 32 * dim_tile + lane % 32
        assert cells[4 * run + half, dim] == offset
        assert cells[4 * run + 2 + half, dim] == offset + 8


def test_accesses_spread_over_all_banks(maps):
    """Eight lanes read 128 bytes, from all banks; sixteen write 128, two to a bank pair at most."""
    operands = {(lane, run, t): offset for lane, run, t, offset in maps["value_operand"]}
    for first in range(0, 64, 8):
        for run, dim_tile in ((0, 0), (3, 2)):
            offsets = [operands[lane, run, dim_tile] for lane in range(first, first + 8)]
            banks = Counter((offset // 4 + i) % 32 for offset in offsets for i in range(4))
            assert set(banks.values()) == {1} and len(banks) == 32
    cells = {(quad, dim): offset for quad, dim, offset in maps["value_lds"]}
    for quad in range(16):
        for of_chunk in range(8):
            pairs = Counter(cells[quad, 8 * chunk + of_chunk] // 8 % 16 for chunk in range(16))
            assert max(pairs.values()) == 2


def test_lanes_follow_the_mfma_layout_and_aiters_head_dims(maps):
    for lane, (column, half, chunk, row) in enumerate(maps["lane"]):
        assert (column, half) == (lane % 32, lane // 32)
        assert chunk == 6 + lane // 32
        assert row == 16 + 4 * (lane // 32)
