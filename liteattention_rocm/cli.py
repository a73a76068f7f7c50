"""The command line: `liteattention-rocm COMMAND`, one module of `commands` each."""

import argparse
import os
import sys

from .commands import (
    agree,
    bench,
    calibrate,
    check,
    compare,
    coverage,
    debug,
    doctor,
    inspect,
    profile,
    selftest,
    speed,
)

COMMANDS = {
    "doctor": doctor,
    "inspect": inspect,
    "coverage": coverage,
    "check": check,
    "agree": agree,
    "selftest": selftest,
    "calibrate": calibrate,
    "profile": profile,
    "bench": bench,
    "speed": speed,
    "debug": debug,
    "compare": compare,
}


def parser() -> argparse.ArgumentParser:
    """The parser of every command but `compare`, which parses its own."""
    made = argparse.ArgumentParser(prog="liteattention-rocm", description="Attention for MI300X (gfx942).")
    subparsers = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = module.__doc__.splitlines()[0]
        module.add_options(subparsers.add_parser(name, help=summary, description=summary))
    return made


def main(arguments=None) -> int:
    """Runs one command.

    Returns:
        The exit code: 0 done, 1 the command found or met a problem, 2 wrong usage (through SystemExit).
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["compare"]:
        return compare.run(arguments[1:])  # e2e.compare parses its own options
    options = parser().parse_args(arguments)
    try:
        return COMMANDS[options.command].run(options)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"liteattention-rocm {options.command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
