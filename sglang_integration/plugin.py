"""Entry point of the SGLang diffusion plugin.

:func:`register` runs in every SGLang process before its runtime is imported. It adds one member to SGLang's
closed ``AttentionBackendEnum`` and hooks the platform's backend choice; kernels, torch ops and SGLang's
attention layers are imported only once a layer asks for this backend.
"""

from __future__ import annotations

import enum
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

BACKEND_NAME = "liteattention_rocm"
BACKEND_CLASS = "sglang_integration.backend.LiteAttentionBackend"
DISABLE_VARIABLE = "LITEATTENTION_ROCM_DISABLE"
CHOICE_METHOD = "get_attn_backend_cls_str"
ARGUMENTS_MODULE = "sglang.multimodal_gen.runtime.server_args.server_args"
ARGUMENTS_CHECK = f"{ARGUMENTS_MODULE}.ServerArgs._adjust_attention_backend"
RING_NAMES = "RING_CAPABLE_ATTENTION_BACKENDS"

logger = logging.getLogger(__name__)
_hooked: set[tuple[str, Callable[..., Any]]] = set()


def register() -> None:
    """Makes ``liteattention_rocm`` known to SGLang; safe to call more than once.

    Never raises: what goes wrong is one error line in the log, and SGLang goes on without this backend.
    ``LITEATTENTION_ROCM_DISABLE=1`` in the environment turns registration off.
    """
    if os.environ.get(DISABLE_VARIABLE, "0") not in ("", "0"):
        logger.info(
            "%s is set: SGLang attention backend %s is not registered", DISABLE_VARIABLE, BACKEND_NAME
        )
        return
    try:
        hook_backend_choice(choose_backend)
        hook_ring_check(allow_ring)
        add_backend_name(BACKEND_NAME)
    except Exception as error:  # a plugin must not take its host down
        logger.error(
            "SGLang attention backend %s could not be registered (%s: %s); it is built for SGLang 0.5.23",
            BACKEND_NAME,
            type(error).__name__,
            " ".join(str(error).split()),
        )


def add_backend_name(name: str) -> enum.Enum:
    """Adds ``name`` to SGLang's ``AttentionBackendEnum`` and returns the member, a dense backend to SGLang.

    The class itself stays: SGLang holds its members in sets and compares them by identity. The value is the
    name, which can't meet one of the class's automatic integers, and by which the member pickles.
    """
    from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum

    key = name.upper()
    if key in AttentionBackendEnum.__members__:
        return AttentionBackendEnum[key]
    member = object.__new__(AttentionBackendEnum)
    member._name_, member._value_ = key, name
    member._sort_order_ = len(AttentionBackendEnum._member_names_)
    member.__objclass__ = AttentionBackendEnum
    AttentionBackendEnum._member_names_.append(key)
    AttentionBackendEnum._member_map_[key] = member
    AttentionBackendEnum._value2member_map_[name] = member
    type.__setattr__(AttentionBackendEnum, key, member)  # EnumType's own __setattr__ would refuse
    return member


def hook_backend_choice(hook: Callable[..., str]) -> None:
    """Has SGLang call ``hook(original, platform, selected_backend, head_size, dtype)`` to pick a backend.

    SGLang keeps ``@classmethod`` only for methods that the target class defines itself, so the target is the
    class in the current platform's ancestry that does.

    Raises:
        LookupError: no class of the platform defines the method.
    """
    from sglang.multimodal_gen.runtime.platforms import current_platform
    from sglang.multimodal_gen.runtime.platforms.plugins import HookType

    for owner in type(current_platform).__mro__:
        if CHOICE_METHOD in vars(owner):
            break
    else:
        raise LookupError(f"{type(current_platform).__qualname__} has no {CHOICE_METHOD}")
    hook_once(f"{owner.__module__}.{owner.__qualname__}.{CHOICE_METHOD}", hook, HookType.AROUND)


def hook_ring_check(hook: Callable[..., None]) -> None:
    """Has SGLang call ``hook(server_args)`` before it checks the attention backend of its arguments."""
    from sglang.multimodal_gen.runtime.platforms.plugins import HookType

    hook_once(ARGUMENTS_CHECK, hook, HookType.BEFORE)


def hook_once(target: str, hook: Callable[..., Any], kind: enum.Enum) -> None:
    """Registers a hook on a dotted path, which SGLang imports when it applies its hooks."""
    from sglang.multimodal_gen.runtime.platforms.plugins import HookRegistry

    if (target, hook) not in _hooked:
        HookRegistry.register(target, hook, kind)
        _hooked.add((target, hook))


def allow_ring(server_args: Any) -> None:
    """Adds our name to those that SGLang admits with a ring degree above 1.

    SGLang asks the backend's class too, once it has one; arguments are checked by name, earlier.
    """
    module = sys.modules[ARGUMENTS_MODULE]
    names = getattr(module, RING_NAMES)
    if BACKEND_NAME not in names:
        setattr(module, RING_NAMES, (*names, BACKEND_NAME))


def choose_backend(
    original: Callable[..., str],
    platform: type,
    selected_backend: enum.Enum | None,
    head_size: int,
    dtype: Any,
) -> str:
    """Answers SGLang's question for our name and passes every other one on.

    Returns:
        The class path of the attention backend.

    Raises:
        ValueError: a layer, a device or a configuration that this backend can't serve. SGLang then falls back
            for auxiliary components and stops for the diffusion transformer, as it does for backends of its
            own.
    """
    if getattr(selected_backend, "name", None) != BACKEND_NAME.upper():
        return original(platform, selected_backend, head_size, dtype)
    try:
        from sglang_integration.backend import check_layer

        check_layer(head_size, dtype, platform.get_local_torch_device())
    except (ImportError, RuntimeError, ValueError) as error:
        raise ValueError(f"attention backend {BACKEND_NAME}: {error}") from error
    return BACKEND_CLASS
