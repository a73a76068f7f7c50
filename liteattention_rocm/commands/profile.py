"""Models time, stalls and hardware counters of one or two kernels on an MI300X."""

import contextlib
import json
import re
from pathlib import Path

from ..timing import KERNELS, Kernel, Shape, against_aiter, calibration, profile, ratio
from ..timing.narrowing import narrow
from ..timing.parameters import DOCUMENTED, ensemble, parameter_sets, use
from ..timing.sensitivity import sensitivity
from ..timing.steady import Traces
from ..timing.timeline import drawing, perfetto, svg, timeline


def add_options(parser) -> None:
    parser.add_argument("--shape", metavar="B,H,Sq[,Skv]", help="batch, heads, query rows, KV rows")
    parser.add_argument(
        "--kernel",
        action="append",
        metavar="KERNEL[=PATH]",
        help=f"once or twice: the second is compared with the first; default: ours:rtne; "
        f"{', '.join(KERNELS)}; =PATH: another code object of ours, or another folder of AITER's",
    )
    parser.add_argument("--top", type=int, default=12, help="instructions listed with their stalls")
    parser.add_argument(
        "--timeline", type=Path, metavar="FOLDER", help="write SVG and Perfetto timelines there"
    )
    parser.add_argument("--draw", action="store_true", help="draw two tiles of the waves of a SIMD as text")
    parser.add_argument(
        "--calibration", action="store_true", help="instead: the model against published times"
    )
    parser.add_argument("--sensitivity", action="store_true", help="instead: what each parameter moves")
    parser.add_argument(
        "--against-aiter",
        action="store_true",
        help="instead: AITER's time over ours in every mode, over --shape, or the published shapes and Wan's",
    )
    parser.add_argument(
        "--calibration-json", type=Path, metavar="FILE", help="narrow the model by what `calibrate` measured"
    )
    parser.add_argument(
        "--rehearsal", action="store_true", help="let --calibration-json be one from the simulator"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(options) -> int:
    if options.calibration:
        table = calibration.calibrate()
        print(json.dumps(table, indent=1) if options.json else calibration_text(table))
        return 0
    if options.sensitivity:
        table = sensitivity()
        print(json.dumps(table, indent=1) if options.json else sensitivity_text(table))
        return 0
    if options.against_aiter:
        shapes = [Shape.parse(options.shape)] if options.shape else None
        table = against_aiter.compare(shapes or against_aiter.published_shapes() + list(against_aiter.WAN))
        print(json.dumps(table, indent=1) if options.json else against_aiter_text(table))
        return 0
    if not options.shape:
        raise ValueError("--shape is missing: B,H,Sq or B,H,Sq,Skv")
    shape = Shape.parse(options.shape)
    names = options.kernel or ["ours:rtne"]
    if len(names) > 2:
        raise ValueError(f"--kernel may be given once or twice, got {len(names)}")
    if options.top < 0:
        raise ValueError(f"--top must not be negative, got {options.top}")
    narrowed = None
    if options.calibration_json:
        from ..calibration.report import load  # needs torch

        narrowed = narrow(load(options.calibration_json, options.rehearsal))
    with use(narrowed.sets, narrowed.members) if narrowed else contextlib.nullcontext():
        report = _report(options, shape, names)
        report["narrowed"] = narrowed and narrowed.json()
        print(json.dumps(report, indent=1) if options.json else report_text(report))
    return 0


def _report(options, shape: Shape, names: list[str]) -> dict:
    profiles = []
    for kernel in [Kernel.parse(name).planned(shape) for name in names]:
        traces = Traces(kernel, shape)
        profiles.append(profile(kernel, shape, top=options.top, traces=traces))
        if options.timeline:
            _write_timeline(options.timeline, traces, profiles[-1])
        if options.draw:
            lines = timeline(traces, profiles[-1]["sets"][DOCUMENTED]["clocks_per_tile"])
            profiles[-1]["drawing"] = drawing(lines)
    return {
        "modelled": True,
        "shape": vars(shape),
        "kernels": profiles,
        "ratio": ratio(*profiles) if len(profiles) == 2 else None,
    }


def _write_timeline(folder: Path, traces: Traces, one: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = timeline(traces, one["sets"][DOCUMENTED]["clocks_per_tile"])
    stem = folder / re.sub(r"[^\w-]+", "-", one["name"])
    stem.with_suffix(".svg").write_text(svg(lines, one["name"]))
    stem.with_suffix(".json").write_text(json.dumps(perfetto(lines, one["name"])))


def _interval_text(answer: dict, unit: str) -> str:
    text = f"{answer['low']:.3f} to {answer['high']:.3f}{unit} (±{100 * answer['half_width']:.0f} %)"
    return text if answer["prediction"] else f"{text}: too wide, no prediction"


def report_text(report: dict) -> str:
    """The report for a reader."""
    shape = report["shape"]
    lines = [
        f"MODELLED, batch {shape['batch']}, heads {shape['heads']}, {shape['seqlen_q']} query rows, "
        f"{shape['seqlen_kv']} KV rows; nothing here is measured",
        *(_narrowed_lines(report["narrowed"]) if report.get("narrowed") else []),
    ]
    for one in report["kernels"]:
        lines += ["", *_kernel_lines(one)]
    if answer := report["ratio"]:
        members = ", ".join(f"{name} {answer['sets'][name]:.3f}" for name in ensemble())
        lines += [
            "",
            f"{answer['of']} (modelled)",
            f"  ensemble {ensemble()}  {_interval_text(answer, '')}; members {members}",
            f"  {DOCUMENTED}, constant clock   {answer['documented']:.3f}",
            f"  faster: {answer['faster'] or 'undecided'} "
            "(named only where all members agree by more than 10 %)",
        ]
    return "\n".join(lines)


def _narrowed_lines(narrowed: dict) -> list[str]:
    rehearsal = narrowed["source"] != "hardware"
    clock = narrowed["measured_clock_ghz"]
    lines = [
        f"{'REHEARSAL: the ensemble narrowed by a simulation of' if rehearsal else 'ensemble narrowed by'} "
        f"{narrowed['device']}" + ("" if rehearsal else ", measured")
    ]
    if clock is not None:
        clocks = ", ".join(f"{name} {ghz:.2f}" for name, ghz in narrowed["predicted_clock_ghz"].items())
        lines.append(f"  clock under AITER rtz {clock:.2f} GHz; the members say {clocks}")
    lines += [f"  out: {name}, which {why}" for name, why in narrowed["dropped"].items()]
    measured = ", ".join(f"{name} {number:g}" for name, number in narrowed["measured"].items())
    lines.append(f"  in every member: {measured}")
    return lines + [f"  but {remark}" for remark in narrowed["remarks"]]


def _kernel_lines(one: dict) -> list[str]:
    resources, where = one["resources"], one["device"]
    lines = [
        f"{one['name']}  {one['kernel']}",
        f"  per CU         {resources['resident_workgroups']} × "
        f"{resources['waves_per_workgroup']} waves, {resources['vgprs']} VGPRs, "
        f"{resources['lds_bytes']} bytes of LDS",
        f"  device         {where['workgroups']} workgroups on {where['slots']} places: "
        f"{where['rounds']:.2f} rounds, "
        f"quantisation efficiency {100 * where['quantisation_efficiency']:.0f} %",
        *_stage_lines(one["stages"]),
        f"  traced         KV rows {one['traced_kv_lengths']}, extrapolated; a tile is "
        f"{one['kv_rows_per_tile']} KV rows for {one['query_rows_per_workgroup']} query rows a workgroup",
        f"  time           {_interval_text(one['time_ms'], ' ms')}, ensemble {', '.join(ensemble())}",
        f"  {DOCUMENTED}             {one['documented_ms']:.3f} ms at constant clock",
        "",
        "  set  clk/tile   drift   FLOP/clk/CU  MFMA  VALU port  LDS    L1    GHz    ms        TFLOP/s",
    ]
    for name, result in one["sets"].items():
        use = result["utilisation"]
        lines.append(
            f"  {name:<4} {result['clocks_per_tile']:8.0f} {100 * result['drift']:6.1f} %  "
            f"{result['flop_per_clock']:9.0f}   {100 * use['mfma']:4.0f} %  {100 * use['valu_port']:5.0f} %  "
            f"{100 * use['lds']:4.0f} % {100 * use['l1']:4.0f} %  {result['sustained_clock_ghz']:.2f} "
            f"{result['time_ms']:9.3f} {result['tflops']:8.0f}"
        )
    lines += ["", f"  where waves wait, clk per tile and wave ({one['stall_set']})"]
    lines.append(
        "  " + ", ".join(f"{reason} {clocks:.0f}" for reason, clocks in one["stall_reasons"].items())
    )
    for stall in one["stalls"]:
        reasons = ", ".join(f"{reason} {clocks:.0f}" for reason, clocks in stall["reasons"].items())
        lines.append(
            f"  {stall['clocks_per_tile']:7.1f}  {stall['address']:#08x}  {stall['text']}  [{reasons}]"
        )
    if "drawing" in one:
        lines += ["", *(f"  {line}" for line in one["drawing"].splitlines())]
    lines += ["", "  counters of the launch, by rocprofv3's names"]
    lines += [f"  {name:<30} {number:>16,}" for name, number in one["counters"].items()]
    return lines


def _stage_lines(stages: list[dict]) -> list[str]:
    """The stages of a launch that has several."""
    if len(stages) < 2:
        return []
    return [
        f"  {stage['name']:<14} {stage['kernel']}: {stage['workgroups']} workgroups, "
        + ("" if stage["name"] == "merge" else f"{stage['kv_rows']} KV rows, ")
        + ", ".join(f"{name} {time:.3f}" for name, time in stage["time_ms"].items())
        + " ms"
        for stage in stages
    ]


def against_aiter_text(table: dict) -> str:
    """The comparison for a reader, Markdown."""
    title = (
        f"MODELLED, nothing here is measured: AITER's time over ours, members {' / '.join(ensemble())} "
        f"({DOCUMENTED}); bold where all members agree by more than 10 %"
    )
    return f"{title}\n\n{against_aiter.text(table)}"


def calibration_text(table: dict) -> str:
    """The calibration table for a reader."""
    names = list(parameter_sets())
    lines = ["MODELLED times of AITER's kernels against published ones: relative errors", ""]
    lines.append(
        f"{'shape':<16}{'mode':<6}{'published ms':>13}"
        + "".join(f"{name:>9}" for name in names)
        + "   interval ms"
    )
    for row in table["points"]:
        errors = "".join(
            f"{100 * (row['modelled_ms'][name] / row['published_ms'] - 1):+8.1f}%" for name in names
        )
        low, high = row["interval_ms"]
        covered = "" if row["covered"] else "  not covered"
        shape = ",".join(map(str, row["shape"]))
        lines.append(
            f"{shape:<16}{row['rounding']:<6}{row['published_ms']:13.3f}{errors}   "
            f"{low:.2f} to {high:.2f}{covered}"
        )
    lines.append("")
    for name, one in table["sets"].items():
        ratios = ", ".join(
            f"{mode}/rtz {ratio['modelled']:.3f} (published {ratio['published']:.3f})"
            for mode, ratio in one["mode_ratios"].items()
        )
        lines.append(
            f"{name:<3} reference {one['reference_clock_ghz']:.4f}, rms error {100 * one['residual']:.1f} %, "
            f"each mode held out {100 * one['held_out_residual']:.1f} %; {ratios}"
        )
    lines.append(
        f"intervals, each mode's clock fitted to the other two: {100 * table['coverage']:.0f} % of the "
        f"published times covered, mean half width {100 * table['half_width']:.1f} %"
    )
    return "\n".join(lines)


def sensitivity_text(table: dict) -> str:
    """The sensitivity table for a reader."""
    lines = ["MODELLED, one parameter changed at a time, AITER's modes", ""]
    lines.append(f"{'D0, with':<36}{'clk/tile rtz':>14}{'rtna/rtz':>10}{'rtne/rtz':>10}")
    for row in table["clock"]:
        name = row["parameter"] + (f" = {row['value']:g}" if row["value"] else "")
        lines.append(
            f"{name:<36}{row['clocks_per_tile']:14.0f}{row['rtna_over_rtz']:10.3f}{row['rtne_over_rtz']:10.3f}"
        )
    lines += ["", f"{'time under A, with':<36}{'':>14}{'rtna/rtz':>10}{'rtne/rtz':>10}"]
    for row in table["power"]:
        name = row["parameter"] + (f" = {row['value']:g}" if row["value"] else "")
        lines.append(f"{name:<36}{'':>14}{row['rtna_over_rtz']:10.3f}{row['rtne_over_rtz']:10.3f}")
    return "\n".join(lines)
