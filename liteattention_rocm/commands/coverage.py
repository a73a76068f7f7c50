"""Lists the gfx942 instructions that the simulator decodes and executes, and the oracle of each."""

import collections
import json
from pathlib import Path

from .. import simulator

TABLE = Path(__file__).parents[1] / "oracles.txt"


def add_options(parser) -> None:
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def instructions() -> list[dict]:
    """Every decoded instruction: name, encodings, implemented, oracle, refused.

    `oracle` names what the tests compare its results with; `refused` lists the forms and circumstances in
    which it is an error although the mnemonic executes. Both come from oracles.txt, which a test compares
    with what the tests do.

    Raises:
        RuntimeError: oracles.txt and the simulator disagree about which instructions there are.
    """
    lines = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    known = {line[0]: (line[1], line[2] if len(line) > 2 else "") for line in lines}
    rows = sorted(simulator.coverage(), key=lambda row: row["name"])
    if known.keys() != {row["name"] for row in rows}:
        differing = sorted(known.keys() ^ {row["name"] for row in rows})
        raise RuntimeError(
            f"{TABLE.name} is of another version of the simulator; instructions {differing[:5]}"
        )
    for row in rows:
        row["oracle"], refused = known[row["name"]]
        row["refused"] = refused.split("; ") if refused else []
    return rows


def run(options) -> int:
    rows = instructions()
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        mark = "executed" if row["implemented"] else "decoded"
        refused = f"  refused: {'; '.join(row['refused'])}" if row["refused"] else ""
        print(f"{mark:<8}  {row['name']:<32} {', '.join(row['encodings']):<22} {row['oracle']}{refused}")
    executed = [row for row in rows if row["implemented"]]
    print(f"{len(rows)} instructions are decoded, {len(executed)} of them executed; any other is an error")
    counts = collections.Counter(row["oracle"] for row in executed)
    print("oracles: " + ", ".join(f"{oracle} {count}" for oracle, count in counts.most_common()))
    partly = sum(bool(row["refused"]) for row in executed)
    print(f"{partly} executed instructions refuse some form; encodings are tested against the assembler")
    return 0
