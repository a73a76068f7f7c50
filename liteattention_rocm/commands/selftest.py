"""Runs every kernel on fixed inputs on a device; one that fails is refused from then on."""

import json


def add_options(parser) -> None:
    parser.add_argument(
        "--device", choices=("hip", "simulator"), help="default: hip where torch sees a ROCm device"
    )
    parser.add_argument("--index", type=int, default=0, help="of the ROCm device")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--record",
        action="store_true",
        help="instead: simulate the cases and rewrite the record they are judged by",
    )


def choose_device(options) -> str:
    """What torch calls the device that --device and --index name.

    Raises:
        ValueError: torch has no ROCm device, or none of that index.
        RuntimeError: torch does not load.
    """
    try:
        import torch
    except ImportError as error:
        raise RuntimeError(
            f"PyTorch does not load: {error}; `liteattention-rocm doctor` says more"
        ) from error

    available = torch.version.hip is not None and torch.cuda.is_available()
    if options.device == "hip" and not available:
        raise ValueError("--device hip: torch is no ROCm build, or sees no device; `doctor` says more")
    if options.device == "hip" or (options.device is None and available):
        count = torch.cuda.device_count()
        if not 0 <= options.index < count:
            raise ValueError(
                f"--index counts the visible devices and must be below {count}, got {options.index}"
            )
        return f"cuda:{options.index}"
    return "cpu"


def run(options) -> int:
    device = choose_device(options)

    from .. import selftest
    from ..selftest.judging import RECORD

    if options.record:
        RECORD.write_text(json.dumps(selftest.record(), indent=1) + "\n")
        print(f"recorded in {RECORD}")
        return 0
    report = selftest.run(device)
    print(json.dumps(report, indent=1) if options.json else report_text(report))
    return 1 if any(one["verdict"] == "fail" for one in report["variants"]) else 0


def report_text(report: dict) -> str:
    """The report for a reader."""
    lines = [
        f"self-test on {report['device']} ({report['driver']})"
        + (", simulated" if report["simulated"] else "")
    ]
    for fact, holds in report["facts"].items():
        lines.append(
            f"  {fact:<28} {'exact' if holds else 'NOT exact: cases that rest on it are judged by bounds'}"
        )
    for one in report["variants"]:
        lines.append(f"{one['verdict'].upper():<8} {one['name']}: {one['worst']}")
        lines += [
            f"           {case['verdict']:<5} {case['name']} (by {case['judged']}): {case['detail']}"
            for case in one["cases"]
            if case["verdict"] != "pass"
        ]
    failed = [one["name"] for one in report["variants"] if one["verdict"] == "fail"]
    if failed and not report["not_kept"]:
        lines.append(f"refused on this device from now on: {', '.join(failed)}")
    where = report["not_kept"] or f"verdicts in {report['file']}"
    lines.append(f"{report['seconds']} s; {where}")
    return "\n".join(lines)
