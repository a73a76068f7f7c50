"""The Triton kernels in Triton's interpreter, in a process of their own: it is chosen before import."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

OPERATIONS = ("forward", "skip_forward", "intermediates")


def run(calls: list[tuple[str, dict]], timeout: float | None = None) -> list[dict]:
    """Runs launches of `liteattention_rocm.triton.attention` on CPU tensors.

    Args:
        calls: (name of the launch, its arguments by name). Tensors keep their strides, and what they view.
        timeout: seconds for all of them.

    Returns:
        For each call its tensors by name after the launch; views of memory that the caller didn't own before.

    Raises:
        ValueError: no such launch.
        RuntimeError: the process failed; with its last words.
    """
    for name, _ in calls:
        if name not in OPERATIONS:
            raise ValueError(f"a launch must be one of {', '.join(OPERATIONS)}, got {name!r}")
    import torch

    with tempfile.TemporaryDirectory(prefix="triton-interpreter-") as folder:
        given, made = Path(folder) / "calls.pt", Path(folder) / "results.pt"
        torch.save(calls, given)
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(given), str(made)],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if done.returncode != 0:
            raise RuntimeError(f"Triton's interpreter failed:\n{done.stderr[-2000:]}")
        return torch.load(made, weights_only=False)


def _main(given: str, made: str) -> None:
    import numpy
    import torch

    from . import attention

    numpy.seterr(all="ignore")  # Inf and NaN are among the operands
    torch.set_num_threads(1)
    results = []
    for name, arguments in torch.load(given, weights_only=False):
        getattr(attention, name)(**arguments)
        results.append({key: value for key, value in arguments.items() if isinstance(value, torch.Tensor)})
    torch.save(results, made)


if __name__ == "__main__":
    _main(*sys.argv[1:])
