"""Which oracle checks each instruction, as the tests themselves declare it, and the table that the command
`liteattention-rocm coverage` shows. `python tests/oracles.py` rewrites the table.
"""

import collections
import functools
import importlib
import re
import sys
from pathlib import Path

import device_compiler
import execute_kernels
from liteattention_rocm import simulator

TABLE = Path(__file__).parents[1] / "liteattention_rocm" / "oracles.txt"
MODULES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("test_*.py")
    if path.stem.startswith(("test_conformance", "test_execute", "test_matrix", "test_coverage"))
)
# mnemonic -> names of oracles, in the order in which tests declare them
REGISTRY: dict[str, list[str]] = collections.defaultdict(list)
# mnemonic -> operands or circumstances that are refused as a kernel runs
REFUSED: dict[str, list[str]] = collections.defaultdict(list)


def declare(oracle: str, mnemonics) -> None:
    """The calling module compares each of these instructions with this oracle in a test of its own."""
    for mnemonic in mnemonics:
        if oracle not in REGISTRY[mnemonic]:
            REGISTRY[mnemonic].append(oracle)


def declare_refusal(mnemonic: str, circumstance: str) -> None:
    REFUSED[mnemonic].append(circumstance)


def checked_by(oracle: str, mnemonics: str):
    """Decorates a test whose kernels contain these instructions and whose expectation comes from the oracle.

    The test fails when a mnemonic is in none of the kernels that it assembles.
    """
    names = mnemonics.split()
    declare(oracle, names)

    def decorate(test):
        @functools.wraps(test)
        def wrapped(*arguments, **keywords):
            with execute_kernels.recorded() as images:
                test(*arguments, **keywords)
            found = {one["op"] for image in images for one in simulator.disassemble(image)["instructions"]}
            assert found >= set(names), f"the test's kernels lack {sorted(set(names) - found)}"

        return wrapped

    return decorate


def load() -> None:
    """Imports every module that declares oracles."""
    for module in MODULES:
        importlib.import_module(module)


# Forms that are decoded and refused

LINES_PER_FORM = 16
MODIFIERS = (
    *("clamp", "mul:2", "mul:4", "div:2", "op_sel:", "op_sel_hi:", "neg_lo:", "neg_hi:", "neg:"),
    *("cbsz:", "abid:", "blgp:", "lds", "gds", "idxen", "offen", "sext(", "UNUSED_SEXT", "UNUSED_PRESERVE"),
)


def modifiers_of(line: str) -> set[str]:
    words = re.split(r"[ ,]", line)
    return {name for name in MODIFIERS if any(word.startswith(name) for word in words[1:])}


def refused_forms() -> dict[str, list[str]]:
    """Per mnemonic that executes, the forms (encoding and modifier) in which it doesn't.

    Raises:
        AssertionError: a line is refused for a reason other than one of the modifiers.
    """
    import support_decode
    from test_decode import INDISTINGUISHABLE

    lines = support_decode.Lines(seed=7)
    cases = [
        (row.mnemonic, form, lines.line(row, form))
        for row in support_decode.rows()
        for form in row.forms
        if (row.mnemonic, form) not in INDISTINGUISHABLE
        for _ in range(LINES_PER_FORM)
    ]
    image = device_compiler.assemble(".text\n" + "".join(f"{line}\n" for _, _, line in cases))
    executed = [one["executed"] for one in simulator.disassemble(image)["instructions"]]
    implemented = {row["name"] for row in simulator.coverage() if row["implemented"]}
    by_form = collections.defaultdict(list)
    for (mnemonic, form, line), runs in zip(cases, executed, strict=True):
        if mnemonic in implemented:
            by_form[mnemonic, form].append((modifiers_of(line), runs, line))
    refused = collections.defaultdict(list)
    for (mnemonic, form), entries in by_form.items():
        if not any(runs for _, runs, _ in entries):
            refused[mnemonic].append(form)
            continue
        fit = set().union(*(words for words, runs, _ in entries if runs))
        culprits = set().union(*(words for words, runs, _ in entries if not runs)) - fit
        for words, runs, line in entries:
            assert runs or words & culprits, f"refused, and no modifier explains it: {line}"
        refused[mnemonic] += [f"{form} {word.rstrip(':(')}" for word in sorted(culprits)]
    return dict(refused)


def table() -> str:
    """The committed table: a line for each decoded instruction."""
    load()
    forms = refused_forms()
    rows = []
    for row in sorted(simulator.coverage(), key=lambda row: row["name"]):
        name = row["name"]
        oracles = REGISTRY[name] if row["implemented"] else []
        refused = forms.get(name, []) + REFUSED[name] if row["implemented"] else []
        rows.append("\t".join((name, ", ".join(oracles or ["assembler only"]), "; ".join(refused))).rstrip())
    header = (
        "# mnemonic, oracle, refused forms; tests/oracles.py writes it, tests/test_coverage.py checks it\n"
    )
    return header + "\n".join(rows) + "\n"


if __name__ == "__main__":
    import oracles  # the module that the tests declare to, not __main__

    TABLE.write_text(oracles.table())
    sys.exit(0)
