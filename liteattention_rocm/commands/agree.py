"""Compares a numerical variant with AITER's own code objects, element by element, in the simulator."""

import json
from dataclasses import asdict
from pathlib import Path


def add_options(parser) -> None:
    parser.add_argument("--variant", default="aiter_exact", help="aiter_exact (default) or fast")
    parser.add_argument(
        "--elements", type=int, default=1_000_000, help="of the output to compare; default: %(default)s"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="go on from the counts in FILE, which is kept up to date"
    )
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")


def run(options) -> int:
    """Prints counts by kind of input. 1 where "aiter_exact" misses a bar; "fast" has none here."""
    from .. import agreement, arguments

    arguments.check_variant(options.variant, 1.0)
    if options.elements < 1:
        raise ValueError(f"elements must be at least 1, got {options.elements}")
    state = _resumed(options.resume, options.variant)
    counts = {kind: agreement.Agreement(**values) for kind, values in state["kinds"].items()}
    while sum(one.elements for one in counts.values()) < options.elements:
        case = agreement.part(state["parts"])
        added = agreement.with_aiter(case, options.variant)
        counts[case.kind] = counts.get(case.kind, agreement.Agreement()) + added
        state["parts"] += 1
        state["kinds"] = {kind: asdict(one) for kind, one in counts.items()}
        if options.resume:
            options.resume.write_text(json.dumps(state, indent=1))
    total = sum(counts.values(), agreement.Agreement())
    if options.json:
        print(json.dumps(state | {"total": asdict(total)}, indent=1))
    else:
        print(_text(state, counts, total))
    return int(options.variant == "aiter_exact" and not total.keeps_bars())


def _identity(variant: str) -> dict:
    """What counts belong to: the variant and both code objects."""
    import hashlib

    from .. import aiter_kernel, simulator, verdicts
    from ..rounding import ROUNDINGS

    folder = aiter_kernel.find()
    theirs = b"".join((folder / aiter_kernel.file_name(rounding)).read_bytes() for rounding in ROUNDINGS)
    return {
        "variant": variant,
        "code_object": verdicts.code_object_hash(simulator.ARCHITECTURE),
        "aiter": hashlib.sha256(theirs).hexdigest(),
    }


def _resumed(file: Path | None, variant: str) -> dict:
    identity = _identity(variant)
    if file is None or not file.exists():
        return identity | {"parts": 0, "kinds": {}}
    state = json.loads(file.read_text())
    for key, value in identity.items():
        if state.get(key) != value:
            raise ValueError(f"{file} has counts of another {key.replace('_', ' ')}: {state.get(key)!r}")
    return state


def _text(state: dict, counts: dict, total) -> str:
    heads = ("identical", "> 1 ulp", "special", "misplaced")
    lines = [
        f"{state['variant']} against AITER's code objects, simulated, {state['parts']} problems",
        f"  {'inputs':<18}{'elements':>12}" + "".join(f"{head:>12}" for head in heads),
    ]
    for kind, one in (*counts.items(), ("all", total)):
        lines.append(
            f"  {kind:<18}{one.elements:>12,}{100 * one.share:>11.4f}%"
            f"{one.beyond_one_ulp:>12,}{one.special:>12,}{one.misplaced:>12,}"
        )
    lines.append(
        f"  lse: {total.identical_rows:,} of {total.rows:,} identical, "
        f"at most {total.lse_excess:.2f} of what 1e-5 and float32 rounding allow apart"
    )
    return "\n".join(lines)
