"""Every executed scalar instruction but those that move the program counter against AMD's pseudo-code."""

import pytest

import conformance_scalar as scalar
import oracles
from liteattention_rocm import simulator

IMPLEMENTED = {row["name"] for row in simulator.coverage() if row["implemented"]}
CASES = scalar.all_cases(IMPLEMENTED)
MNEMONICS = sorted({case.row.mnemonic for case in CASES})

oracles.declare("pseudo-code", MNEMONICS)


@pytest.fixture(scope="module")
def results() -> dict[str, list]:
    found = {mnemonic: [] for mnemonic in MNEMONICS}
    for case, rows in zip(CASES, scalar.execute(CASES), strict=True):
        found[case.row.mnemonic].append((case, rows))
    return found


@pytest.mark.parametrize("mnemonic", MNEMONICS)
def test_scalar_instruction(results, mnemonic):
    wrong = [text for case, rows in results[mnemonic] for text in scalar.disagreements(case, rows)]
    assert not wrong, "\n".join(wrong[:10])
