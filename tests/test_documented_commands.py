"""Command lines in README.md and docs/ are ones that the programs take."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from liteattention_rocm import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(ROOT.glob("docs/*.md")) + [ROOT / "README.md"]


def commands():
    """(page, words) of every line of a shell block that starts one of our programs."""
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                for cut in ("|", ">", "&&"):
                    words = words[: words.index(cut)] if cut in words else words
                if any(re.search(r"…|\b[A-Z],[A-Z],S|=PATH|^[A-Z]+$", word) for word in words):
                    continue  # a pattern, not a command
                if words and (words[0] == "liteattention-rocm" or words[:2] == ["python", "-m"]):
                    yield pytest.param(words, id=f"{page.name}: {' '.join(words)}"[:100])


def harness_parse(arguments):
    for module, name in (("e2e.options", "parse"), ("e2e.compare", "parse")):
        found = importlib.util.find_spec(module)
        if found is not None:
            return getattr(importlib.import_module(module), name)(arguments)
    raise LookupError("e2e has no parser")


@pytest.mark.parametrize("words", list(commands()))
def test_command_is_parsed(words):
    if words[0] == "liteattention-rocm":
        if words[1] == "compare":
            assert harness_parse(words[2:])
        else:
            assert cli.parser().parse_args(words[1:]).command == words[1]
    elif words[2] == "e2e.compare":
        assert harness_parse(words[3:])
    else:
        assert importlib.util.find_spec(words[2]) is not None


def test_there_are_commands_and_wrong_ones_are_found():
    assert len(list(commands())) > 20
    with pytest.raises(SystemExit):
        cli.parser().parse_args(["bench", "--no-such-option"])
    with pytest.raises(SystemExit):
        harness_parse(["--no-such-option"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
