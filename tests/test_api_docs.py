"""docs/api.md is what the docstrings say, and what is public has a docstring."""

import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import liteattention_rocm

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def api_docs():
    spec = importlib.util.spec_from_file_location("api_docs", ROOT / "tools" / "api_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(api_docs, capsys):
    assert api_docs.main(["--check"]) == 0, capsys.readouterr().err


def test_an_old_page_is_found(api_docs, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(api_docs, "OUTPUT", tmp_path / "api.md")
    assert api_docs.main(["--check"]) == 1
    assert api_docs.main([]) == 0 and api_docs.main(["--check"]) == 0
    api_docs.OUTPUT.write_text(api_docs.OUTPUT.read_text().replace("softmax scale", "scale"))
    assert api_docs.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert api_docs.main(["--write"]) == 2


def test_everything_public_is_there_and_documented(api_docs):
    text = api_docs.page()
    assert set(liteattention_rocm.__all__) == set(api_docs.PUBLIC["liteattention_rocm"])
    for name, names in api_docs.PUBLIC.items():
        module = importlib.import_module(name)
        assert f"## {name}" in text
        for member in api_docs.public_names(module) if names is None else names:
            assert re.search(rf"^### `{member}\b", text, re.MULTILINE), member
            assert inspect.getdoc(getattr(module, member)), f"{name}.{member} has no docstring"
    # Every parameter of the main function is explained.
    section = text.split("### `attention(")[1].split("\n### ")[0]
    for parameter in inspect.signature(liteattention_rocm.attention).parameters:
        assert re.search(rf"- `[^`]*\b{parameter}\b[^`]*`: ", section), parameter


def test_docstrings_become_markdown(api_docs):
    def function(first, second=2):
        """Does <this> and `<that>`.

        More of it.

        Args:
            first: one
                that goes on.
            second: two.

        A paragraph between.

        Returns:
            Something * else.
        """

    assert api_docs.member_lines("function", function) == [
        *("### `function(first, second=2)`", "", "Does \\<this> and `<that>`.", "", "More of it.", ""),
        *("**Args**", "", "- `first`: one that goes on.", "- `second`: two.", "", "A paragraph between.", ""),
        *("**Returns**", "", "Something \\* else.", ""),
    ]
