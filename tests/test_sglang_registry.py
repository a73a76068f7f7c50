"""The patch that docs/sglang.md offers to SGLang applies to the installed release and does what it says."""

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from e2e import tiny_wan
from sglang_host import COMMAND_LINE, python, tiny_model

PATCH = Path(__file__).parent.parent / "docs" / "sglang_registry.patch"
PACKAGE = Path(find_spec("sglang").origin).parent
FILES = [
    line.removeprefix("+++ b/python/sglang/") for line in PATCH.read_text().splitlines() if line[:3] == "+++"
]


def apply(folder: Path) -> str:
    """Applies the patch in a folder that holds SGLang, and returns what `patch` said."""
    command = ["patch", "-p2", "--fuzz=0", "--batch", f"--input={PATCH}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def package(tmp_path):
    """A copy of the files that the patch names."""
    for name in FILES:
        copy = tmp_path / "sglang" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / name, copy)
    return tmp_path / "sglang"


needs_patch = pytest.mark.skipif(shutil.which("patch") is None, reason="no patch: apt-get install patch")


@needs_patch
def test_the_patch_applies_as_it_is(package):
    said = apply(package.parent)
    assert len(FILES) == 4 and said.count("patching file") == 4
    assert "offset" not in said and "fuzz" not in said
    for name in FILES:
        compile((package / name).read_text(), name, "exec")


SCRIPT = """
from e2e import cpu_host
cpu_host.prepare()
import sglang, torch
from e2e import tiny_wan
from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum
asked = []

def resolve(head_size, dtype):
    asked.append((head_size, dtype))
    if head_size != 128:
        raise ValueError(f"toy serves 128, not {{head_size}}")
    from sglang.multimodal_gen.runtime.layers.attention.backends.sdpa import SDPABackend
    return type("Toy", (SDPABackend,), {{"get_enum": staticmethod(lambda: toy)}})

toy = AttentionBackendEnum.register("toy", resolve, ring=True)
assert AttentionBackendEnum.TOY is toy is AttentionBackendEnum("toy") and not toy.is_sparse
assert AttentionBackendEnum.register("sparse_toy", resolve, sparse=True).is_sparse
try:
    AttentionBackendEnum.register("aiter", resolve)
except ValueError as error:
    assert "'aiter' exists" in str(error)
else:
    raise AssertionError("a built-in name was taken")

from sglang.multimodal_gen.runtime.server_args import ServerArgs, set_global_server_args

def arguments(gpus=1, **more):
    args = ServerArgs.from_kwargs(model_path={model!r}, model_id=tiny_wan.MODEL_ID, num_gpus=gpus, **more)
    set_global_server_args(args)
    return args

assert arguments(2, attention_backend="toy", ring_degree=2).attention_backend == "toy"
args = arguments(component_attention_backends="transformer.cross=toy")
assert args.component_attention_backend_roles == {{"transformer": {{"cross": "toy"}}}}
arguments(attention_backend="toy")
from sglang.multimodal_gen.runtime.layers.attention import selector
assert selector.get_attn_backend(128, torch.bfloat16).__name__ == "Toy" and asked == [(128, torch.bfloat16)]
try:
    selector.get_attn_backend(64, torch.bfloat16)
except ValueError as error:
    assert "toy serves 128, not 64" in str(error)
else:
    raise AssertionError("head size 64 was served")
print("FROM", sglang.__file__)
"""


@needs_patch
@pytest.mark.full
def test_a_patched_sglang_takes_backends_of_plugins(tmp_path, tmp_path_factory):
    """The whole package by links, but for the four files."""
    shutil.copytree(
        PACKAGE, tmp_path / "sglang", copy_function=lambda source, to: Path(to).symlink_to(source)
    )
    for name in FILES:
        (tmp_path / "sglang" / name).unlink()
        shutil.copy(PACKAGE / name, tmp_path / "sglang" / name)
    apply(tmp_path)
    model = str(tiny_model(tmp_path_factory))
    finished = python("-c", SCRIPT.format(model=model), PYTHONPATH=str(tmp_path))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert f"FROM {tmp_path}" in finished.stdout
    script = COMMAND_LINE.format(
        module="sglang.cli.main",
        model=model,
        model_id=tiny_wan.MODEL_ID,
        words=["transformer.cross=liteattention_rocm"],
    )
    finished = python("-c", script, PYTHONPATH=str(tmp_path))
    assert "BACKENDS {'transformer': {'cross': 'liteattention_rocm'}}" in finished.stdout, finished.stderr
