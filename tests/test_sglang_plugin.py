"""Registration of the SGLang plugin and SGLang's choice of our backend, layer by layer."""

import json
import logging
import pickle

import pytest
import torch
import yaml

from e2e import tiny_wan
from sglang_host import COMMAND_LINE, python, server_args, tiny_model
from sglang_integration import plugin

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(scope="module")
def runtime():
    """SGLang's backend selector, after its plugins were loaded through their entry points."""
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks

    apply_plugin_hooks()
    from sglang.multimodal_gen.runtime.layers.attention import selector

    return selector


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory)


@pytest.fixture
def chosen(runtime, model):
    """Server arguments with our backend as the global choice."""
    runtime._cached_get_attn_backend.cache_clear()
    yield server_args(model, attention_backend="liteattention_rocm")
    runtime._cached_get_attn_backend.cache_clear()


def member():
    from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum

    return AttentionBackendEnum["LITEATTENTION_ROCM"]


def test_entry_point_adds_a_dense_member(runtime):
    from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum

    ours = member()
    assert ours in list(AttentionBackendEnum)
    assert AttentionBackendEnum("liteattention_rocm") is ours is AttentionBackendEnum.LITEATTENTION_ROCM
    assert str(ours) == "liteattention_rocm"
    assert not ours.is_sparse
    assert pickle.loads(pickle.dumps(ours)) is ours
    assert AttentionBackendEnum.VMOBA_ATTN.is_sparse  # sets of the class still hold its own members


def test_registering_twice_hooks_once(runtime):
    from sglang.multimodal_gen.runtime.platforms.plugins import HookRegistry

    plugin.register()
    hooks = [hook for entries in HookRegistry._hooks.values() for _, hook, _ in entries]
    ours = (plugin.choose_backend, plugin.adjust_arguments, plugin.check_pipeline)
    assert [hooks.count(hook) for hook in ours] == [1, 1, 1]


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_self_and_cross_layers_get_our_backend(runtime, chosen, cross, dtype):
    backend = runtime.get_attn_backend(128, dtype, is_cross_attention=cross)
    assert backend.get_enum() is member()
    assert backend.get_impl_cls().__module__ == "sglang_integration.backend"


def test_layers_with_a_preference_set_get_our_backend_when_asked(runtime, chosen):
    from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum

    preferred = {AttentionBackendEnum.FA, AttentionBackendEnum.TORCH_SDPA}
    assert runtime.get_attn_backend(128, BF16, preferred).get_enum() is member()


@pytest.mark.parametrize(("head_size", "dtype"), [(80, BF16), (64, BF16), (256, BF16), (128, FP32)])
def test_row_19_auxiliary_component_falls_back(runtime, chosen, head_size, dtype):
    with runtime.component_attn_backend_context_manager(
        None, component_name="text_encoder", allow_global_backend_fallback=True
    ):
        backend = runtime.get_attn_backend(head_size, dtype)
    assert backend.get_enum().name == "TORCH_SDPA"


@pytest.mark.parametrize(
    ("head_size", "dtype", "message"),
    [(80, BF16, r"head size 80 .*allowed: 128"), (128, FP32, r"torch\.float32 .*allowed: torch\.bfloat16")],
)
def test_transformer_layer_is_refused_by_name_and_value(runtime, chosen, head_size, dtype, message):
    with pytest.raises(ValueError, match="liteattention_rocm: .*" + message):
        runtime.get_attn_backend(head_size, dtype)


def test_answers_do_not_depend_on_what_was_asked_before(runtime, chosen):
    for _ in range(2):
        with pytest.raises(ValueError):
            runtime.get_attn_backend(128, FP32)
        assert runtime.get_attn_backend(128, BF16).get_enum() is member()


def test_other_backends_stay_as_they_are(runtime, model):
    runtime._cached_get_attn_backend.cache_clear()
    server_args(model, attention_backend="torch_sdpa")
    assert runtime.get_attn_backend(128, BF16).get_enum().name == "TORCH_SDPA"


@pytest.mark.parametrize(
    ("everywhere", "override"),
    [
        ("torch_sdpa", "transformer.cross=liteattention_rocm"),
        ("liteattention_rocm", "transformer.self=torch_sdpa"),
    ],
)
def test_role_override_leaves_us_cross_attention_alone(runtime, model, everywhere, override):
    """The second form is for the console script, which refuses the first."""
    runtime._cached_get_attn_backend.cache_clear()
    args = server_args(model, attention_backend=everywhere, component_attention_backends=override)
    roles = args.resolve_component_backend_by_role("transformer")
    with runtime.component_attn_backend_context_manager(
        None, component_name="transformer", backend_by_role=roles
    ):
        assert runtime.get_attn_backend(128, BF16, is_cross_attention=True).get_enum() is member()
        assert runtime.get_attn_backend(128, BF16).get_enum().name == "TORCH_SDPA"


def test_ring_degrees_are_admitted(runtime, model):
    """SGLang checks the name before it asks the backend's class."""
    args = server_args(model, 2, attention_backend="liteattention_rocm", ring_degree=2)
    assert args.ring_degree == 2 and args.attention_backend == "liteattention_rocm"
    with pytest.raises(ValueError, match="Ring Attention requires one of the ring-capable backends"):
        server_args(model, 2, attention_backend="torch_sdpa", ring_degree=2)
    args = server_args(model, 2, ring_degree=2)
    assert args.attention_backend == "fa"  # SGLang's own choice for a ring


@pytest.mark.parametrize("text", ["rounding=rtnx", "rounding=rtz,speed=9"])
def test_refused_configuration_stops_selection(runtime, model, text):
    runtime._cached_get_attn_backend.cache_clear()
    server_args(model, attention_backend="liteattention_rocm", attention_backend_config=text)
    with pytest.raises(ValueError, match=r"attention_backend_config: .*allowed: "):
        runtime.get_attn_backend(128, BF16)


def written(content, file):
    """`content` in a JSON file, or by its name in YAML."""
    file.write_text(json.dumps(content) if file.suffix == ".json" else yaml.safe_dump(content))
    return str(file)


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
def test_config_file_selects_our_backend(runtime, model, tmp_path, suffix):
    """The file of `--config`, read as the command line reads it; words on the command line win."""
    from sglang.multimodal_gen.runtime.entrypoints.cli.generate import add_multimodal_gen_generate_args
    from sglang.multimodal_gen.runtime.server_args import ServerArgs, set_global_server_args
    from sglang.multimodal_gen.runtime.utils.argparse import FlexibleArgumentParser

    from sglang_integration.settings import configured_settings

    content = {
        "model_path": str(model),
        "model_id": tiny_wan.MODEL_ID,
        "attention_backend": "liteattention_rocm",
        "attention_backend_config": {"rounding": "rtz", "threshold": -7, "must_do": [0, 64]},
        "component_attention_backends": {"transformer.cross": "liteattention_rocm"},
    }
    file = written(content, tmp_path / f"config{suffix}")
    parser = add_multimodal_gen_generate_args(FlexibleArgumentParser())

    def parse(*words):
        words = ["--config", file, *words]
        args = ServerArgs.from_cli_args(*parser.parse_known_args(words), argv=words)
        set_global_server_args(args)
        return args

    args = parse()
    assert args.attention_backend == "liteattention_rocm"
    assert args.component_attention_backend_roles == {"transformer": {"cross": "liteattention_rocm"}}
    settings = configured_settings()
    assert (settings.rounding, settings.threshold, settings.must_do) == ("rtz", -7.0, (0, 64))
    runtime._cached_get_attn_backend.cache_clear()
    assert runtime.get_attn_backend(128, BF16).get_enum() is member()
    assert parse("--attention-backend", "torch_sdpa").attention_backend == "torch_sdpa"


def test_failure_to_register_is_one_log_line(runtime, monkeypatch, caplog):
    def broken(hook):
        raise LookupError("no such method\nin this version")

    monkeypatch.setattr(plugin, "hook_backend_choice", broken)
    with caplog.at_level(logging.DEBUG):
        plugin.register()
    records = [record for record in caplog.records if record.name == plugin.__name__]
    assert [record.levelname for record in records] == ["ERROR"]
    assert records[0].getMessage().splitlines() == [
        "SGLang attention backend liteattention_rocm is not registered "
        "(LookupError: no such method in this version); it needs SGLang 0.5.23 or newer"
    ]


LOADED = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
before = set(sys.modules)
import sglang_integration.plugin
print("IMPORTED", sorted({"torch", "sglang", "liteattention_rocm"} & (set(sys.modules) - before)))
from e2e import cpu_host
cpu_host.prepare()
from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum
from sglang.multimodal_gen.runtime.platforms.plugins import load_plugins
load_plugins()
print("MEMBER", "LITEATTENTION_ROCM" in AttentionBackendEnum.__members__)
print("HEAVY", "liteattention_rocm" in sys.modules, "sglang_integration.backend" in sys.modules)
"""


def test_fresh_process_registers_without_importing_kernels_or_layers():
    finished = python("-c", LOADED)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-3:] == ["IMPORTED []", "MEMBER True", "HEAVY False False"]


def test_switched_off_its_name_stays():
    """tests/test_sglang_contracts.py has what it stands for then."""
    finished = python("-c", LOADED, LITEATTENTION_ROCM_DISABLE="1")
    assert finished.returncode == 0, finished.stderr
    assert "MEMBER True" in finished.stdout and "HEAVY False False" in finished.stdout
    said = "LITEATTENTION_ROCM_DISABLE is set: liteattention_rocm stands for SGLang's own choice"
    assert said in finished.stderr


MODULE, SCRIPT = "sglang.multimodal_gen.runtime.entrypoints.cli.main", "sglang.cli.main"
CROSS = ["transformer.cross=liteattention_rocm"]
ALL_BUT_SELF = ["transformer.self=torch_sdpa", "--attention-backend", "liteattention_rocm"]


@pytest.mark.parametrize(
    ("module", "words", "roles"),
    [
        (MODULE, CROSS, {"cross": "liteattention_rocm"}),
        (SCRIPT, CROSS, None),
        (SCRIPT, ALL_BUT_SELF, {"self": "torch_sdpa"}),
    ],
    ids=["module", "console script", "console script, the other role"],
)
def test_row_20_component_override_on_the_command_line(model, module, words, roles):
    """SGLang's console script reads overrides before it loads plugins; its module entry point after.

    What docs/sglang.md says to write instead means the same.
    """
    script = COMMAND_LINE.format(module=module, model=str(model), model_id=tiny_wan.MODEL_ID, words=words)
    finished = python("-c", script)
    if roles is None:
        assert "Invalid attention backend 'liteattention_rocm'" in finished.stderr
    else:
        assert f"BACKENDS {{'transformer': {roles}}}" in finished.stdout, finished.stderr


def test_device_that_cannot_run_is_refused_at_selection(runtime, chosen, monkeypatch):
    import liteattention_rocm

    def refuse(device, rounding):
        raise RuntimeError(f"{device}: gfx1100 has no code object")

    monkeypatch.setattr(liteattention_rocm, "prepare", refuse)
    with pytest.raises(ValueError, match="liteattention_rocm: cpu: gfx1100 has no code object"):
        runtime.get_attn_backend(128, BF16)


def test_kernel_that_failed_the_self_test_is_refused_at_selection(runtime, chosen):
    from liteattention_rocm import runtime as device
    from liteattention_rocm import verdicts

    where = device.target(torch.device("cpu"))
    failed = {"verdict": "fail", "worst": "bits differ"}
    verdicts.store(where, {f"attention_{family}_rtne": failed for family in device.DENSE_FAMILIES})
    try:
        with pytest.raises(ValueError, match=r"liteattention_rocm: kernel attention_\w+_rtne failed"):
            runtime.get_attn_backend(128, BF16)
        with runtime.component_attn_backend_context_manager(
            None, component_name="text_encoder", allow_global_backend_fallback=True
        ):
            assert runtime.get_attn_backend(128, BF16).get_enum().name == "TORCH_SDPA"
    finally:
        verdicts.store(where, {})
    assert runtime.get_attn_backend(128, BF16).get_enum() is member()
