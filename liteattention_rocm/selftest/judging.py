"""Runs the cases on a device and judges what comes back."""

import functools
import json
import math
import time
from pathlib import Path

import torch

from .. import _C, runtime, verdicts
from ..calibration.hip import Device
from ..lite import lists
from . import facts
from .cases import Case
from .variants import Result, Variant, variants

RECORD = Path(__file__).with_name("record.json")
SCHEMA = 1
# A bounded case may err by so much more than the simulator did: v_exp's last bit hardly moves the error.
_ERROR_MARGIN = 1.25
_LSE_MARGIN = 4.0  # v_exp, v_log and a float32 sum in the last bits


@functools.cache
def scores(case: Case, variant: Variant) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled scores and V in float64, [batch, heads, rows, …]; −Inf where the kernel skips a tile."""
    q, k, v = (t.double() if case.layout == "bhsd" else t.double().transpose(1, 2) for t in case.inputs())
    k, v = (t.repeat_interleave(case.heads // case.kv_heads, dim=1) for t in (k, v))
    result = q @ k.transpose(2, 3) * case.scale
    if (kept := variant.kept(case)) is not None:
        kept = kept.repeat_interleave(lists.QUERY_ROWS_PER_TILE, dim=2)[:, :, : case.seqlen_q]
        kept = kept.repeat_interleave(lists.KV_ROWS_PER_TILE, dim=3)[..., : case.seqlen_kv]
        result = result.masked_fill(~kept, -math.inf)
    return result, v


@functools.cache
def _expected(case: Case, variant: Variant) -> tuple[torch.Tensor, torch.Tensor]:
    """out in the case's layout and lse, float64."""
    scaled, v = scores(case, variant)
    out = torch.softmax(scaled, dim=-1) @ v
    return (out if case.layout == "bhsd" else out.transpose(1, 2)), torch.logsumexp(scaled, dim=-1)


def _errors(case: Case, variant: Variant, result: Result) -> tuple[float, float]:
    """Largest absolute errors of out and lse against float64."""
    if variant.family == "order":
        return 0.0, 0.0
    out, lse = _expected(case, variant)
    return _largest(result.out.double() - out), _largest(result.lse.double() - lse)


def _largest(difference: torch.Tensor) -> float:
    return math.inf if torch.isnan(difference).any() else difference.abs().max().item()


def _bfloat16_ulp(x: torch.Tensor) -> torch.Tensor:
    _, exponent = torch.frexp(x.double().abs())
    return torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent - 8)


def _beyond_simulated(case: Case, variant: Variant, result: Result, simulated: Result) -> float:
    """Largest difference from the simulated output over what v_exp's last bit can explain.

    That is a bfloat16 ulp of the output, and a probability that falls on the other side of a rounding
    boundary: a bfloat16 ulp of it, times V.
    """
    scaled, v = scores(case, variant)
    largest = torch.softmax(scaled, dim=-1).max().item()
    difference = (result.out.double() - simulated.out.double()).abs()
    allowed = _bfloat16_ulp(torch.maximum(result.out.abs(), simulated.out.abs()))
    allowed = allowed + 2.0**-7 * largest * v.abs().max()
    return _largest(difference / allowed)


def judge(
    case: Case, variant: Variant, entry: dict, result: Result, exact: bool, simulated: Result | None
) -> tuple[bool, str, float]:
    """Whether a case passed, in words why, and how far it used its allowance (above 1: failed).

    Args:
        entry: the record's, of variant and case.
        exact: whether bits must agree.
        simulated: a fresh simulation of the same case, where there is one.
    """
    error, lse_error = _errors(case, variant, result)
    if exact:
        if result.sha256 == entry["sha256"]:
            return True, "all bits as recorded", 0.0
        text = f"bits differ from the record; largest error {error:.2e}, of lse {lse_error:.2e}"
        return False, text, math.inf
    allowed, lse_allowed = _ERROR_MARGIN * entry["error"], _LSE_MARGIN * entry["lse_error"]
    used = {
        f"error {error:.2e} of {allowed:.2e}": error / allowed,
        f"lse error {lse_error:.1e} of {lse_allowed:.1e}": lse_error / lse_allowed,
    }
    if simulated is not None:
        beyond = _beyond_simulated(case, variant, result, simulated)
        used[f"{beyond:.2f} of the allowed difference from the simulated output"] = beyond
    text, worst = max(used.items(), key=lambda item: item[1])
    return worst <= 1, text, worst


def recorded() -> dict[str, dict[str, dict]]:
    """record.json: {variant: {case: {"sha256"} of an exact case, "error", "lse_error"}}."""
    return json.loads(RECORD.read_text())["variants"]


def record() -> dict:
    """Runs every case in the simulator and returns what record.json holds."""
    table = {}
    for name, variant in variants().items():
        if variant is None:
            continue
        table[name] = {}
        for case in variant.cases:
            result = variant.execute(case, torch.device("cpu"))
            error, lse_error = _errors(case, variant, result)
            entry = {"sha256": result.sha256} if case.kind == "exact" else {}
            if variant.family != "order":
                entry |= {"error": _round_up(error), "lse_error": _round_up(lse_error)}
            table[name][case.name] = entry
    return {
        "schema": SCHEMA,
        "source": "the simulator: liteattention-rocm selftest --record",
        "variants": table,
    }


def _round_up(x: float) -> float:
    """To two digits."""
    step = 10.0 ** (math.floor(math.log10(x)) - 1)
    return float(f"{math.ceil(x / step) * step:.2g}")


def run(device: str = "cpu") -> dict:
    """The whole self-test on one device; what it finds is stored, and binds later launches.

    Where it can't be stored the test goes on: "file" is None then, and "not_kept" a sentence that says why.

    Args:
        device: "cpu", which is the simulator, or "cuda" and its like on ROCm.

    Returns:
        {"device", "simulated", "facts", "variants": [{"name", "verdict", "worst", "cases"}], "file",
        "not_kept", "seconds"}

    Raises:
        ValueError, RuntimeError: the device can't run attention here at all.
    """
    start = time.monotonic()
    chosen = Device(device)
    known = facts.check(chosen)
    compare = None if chosen.simulated else _simulator()
    table, stored = recorded(), verdicts.load(chosen.target)
    reports, path, not_kept = [], None, None

    def keep(found: dict) -> None:
        nonlocal path, not_kept
        try:
            path, not_kept = verdicts.store(chosen.target, found), None
        except OSError as error:
            path = None
            not_kept = (
                f"verdicts are not kept ({error}), so nothing is refused because of them: "
                f"let {verdicts.FOLDER_VARIABLE} name a folder that can be written"
            )

    for name, variant in variants().items():
        if variant is None or name not in table:
            missing = "there is no case for it" if variant is None else "nothing is recorded for it"
            reports.append({"name": name, "verdict": verdicts.NOT_RUN, "worst": missing, "cases": []})
            continue
        before = dict(stored)
        stored[name] = {"verdict": verdicts.UNFINISHED, "worst": "the process ended during it"}
        keep(stored)
        try:
            one = _judge_variant(variant, table[name], chosen, all(known.values()), compare)
        except BaseException:  # Ctrl-C says nothing about the kernel
            keep(before)
            raise
        stored[name] = {"verdict": one["verdict"], "worst": one["worst"]}
        keep(stored)
        reports.append(one)
    return {
        "device": chosen.name,
        "simulated": chosen.simulated,
        **{key: value for key, value in verdicts.identity(chosen.target).items() if key != "device"},
        "facts": known,
        "variants": reports,
        "file": str(path) if path else None,
        "not_kept": not_kept,
        "seconds": round(time.monotonic() - start, 1),
    }


def _simulator() -> torch.device | None:
    """The device whose outputs are compared with; None where this build has no simulator."""
    try:
        cpu = torch.device("cpu")
        return cpu if _C.is_simulator(runtime.target(cpu).hip) else None
    except RuntimeError:
        return None


def _judge_variant(variant: Variant, table: dict, device: Device, exact_hardware: bool, compare) -> dict:
    cases, worst, worst_text = [], -1.0, ""
    for case in variant.cases:
        exact = case.kind == "exact" and (exact_hardware or variant.family == "order")
        simulated = None
        try:
            result = variant.execute(case, device.torch_device)
            if compare is not None and not exact:
                simulated = variant.execute(case, compare)
            passed, text, used = judge(case, variant, table[case.name], result, exact, simulated)
        except RuntimeError as error:
            passed, text, used = False, str(error), math.inf
        cases.append(
            {
                "name": case.name,
                "judged": "bits" if exact else "bounds",
                "verdict": verdicts.PASS if passed else verdicts.FAIL,
                "detail": text,
            }
        )
        if used > worst:
            worst, worst_text = used, f"{case.name}: {text}"
    failed = any(one["verdict"] == verdicts.FAIL for one in cases)
    verdict = verdicts.FAIL if failed else verdicts.PASS
    return {"name": variant.name, "verdict": verdict, "worst": worst_text, "cases": cases}
