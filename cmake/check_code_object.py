"""Refuses a code object whose kernels spill, use scratch or exceed their registers or LDS.

    python check_code_object.py --arch gfx942 attention.gfx942.hsaco

Exit status 1 and one line per violation, naming kernel and value. Needs pyelftools and msgpack.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

READER = Path(__file__).resolve().parent.parent / "liteattention_rocm" / "code_object.py"


def load_reader():
    """The parser of the package, without importing the package (it isn't built yet)."""
    spec = importlib.util.spec_from_file_location("code_object", READER)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", required=True, help="architecture the code object must be for, e.g. gfx942")
    parser.add_argument("image", type=Path)
    options = parser.parse_args()

    reader = load_reader()
    code_object = reader.parse(options.image.read_bytes())
    problems = reader.violations(code_object)
    if code_object.architecture != options.arch:
        problems.insert(0, f"compiled for {code_object.target}, not {options.arch}")
    for problem in problems:
        print(f"{options.image.name}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
