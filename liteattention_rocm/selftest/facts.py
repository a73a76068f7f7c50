"""What the exact cases take for granted about a device, asked of it with the kernel calibrate_exactness."""

import struct

import torch

from .. import _C
from ..calibration.hip import Device

_WAVE = 64


def check(device: Device) -> dict[str, bool]:
    """Whether v_exp_f32 is exact at integers from −126 to 126, v_rcp_f32 and v_log_f32 at 2^−126 … 2^126."""
    integers = torch.arange(-126, 127, dtype=torch.float32)
    powers = torch.ldexp(torch.ones(len(integers)), integers.to(torch.int32))
    exp, _, _ = _evaluate(device, integers)
    _, rcp, log = _evaluate(device, powers)
    return {
        "v_exp_f32 at integers": torch.equal(exp, powers),
        "v_rcp_f32 at powers of two": torch.equal(rcp, powers.flip(0)),
        "v_log_f32 at powers of two": torch.equal(log, integers),
    }


def _evaluate(device: Device, arguments: torch.Tensor) -> torch.Tensor:
    """[3, count]: v_exp, v_rcp and v_log of each."""
    given = arguments.to(device.torch_device)
    results = torch.full((3, len(arguments)), torch.nan, device=device.torch_device)
    packed = struct.pack("<QQi4x", given.data_ptr(), results.data_ptr(), len(arguments))
    module = device.module(_C.calibration_code_object(device.target.architecture))
    grid = (-(-len(arguments) // _WAVE), 1, 1)
    module.launch("calibrate_exactness", grid, (_WAVE, 1, 1), packed, (given, results))
    device.synchronize()
    return results.cpu()
