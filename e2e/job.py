"""What one process of an arm is to make, and how a finished piece of it is recognised."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

RESULT = "arm.json"  # written last: a folder that holds it is finished
IN_AN_ARM = (  # modules that an arm's process runs, or that make its model
    "aiter_simulated",
    "arms",
    "cpu_host",
    "diffusers_engine",
    "generate",
    "job",
    "layers",
    "pinned",
    "structured_wan",
    "tiny_wan",
)


@dataclass
class Job:
    """What an arm is to make.

    Attributes:
        arm: name as :func:`e2e.arms.find` takes it.
        folder: where results go; it exists.
        model: folder of the diffusers pipeline, or a name SGLang resolves.
        model_id: the name by which SGLang finds the pipeline class of a local folder; None to leave it to
            SGLang.
        prompt, height, width, frames, steps, guidance, seed: the request; height and width in pixels.
        device: ``cpu``, ``rocm`` or ``cuda``.
        warmup: generations before the first measured one.
        sglang: further server arguments of SGLang's.
        requests: ``{"name", "prompt", "seed"}`` of several requests, made one after the other by one process,
            each in the folder of its name. None: the one request above, in ``folder`` itself.
        warmup_steps: denoising steps of a warm-up; None for as many as the request has.
        keep_frames: whether frames, video and latents are written, beside their digest.
        read_sparsity: whether an arm that skips dumps its sparsity. Reading it waits for the device in every
            call, so that times are not those without.
        break_even: share of skipped KV tiles below which a layer of an arm that skips falls back to dense
            calls; None leaves it to the model of the device.
        engine: what makes the video, a key of :data:`e2e.generate.ENGINES`.
        identity: what else a result depends on, as :func:`identity` gives it.
    """

    arm: str
    folder: str
    model: str
    model_id: str | None
    prompt: str
    height: int
    width: int
    frames: int
    steps: int
    guidance: float
    seed: int
    device: str
    warmup: int = 0
    sglang: dict[str, Any] = field(default_factory=dict)
    requests: list[dict[str, Any]] | None = None
    warmup_steps: int | None = None
    keep_frames: bool = True
    read_sparsity: bool = True
    break_even: float | None = None
    engine: str = "sglang"
    identity: str = ""

    @classmethod
    def read(cls, path: Path) -> Job:
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    def each(self) -> Iterator[Job]:
        """One job per request."""
        for request in self.requests or [{"name": ".", "prompt": self.prompt, "seed": self.seed}]:
            yield replace(
                self,
                folder=str(Path(self.folder) / request["name"]),
                prompt=request["prompt"],
                seed=request["seed"],
                requests=None,
            )

    @property
    def fingerprint(self) -> str:
        """The same for jobs that make the same thing, wherever they put it."""
        fields = asdict(self)
        del fields["folder"], fields["requests"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def finished(self) -> dict[str, Any] | None:
        """The result of this one request where an earlier run left it; None where it has to be made."""
        try:
            result = json.loads((Path(self.folder) / RESULT).read_text())
        except (OSError, ValueError):
            return None
        return result if result.get("fingerprint") == self.fingerprint else None


def identity(versions: dict[str, str], packages: list[Path]) -> str:
    """A digest of what a result depends on.

    Args:
        versions: of everything else.
        packages: folders of which every source and library takes part; of this one those that run in an arm's
            process.
    """
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode())
    files = [file for folder in packages for file in folder.rglob("*") if file.suffix in {".py", ".so"}]
    files += [Path(__file__).with_name(f"{name}.py") for name in IN_AN_ARM]
    for file in sorted(files):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()
