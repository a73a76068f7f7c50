"""SGLang settings that are the same in every arm, and the proof that they were."""

from __future__ import annotations

import json
from typing import Any

# What SGLang would otherwise choose by free memory, by the platform or by the backend.
SETTINGS = {
    "dit_layerwise_offload": False,
    "dit_cpu_offload": False,
    "text_encoder_cpu_offload": False,
    "image_encoder_cpu_offload": False,
    "vae_cpu_offload": False,
    "use_fsdp_inference": False,
    "enable_torch_compile": False,
    "enable_breakable_cuda_graph": False,
    "component_precisions": {"vae": "fp32"},
}
ROLES = ("transformer.self", "transformer.cross")


def server_arguments(backend: str, more: dict[str, Any]) -> dict[str, Any]:
    """SGLang's server arguments of an arm: both roles of the transformer by name, and :data:`SETTINGS`.

    Args:
        backend: as SGLang names it.
        more: further arguments, of every arm; they win.
    """
    roles = ",".join(f"{role}={backend}" for role in ROLES)
    return {**SETTINGS, "component_attention_backends": roles, **more}


def read_back(server_args: Any) -> dict[str, Any]:
    """What SGLang made of the settings, without the backend's name."""
    found = {name: getattr(server_args, name, None) for name in SETTINGS}
    found["component_precisions"] = dict(found["component_precisions"] or {})
    config = server_args.pipeline_config
    found["vae_precision"] = getattr(config, "vae_precision", None)
    found["vae_tiling"] = getattr(config, "vae_tiling", None)
    return found


def choice(server_args: Any) -> list[str]:
    """The words on SGLang's command line that tell the arm from others, as SGLang holds them."""
    words = ["--attention-backend", server_args.attention_backend]
    roles = server_args.component_attention_backend_roles or {}
    named = [f"{part}.{role}={name}" for part, chosen in roles.items() for role, name in chosen.items()]
    if named:
        words += ["--component-attention-backends", ",".join(named)]
    if server_args.attention_backend_config:
        words += ["--attention-backend-config", json.dumps(dict(server_args.attention_backend_config))]
    return words


def differences(settings: dict[str, dict[str, Any]]) -> list[str]:
    """Settings in which arms differ: ``name: arm value, arm value``; empty where all agree."""
    found = []
    for name in sorted({name for one in settings.values() for name in one}):
        values = {arm: one.get(name) for arm, one in settings.items()}
        if len({repr(value) for value in values.values()}) > 1:
            found.append(f"{name}: " + ", ".join(f"{arm} {value!r}" for arm, value in values.items()))
    return found


def check(settings: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Whether SGLang ran every arm with the same settings; None with fewer than two arms."""
    if len(settings) < 2:
        return None
    found = differences(settings)
    return {
        "name": "every arm ran with the same settings",
        "passed": not found,
        "detail": "; ".join(found) or f"{len(next(iter(settings.values())))} settings, {len(settings)} arms",
    }
