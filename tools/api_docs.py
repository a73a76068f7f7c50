"""Writes docs/api.md from the docstrings of what programs may use.

    python tools/api_docs.py [--check]

With --check nothing is written, and the exit code is 1 if the file is out of date.
"""

import enum
import importlib
import inspect
import re
import sys
from pathlib import Path

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "api.md"
# Modules, and of each the names that are public, in the order of the page.
PUBLIC = {
    "liteattention_rocm": ("attention", "attention_varlen", "LiteAttention", "RoundMode", "prepare"),
    "liteattention_rocm.lite": ("Calibration",),
    "liteattention_rocm.verdicts": ("RefusedVariant",),
    "liteattention_rocm.reference": None,
    "liteattention_rocm.aiter_kernel": ("find", "file_name", "kernel_name", "forward"),
    "liteattention_rocm.simulator": None,
    "liteattention_rocm.code_object": None,
    "liteattention_rocm.timing": ("Kernel", "Shape", "profile", "ratio"),
}
_SECTIONS = ("Args", "Attributes", "Returns", "Raises")
_HEADING = re.compile(rf"^({'|'.join(_SECTIONS)}):$")
_ENTRY = re.compile(r"^(\S[^:]*?): (.*)$")


def public_names(module) -> list[str]:
    """Functions and classes that a module defines and does not mark as its own, in source order."""
    members = [
        (inspect.getsourcelines(member)[1], name)
        for name, member in vars(module).items()
        if not name.startswith("_")
        and getattr(member, "__module__", None) == module.__name__
        and (
            inspect.isclass(member) or inspect.isfunction(inspect.unwrap(member))
            if callable(member)
            else False
        )
    ]
    return [name for _, name in sorted(members)]


def signature(name: str, member) -> str:
    """`name(parameters)`, without annotations, which the docstring has in words."""
    try:
        found = inspect.signature(member)
    except (TypeError, ValueError):
        return f"{name}()"
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in found.parameters.values()
        if parameter.name != "self"
    ]
    return name + str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def escaped(text: str) -> str:
    """Text as Markdown shows it: angle brackets, asterisks and leading underscores are no markup."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([<*]|\b_)", r"\\\1", p) for p in pieces)


def section_lines(lines: list[str]) -> list[str]:
    """The entries of one section as a list; what has no name stays a paragraph."""
    base = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    entries: list[str] = []
    for line in (line[base:] for line in lines):
        if not line.strip():
            continue
        match = _ENTRY.match(line)
        if match and not line.startswith(" "):
            entries.append(f"- `{match.group(1)}`: {escaped(match.group(2))}")
        elif entries:
            entries[-1] += " " + escaped(line.strip())
        else:
            entries.append(escaped(line))
    return entries


def docstring_lines(member) -> list[str]:
    """A docstring as Markdown."""
    text = inspect.getdoc(member) or ""
    blocks, heading, result = [[]], None, []
    for line in text.splitlines():
        if match := _HEADING.match(line):
            blocks.append([match.group(1)])
        else:
            blocks[-1].append(line)
    for index, block in enumerate(blocks):
        if index == 0:
            paragraph = "\n".join(block).strip()
            result += [*escaped(paragraph).splitlines(), ""]
            continue
        heading, *lines = block
        # A paragraph behind a section is at the margin.
        cut = next((i for i, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
        result += [f"**{heading}**", "", *section_lines(lines[:cut]), ""]
        if rest := "\n".join(lines[cut:]).strip():
            result += [*escaped(rest).splitlines(), ""]
    return result


def member_lines(name: str, member) -> list[str]:
    """One function, or a class with its public methods and properties."""
    is_enum = inspect.isclass(member) and issubclass(member, enum.Enum)
    shown = name if is_enum else signature(name, member)
    lines = [f"### `{shown}`", "", *docstring_lines(member)]
    if not inspect.isclass(member):
        return lines
    for key, attribute in vars(member).items():
        function = attribute.__func__ if isinstance(attribute, (classmethod, staticmethod)) else attribute
        documented = function.fget if isinstance(function, property) else function
        if (key.startswith("_") and key != "__call__") or not inspect.isfunction(documented):
            continue
        if not inspect.getdoc(documented):
            continue
        shown = key if isinstance(function, property) else signature(key, function).replace("(cls, ", "(")
        lines += [f"#### `.{shown}`", "", *docstring_lines(documented)]
    return lines


def page() -> str:
    """The whole page."""
    lines = [
        "# API",
        "",
        "Generated from the docstrings by `python tools/api_docs.py`, which a test keeps current. What is",
        "not here is internal and may change.",
        "",
    ]
    for name, names in PUBLIC.items():
        module = importlib.import_module(name)
        lines += [f"## {name}", "", *docstring_lines(module)]
        for member in public_names(module) if names is None else names:
            lines += member_lines(member, getattr(module, member))
    text = "\n".join(lines)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    made = page()
    if not arguments:
        OUTPUT.write_text(made)
        return 0
    if OUTPUT.exists() and OUTPUT.read_text() == made:
        return 0
    print(f"{OUTPUT} is out of date: python tools/api_docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
