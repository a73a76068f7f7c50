"""Fetches AITER's forward code objects for gfx942 into `.aiter/`, without installing AITER.

    python tools/fetch_aiter.py [directory]

Only `aiter_meta/hsa/gfx942/fmha_v3_fwd/` of the wheel is unpacked; nothing of it is imported. The files are
MIT licensed by AMD and stay outside the repository.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = "amd-aiter==0.1.7.post2.dev18"
FOLDER = "aiter_meta/hsa/gfx942/fmha_v3_fwd/"
SHA256 = {
    "MI300/fwd_hd128_bf16_rtne.co": "074f06acd281efa21ccaa231daff109162861c5d91d3b095ea00c80bd3e68b9e",
    "MI300/fwd_hd128_bf16_rtna.co": "c30eb8eb0ef58d9efc608e5d33bffc657144e2cf658954cc40b80d6f3e149bb8",
    "MI300/fwd_hd128_bf16_rtz.co": "e8a95e49ba20afa3f81d71b0141cadc46cae33684c5ee89389d29040f4178b75",
}


def digests(directory: Path) -> dict[str, str | None]:
    """SHA-256 of the three code objects under a directory; None for a missing one."""
    files = {name: directory / FOLDER / name for name in SHA256}
    return {
        name: hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
        for name, file in files.items()
    }


def fetch(directory: Path) -> None:
    """Downloads the wheel to a temporary folder and unpacks the code objects."""
    with tempfile.TemporaryDirectory() as download:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            download,
            REQUIREMENT,
        ]
        subprocess.run(command, check=True)
        (wheel,) = Path(download).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(directory, [name for name in archive.namelist() if name.startswith(FOLDER)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path, default=Path(".aiter"), help="default: .aiter")
    directory = parser.parse_args().directory
    if digests(directory) != SHA256:
        try:
            fetch(directory)
        except subprocess.CalledProcessError as error:
            print(f"pip download {REQUIREMENT} failed with exit code {error.returncode}", file=sys.stderr)
            return 1
    found = digests(directory)
    for name, digest in found.items():
        print(f"{digest}  {directory / FOLDER / name}")
    if found != SHA256:
        print(f"these are not the files of {REQUIREMENT}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
