"""Verdicts of the self-test, kept in the user's cache folder: what failed on a device is refused there.

One file per code object, architecture, device and driver. The folder is what LITEATTENTION_ROCM_CACHE names,
else liteattention_rocm in XDG_CACHE_HOME, else in ~/.cache.
"""

import contextlib
import contextvars
import functools
import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path

import torch

from . import _C

FOLDER_VARIABLE = "LITEATTENTION_ROCM_CACHE"
SCHEMA = 1
PASS, FAIL, NOT_RUN, UNFINISHED = "pass", "fail", "not run", "unfinished"
_REFUSED = (FAIL, UNFINISHED)
_AMDGPU_VERSION = Path("/sys/module/amdgpu/version")

logger = logging.getLogger(__name__)
_suspended = contextvars.ContextVar("verdicts suspended", default=False)


class RefusedVariant(RuntimeError):
    """The kernel failed the self-test on this device."""


def folder() -> Path:
    """Where the files lie. Without a home directory: liteattention_rocm-UID among the temporary files."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "liteattention_rocm"
    except RuntimeError:  # HOME is unset and the user has no entry: a container's --user
        return Path(tempfile.gettempdir()) / f"liteattention_rocm-{os.getuid()}"


@functools.cache
def code_object_hash(architecture: str) -> str:
    """SHA-256 of the embedded code object."""
    return hashlib.sha256(_C.code_object(architecture)).hexdigest()


def identity(where) -> dict[str, str]:
    """What a verdict holds for. `where`: a `runtime.Target`."""
    if where.library is None:
        name = torch.cuda.get_device_name(where.device)
        driver = _AMDGPU_VERSION.read_text().strip() if _AMDGPU_VERSION.exists() else "in the kernel"
        driver = f"HIP {torch.version.hip}, amdgpu {driver}"
    else:
        simulated = _C.is_simulator(where.hip)
        name, driver = ("simulated MI300X" if simulated else "CPU tensors"), where.library
    return {
        "code_object": code_object_hash(where.architecture),
        "architecture": where.architecture,
        "device": name,
        "driver": driver,
    }


def file_of(where) -> Path:
    """The file of a target's verdicts; it need not exist."""
    text = json.dumps(identity(where), sort_keys=True).encode()
    return folder() / f"selftest-{hashlib.sha256(text).hexdigest()[:16]}.json"


def load(where) -> dict[str, dict]:
    """{variant: {"verdict", "worst"}} of a target; empty where there is no file, or none that can be read."""
    path = file_of(where)
    try:
        content = json.loads(path.read_text())
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, not {SCHEMA}")
        return {
            name: {"verdict": str(v["verdict"]), "worst": str(v["worst"])}
            for name, v in content["variants"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("self-test verdicts in %s cannot be read (%s); no variant is refused", path, error)
        return {}


def store(where, variants: dict[str, dict]) -> Path:
    """Replaces a target's verdicts; other processes see the old file or the new one.

    Raises:
        OSError: it can't be written.
    """
    path = file_of(where)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"schema": SCHEMA, **identity(where), "variants": variants}
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".json", delete=False) as file:
        json.dump(content, file, indent=1)
    os.replace(file.name, path)
    forget()
    return path


@contextlib.contextmanager
def suspended():
    """Lets refused variants run within the `with` block: how the self-test lifts a refusal."""
    token = _suspended.set(True)
    try:
        yield
    finally:
        _suspended.reset(token)


@functools.cache
def refused(where) -> dict[str, dict]:
    """The verdicts of a target that refuse a kernel. Read once per process and target."""
    return {name: verdict for name, verdict in load(where).items() if verdict["verdict"] in _REFUSED}


def forget() -> None:
    """Has the next launch read the files again."""
    refused.cache_clear()


def require(where, variant: str) -> None:
    """Refuses a kernel that failed the self-test.

    Raises:
        RefusedVariant: naming the kernel, the file and how to lift it.
    """
    verdict = refused(where).get(variant)
    if verdict is None or _suspended.get():
        return
    device = "simulator" if where.library is not None else f"hip --index {where.device}"
    what = "failed" if verdict["verdict"] == FAIL else "did not finish"
    raise RefusedVariant(
        f"kernel {variant} {what} the self-test on this device ({verdict['worst']}) and is refused; "
        f"`liteattention-rocm selftest --device {device}` lifts this when it passes, and so does deleting "
        f"{file_of(where)}"
    )
