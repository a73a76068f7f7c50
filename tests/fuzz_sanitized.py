"""Fuzzes a build whose host and simulator code watches itself with AddressSanitizer and
UndefinedBehaviorSanitizer.

    python tests/fuzz_sanitized.py --seconds 60 --jobs 2 [further options of fuzz.py]

The build is made by pip, into a folder of its own, and kept; it takes g++ and some minutes. What a sanitizer
finds ends the process, which fuzz.py reports with the case that did it. Leaks are not looked for: the
interpreter's own would drown ours.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PACKAGE = ROOT / "build" / "sanitized"
FOUND = 86  # exit status of a process that a sanitizer ended


def build(package: Path) -> Path:
    """The package, compiled with sanitizers, in a folder to put before others on sys.path."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--upgrade",
        "--target",
        str(package),
    ]
    settings = ["cmake.define.LITEATTENTION_ROCM_SANITIZE=ON", f"build-dir={package}-objects"]
    subprocess.run([*command, *(f"--config-settings={one}" for one in settings), str(ROOT)], check=True)
    return package


def libraries(*names: str) -> str:
    """The sanitizers' libraries of g++, for LD_PRELOAD: the interpreter was linked without them."""
    compiler = os.environ.get("CXX", "g++")
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout
        for name in names
    ]
    return " ".join(line.strip() for line in found)


def environment(package: Path) -> dict[str, str]:
    """Variables under which a Python runs the sanitized package."""
    halt = f"halt_on_error=1:exitcode={FOUND}:print_stacktrace=1"
    return {
        **os.environ,
        "LD_PRELOAD": libraries("libasan.so", "libubsan.so"),
        # handle_segv: a crash is reported too. Big allocations fail as they do without a sanitizer.
        "ASAN_OPTIONS": f"{halt}:detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0",
        "UBSAN_OPTIONS": halt,
        "FUZZ_PACKAGE": str(package),
        "PYTHONMALLOC": "malloc",  # so that buffers of Python's have red zones as well
    }


def main(words=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=Path, help="a sanitized build to use; made otherwise")
    parser.add_argument("--build-only", action="store_true")
    options, rest = parser.parse_known_args(words)
    package = options.package or build(PACKAGE)
    if options.build_only:
        return 0
    return subprocess.run([sys.executable, str(HERE / "fuzz.py"), *rest], env=environment(package)).returncode


if __name__ == "__main__":
    sys.exit(main())
