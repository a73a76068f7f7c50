"""Generates one Wan2.1 video per attention backend through SGLang and compares them."""

import importlib
import sys


def add_options(parser) -> None:
    """None here: everything after the command's name goes to e2e.compare."""


def run(arguments) -> int:
    """Forwards the command's arguments to `e2e.compare.main`."""
    try:
        module = importlib.import_module("e2e.compare")
    except ModuleNotFoundError as error:
        print(
            f"liteattention-rocm compare needs the end-to-end harness ({error.name} is missing): "
            "pip install 'liteattention_rocm[e2e]', or run `make e2e` in the repository",
            file=sys.stderr,
        )
        return 1
    return module.main(list(arguments)) or 0
