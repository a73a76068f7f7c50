"""One comparison as a dictionary for JSON, and as Markdown."""

import platform
import statistics
from pathlib import Path

import torch

from .. import aiter_kernel, dispatch, simulator, timing, verdicts
from ..timing.kernels import Kernel, Shape
from .contenders import contenders, sentence, sha256
from .measuring import error_of, inputs, interleave, kernels_of, reference_rows, spread

SCHEMA = 1
_DRIVER = Path("/sys/module/amdgpu/version")


def environment(device: torch.device) -> dict[str, str]:
    """What the times belong to."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "system": platform.platform()}
    if device.type != "cuda":
        return found
    properties = torch.cuda.get_device_properties(device)
    found |= {
        "device": properties.name,
        "architecture": getattr(properties, "gcnArchName", None)
        or f"sm_{properties.major}{properties.minor}",
        "compute units": str(properties.multi_processor_count),
        "HIP": str(torch.version.hip),
    }
    if torch.version.hip and _DRIVER.exists():
        found["amdgpu driver"] = _DRIVER.read_text().strip()
    return found


def _baseline(rows: dict[str, dict], rounding: str | None) -> str | None:
    """AITER's contender that a mode is compared with: the same mode, else rtz; the installed one first."""
    for source in ("aiter", "aiter-file"):
        for mode in (rounding, "rtz"):
            name = f"{source}:{mode}"
            if rows.get(name, {}).get("milliseconds"):
                return name
    return None


def _ratio(baseline: list[float], times: list[float]) -> dict:
    """How many times faster than the baseline, round by round."""
    return spread([a / b for a, b in zip(baseline, times, strict=False)])


def measure(shape: Shape, device: torch.device, *, roundings, rounds, warmup, aiter_hsa=None, progress=None):
    """One shape on a GPU: see docs/mi300x.md for the fields of the answer."""
    q, k, v = inputs(shape, device)
    found, absent = contenders(q, k, v, roundings, aiter_hsa)
    timed = interleave(found, rounds=rounds, warmup=warmup, progress=progress)
    rows, expected = reference_rows(q, k, v)
    results = []
    for one in found:
        times = timed[one.name]["milliseconds"]
        result = {"name": one.name, "facts": one.facts, "error": timed[one.name]["error"]}
        if times:
            against = _baseline(timed, one.rounding)
            middle = statistics.median(times)
            result |= {
                "milliseconds": spread(times),
                "clock": "host" if one.own_stream else "device events",
                "calls": timed[one.name]["calls"],
                "tflops": shape.flop / middle * 1e-9,
                "ratio": against and {"to": against} | _ratio(timed[against]["milliseconds"], times),
                "accuracy": None,
                "kernels": [],
            }
            try:
                result["accuracy"] = error_of(one.call(), rows, expected)
                result["kernels"] = kernels_of(one)
            except Exception as error:  # its times stand
                result["error"] = result["error"] or sentence(error)
        results.append(result)
    return {"shape": vars(shape), "source": "measured", "results": results, "absent": absent}


def _simulated_hash(source: str, rounding: str) -> str:
    if source == "aiter":
        return sha256(aiter_kernel.find() / aiter_kernel.file_name(rounding))
    return verdicts.code_object_hash(simulator.ARCHITECTURE)


def model(shape: Shape, *, roundings) -> dict:
    """One shape by the simulator's clock: ours and AITER's code objects, times as intervals."""
    results, absent = [], {}
    for rounding in roundings:
        profiles = {}
        for source in ("ours", "aiter"):
            try:
                kernel = Kernel(source, rounding).planned(shape)
                profiles[source] = timing.profile(kernel, shape, top=0)
            except FileNotFoundError as error:
                absent[f"{source}:{rounding}"] = str(error)
        for source, one in profiles.items():
            time = one["time_ms"]
            ratio = None
            if source == "ours" and "aiter" in profiles:
                answer = timing.ratio(one, profiles["aiter"])
                ratio = {"to": f"aiter:{rounding}", "low": answer["low"], "high": answer["high"]}
            results.append(
                {
                    "name": f"{source}:{rounding}",
                    "facts": {
                        "kernel": one["kernel"],
                        "code object sha256": _simulated_hash(source, rounding),
                    },
                    "error": None,
                    "milliseconds": {"low": time["low"], "high": time["high"]},
                    "clock": "modelled",
                    "tflops": shape.flop / ((time["low"] + time["high"]) / 2) * 1e-9,
                    "ratio": ratio,
                }
            )
    absent |= dict.fromkeys(("aiter_sage", "torch_sdpa", "max"), "has no code object that is simulated here")
    return {"shape": vars(shape), "source": "modelled", "results": results, "absent": absent}


def document(comparisons: list[dict], device: torch.device, command: list[str]) -> dict:
    """Everything, for JSON."""
    modelled = any(one["source"] == "modelled" for one in comparisons)
    kernel = dispatch.serving(device).name
    return {
        "schema": SCHEMA,
        "source": "modelled" if modelled else "measured",
        "command": command,
        "environment": environment(device) | {"ours runs": "simulated" if modelled else kernel},
        "comparisons": comparisons,
    }


def _milliseconds_text(result: dict) -> str:
    time = result["milliseconds"]
    if "median" in time:
        return f"{time['median']:.3f} ({time['low_quartile']:.3f} – {time['high_quartile']:.3f})"
    return f"{time['low']:.3f} – {time['high']:.3f}"


def _ratio_text(ratio: dict | None) -> str:
    if not ratio:
        return ""
    if "median" in ratio:
        return f"{ratio['median']:.3f} ({ratio['low_quartile']:.3f} – {ratio['high_quartile']:.3f})"
    return f"{ratio['low']:.3f} – {ratio['high']:.3f}"


def markdown(report: dict) -> str:
    """The report for a reader."""
    modelled = report["source"] == "modelled"
    lines = ["# Attention, bf16, head dim 128, not causal", ""]
    if modelled:
        lines += [
            "**MODELLED by the simulator's clock, not measured**: intervals over the model's ensemble "
            "(docs/timing.md). A rehearsal of this command, which measures on a GPU.",
            "",
        ]
    lines += [f"- {name}: {value}" for name, value in report["environment"].items()]
    lines += ["", "`" + " ".join(report["command"]) + "`"]
    for one in report["comparisons"]:
        shape = one["shape"]
        lines += [
            "",
            f"## batch {shape['batch']}, heads {shape['heads']}, {shape['seqlen_q']} × {shape['seqlen_kv']}",
            "",
        ]
        if modelled:
            lines += [
                "| | ms, modelled | TFLOP/s, modelled | × AITER, same mode, modelled |",
                "|---|---|---|---|",
            ]
        else:
            lines += [
                "| | ms, median (quartiles) | TFLOP/s | × AITER | RMSE to float64 | clock |",
                "|---|---|---|---|---|---|",
            ]
        for result in one["results"]:
            cells = [result["name"]]
            if "milliseconds" in result:
                cells += [_milliseconds_text(result), f"{result['tflops']:.0f}", _ratio_text(result["ratio"])]
                if not modelled:
                    accuracy = result["accuracy"]
                    cells += [f"{accuracy['rmse']:.2e}" if accuracy else "", result["clock"]]
            else:
                cells += ["failed"] + [""] * (2 if modelled else 4)
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
        for result in one["results"]:
            facts = [f"{name} {value}" for name, value in result["facts"].items()]
            if result.get("kernels"):
                facts.append("ran " + ", ".join(f"`{name}`" for name in result["kernels"]))
            if result["error"]:
                facts.append(f"**failed**: {result['error']}")
            lines.append(f"- {result['name']}: {'; '.join(facts)}")
        lines += [f"- {name}: absent, {reason}" for name, reason in one["absent"].items()]
    return "\n".join(lines) + "\n"
