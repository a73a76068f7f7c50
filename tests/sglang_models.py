"""What becomes of the attention layers of SGLang's models when our name is chosen, by building them.

    python tests/sglang_models.py

prints the table of docs/sglang.md. Models have their published widths and one block of each kind, on torch's
meta device; SGLang's own constructors choose the backends.
"""

import contextlib
import os
import re
import socket
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent.parent)]

from e2e import cpu_host, tiny_wan

cpu_host.prepare()

import torch  # noqa: E402

HEADER = ("model", "layer", "heads × size", "what happens")


def wan(**arch):
    from sglang.multimodal_gen.configs.models.dits.wanvideo import WanVideoArchConfig, WanVideoConfig
    from sglang.multimodal_gen.runtime.models.dits.wanvideo import WanTransformer3DModel

    return WanTransformer3DModel(WanVideoConfig(arch_config=WanVideoArchConfig(num_layers=1, **arch)), {})


def _flux():
    from sglang.multimodal_gen.configs.models.dits.flux import FluxArchConfig, FluxConfig
    from sglang.multimodal_gen.runtime.models.dits.flux import FluxTransformer2DModel

    config = FluxConfig(arch_config=FluxArchConfig(num_layers=1, num_single_layers=1))
    return FluxTransformer2DModel(config, {})


def _flux_2():
    from sglang.multimodal_gen.configs.models.dits.flux import FluxConfig
    from sglang.multimodal_gen.runtime.models.dits.flux_2 import Flux2Transformer2DModel

    config = FluxConfig()
    config.update_model_arch(
        {
            "num_layers": 1,
            "num_single_layers": 1,
            "num_attention_heads": 48,
            "joint_attention_dim": 15360,
            "timestep_guidance_channels": 256,
            "mlp_ratio": 3.0,
            "axes_dims_rope": (32, 32, 32, 32),
            "rope_theta": 2000,
            "eps": 1e-6,
        }
    )
    return Flux2Transformer2DModel(config, {})


def _hunyuan_video():
    from sglang.multimodal_gen.configs.models.dits.hunyuanvideo import (
        HunyuanVideoArchConfig,
        HunyuanVideoConfig,
    )
    from sglang.multimodal_gen.runtime.models.dits.hunyuanvideo import HunyuanVideoTransformer3DModel

    arch = HunyuanVideoArchConfig(num_layers=1, num_single_layers=1, num_refiner_layers=1)
    return HunyuanVideoTransformer3DModel(HunyuanVideoConfig(arch_config=arch), {})


def _qwen_image():
    from sglang.multimodal_gen.configs.models.dits.qwenimage import QwenImageArchConfig, QwenImageDitConfig
    from sglang.multimodal_gen.runtime.models.dits.qwen_image import QwenImageTransformer2DModel

    config = QwenImageDitConfig(arch_config=QwenImageArchConfig(num_layers=1))
    return QwenImageTransformer2DModel(config, {})


def _llama():
    from sglang.multimodal_gen.configs.models.encoders.llama import LlamaConfig
    from sglang.multimodal_gen.runtime.models.encoders.llama import LlamaModel

    config = LlamaConfig()
    config.update_model_arch(
        {
            "num_hidden_layers": 1,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rope_parameters": {"rope_theta": 5e5},
        }
    )
    return LlamaModel(config)


def _qwen_vl():
    from sglang.multimodal_gen.runtime.models.encoders import qwen2_5vl
    from sglang.multimodal_gen.runtime.models.encoders.qwen_vl_vision import QwenVLVisionAttention
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig

    text = Qwen2_5_VLTextConfig(hidden_size=3584, num_attention_heads=28, num_key_value_heads=4)
    vision = SimpleNamespace(num_heads=16, hidden_size=1280)
    with mock.patch.object(qwen2_5vl, "build_qwen_vl_text_rope"):  # its kernel is not for CPUs
        text_attention = qwen2_5vl.Qwen2_5_VLAttention(text, 0)
    vision_attention = QwenVLVisionAttention(vision, prefix="vision", model_name="Qwen2.5-VL")
    return torch.nn.ModuleDict({"text": text_attention, "vision": vision_attention})


def _mistral():
    from sglang.multimodal_gen.runtime.models.encoders.mistral_3 import MistralAttention
    from transformers import MistralConfig

    config = MistralConfig(hidden_size=5120, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    return torch.nn.ModuleDict({"text": MistralAttention(config, 0)})


def _t5():
    from sglang.multimodal_gen.configs.models.encoders.t5 import T5ArchConfig, T5Config
    from sglang.multimodal_gen.runtime.models.encoders.t5 import UMT5EncoderModel

    return UMT5EncoderModel(T5Config(arch_config=T5ArchConfig(num_layers=1)))


def _clip():
    from sglang.multimodal_gen.configs.models.encoders.clip import CLIPVisionArchConfig, CLIPVisionConfig
    from sglang.multimodal_gen.runtime.models.encoders.clip import CLIPVisionModel

    return CLIPVisionModel(CLIPVisionConfig(arch_config=CLIPVisionArchConfig(num_hidden_layers=1)))


TRANSFORMERS = {
    "Wan2.1-T2V-1.3B": lambda: wan(num_attention_heads=12, ffn_dim=8960),
    "Wan2.1-T2V-14B, Wan2.2-T2V-A14B": lambda: wan(num_attention_heads=40, ffn_dim=13824),
    "Wan2.1-I2V-14B": lambda: wan(
        num_attention_heads=40, ffn_dim=13824, image_dim=1280, added_kv_proj_dim=5120, in_channels=36
    ),
    "Wan2.2-I2V-A14B": lambda: wan(num_attention_heads=40, ffn_dim=13824, in_channels=36),
    "Wan2.2-TI2V-5B": lambda: wan(num_attention_heads=24, ffn_dim=14336, in_channels=48, out_channels=48),
    "FLUX.1": _flux,
    "FLUX.2": _flux_2,
    "HunyuanVideo": _hunyuan_video,
    "Qwen-Image": _qwen_image,
    "any transformer, head size 64": lambda: wan(num_attention_heads=24, attention_head_dim=64),
}
ENCODERS = {
    "HunyuanVideo's Llama": _llama,
    "Qwen-Image's Qwen2.5-VL": _qwen_vl,
    "FLUX.2's Mistral": _mistral,
    "Wan's UMT5": _t5,
    "Wan I2V's CLIP": _clip,
}


@contextlib.contextmanager
def host(model: Path, threshold: float | None = -10, **arguments):
    """SGLang as it stands in a worker of one rank on a CPU: our name, and a threshold unless it is None."""
    from sglang.multimodal_gen.runtime.distributed import (
        cleanup_dist_env_and_memory,
        maybe_init_distributed_environment_and_model_parallel,
    )
    from sglang.multimodal_gen.runtime.layers.attention import selector
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks
    from sglang.multimodal_gen.runtime.server_args import ServerArgs, set_global_server_args

    apply_plugin_hooks()
    args = ServerArgs.from_kwargs(
        model_path=str(model),
        model_id=tiny_wan.MODEL_ID,
        num_gpus=1,
        attention_backend="liteattention_rocm",
        attention_backend_config={} if threshold is None else {"threshold": threshold},
        **arguments,
    )
    set_global_server_args(args)
    selector._cached_get_attn_backend.cache_clear()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rank = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update({**rank, "LOCAL_RANK": "0"})
    maybe_init_distributed_environment_and_model_parallel(tp_size=1, sp_size=1)
    try:
        yield args
    finally:
        cleanup_dist_env_and_memory()
        for name in (*rank, "LOCAL_RANK"):
            os.environ.pop(name, None)


def _build(make, encoder: bool):
    from sglang.multimodal_gen.runtime.layers.attention.selector import component_attn_backend_context_manager

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    name = "text_encoder" if encoder else "transformer"
    try:
        with (
            torch.device("meta"),
            component_attn_backend_context_manager(
                None, component_name=name, allow_global_backend_fallback=encoder
            ),
        ):
            return make()
    finally:
        torch.set_default_dtype(before)


def layers(make, encoder: bool):
    """(layer, "heads × size", what happens) of each attention layer that asks SGLang for a backend."""
    from sglang_integration.backend import LiteAttentionImpl

    try:
        model = _build(make, encoder)
    except ValueError as refusal:
        reason = re.search(r"liteattention_rocm: (.*?) is not served", str(refusal))
        return [("every layer", "", f"refused: {reason[1]}")]
    rows = {}
    for name, module in model.named_modules():
        made = getattr(module, "attn_impl", None) or getattr(module, "_attention_impl", None)
        if made is None:
            continue
        size = getattr(module, "head_size", None) or module.head_dim
        if not isinstance(made, LiteAttentionImpl):
            happens = f"SGLang's own choice: head size {size}"
        elif made.causal:
            happens = "torch SDPA: causal"
        else:
            happens = "served, and may skip" if made.skips else "served"
        kv = getattr(module, "num_kv_heads", None) or module.num_heads
        heads = f"{module.num_heads}" if kv == module.num_heads else f"{module.num_heads}/{kv}"
        rows[re.sub(r"\b0\b", "*", name)] = f"{heads} × {size}", happens
    return [(name, *row) for name, row in rows.items()] or [("none asks for a backend", "", "not reached")]


def table() -> str:
    """The Markdown table; `host` must be active."""
    lines = [HEADER, ("---",) * len(HEADER)]
    for models, encoder in ((TRANSFORMERS, False), (ENCODERS, True)):
        for model, make in models.items():
            for layer, heads, happens in layers(make, encoder):
                name = f"`{layer}`" if "." in layer or layer in ("text", "vision") else layer
                lines.append((model, name, heads, happens))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_wan.make(Path(folder) / "tiny-wan")
        with host(path):
            print(table(), end="")
