"""Versions of Python: the tests run on one, the others are checked without running them."""

import ast
import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).parent.parent
OLDEST = (3, 10)
SHIPPED = [
    file
    for name in ("liteattention_rocm", "sglang_integration", "e2e")
    for file in (ROOT / name).rglob("*.py")
]


def test_metadata_and_linter_name_the_oldest_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == f">={OLDEST[0]}.{OLDEST[1]}"
    assert project["tool"]["ruff"]["target-version"] == f"py{OLDEST[0]}{OLDEST[1]}"


def test_shipped_files_have_the_oldest_versions_syntax():
    assert len(SHIPPED) > 50
    for file in SHIPPED:
        ast.parse(file.read_text(), str(file), feature_version=OLDEST)


def oldest_needed(*files: Path) -> str:
    """What vermin says of modules, functions and syntax that files use."""
    run = "from vermin.main import main; main()"  # it can't be run by -m
    command = [sys.executable, "-c", run, "--no-tips", "--eval-annotations", *map(str, files)]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("Minimum required versions:")]
    return line.partition(": ")[2].split()[-1]


def test_shipped_files_use_nothing_newer(tmp_path):
    assert oldest_needed(*SHIPPED) == f"{OLDEST[0]}.{OLDEST[1]}"
    newer = tmp_path / "newer.py"
    newer.write_text("import enum\n\n\nclass Name(enum.StrEnum):\n    ONE = 'one'\n")
    assert oldest_needed(newer) == "3.11"
