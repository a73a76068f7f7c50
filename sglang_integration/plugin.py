"""Entry point of the SGLang diffusion plugin.

:func:`register` runs in every SGLang process before its runtime is imported. It adds one member to SGLang's
closed ``AttentionBackendEnum`` and registers hooks: on the platform's backend choice, on the completion of
SGLang's arguments, and on the building of a pipeline. Kernels, torch ops and SGLang's attention layers are
imported only once a layer asks for this backend.
"""

from __future__ import annotations

import enum
import functools
import importlib
import logging
import os
from collections.abc import Callable
from typing import Any

from sglang_integration import contracts
from sglang_integration.contracts import CHOICE_METHOD, MINIMUM_SGLANG, Stage

BACKEND_NAME = "liteattention_rocm"
BACKEND_CLASS = "sglang_integration.backend.LiteAttentionBackend"
DISABLE_VARIABLE = "LITEATTENTION_ROCM_DISABLE"
ARGUMENTS_MODULE = "sglang.multimodal_gen.runtime.server_args.server_args"
ARGUMENTS_HOOK = f"{ARGUMENTS_MODULE}.ServerArgs._adjust_attention_backend"
PIPELINE_HOOK = "sglang.multimodal_gen.runtime.pipelines_core.build_pipeline"
RING_NAMES = "RING_CAPABLE_ATTENTION_BACKENDS"
DIFFUSERS_CONFIG = "DiffusersGenericPipelineConfig"

logger = logging.getLogger(__name__)
_hooked: set[tuple[str, Callable[..., Any]]] = set()
_added: list[enum.Enum] = []  # the member, unless SGLang has one of that name itself


def register() -> None:
    """Makes ``liteattention_rocm`` known to SGLang; safe to call more than once.

    Never raises: what goes wrong is one error line in the log, and SGLang goes on without this backend.
    With ``LITEATTENTION_ROCM_DISABLE=1`` in the environment the name stays known, and stands for SGLang's own
    choice.
    """
    try:
        reason = contracts.version_reason() or next(contracts.broken(Stage.REGISTRATION), None)
        if reason is None:
            add_backend_name(BACKEND_NAME)
            hook_backend_choice(choose_backend)
            hook_once(ARGUMENTS_HOOK, adjust_arguments, "AROUND")
            hook_once(PIPELINE_HOOK, check_pipeline, "BEFORE")
            if disabled():
                logger.info("%s is set: %s stands for SGLang's own choice", DISABLE_VARIABLE, BACKEND_NAME)
            return
    except Exception as error:  # a plugin must not take its host down
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    logger.error(
        "SGLang attention backend %s is not registered (%s); it needs SGLang %s or newer",
        BACKEND_NAME,
        reason,
        MINIMUM_SGLANG,
    )


def disabled() -> bool:
    """Whether the environment turns the plugin off."""
    return os.environ.get(DISABLE_VARIABLE, "0") not in ("", "0")


@functools.cache
def broken_contract(stage: Stage) -> str | None:
    """The first broken contract of a stage after registration, or of those before it."""
    stages = (Stage.ARGUMENTS,) if stage is Stage.ARGUMENTS else (Stage.ARGUMENTS, Stage.LAYERS)
    return next((reason for one in stages for reason in contracts.broken(one)), None)


def stands_down(stage: Stage) -> bool:
    """Whether our name stands for SGLang's own choice; the log says why, once."""
    reason = f"{DISABLE_VARIABLE} is set" if disabled() else broken_contract(stage)
    if reason is not None:
        say_once(f"attention backend {BACKEND_NAME} stands down ({reason}): SGLang's own choice instead")
    return reason is not None


@functools.cache
def say_once(sentence: str) -> None:
    logger.warning("%s", sentence)


def add_backend_name(name: str) -> enum.Enum:
    """Adds ``name`` to SGLang's ``AttentionBackendEnum`` and returns the member, a dense backend to SGLang.

    The class itself stays: SGLang holds its members in sets and compares them by identity. The value is the
    name, which can't meet one of the class's automatic integers, and by which the member pickles.

    Where SGLang has a member of this name, that one is returned, and the layers that ask for it get this
    plugin's backend.
    """
    from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum

    key = name.upper()
    if key in AttentionBackendEnum.__members__:
        member = AttentionBackendEnum[key]
        if member not in _added:
            logger.info(
                "SGLang has an attention backend %s of its own: the plugin serves it, %s=1 gives it back",
                name,
                DISABLE_VARIABLE,
            )
        return member
    member = object.__new__(AttentionBackendEnum)
    member._name_, member._value_ = key, name
    member._sort_order_ = len(AttentionBackendEnum._member_names_)
    member.__objclass__ = AttentionBackendEnum
    AttentionBackendEnum._member_names_.append(key)
    AttentionBackendEnum._member_map_[key] = member
    AttentionBackendEnum._value2member_map_[name] = member
    type.__setattr__(AttentionBackendEnum, key, member)  # EnumType's own __setattr__ would refuse
    _added.append(member)
    return member


def hook_backend_choice(hook: Callable[..., str]) -> None:
    """Has SGLang call ``hook(original, platform, selected_backend, head_size, dtype)`` to pick a backend.

    SGLang keeps ``@classmethod`` only for methods that the target class defines itself, so the target is the
    class in the current platform's ancestry that does.

    Raises:
        LookupError: no class of the platform defines the method.
    """
    from sglang.multimodal_gen.runtime.platforms import current_platform

    for owner in type(current_platform).__mro__:
        if CHOICE_METHOD in vars(owner):
            break
    else:
        raise LookupError(f"{type(current_platform).__qualname__} has no {CHOICE_METHOD}")
    hook_once(f"{owner.__module__}.{owner.__qualname__}.{CHOICE_METHOD}", hook, "AROUND")


def hook_once(target: str, hook: Callable[..., Any], kind: str) -> None:
    """Registers a hook on a dotted path, which SGLang imports when it applies its hooks."""
    from sglang.multimodal_gen.runtime.platforms.plugins import HookRegistry, HookType

    if (target, hook) not in _hooked:
        HookRegistry.register(target, hook, HookType[kind])
        _hooked.add((target, hook))


def is_ours(name: Any) -> bool:
    return isinstance(name, str) and name.strip().lower() == BACKEND_NAME


def adjust_arguments(original: Callable[..., None], server_args: Any) -> None:
    """Lets SGLang complete its attention arguments, with our name or, where that stands down, without it.

    Raises:
        ValueError: our name with SGLang's diffusers backend.
    """
    asked = (
        server_args.attention_backend,
        server_args.component_attention_backends,
        server_args.component_attention_backend_roles,
    )
    if BACKEND_NAME not in str(asked).lower():
        original(server_args)
    elif stands_down(Stage.ARGUMENTS):
        without_our_name(original, server_args)
    else:
        allow_ring()
        original(server_args)
        check_pipeline(server_args)


def without_our_name(original: Callable[..., None], server_args: Any) -> None:
    """Completes the arguments as if nobody had named us, unless SGLang has a backend of that name itself."""
    if not _added:
        original(server_args)
        return
    if is_ours(server_args.attention_backend):
        server_args.attention_backend = None
        getattr(server_args, "_explicit_arg_names", set()).discard("attention_backend")
    original(server_args)
    for prefix in ("", "_requested_"):
        backends = getattr(server_args, f"{prefix}component_attention_backends", None) or {}
        roles = getattr(server_args, f"{prefix}component_attention_backend_roles", None) or {}
        for chosen in (backends, *roles.values()):
            for key in [key for key, name in chosen.items() if is_ours(name)]:
                del chosen[key]


def allow_ring() -> None:
    """Adds our name to those that SGLang admits with a ring degree above 1.

    SGLang asks the backend's class too, once it has one; arguments are checked by name, earlier.
    """
    module = importlib.import_module(ARGUMENTS_MODULE)
    names = getattr(module, RING_NAMES)
    if BACKEND_NAME not in names:
        setattr(module, RING_NAMES, (*names, BACKEND_NAME))


def check_pipeline(server_args: Any) -> None:
    """Refuses our name for a pipeline of diffusers, whose layers SGLang's backends never reach.

    Raises:
        ValueError: our name with ``--backend diffusers``, or with a model for which SGLang falls back to it.
    """
    if not is_ours(server_args.attention_backend) or disabled():
        return
    config = type(server_args.pipeline_config)
    fell_back = DIFFUSERS_CONFIG in (base.__name__ for base in config.__mro__)
    named = server_args.backend == "diffusers"
    if named or fell_back:
        asked = "--backend diffusers" if named else "one that it leaves to diffusers"
        raise ValueError(
            f"attention backend {BACKEND_NAME} serves the models that SGLang implements (--backend sglang), "
            f"not {asked}: allowed there are diffusers' own names"
        )


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
    if stands_down(Stage.LAYERS):
        return own_choice(original, platform, selected_backend, head_size, dtype)
    try:
        from sglang_integration import backend

        try:
            backend.check_layer(head_size, dtype, platform.get_local_torch_device())
        except RuntimeError as error:
            if not backend.may_fall_back(error):  # else our layers call AITER's, which they tell apart
                raise
    except (ImportError, RuntimeError, ValueError) as error:
        raise ValueError(f"attention backend {BACKEND_NAME}: {error}") from error
    return BACKEND_CLASS


def own_choice(
    original: Callable[..., str], platform: type, selected_backend: enum.Enum, head_size: int, dtype: Any
) -> str:
    """What SGLang takes where nobody chooses: AITER on ROCm, as its arguments say, else the platform's own.

    A member of our name that SGLang has itself is SGLang's to serve.
    """
    if selected_backend in _added:
        from sglang.multimodal_gen.runtime.platforms import current_platform

        selected_backend = type(selected_backend)["AITER"] if current_platform.is_rocm() else None
    return original(platform, selected_backend, head_size, dtype)
