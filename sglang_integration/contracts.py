"""What this plugin takes for granted of SGLang, symbol by symbol, and whether it still holds.

SGLang's diffusion runtime has no stable interface for plugins of this kind. Each :class:`Contract` names one
symbol that is used or hooked and checks its form, not its behaviour, before anything relies on it. Where one
is broken the plugin stands down: SGLang goes on as if the plugin weren't there, and the log says which.

`make canary` checks them against the newest release; so does ``python -m sglang_integration.contracts``.
"""

from __future__ import annotations

import enum
import importlib.metadata
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MINIMUM_SGLANG = "0.5.23"  # the first release whose interfaces are those below
_RUNTIME = "sglang.multimodal_gen.runtime"
_PLATFORMS = f"{_RUNTIME}.platforms"
_BACKENDS = f"{_RUNTIME}.layers.attention.backends"
_ARGUMENTS = f"{_RUNTIME}.server_args.server_args"
CHOICE_METHOD = "get_attn_backend_cls_str"


class Stage(enum.Enum):
    """When a contract is checked: none imports more of SGLang than is there by then."""

    REGISTRATION = "registration"  # before SGLang's runtime is imported
    ARGUMENTS = "arguments"  # before SGLang's arguments are completed
    LAYERS = "layers"  # before the first attention layer is built


class Broken(Exception):
    """A symbol is not of the form that this plugin needs; the message says what is there."""


@dataclass(frozen=True)
class Contract:
    """One symbol of SGLang.

    Attributes:
        symbol: its dotted path, a colon behind the module.
        why: what the plugin does with it.
        check: gets the symbol; raises :class:`Broken`.
    """

    symbol: str
    why: str
    stage: Stage
    check: Callable[[Any], None]

    def reason(self) -> str | None:
        """None where the contract holds, else what is wrong, on one line."""
        try:
            self.check(pkgutil.resolve_name(self.symbol))
        except Exception as error:  # whatever a changed SGLang raises
            what = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
            return f"{self.symbol}, which {self.why}: {' '.join(what.split())}"
        return None


def require(condition: object, what: str) -> None:
    if not condition:
        raise Broken(what)


def takes(*names: str) -> Callable[[Any], None]:
    """The function can be called with these arguments by name, and needs no others."""

    def check(function: Any) -> None:
        require(callable(function), f"is {type(function).__name__}, no function")
        parameters = inspect.signature(function).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        missing = [name for name in names if name not in parameters]
        some = len(missing) < len(names) and inspect.Parameter.VAR_KEYWORD in kinds
        require(some or not missing, f"takes no {', '.join(missing)}")
        needed = [
            name
            for name, parameter in parameters.items()
            if name not in (*names, "self", "cls")
            and parameter.default is inspect.Parameter.empty
            and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        ]
        require(not needed, f"needs {', '.join(needed)} too")

    return check


def is_class(cls: Any) -> None:
    require(isinstance(cls, type), "is no class")


def has_fields(*names: str) -> Callable[[Any], None]:
    """The dataclass has these fields."""

    def check(cls: Any) -> None:
        fields = getattr(cls, "__dataclass_fields__", {})
        missing = [name for name in names if name not in fields]
        require(not missing, f"has no field {', '.join(missing)}")

    return check


def leaves_abstract(*names: str) -> Callable[[Any], None]:
    """The class has these methods and no other abstract one: a subclass that defines them is complete."""

    def check(cls: Any) -> None:
        require(isinstance(cls, type), "is no class")
        missing = [name for name in names if not hasattr(cls, name)]
        require(not missing, f"has no {', '.join(missing)}")
        others = sorted(set(getattr(cls, "__abstractmethods__", ())) - set(names))
        require(not others, f"has the abstract methods {', '.join(others)} too")

    return check


def check_enum(cls: Any) -> None:
    require(isinstance(cls, type) and issubclass(cls, enum.Enum), "is no enumeration")
    require({"TORCH_SDPA", "AITER"} <= set(cls.__members__), "lacks TORCH_SDPA or AITER")
    kept = ("_member_map_", "_member_names_", "_value2member_map_")
    missing = [name for name in kept if not hasattr(cls, name)]
    require(not missing, f"keeps no {', '.join(missing)}")
    require(isinstance(getattr(cls, "is_sparse", None), property), "has no property is_sparse")


def check_platform(platform: Any) -> None:
    method = inspect.getattr_static(type(platform), CHOICE_METHOD, None)
    require(isinstance(method, classmethod), f"has no class method {CHOICE_METHOD}")
    names = list(inspect.signature(method.__func__).parameters)[1:]
    require(names == ["selected_backend", "head_size", "dtype"], f"{CHOICE_METHOD} takes {', '.join(names)}")
    for name in ("get_local_torch_device", "is_rocm"):
        require(callable(getattr(platform, name, None)), f"has no {name}")


def check_kinds(cls: Any) -> None:
    require({"AROUND", "BEFORE"} <= set(cls.__members__), "lacks AROUND or BEFORE")


def check_names(names: Any) -> None:
    text = all(isinstance(name, str) for name in names) if isinstance(names, tuple) else False
    require(text, f"is {names!r}, no tuple of names")


def check_member(cls: Any) -> None:
    require("DIFFUSERS" in cls.__members__, "lacks DIFFUSERS")


CONTRACTS = (
    Contract(f"{_PLATFORMS}:AttentionBackendEnum", "gets our member", Stage.REGISTRATION, check_enum),
    Contract(
        f"{_PLATFORMS}:current_platform", "picks the backend's class", Stage.REGISTRATION, check_platform
    ),
    Contract(
        f"{_PLATFORMS}.plugins:HookRegistry.register",
        "registers our hooks",
        Stage.REGISTRATION,
        takes("target", "hook", "hook_type"),
    ),
    Contract(f"{_PLATFORMS}.plugins:HookType", "names the kinds of hooks", Stage.REGISTRATION, check_kinds),
    Contract(
        f"{_ARGUMENTS}:ServerArgs",
        "holds the choice and our configuration",
        Stage.ARGUMENTS,
        has_fields(
            "backend",
            "attention_backend",
            "attention_backend_config",
            "component_attention_backends",
            "component_attention_backend_roles",
            "pipeline_config",
        ),
    ),
    Contract(
        f"{_ARGUMENTS}:ServerArgs._adjust_attention_backend",
        "completes the choice and is hooked",
        Stage.ARGUMENTS,
        takes("self"),
    ),
    Contract(
        f"{_ARGUMENTS}:RING_CAPABLE_ATTENTION_BACKENDS",
        "admits names to ring attention",
        Stage.ARGUMENTS,
        check_names,
    ),
    Contract(f"{_ARGUMENTS}:Backend", "names the diffusers backend", Stage.ARGUMENTS, check_member),
    Contract(
        f"{_RUNTIME}.server_args:get_global_server_args", "gives the configuration", Stage.LAYERS, takes()
    ),
    Contract(
        f"{_RUNTIME}.pipelines_core:build_pipeline",
        "shows which pipeline is built and is hooked",
        Stage.LAYERS,
        takes("server_args"),
    ),
    Contract(
        f"{_BACKENDS}.attention_backend:AttentionBackend",
        "is our backend's base",
        Stage.LAYERS,
        leaves_abstract(
            "get_enum", "get_impl_cls", "get_metadata_cls", "get_builder_cls", "supports_ring_rotation"
        ),
    ),
    Contract(
        f"{_BACKENDS}.attention_backend:AttentionImpl",
        "is our layers' base",
        Stage.LAYERS,
        leaves_abstract("__init__", "forward", "forward_varlen", "forward_ring_kv_chunk"),
    ),
    Contract(
        f"{_BACKENDS}.attention_backend:AttentionImpl.__init__",
        "tells how layers are made",
        Stage.LAYERS,
        takes("num_heads", "head_size", "softmax_scale", "causal", "num_kv_heads", "prefix"),
    ),
    Contract(
        f"{_BACKENDS}.attention_backend:AttentionImpl.forward",
        "tells how layers are called",
        Stage.LAYERS,
        takes("query", "key", "value", "attn_metadata"),
    ),
    Contract(
        f"{_BACKENDS}.attention_backend:AttentionImpl.forward_varlen",
        "tells how packed sequences come",
        Stage.LAYERS,
        takes("query", "key", "value", "cu_seqlens", "max_seqlen", "cu_seqlens_host"),
    ),
    Contract(
        f"{_BACKENDS}.attention_backend:AttentionImpl.forward_ring_kv_chunk",
        "tells how a ring's chunks come",
        Stage.LAYERS,
        takes("query", "key", "value"),
    ),
    Contract(
        f"{_BACKENDS}.attention_backend:AttentionMetadata",
        "is our metadata's class",
        Stage.LAYERS,
        is_class,
    ),
    Contract(
        f"{_BACKENDS}.sdpa:SDPAImpl",
        "serves what we don't",
        Stage.LAYERS,
        takes(
            "num_heads",
            "head_size",
            "causal",
            "softmax_scale",
            "num_kv_heads",
            "prefix",
            "is_cross_attention",
        ),
    ),
    Contract(
        f"{_RUNTIME}.managers.forward_context:ForwardContext",
        "tells the step and the request",
        Stage.LAYERS,
        has_fields("current_timestep", "forward_batch"),
    ),
    Contract(
        f"{_RUNTIME}.pipelines_core.schedule_batch:Req",
        "tells the branch of guidance and keeps our lists",
        Stage.LAYERS,
        has_fields("extra", "is_cfg_negative", "is_warmup"),
    ),
    Contract(
        f"{_RUNTIME}.managers.forward_context:get_forward_context_or_none",
        "gives the forward context",
        Stage.LAYERS,
        takes(),
    ),
    Contract(
        f"{_RUNTIME}.managers.forward_context:DENOISING_LOOP_STATE",
        "is the key of what a denoising loop keeps",
        Stage.LAYERS,
        lambda key: require(isinstance(key, str), f"is {key!r}, no key"),
    ),
    Contract(
        f"{_RUNTIME}.layers.usp:ring_attn",
        "calls layers under ring attention",
        Stage.LAYERS,
        takes("query", "key", "value", "attn_impl"),
    ),
)


def version_reason() -> str | None:
    """Why the installed SGLang is too old; None for one that is not, and for a build that has no release."""
    from packaging.version import InvalidVersion, Version

    installed = importlib.metadata.version("sglang")
    try:
        version = Version(installed)
    except InvalidVersion:
        return None
    # A checkout without tags calls itself 0.0.0 with a local part or less: its symbols decide.
    if version.release[:2] == (0, 0) or version >= Version(MINIMUM_SGLANG):
        return None
    return f"SGLang {installed} is older than {MINIMUM_SGLANG}"


def broken(stage: Stage) -> Iterator[str]:
    """What is wrong with the contracts of a stage, in the table's order."""
    for contract in CONTRACTS:
        if contract.stage is stage and (reason := contract.reason()) is not None:
            yield reason


def main() -> int:
    """Checks every contract on the installed SGLang and prints one line for each."""
    print(f"SGLang {importlib.metadata.version('sglang')}, at least {MINIMUM_SGLANG}")
    reasons = [version_reason()]
    for contract in CONTRACTS:
        reason = contract.reason()
        print(f"{'ok    ' if reason is None else 'BROKEN'} {reason or contract.symbol}")
        reasons.append(reason)
    return int(any(reasons))


if __name__ == "__main__":
    sys.exit(main())
