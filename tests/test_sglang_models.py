"""The support matrix of docs/sglang.md, made by SGLang's own model constructors."""

from pathlib import Path

import pytest

import sglang_models
from sglang_host import tiny_model

PAGE = Path(__file__).parent.parent / "docs" / "sglang.md"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory)


def test_the_documentation_has_what_the_constructors_do(model):
    with sglang_models.host(model):
        table = sglang_models.table()
    assert table.count("served, and may skip") > 10 and "refused: head size 64" in table
    (header,) = table.splitlines()[:1]
    page = PAGE.read_text()
    begin = page.index(header)
    documented = page[begin : page.index("\n\n", begin) + 1]
    assert documented == table, f"`python tests/sglang_models.py` prints what belongs there:\n{table}"
