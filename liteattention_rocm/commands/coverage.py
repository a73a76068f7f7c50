"""Lists the gfx942 instructions that the simulator decodes and executes."""

import json

from .. import simulator


def add_options(parser) -> None:
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(options) -> int:
    instructions = sorted(simulator.coverage(), key=lambda instruction: instruction["name"])
    if options.json:
        print(json.dumps(instructions, indent=1))
        return 0
    for instruction in instructions:
        mark = "executed" if instruction["implemented"] else "decoded"
        print(f"{mark:<8}  {instruction['name']:<32} {', '.join(instruction['encodings'])}")
    executed = sum(instruction["implemented"] for instruction in instructions)
    print(f"{len(instructions)} instructions are decoded, {executed} of them executed; any other is an error")
    return 0
