"""SGLang's ROCm platform without a GPU: the platform by its override, the device by what torch says of it,
and a recording library under the name of ROCm's.
"""

import json

import pytest

import hip_stub
from sglang_host import python, tiny_model

STREAM = 0x5150

# SGLang's selection is its own; torch's answers about the device are those of an MI300X's PyTorch.
SCRIPT = """
import ctypes, json, os, sys
from types import SimpleNamespace
from e2e import cpu_host, tiny_wan
cpu_host.prepare()
os.environ.update(SGLANG_DIFFUSION_PLATFORM_OVERRIDE="rocm", LOCAL_RANK="0")
library, model, architecture, stream = sys.argv[1:]
opened = ctypes.CDLL(library)

import torch
from sglang.multimodal_gen.runtime.platforms import current_platform
from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks
apply_plugin_hooks()
from sglang.multimodal_gen.runtime.layers.attention import selector
from sglang.multimodal_gen.runtime.server_args import ServerArgs, set_global_server_args

properties = SimpleNamespace(
    gcnArchName=architecture, multi_processor_count=304, name="AMD Instinct MI300X", major=9, minor=4,
    total_memory=192 << 30,
)
torch.version.hip = "7.1.0"
torch.cuda.get_device_properties = lambda device=0: properties
torch.cuda.get_device_name = lambda device=0: properties.name
torch.cuda.get_device_capability = lambda device=0: (9, 4)
torch.cuda.current_device = lambda: 0
torch.cuda.mem_get_info = lambda device=None: (192 << 30, 192 << 30)
torch.cuda.empty_cache = lambda: None
torch.cuda.current_stream = lambda device=None: SimpleNamespace(cuda_stream=int(stream))

told = {"platform": type(current_platform).__name__, "device": str(current_platform.get_local_torch_device())}

def choose(name, head_size=128, dtype=torch.bfloat16):
    selector._cached_get_attn_backend.cache_clear()
    from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum as names
    try:
        return current_platform.get_attn_backend_cls_str(names[name.upper()], head_size, dtype)
    except ValueError as error:
        return f"ValueError: {error}"

set_global_server_args(ServerArgs.from_kwargs(
    model_path=model, model_id=tiny_wan.MODEL_ID, num_gpus=1, attention_backend="liteattention_rocm"))
for name in ("liteattention_rocm", "aiter", "torch_sdpa", "sage_attn"):
    told[name] = choose(name)
told["head size 80"] = choose("liteattention_rocm", head_size=80)

if told["liteattention_rocm"].endswith("LiteAttentionBackend"):
    selector._cached_get_attn_backend.cache_clear()
    told["class"] = selector.get_attn_backend(128, torch.bfloat16).__name__
    from liteattention_rocm import arguments, dispatch, runtime
    served = dispatch.serving(torch.device("cuda", 0))
    told["kernel"], told["target"] = served.name, [served.target.architecture, served.target.compute_units]
    told["library"] = runtime.rocm_library()
    # There are no tensors of the device; a launch takes addresses.
    q, k, v, out = torch.zeros(4, 1, 300, 2, 128, dtype=torch.bfloat16)
    call = arguments.check_call(q, k, v, None, "bshd", "rtz")
    served.launch(call, q, k, v, out, None)
    told["addresses"] = [t.data_ptr() for t in (q, k, v, out)]
opened.stub_log.restype = ctypes.c_char_p
told["calls"] = [json.loads(line) for line in opened.stub_log().decode().splitlines()]
print("TOLD", json.dumps(told))
"""


def select(tmp_path, tmp_path_factory, architecture):
    library = hip_stub.copy(tmp_path / "libamdhip64.so.7")
    words = (str(library), str(tiny_model(tmp_path_factory)), architecture, str(STREAM))
    finished = python("-c", SCRIPT, *words, LITEATTENTION_ROCM_CACHE=str(tmp_path / "cache"))
    lines = [line for line in finished.stdout.splitlines() if line.startswith("TOLD ")]
    assert finished.returncode == 0 and lines, finished.stdout[-2000:] + finished.stderr[-4000:]
    return json.loads(lines[0].removeprefix("TOLD ")), library


@pytest.mark.full
def test_an_mi300x_is_served_by_the_loaded_hip_runtime(tmp_path, tmp_path_factory):
    told, library = select(tmp_path, tmp_path_factory, "gfx942:sramecc+:xnack-")
    assert (told["platform"], told["device"]) == ("RocmPlatform", "cuda:0")
    assert told["liteattention_rocm"] == "sglang_integration.backend.LiteAttentionBackend"
    assert told["class"] == "LiteAttentionBackend"
    assert told["aiter"].endswith("backends.aiter.AITerBackend")
    assert told["torch_sdpa"].endswith("SDPABackend")
    assert told["sage_attn"].startswith("ValueError: SAGE_ATTN is not supported on rocm")
    assert told["head size 80"].startswith("ValueError: attention backend liteattention_rocm: head size 80")
    assert told["kernel"] == "hip" and told["target"] == ["gfx942", 304]
    assert told["library"] == str(library)
    functions = [call["function"] for call in told["calls"]]
    assert functions.count("hipModuleLoadData") == 1
    assert not [name for name in functions if name.startswith(("hipMalloc", "hipMemcpy", "hipDeviceSync"))]
    launches = [call for call in told["calls"] if call["function"] == "hipModuleLaunchKernel"]
    assert launches and all(call["stream"] == STREAM for call in launches)


@pytest.mark.full
def test_another_architecture_is_refused_before_weights_are_loaded(tmp_path, tmp_path_factory):
    told, _ = select(tmp_path, tmp_path_factory, "gfx1100")
    assert told["liteattention_rocm"].startswith("ValueError: attention backend liteattention_rocm: ")
    assert "architecture gfx1100 has no code object here" in told["liteattention_rocm"]
    assert told["aiter"].endswith("backends.aiter.AITerBackend")
    assert "hipModuleLoadData" not in [call["function"] for call in told["calls"]]
