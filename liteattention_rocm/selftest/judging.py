"""Runs the cases on a device and judges what comes back."""

import functools
import hashlib
import json
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import _C, ops, reference, runtime, verdicts
from ..calibration.hip import Device
from ..rounding import ROUNDINGS
from . import facts
from .cases import CASES, Case

RECORD = Path(__file__).with_name("record.json")
SCHEMA = 1
# A bounded case may err by so much more than the simulator did: v_exp's last bit hardly moves the error.
_ERROR_MARGIN = 1.25
_LSE_MARGIN = 4.0  # v_exp, v_log and a float32 sum in the last bits
_POISON = 0x7FA5
_FORWARD = re.compile(r"attention_forward_(\w+)")


def variants() -> dict[str, str | None]:
    """Every kernel of the code object, and the rounding mode in which `attention` runs it; None: no case."""
    names = {}
    for name in _C.kernel_names():
        match = _FORWARD.fullmatch(name)
        names[name] = match[1] if match and match[1] in ROUNDINGS else None
    return names


@dataclass
class Result:
    """What one case gave: out in the case's layout and lse, on the CPU."""

    out: torch.Tensor
    lse: torch.Tensor

    @property
    def sha256(self) -> str:
        return hashlib.sha256(_bytes(self.out) + _bytes(self.lse)).hexdigest()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def execute(case: Case, rounding: str, device: torch.device) -> Result:
    """One case through `liteattention_rocm.attention`, onto a poisoned output."""
    q, k, v = (tensor.to(device) for tensor in case.inputs())
    if case.fused and case.layout == "bshd":  # .to() of a view makes it contiguous on another device
        k, v = torch.stack((k, v), dim=2).unbind(2)
    out = torch.full(q.shape, _POISON, dtype=torch.int16, device=device).view(torch.bfloat16)
    _, lse = ops.attention(
        q, k, v, out=out, scale=case.scale, layout=case.layout, rounding=rounding, return_lse=True
    )
    return Result(out.cpu(), lse.cpu())


@functools.cache
def _expected(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    return reference.attention(*case.inputs(), scale=case.scale, layout=case.layout)


def _errors(case: Case, result: Result) -> tuple[float, float]:
    """Largest absolute errors of out and lse against float64."""
    expected, lse = _expected(case)
    return _largest(result.out.double() - expected), _largest(result.lse.double() - lse)


def _largest(difference: torch.Tensor) -> float:
    return math.inf if torch.isnan(difference).any() else difference.abs().max().item()


def _bfloat16_ulp(x: torch.Tensor) -> torch.Tensor:
    _, exponent = torch.frexp(x.double().abs())
    return torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent - 8)


def _beyond_simulated(case: Case, result: Result, simulated: Result) -> float:
    """Largest difference from the simulated output over what v_exp's last bit can explain.

    That is a bfloat16 ulp of the output, and a probability that falls on the other side of a rounding
    boundary: a bfloat16 ulp of it, times V.
    """
    q, k, v = (t.double() if case.layout == "bhsd" else t.double().transpose(1, 2) for t in case.inputs())
    k = k.repeat_interleave(case.heads // case.kv_heads, dim=1)
    largest = torch.softmax(q @ k.transpose(2, 3) * case.scale, dim=-1).max().item()
    difference = (result.out.double() - simulated.out.double()).abs()
    allowed = _bfloat16_ulp(torch.maximum(result.out.abs(), simulated.out.abs()))
    allowed = allowed + 2.0**-7 * largest * v.abs().max()
    return _largest(difference / allowed)


def judge(
    case: Case, recorded: dict, result: Result, exact: bool, simulated: Result | None
) -> tuple[bool, str, float]:
    """Whether a case passed, in words why, and how far it used its allowance (above 1: failed).

    Args:
        recorded: the record's entry for variant and case.
        exact: whether bits must agree.
        simulated: a fresh simulation of the same case, where there is one.
    """
    error, lse_error = _errors(case, result)
    if exact:
        if result.sha256 == recorded["sha256"]:
            return True, "all bits as recorded", 0.0
        return (
            False,
            f"bits differ from the record; largest error {error:.2e}, of lse {lse_error:.2e}",
            math.inf,
        )
    used = {
        f"error {error:.2e} of {_ERROR_MARGIN * recorded['error']:.2e}": error
        / (_ERROR_MARGIN * recorded["error"]),
        f"lse error {lse_error:.1e} of {_LSE_MARGIN * recorded['lse_error']:.1e}": lse_error
        / (_LSE_MARGIN * recorded["lse_error"]),
    }
    if simulated is not None:
        beyond = _beyond_simulated(case, result, simulated)
        used[f"{beyond:.2f} of the allowed difference from the simulated output"] = beyond
    text, worst = max(used.items(), key=lambda item: item[1])
    return worst <= 1, text, worst


def recorded() -> dict[str, dict[str, dict]]:
    """record.json: {variant: {case: {"sha256"} of an exact case, "error", "lse_error"}}."""
    return json.loads(RECORD.read_text())["variants"]


def record() -> dict:
    """Runs every case in the simulator and returns what record.json holds."""
    table = {}
    for name, rounding in variants().items():
        if rounding is None:
            continue
        table[name] = {}
        for case in CASES:
            with verdicts.suspended():
                result = execute(case, rounding, torch.device("cpu"))
            error, lse_error = _errors(case, result)
            entry = {"sha256": result.sha256} if case.kind == "exact" else {}
            table[name][case.name] = entry | {"error": _round_up(error), "lse_error": _round_up(lse_error)}
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

    Args:
        device: "cpu", which is the simulator, or "cuda" and its like on ROCm.

    Returns:
        {"device", "simulated", "facts", "variants": [{"name", "verdict", "worst", "cases"}], "file",
        "seconds"}

    Raises:
        ValueError, RuntimeError: the device can't run attention here at all.
    """
    start = time.monotonic()
    chosen = Device(device)
    known = facts.check(chosen)
    compare = None if chosen.simulated else _simulator()
    table, stored = recorded(), verdicts.load(chosen.target)
    reports, path = [], None
    for name, rounding in variants().items():
        if rounding is None or name not in table:
            reports.append(
                {"name": name, "verdict": verdicts.NOT_RUN, "worst": "there is no case for it", "cases": []}
            )
            continue
        before = dict(stored)
        stored[name] = {"verdict": verdicts.UNFINISHED, "worst": "the process ended during it"}
        verdicts.store(chosen.target, stored)
        try:
            one = _variant(name, rounding, table[name], chosen, known, compare)
        except BaseException:  # Ctrl-C says nothing about the kernel
            verdicts.store(chosen.target, before)
            raise
        stored[name] = {"verdict": one["verdict"], "worst": one["worst"]}
        path = verdicts.store(chosen.target, stored)
        reports.append(one)
    return {
        "device": chosen.name,
        "simulated": chosen.simulated,
        **{key: value for key, value in verdicts.identity(chosen.target).items() if key != "device"},
        "facts": known,
        "variants": reports,
        "file": str(path) if path else None,
        "seconds": round(time.monotonic() - start, 1),
    }


def _simulator() -> torch.device | None:
    """The device whose outputs are compared with; None where this build has no simulator."""
    try:
        cpu = torch.device("cpu")
        return cpu if _C.is_simulator(runtime.target(cpu).hip) else None
    except RuntimeError:
        return None


def _variant(name, rounding, table, device: Device, known: dict[str, bool], compare) -> dict:
    cases, worst, worst_text = [], -1.0, ""
    for case in CASES:
        exact = case.kind == "exact" and all(known.values())
        simulated = None
        try:
            with verdicts.suspended():
                result = execute(case, rounding, device.torch_device)
                if compare is not None and not exact:
                    simulated = execute(case, rounding, compare)
            passed, text, used = judge(case, table[case.name], result, exact, simulated)
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
    return {
        "name": name,
        "verdict": verdicts.FAIL if failed else verdicts.PASS,
        "worst": worst_text,
        "cases": cases,
    }
