"""Every executed vector instruction, in every form, against AMD's pseudo-code."""

import pytest

import conformance_vector as vector
import oracles
from conformance_tables import REPLACED
from conformance_vector_expected import disagreements
from device_compiler import assemble
from liteattention_rocm import simulator

IMPLEMENTED = {row["name"] for row in simulator.coverage() if row["implemented"]}
CASES = vector.all_cases(IMPLEMENTED)
MNEMONICS = sorted({case.row.mnemonic for case in CASES})
for _mnemonic in MNEMONICS:
    oracles.declare(REPLACED[_mnemonic][0] if _mnemonic in REPLACED else "pseudo-code", [_mnemonic])
LINES_PER_LAUNCH = 700


@pytest.fixture(scope="module")
def executed() -> list[vector.Case]:
    """The cases whose very form is executed; see test_coverage.py for the others."""
    lines = "\n".join(case.line for case in CASES)
    instructions = simulator.disassemble(assemble(f".text\n{lines}\n"))["instructions"]
    assert [case.line for case in CASES] == [one["text"] for one in instructions[: len(CASES)]]
    return [case for case, one in zip(CASES, instructions, strict=False) if one["executed"]]


@pytest.fixture(scope="module")
def results(executed) -> dict[str, list]:
    """Per mnemonic its executed cases and what they computed."""
    found = {mnemonic: [] for mnemonic in MNEMONICS}
    for draw in range(vector.DRAWS):
        drawn = [case for case in executed if case.draw == draw]
        for first in range(0, len(drawn), LINES_PER_LAUNCH):
            cases = drawn[first : first + LINES_PER_LAUNCH]
            for case, rows in zip(cases, vector.execute(cases), strict=True):
                found[case.row.mnemonic].append((case, rows))
    return found


@pytest.mark.parametrize("mnemonic", MNEMONICS)
def test_vector_instruction(results, mnemonic):
    assert results[mnemonic]
    wrong = [text for case, rows in results[mnemonic] for text in disagreements(case, rows)]
    assert not wrong, "\n".join(wrong[:10])


def test_replaced_texts_are_of_executed_instructions():
    assert REPLACED.keys() <= set(MNEMONICS)
