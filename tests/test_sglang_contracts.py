"""What the plugin needs of SGLang, each thing broken once, and what users get then.

`make canary` runs this file against the newest release of SGLang.
"""

import enum
import logging
import pkgutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sglang_host import python, server_args, tiny_model
from sglang_integration import contracts, plugin
from sglang_integration.contracts import CONTRACTS, Stage

NAME = plugin.BACKEND_NAME
SYMBOLS = [contract.symbol.rpartition(":")[2] for contract in CONTRACTS]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory)


@pytest.fixture(scope="module")
def runtime():
    """SGLang's backend selector, plugins loaded."""
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks

    apply_plugin_hooks()
    from sglang.multimodal_gen.runtime.layers.attention import selector

    return selector


@pytest.fixture(autouse=True)
def nothing_remembered(runtime):
    """Neither contracts nor choices nor what was said."""

    def forget():
        runtime._cached_get_attn_backend.cache_clear()
        plugin.broken_contract.cache_clear()
        plugin.say_once.cache_clear()

    forget()
    yield
    forget()


@pytest.fixture(autouse=True)
def spoken(monkeypatch):
    """(level, message) of what the plugin logs. SGLang rearranges the root's handlers, which caplog needs."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append((record.levelno, record.getMessage()))
    monkeypatch.setattr(plugin.logger, "handlers", [handler])
    monkeypatch.setattr(plugin.logger, "level", logging.DEBUG)
    plugin.logger.manager._clear_cache()
    yield lines
    plugin.logger.manager._clear_cache()


def warnings(spoken):
    return [message for level, message in spoken if level >= logging.WARNING]


def break_(monkeypatch, contract, remove):
    """Takes a symbol away, or puts something of no use in its place."""
    owner, _, name = contract.symbol.replace(":", ".").rpartition(".")
    owner = pkgutil.resolve_name(owner)
    if remove and name in vars(owner):
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner, name, object())


def test_every_contract_holds():
    assert contracts.version_reason() is None
    assert [reason for stage in Stage for reason in contracts.broken(stage)] == []


@pytest.mark.parametrize("remove", [True, False], ids=["gone", "other"])
@pytest.mark.parametrize("contract", CONTRACTS, ids=SYMBOLS)
def test_a_broken_contract_is_seen(monkeypatch, contract, remove):
    break_(monkeypatch, contract, remove)
    reason = contract.reason()
    assert reason.startswith(f"{contract.symbol}, which {contract.why}: ") and "\n" not in reason
    assert reason in list(contracts.broken(contract.stage))


def of_stage(*stages):
    chosen = [contract for contract in CONTRACTS if contract.stage in stages]
    ids = [contract.symbol.rpartition(":")[2] for contract in chosen]
    return pytest.mark.parametrize("contract", chosen, ids=ids)


@of_stage(Stage.REGISTRATION)
def test_nothing_is_registered_on_a_broken_contract(monkeypatch, spoken, contract):
    made = []
    monkeypatch.setattr(plugin, "add_backend_name", made.append)
    monkeypatch.setattr(plugin, "hook_once", lambda *arguments: made.append(arguments))
    break_(monkeypatch, contract, remove=False)
    plugin.register()
    assert made == []
    (line,) = warnings(spoken)
    assert line.startswith(f"SGLang attention backend {NAME} is not registered ({contract.symbol}, which ")


@of_stage(Stage.ARGUMENTS)
def test_arguments_are_completed_without_our_name_on_a_broken_contract(monkeypatch, spoken, model, contract):
    """As SGLang completes them where nobody names a backend. The contract is broken for the check alone:
    without the symbol itself SGLang would not get as far as this."""
    monkeypatch.setattr(contracts, "broken", lambda stage: [contract.symbol] * (stage is contract.stage))
    args = server_args(
        model, attention_backend=NAME, component_attention_backends={"transformer.cross": NAME, "vae": NAME}
    )
    assert args.attention_backend is None and not args.is_arg_explicitly_set("attention_backend")
    assert args.component_attention_backends == {} == args.component_attention_backend_roles["transformer"]
    (line,) = warnings(spoken)
    assert contract.symbol in line and "SGLang's own choice instead" in line


@of_stage(Stage.ARGUMENTS, Stage.LAYERS)
def test_layers_get_sglangs_own_choice_on_a_broken_contract(monkeypatch, spoken, runtime, model, contract):
    server_args(model, attention_backend=NAME)
    break_(monkeypatch, contract, remove=False)
    for head_size in (128, 64):
        assert runtime.get_attn_backend(head_size, torch.bfloat16).get_enum().name == "TORCH_SDPA"
    (line,) = warnings(spoken)
    assert line.startswith(f"attention backend {NAME} stands down ({contract.symbol}, which ")


def test_an_override_of_a_component_is_refused_on_a_broken_contract_of_the_layers(
    monkeypatch, runtime, model
):
    """SGLang holds a component to the backend named for it; a role's it lets go."""
    from sglang.multimodal_gen.configs.attention_roles import AttentionRole
    from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum

    server_args(model)
    monkeypatch.setattr(contracts, "broken", lambda stage: ["a:b"] * (stage is Stage.LAYERS))
    ours = AttentionBackendEnum[NAME.upper()]

    def build(**override):
        with runtime.component_attn_backend_context_manager(component_name="transformer", **override):
            return runtime.get_attn_backend(128, torch.bfloat16).get_enum().name

    with pytest.raises(runtime.ComponentAttentionBackendNotAppliedError, match="selected torch_sdpa instead"):
        build(attn_backend=ours)
    assert build(attn_backend=None, backend_by_role={AttentionRole.SELF: ours}) == "TORCH_SDPA"


def test_a_new_abstract_method_or_argument_is_a_broken_contract():
    from abc import ABC, abstractmethod

    class Base(ABC):
        @abstractmethod
        def get_enum(self): ...

        @abstractmethod
        def get_schedule(self): ...

    with pytest.raises(contracts.Broken, match="has the abstract methods get_schedule too"):
        contracts.leaves_abstract("get_enum")(Base)
    with pytest.raises(contracts.Broken, match="needs mask too"):
        contracts.takes("query")(lambda query, mask, *rest, lse=False, **more: None)
    with pytest.raises(contracts.Broken, match="takes no key"):
        contracts.takes("query", "key")(lambda query: None)
    contracts.takes("query", "key")(lambda query, **more: None)


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("0.5.22", False),
        ("0.5.23rc1", False),
        ("0.5.23", True),
        ("0.5.23.post1", True),
        ("0.6.0", True),
        ("1.0", True),
        ("0.0.0.dev1+g12ab", True),  # a checkout without tags
        ("main-12ab", True),
    ],
)
def test_the_oldest_version(monkeypatch, spoken, version, fits):
    monkeypatch.setattr(contracts.importlib.metadata, "version", lambda name: version)
    assert (contracts.version_reason() is None) is fits
    monkeypatch.setattr(plugin, "add_backend_name", lambda name: None)
    plugin.register()
    lines = warnings(spoken)
    assert len(lines) == (not fits)
    if lines:
        assert f"SGLang {version} is older than 0.5.23" in lines[0]


def test_the_documentation_names_the_oldest_version():
    page = (Path(__file__).parent.parent / "docs" / "sglang.md").read_text()
    assert f"SGLang {contracts.MINIMUM_SGLANG} or newer" in page
    assert f"{len(CONTRACTS)} symbols" in page


@pytest.mark.full
def test_the_check_by_itself():
    script = "from e2e import cpu_host; cpu_host.prepare(); from sglang_integration.contracts import main; "
    finished = python("-c", script + "raise SystemExit(main())")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("\nok    ") == len(CONTRACTS)


# The switch, and a name that SGLang has itself


class TestSwitchedOff:
    @pytest.fixture(autouse=True)
    def off(self, monkeypatch):
        monkeypatch.setenv(plugin.DISABLE_VARIABLE, "1")

    def test_arguments_are_those_of_a_user_who_names_nobody(self, model, spoken):
        overrides = f"transformer.cross={NAME},transformer.self=torch_sdpa"
        args = server_args(model, attention_backend=NAME, component_attention_backends=overrides)
        assert args.attention_backend is None and args.component_attention_backends == {}
        assert args.component_attention_backend_roles == {"transformer": {"self": "torch_sdpa"}}
        assert warnings(spoken) == [
            f"attention backend {NAME} stands down (LITEATTENTION_ROCM_DISABLE is set): "
            "SGLang's own choice instead"
        ]

    def test_a_ring_gets_what_sglang_takes_for_rings(self, model):
        assert server_args(model, 2, attention_backend=NAME, ring_degree=2).attention_backend == "fa"

    def test_arguments_completed_before_plugins_were_loaded(self, runtime, model, monkeypatch):
        """As the console script has them: our name is still there when layers are built."""
        args = server_args(model, attention_backend="torch_sdpa")
        monkeypatch.setattr(args, "attention_backend", NAME)
        assert runtime.get_attn_backend(128, torch.bfloat16).get_enum().name == "TORCH_SDPA"

    def test_on_rocm_it_is_aiter(self, monkeypatch):
        from sglang.multimodal_gen.runtime import platforms

        monkeypatch.setattr(type(platforms.current_platform), "is_rocm", lambda self: True)
        asked = []
        member = platforms.AttentionBackendEnum[NAME.upper()]
        answer = plugin.choose_backend(
            lambda *arguments: asked.append(arguments) or "path", None, member, 128, torch.bfloat16
        )
        assert answer == "path"
        assert asked == [(None, platforms.AttentionBackendEnum.AITER, 128, torch.bfloat16)]


@pytest.fixture(params=["ours", "theirs"])
def enumeration(request, monkeypatch):
    """SGLang's enumeration without and with a member of our name, and plugin state of a fresh process."""
    from sglang.multimodal_gen.runtime import platforms

    names = [name for name in platforms.AttentionBackendEnum.__members__ if name != NAME.upper()]
    names += ["LITE_ATTENTION", NAME.upper()] if request.param == "theirs" else ["LITE_ATTENTION"]
    values = {name: enum.auto() for name in names}
    cls = enum.Enum("AttentionBackendEnum", values, module=__name__)
    cls.is_sparse = property(lambda self: False)
    monkeypatch.setattr(platforms, "AttentionBackendEnum", cls)
    monkeypatch.setattr(plugin, "_added", [])
    return request.param, cls


def test_a_member_that_sglang_has_itself(enumeration, monkeypatch, spoken):
    """The plugin, which somebody installed, wins the name; switched off, SGLang has it back."""
    whose, cls = enumeration
    before = list(cls)
    member = plugin.add_backend_name(NAME)
    assert plugin.add_backend_name(NAME) is member is cls[NAME.upper()]
    assert list(cls) == (before if whose == "theirs" else [*before, member])
    assert bool(spoken) is (whose == "theirs")
    asked = []

    def original(platform, selected, head_size, dtype):
        asked.append(selected)
        return "SGLang's"

    from sglang_integration import backend

    monkeypatch.setattr(backend, "check_layer", lambda *arguments: None)

    class Platform:
        @staticmethod
        def get_local_torch_device():
            return torch.device("cpu")

    def choose(selected):
        return plugin.choose_backend(original, Platform, selected, 128, torch.bfloat16)

    assert choose(member) == plugin.BACKEND_CLASS and asked == []
    assert choose(cls.LITE_ATTENTION) == "SGLang's" and asked == [cls.LITE_ATTENTION]  # another name
    monkeypatch.setenv(plugin.DISABLE_VARIABLE, "1")
    assert choose(member) == "SGLang's"
    assert asked[1:] == ([member] if whose == "theirs" else [None])


def test_switched_off_arguments_keep_a_name_that_sglang_has_itself(enumeration, monkeypatch):
    whose, _ = enumeration
    plugin.add_backend_name(NAME)
    monkeypatch.setenv(plugin.DISABLE_VARIABLE, "1")

    args = SimpleNamespace(
        attention_backend=NAME,
        component_attention_backends={"vae": NAME},
        component_attention_backend_roles={"transformer": {"cross": NAME}},
    )
    plugin.adjust_arguments(lambda args: None, args)
    assert args.attention_backend == (NAME if whose == "theirs" else None)
    assert bool(args.component_attention_backends) is (whose == "theirs")


# The diffusers backend


def test_the_diffusers_backend_is_refused_by_name(model):
    with pytest.raises(ValueError, match=rf"{NAME} serves the models .* not --backend diffusers: allowed"):
        server_args(model, attention_backend=NAME, backend="diffusers")
    assert server_args(model, backend="diffusers").attention_backend is None
    assert server_args(model, attention_backend="native", backend="diffusers").attention_backend == "native"


def test_a_pipeline_of_diffusers_is_refused_before_it_is_built(model, monkeypatch):
    """Where arguments were completed before plugins were loaded, and where SGLang falls back to diffusers."""
    from sglang.multimodal_gen.configs.pipeline_configs.diffusers_generic import (
        DiffusersGenericPipelineConfig,
    )
    from sglang.multimodal_gen.runtime.pipelines_core import build_pipeline

    args = server_args(model, attention_backend="torch_sdpa")
    monkeypatch.setattr(args, "attention_backend", NAME)
    monkeypatch.setattr(args, "pipeline_config", DiffusersGenericPipelineConfig())
    with pytest.raises(ValueError, match=rf"{NAME} serves .* not one that it leaves to diffusers"):
        build_pipeline(args)
