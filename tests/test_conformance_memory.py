"""Every executed memory instruction that has a text against AMD's pseudo-code."""

import pytest

import conformance_memory as memory
import oracles
from liteattention_rocm import simulator

IMPLEMENTED = {row["name"] for row in simulator.coverage() if row["implemented"]}
CASES = memory.all_cases(IMPLEMENTED)
MNEMONICS = sorted({case.row.mnemonic for case in CASES})
oracles.declare("pseudo-code", MNEMONICS)
CASES_PER_LAUNCH = 300


@pytest.fixture(scope="module")
def results() -> dict[str, list]:
    found = {mnemonic: [] for mnemonic in MNEMONICS}
    for first in range(0, len(CASES), CASES_PER_LAUNCH):
        cases = CASES[first : first + CASES_PER_LAUNCH]
        for case, (rows, contents) in zip(cases, memory.execute(cases), strict=True):
            found[case.row.mnemonic].append((case, rows, contents))
    return found


@pytest.mark.parametrize("mnemonic", MNEMONICS)
def test_memory_instruction(results, mnemonic):
    wrong = [text for entry in results[mnemonic] for text in memory.disagreements(*entry)]
    assert not wrong, "\n".join(wrong[:10])
