"""Shows registers, LDS, spills, code size and instruction mix of the kernels, and their disassembly."""

import collections
import dataclasses
import json
from pathlib import Path

from .. import _C, code_object, simulator, structure

UNKNOWN = "unknown"  # what the decoder does not understand


def add_options(parser) -> None:
    parser.add_argument("code_object", nargs="?", type=Path, help="a file; default: the embedded ones")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--isa", action="store_true", help="add the disassembly, annotated with categories and branch targets"
    )
    parser.add_argument(
        "--compare",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="compare the structure with that of other code objects and explain the differences",
    )


def run(options) -> int:
    if options.compare:
        return _compare(options)
    images = _images(options.code_object)
    reports = [report(name, image, isa=options.isa) for name, image in images]
    if options.json:
        print(json.dumps(reports, indent=1))
    else:
        for one in reports:
            _print(one)
    return 0


def _images(file: Path | None) -> list[tuple[str, bytes]]:
    if file is not None:
        return [(str(file), file.read_bytes())]
    return [(f"embedded {architecture}", _C.code_object(architecture)) for architecture in _C.architectures()]


def _compare(options) -> int:
    name, image = _images(options.code_object)[0]
    images = [(name, image), *((str(file), file.read_bytes()) for file in options.compare)]
    report = comparison(images)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        _print_comparison(report)
    return 1 if report["unexplained"] or any(one["refusal"] for one in report["code_objects"]) else 0


def comparison(images: list[tuple[str, bytes]]) -> dict:
    """Names and bytes of code objects, the first being ours, to their structures side by side.

    Returns:
        {"code_objects": [{"name", "refusal": the simulator's sentence or None}], "rows": [{"group", "field",
        "values", "differs", "loader", "note"}], "unexplained": fields that differ without an explanation}

    Raises:
        ValueError: the bytes are not an AMDGPU code object.
    """
    structures = []
    for name, image in images:
        try:
            structures.append(structure.structure(image))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    rows = structure.compare(structures)
    return {
        "code_objects": [{"name": name, "refusal": _refusal(image)} for name, image in images],
        "rows": [{**dataclasses.asdict(row), "differs": row.differs} for row in rows],
        "unexplained": [f"{row.group}: {row.field}" for row in rows if row.unexplained],
    }


def _refusal(image: bytes) -> str | None:
    """Why the simulator's loader, which has ROCm's rules, refuses a code object for its device."""
    if code_object.parse(image).architecture != simulator.ARCHITECTURE:
        return None
    try:
        simulator.Module(image)
    except simulator.SimulatorError as error:
        return str(error)
    return None


def _print_comparison(report: dict) -> None:
    for number, one in enumerate(report["code_objects"], 1):
        print(f"[{number}] {one['name']}: {one['refusal'] or 'no rule of the loader is broken'}")
    group = None
    for row in report["rows"]:
        if row["group"] != group:
            group = row["group"]
            print(f"\n{group}")
        if not row["differs"]:
            print(f"    {row['field']:<36} {row['values'][0]}")
            continue
        mark = "?" if row["note"] is None else "!" if row["loader"] else "~"
        values = "  |  ".join(row["values"])
        print(f"  {mark} {row['field']:<36} {values}")
        print(f"      {row['note'] or 'no explanation'}")
    print("\n! differs, the loader goes by it   ~ differs, the loader does not   ? not explained")
    differing, unexplained = sum(row["differs"] for row in report["rows"]), len(report["unexplained"])
    print(f"{len(report['rows'])} fields, {differing} differ, {unexplained} of them without explanation")


def report(name: str, image: bytes, *, isa: bool) -> dict:
    """Everything that `inspect` says about one code object.

    Raises:
        ValueError: the bytes are not an AMDGPU code object.
    """
    parsed = code_object.parse(image)
    instructions, entries = [], []
    if parsed.architecture == simulator.ARCHITECTURE:
        disassembly = simulator.disassemble(image)
        instructions = disassembly["instructions"]
        entries = disassembly["kernels"]
    begins = {entry["name"]: entry["address"] for entry in entries}
    kernels = []
    for kernel in parsed.kernels:
        one = {key: value for key, value in dataclasses.asdict(kernel).items() if key != "arguments"}
        begin = begins.get(kernel.name, 0)
        span = range(begin, begin + kernel.code_bytes)
        body = [instruction for instruction in instructions if instruction["address"] in span]
        one["instructions"] = len(body)
        one["mix"] = _frequencies(body, "category")
        one["most_frequent"] = dict(list(_frequencies(body, "op").items())[:12])
        if isa:
            one["isa"] = _with_branches(body)
        kernels.append(one)
    return {
        "name": name,
        "target": parsed.target,
        "code_object_version": parsed.version,
        "bytes": parsed.bytes,
        "kernels": kernels,
    }


def _with_branches(body: list[dict]) -> list[dict]:
    """The instructions, branches with the address that they go to, and all with whether one comes there."""
    annotated = [dict(instruction, branched_to=False) for instruction in body]
    by_address = {instruction["address"]: instruction for instruction in annotated}
    for instruction in annotated:
        if (instruction["op"] or "").startswith(("s_branch", "s_cbranch")):
            words = int(instruction["text"].split()[-1])  # from the end of the instruction
            target = instruction["address"] + instruction["size"] + 4 * words
            instruction["branches_to"] = target
            if target in by_address:
                by_address[target]["branched_to"] = True
    return annotated


def _frequencies(instructions: list[dict], key: str) -> dict[str, int]:
    return dict(
        collections.Counter(instruction[key] or UNKNOWN for instruction in instructions).most_common()
    )


def _print(one: dict) -> None:
    print(f"{one['name']}: {one['target']}, code object v{one['code_object_version']}, {one['bytes']} bytes")
    for kernel in one["kernels"]:
        print(f"\n{kernel['name']}")
        print(
            f"  registers     {kernel['vgprs']} VGPRs ({kernel['agprs']} AGPRs), {kernel['sgprs']} SGPRs; "
            f"spilled: {kernel['vgpr_spills']} VGPRs, {kernel['sgpr_spills']} SGPRs"
        )
        print(f"  memory        {kernel['lds_bytes']} bytes of LDS, {kernel['scratch_bytes']} of scratch")
        print(f"  code          {kernel['code_bytes']} bytes, {kernel['instructions']} instructions")
        print(
            f"  workgroup     at most {kernel['max_workgroup_size']} work-items, "
            f"waves of {kernel['wavefront_size']}"
        )
        for title, counts in (("mix", kernel["mix"]), ("most frequent", kernel["most_frequent"])):
            if counts:
                print(f"  {title:<13} {', '.join(f'{count} {what}' for what, count in counts.items())}")
        for instruction in kernel.get("isa", ()):
            mark = ">" if instruction["branched_to"] else " "
            category = instruction["category"] or UNKNOWN
            target = f"  -> {instruction['branches_to']:#08x}" if "branches_to" in instruction else ""
            print(f" {mark}{instruction['address']:#08x}  {category:<15} {instruction['text']}{target}")
