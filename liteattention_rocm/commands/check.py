"""Runs the kernels under every check of the simulator, or proves with mutants that the checks bite."""

import collections
import dataclasses
import json
import sys
import time
from pathlib import Path

from .. import _C, simulator
from ..rounding import ROUNDINGS

_LISTED = 20  # findings and survivors that are printed in full


def add_options(parser) -> None:
    parser.add_argument("--kernel", action="append", help="a kernel's symbol; default: every kernel")
    parser.add_argument(
        "--shape", action="append", metavar="B,H,SQ[,SKV[,HKV]]", help="a problem; default: a built-in set"
    )
    parser.add_argument(
        "--object", type=Path, metavar="FILE", help="a code object with the package's kernels"
    )
    parser.add_argument("--aiter", action="store_true", help="also AITER's three kernels")
    parser.add_argument("--check", default="all", help="the checks, comma-separated; default: all")
    parser.add_argument(
        "--seeds",
        type=int,
        default=2,
        metavar="N",
        help="random orders of completion to run under; default: 2",
    )
    parser.add_argument("--mutate", action="store_true", help="change one instruction at a time instead")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the mutants, each Nth")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options) -> int:
    if options.every < 1:
        raise ValueError(f"every must be at least 1, got {options.every}")
    if options.seeds < 0:
        raise ValueError(f"seeds must be at least 0, got {options.seeds}")
    # torch is loaded by what follows; the other options of the command line need none.
    from ..checking import problems

    if options.object:
        code_object = options.object.read_bytes()
        available = [entry["name"] for entry in simulator.disassemble(code_object)["kernels"]]
    else:
        code_object = _C.code_object(simulator.ARCHITECTURE)
        available = _C.kernel_names()
    for name in options.kernel or ():
        if name not in available:
            raise ValueError(f"kernel must be one of {', '.join(available)}, got {name!r}")
    kernels = options.kernel or available
    chosen = tuple(problems.parse_shape(text) for text in options.shape or ())
    if options.mutate:
        return _mutate(options, code_object, kernels, chosen)
    return _check(options, code_object, kernels, chosen)


def _check(options, code_object, kernels, chosen) -> int:
    from ..checking import problems

    module = simulator.Module(code_object)
    jobs = [
        (kernel, lambda operands, kernel=kernel: problems.launch(module, kernel, operands))
        for kernel in kernels
    ]
    if options.aiter:
        jobs += [
            (f"AITER {name}", lambda operands, name=name: problems.launch_aiter(name, operands))
            for name in ROUNDINGS
        ]
    reports = [
        check_kernel(name, launch, problems.problems_for(name, chosen), options.check, options.seeds)
        for name, launch in jobs
    ]
    unexplained = sum(not finding["explanation"] for one in reports for finding in one["findings"])
    failed = unexplained or any(one["failures"] for one in reports)
    if options.json:
        print(json.dumps(reports, indent=1))
    else:
        for one in reports:
            _print_checked(one)
        verdict = (
            "no finding is unexplained" if not failed else f"{unexplained} unexplained findings, or failures"
        )
        print(f"{len(reports)} kernels, simulated: {verdict}")
    return 1 if failed else 0


def check_kernel(name: str, launch, chosen, check: str = "all", seeds: int = 2) -> dict:
    """One kernel on every problem, with loads delivered early, late and at random.

    Args:
        launch: called with `problems.Operands`, returns the bits of the results.
        chosen: the problems.
        check: the simulator's checks.
        seeds: how many random orders of completion.

    Returns:
        {"kernel", "problems", "deliveries", "seconds", "failures", "findings": the simulator's, with an
        "explanation"}. A result or a finding that depends on the order of completion is a failure.
    """
    from ..checking import problems
    from ..checking.explained import explanation

    deliveries = problems.deliveries(seeds)
    failures, found, start = [], {}, time.monotonic()
    for problem in chosen:
        operands = problems.operands_of(problem)
        results, places = {}, {}
        for delivery in deliveries:
            simulator.reset_statistics()
            try:
                with simulator.checking(check, delivery=delivery, findings="all"):
                    results[delivery] = launch(operands)
            except simulator.SimulatorError as error:
                failures.append(f"{problem}, loads {delivery}: {error}")
            listed = {(one["check"], one["address"]): one for one in simulator.findings()}
            places[delivery] = set(listed)
            for place, one in listed.items():
                occurrences = found[place]["occurrences"] if place in found else 0
                found[place] = {**found.get(place, one), "occurrences": occurrences + one["occurrences"]}
        for what, values in (("results depend", results), ("findings depend", places)):
            differ = [delivery for delivery in values if values[delivery] != next(iter(values.values()))]
            if differ:
                failures.append(
                    f"{problem}: the {what} on when loads are delivered within their waits: "
                    f"{', '.join(differ)} against {next(iter(values))}"
                )
    return {
        "kernel": name,
        "problems": [str(problem) for problem in chosen],
        "deliveries": list(deliveries),
        "seconds": round(time.monotonic() - start, 2),
        "findings": [{**one, "explanation": explanation(one)} for _, one in sorted(found.items())],
        "failures": failures,
    }


def _print_checked(one: dict) -> None:
    found = one["findings"]
    state = (
        "clean"
        if not found and not one["failures"]
        else f"{len(found)} findings, {len(one['failures'])} failures"
    )
    print(f"{one['kernel']}: {state} ({one['seconds']} s)")
    for text in one["failures"]:
        print(f"  FAILURE      {text}")
    for finding in [finding for finding in found if not finding["explanation"]][:_LISTED]:
        print(f"  {finding['check'].upper():<12} {finding['message']} ({finding['occurrences']} times)")
    explained = collections.defaultdict(list)
    for finding in found:
        if finding["explanation"]:
            explained[finding["check"], finding["explanation"]].append(finding)
    for (check, text), group in explained.items():
        print(f"  explained    {check}, {len(group)} instructions, the first: {group[0]['message']}")
        print(f"               {text}")


def _mutate(options, code_object, kernels, chosen) -> int:
    from ..checking import problems

    reports = [
        mutate_kernel(
            code_object,
            kernel,
            problems.problems_for(kernel, chosen),
            options.every,
            progress=not options.json,
        )
        for kernel in kernels
    ]
    if options.json:
        print(json.dumps(reports, indent=1))
    else:
        for one in reports:
            _print_mutated(one)
    return 0 if all(one["share"] >= 0.95 for one in reports) else 1


def mutate_kernel(code_object: bytes, kernel: str, chosen, every: int = 1, progress: bool = False) -> dict:
    """Judges the mutants of one kernel.

    Args:
        every: of the mutants, each Nth.
        progress: write a line to a terminal as it goes.

    Returns:
        {"kernel", "seconds", "mutants", "caught", "equivalent", "share" of the caught among those not proven
        equivalent, "kinds": {kind: {caught, equivalent, survived}}, "caught_by": {check: count},
        "survivors": [...], "equivalents": [...]}
    """
    from ..checking import mutants

    start = time.monotonic()
    judge = mutants.Judge(code_object, kernel, chosen)
    listed = mutants.list_mutants(code_object, kernel)[::every]
    verdicts = []
    for number, mutant in enumerate(listed):
        verdicts.append(judge.judge(mutant))
        if progress and sys.stderr.isatty():
            print(f"\r{kernel}: {number + 1} of {len(listed)} mutants", end="", file=sys.stderr, flush=True)
    if progress and sys.stderr.isatty():
        print(file=sys.stderr)
    kinds = collections.defaultdict(collections.Counter)
    for verdict in verdicts:
        outcome = "caught" if verdict.caught else "equivalent" if verdict.proof else "survived"
        kinds[verdict.mutant.kind][outcome] += 1
    caught = sum(verdict.caught for verdict in verdicts)
    equivalent = [verdict for verdict in verdicts if verdict.proof]
    rest = len(verdicts) - len(equivalent)
    return {
        "kernel": kernel,
        "seconds": round(time.monotonic() - start, 1),
        "mutants": len(verdicts),
        "caught": caught,
        "equivalent": len(equivalent),
        "share": caught / rest if rest else 1.0,
        "kinds": {kind: dict(counts) for kind, counts in sorted(kinds.items())},
        "caught_by": dict(
            collections.Counter(verdict.by for verdict in verdicts if verdict.caught).most_common()
        ),
        "survivors": [_survivor(v) for v in verdicts if not v.caught and not v.proof],
        "equivalents": [_survivor(v) for v in equivalent],
    }


def _survivor(verdict) -> dict:
    described = dataclasses.asdict(verdict.mutant)
    return {key: described[key] for key in ("kind", "address", "text", "change")} | {
        "reason": verdict.proof or verdict.reason
    }


def _print_mutated(one: dict) -> None:
    print(
        f"{one['kernel']}: {one['caught']} of {one['mutants']} mutants caught, {one['equivalent']} proven "
        f"equivalent: {100 * one['share']:.1f} % of the rest caught ({one['seconds']} s, simulated)"
    )
    for kind, counts in one["kinds"].items():
        described = ", ".join(f"{counts.get(key, 0)} {key}" for key in ("caught", "equivalent", "survived"))
        print(f"  {kind:<18} {described}")
    print(
        f"  caught by          {', '.join(f'{check} {count}' for check, count in one['caught_by'].items())}"
    )
    for title, entries in (("survived", one["survivors"]), ("equivalent", one["equivalents"])):
        for entry in entries[:_LISTED]:
            print(f"  {title:<11}{entry['address']:#x} {entry['text']}: {entry['change']}: {entry['reason']}")
        if len(entries) > _LISTED:
            print(f"  {title:<11}and {len(entries) - _LISTED} more (--json lists all)")
