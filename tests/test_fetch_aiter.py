"""tools/fetch_aiter.py: unpacks what is wanted, once, and knows the files by their digests."""

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "fetch_aiter.py"


@pytest.fixture
def tool(monkeypatch):
    spec = importlib.util.spec_from_file_location("fetch_aiter", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    contents = {name: f"code object {name}".encode() for name in module.SHA256}
    monkeypatch.setattr(
        module, "SHA256", {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    )
    module.contents = contents
    return module


@pytest.fixture
def downloads(tool, monkeypatch):
    """Replaces pip by a wheel of our own; the list grows by one command per download."""
    commands = []

    def download(command, check):
        commands.append(command)
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "amd_aiter.whl", "w") as wheel:
            for name, content in tool.contents.items():
                wheel.writestr(tool.FOLDER + name, content)
            wheel.writestr("aiter/__init__.py", "raise RuntimeError('AITER was imported')")

    monkeypatch.setattr(tool.subprocess, "run", download)
    return commands


def run(tool, monkeypatch, directory):
    monkeypatch.setattr(sys, "argv", ["fetch_aiter.py", str(directory)])
    return tool.main()


def test_unpacks_the_code_objects_alone_and_only_once(tool, downloads, monkeypatch, tmp_path, capsys):
    assert run(tool, monkeypatch, tmp_path / "aiter") == 0
    assert run(tool, monkeypatch, tmp_path / "aiter") == 0
    (command,) = downloads
    assert "--no-deps" in command and command[-1] == "amd-aiter==0.1.7.post2.dev18"
    files = [file for file in (tmp_path / "aiter").rglob("*") if file.is_file()]
    assert sorted(file.relative_to(tmp_path / "aiter" / tool.FOLDER).as_posix() for file in files) == sorted(
        tool.SHA256
    )
    printed = capsys.readouterr().out
    assert all(digest in printed for digest in tool.SHA256.values())


def test_a_damaged_file_is_fetched_again(tool, downloads, monkeypatch, tmp_path):
    assert run(tool, monkeypatch, tmp_path) == 0
    name = next(iter(tool.SHA256))
    (tmp_path / tool.FOLDER / name).write_bytes(b"damaged")
    assert run(tool, monkeypatch, tmp_path) == 0
    assert len(downloads) == 2
    assert tool.digests(tmp_path) == tool.SHA256


def test_other_files_are_refused(tool, downloads, monkeypatch, tmp_path, capsys):
    tool.contents[next(iter(tool.contents))] = b"another release"
    assert run(tool, monkeypatch, tmp_path) == 1
    assert "these are not the files of amd-aiter" in capsys.readouterr().err


def test_a_failed_download_is_told(tool, monkeypatch, tmp_path, capsys):
    def fail(command, check):
        raise subprocess.CalledProcessError(2, command)

    monkeypatch.setattr(tool.subprocess, "run", fail)
    assert run(tool, monkeypatch, tmp_path) == 1
    assert "pip download amd-aiter==0.1.7.post2.dev18 failed with exit code 2" in capsys.readouterr().err


def test_the_files_here_are_those_of_the_release(aiter):
    spec = importlib.util.spec_from_file_location("fetch_aiter", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, digest in module.SHA256.items():
        file = aiter.find() / Path(name).name
        assert hashlib.sha256(file.read_bytes()).hexdigest() == digest
