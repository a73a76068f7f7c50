"""Measures clocks on a device: what the timing model can be narrowed with."""

import json
import sys
from pathlib import Path

from .selftest import choose_device

_SHAPE, _SIMULATED_SHAPE = "2,19,16384", "1,1,256,512"  # 8 rounds of AITER's workgroups on 304 CUs


def add_options(parser) -> None:
    parser.add_argument(
        "--device", choices=("hip", "simulator"), help="default: hip where torch sees a ROCm device"
    )
    parser.add_argument("--index", type=int, default=0, help="of the ROCm device")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the calibration there")
    parser.add_argument(
        "--shape",
        metavar="B,H,Sq[,Skv]",
        help=f"of the workloads; default: {_SHAPE}, as long as 8 full rounds",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for which each workload runs")
    parser.add_argument("--no-aiter", action="store_true", help="leave AITER's kernel out")
    parser.add_argument(
        "--counters",
        type=Path,
        metavar="FILE",
        help="write rocprofv3's input file there and say how to use it",
    )
    parser.add_argument(
        "--workload",
        metavar="KERNEL",
        help="instead: launch this kernel a few times, for a profiler to look at; ours: or aiter: with rtne, "
        "rtna or rtz",
    )
    parser.add_argument(
        "--member", default="A", help="simulator only: the parameter set whose time passes; default: A"
    )


def run(options) -> int:
    chosen = choose_device(options)

    from .. import aiter_kernel
    from ..calibration import clocks, counters, report
    from ..calibration.hip import Device
    from ..timing.kernels import Shape
    from ..timing.parameters import parameter_sets

    device = Device(chosen)
    shape = Shape.parse(options.shape or (_SIMULATED_SHAPE if device.simulated else _SHAPE))
    if options.seconds <= 0:
        raise ValueError(f"--seconds must be positive, got {options.seconds}")
    if options.member not in parameter_sets():
        raise ValueError(f"--member must be one of {', '.join(parameter_sets())}, got {options.member!r}")
    if options.workload:
        workload = clocks.Workload.make(device, options.workload, shape)
        for _ in range(1 if device.simulated else 10):
            workload.launch()
        device.synchronize()
        return 0
    workloads = ["ours:rtz"] if options.no_aiter else [report.KEY_WORKLOAD, "ours:rtz"]
    if not options.no_aiter:
        aiter_kernel.find()  # before minutes of measurements that would be lost
    core_ghz = 1.0
    if device.simulated and not options.no_aiter:
        core_ghz = report.predicted_clock_ghz(parameter_sets()[options.member], Shape.parse(_SHAPE))
    with report.passing_time(device, options.member, core_ghz):
        document = report.measure(
            device,
            workloads,
            shape,
            seconds=0 if device.simulated else options.seconds,
            say=lambda text: print(f"measuring: {text}", file=sys.stderr, flush=True),
        )
    if device.simulated:  # the clock is that of full rounds, whatever small shape stood for them
        for one in document["sustained_clock"].values():
            one["shape"] = list(vars(Shape.parse(_SHAPE)).values())
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(report_text(document))
    if options.counters:
        counters.write(options.counters)
        print(f"\ncounters of rocprofv3 are listed in {options.counters}; they are read by")
        for name in workloads:
            print(f"  {counters.command(options.counters, name, options.shape or _SHAPE)}")
    if options.json:
        print(f"\nwritten to {options.json}; it narrows the model in")
        print(f"  liteattention-rocm profile --calibration-json {options.json} --shape B,H,Sq --kernel …")
    return 1 if document["problems"] else 0


def _range(one: dict, digits: int) -> str:
    return f"{one['value']:.{digits}f} ({one['low']:.{digits}f} to {one['high']:.{digits}f})"


def report_text(document: dict) -> str:
    """The calibration for a reader."""
    from ..timing.parameters import document as parameters

    simulated = document["source"] != "hardware"
    lines = [
        f"{'SIMULATED: every number is modelled, nothing is measured' if simulated else 'measured'} on "
        f"{document['device']['name']}",
        "",
        f"{'parameter':<28}{'here (lowest to highest)':<32}{'documented':<12}unit",
    ]
    assumed = {name: f"{entry['value']:g}" for name, entry in parameters()["clock"].items()}
    assumed |= {"matrix_16x16x16_passes": "4", "matrix_32x32x8_passes": "8"}
    for name, one in document["parameters"].items():
        lines.append(f"{name:<28}{_range(one, 2):<32}{assumed[name]:<12}{one['unit']}")
    lines += ["", "sustained clock, GHz"]
    for name, one in document["sustained_clock"].items():
        launches = f"{one['milliseconds']:.3f} ms a launch, {one['launches']} launches"
        lines.append(f"  {name:<12} {_range(one['ghz'], 3)}; {launches}")
        if one["during"]:
            lines.append(f"  {'':<12} at first: {_range(one['during'], 3)}")
    for name, one in document["phases"].items():
        lines += ["", f"clocks of a wave per tile of 64 KV rows, {name} with clocks at its phase boundaries"]
        lines += [f"  {phase:<18} {_range(clocks, 0)}" for phase, clocks in one["phases"].items()]
        lines.append(f"  reading a clock takes {document['stamp_clocks']:.0f} of each")
    lines += [f"PROBLEM  {problem}" for problem in document["problems"]]
    return "\n".join(lines)
