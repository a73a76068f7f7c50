"""``--attention-backend-config``: its forms, its types, and what is refused."""

import json
import math

import pytest

from sglang_host import server_args, tiny_model

CONFIG = {
    "rounding": "rtna",
    "enable": True,
    "threshold": -7.5,
    "exact_first_steps": 2,
    "skip_within_call": True,
    "must_do": [0, 64, 128, 200],
    "revive_every": 4,
    "break_even": 0.25,
    "log": True,
    "dump": "sparsity",
    "fallback": "aiter",
}
PAIRS = (
    "rounding=rtna, enable=true,threshold=-7.5,exact_first_steps=2,skip_within_call=true,"
    "must_do=0 64 128 200,revive_every=4,break_even=0.25,log=true,dump=sparsity,"
    "fallback=aiter"
)
YAML = """
rounding: rtna
enable: yes
threshold: -7.5
exact_first_steps: 2
skip_within_call: true
must_do: [0, 64, 128, 200]
revive_every: 4
break_even: 0.25
log: true
dump: sparsity
fallback: aiter
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """The settings' module; SGLang's plain arguments afterwards."""
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks

    apply_plugin_hooks()
    model = tiny_model(tmp_path_factory)
    from sglang_integration import settings

    def configured(given, attention_backend="liteattention_rocm", **more):
        server_args(model, attention_backend=attention_backend, attention_backend_config=given, **more)
        return settings.configured_settings()

    settings.configured = configured
    yield settings
    del settings.configured
    server_args(model, attention_backend="liteattention_rocm")


def test_default_rounding_is_the_one_that_the_harness_calls_ours(settings):
    from e2e import arms

    assert settings.configured(None).rounding == arms.find(arms.OURS).rounding == "rtne"
    assert settings.configured("rounding=rtz").rounding == arms.find(arms.OURS_RTZ).rounding == "rtz"


@pytest.mark.parametrize("form", ["json", "pairs", "dictionary", "JSON file", "YAML file"])
def test_every_form_carries_every_type(settings, tmp_path, form):
    (tmp_path / "c.json").write_text(json.dumps(CONFIG))
    (tmp_path / "c.yaml").write_text(YAML)
    given = {
        "json": json.dumps(CONFIG),
        "pairs": PAIRS,
        "dictionary": CONFIG,
        "JSON file": str(tmp_path / "c.json"),
        "YAML file": str(tmp_path / "c.yaml"),
    }[form]
    found = settings.configured(given)
    assert found == settings.Settings(
        rounding="rtna",
        enable=True,
        threshold=-7.5,
        exact_first_steps=2,
        skip_within_call=True,
        must_do=(0, 64, 128, 200),
        revive_every=4,
        break_even=0.25,
        log=True,
        dump=found.dump,
        fallback="aiter",
    )
    assert str(found.dump) == "sparsity" and found.skipping
    assert isinstance(found.threshold, float) and type(found.exact_first_steps) is int


@pytest.mark.parametrize(
    ("given", "threshold"), [(None, -10.0), (-6, -6.0), ("-6", -6.0), ("-inf", -math.inf), ("inf", math.inf)]
)
def test_thresholds(settings, given, threshold):
    config = {"enable": True} if given is None else {"threshold": given}
    parsed = settings.Settings.parse(config)
    assert parsed.skipping and parsed.threshold_for("blocks.0.attn1", 0) == threshold


def test_calibration_file(settings, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('target_error = 0.01\n[thresholds]\n"blocks.0.attn1" = [-12, -9.5, -inf]\n')
    parsed = settings.configured(f"calibration={file},threshold=-8")
    assert parsed.skipping
    assert [parsed.threshold_for("blocks.0.attn1", step) for step in range(4)] == [
        -12,
        -9.5,
        -math.inf,
        -math.inf,
    ]
    assert parsed.threshold_for("blocks.0.attn1@2", 0) == -8


@pytest.mark.parametrize(
    ("must_do", "length", "expected"),
    [
        ([0, 64, 128, 200], 300, [0, 64, 128, 200]),
        ([0, 64, 128, 200], 150, [0, 64, 128, 150]),
        ([0, 64, 128, 200], 128, [0, 64]),
        ([128, 200], 100, None),
        ([], 100, None),
    ],
)
def test_must_do_is_cut_to_the_layers_tokens(settings, must_do, length, expected):
    assert settings.Settings.parse({"must_do": must_do}).must_do_within(length) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rouding": "rtz"}, "unknown key 'rouding' .*allowed: rounding, enable, threshold"),
        ({"rounding": "nearest"}, "rounding='nearest' .*allowed: rtne, rtna, rtz"),
        ({"rounding": 2}, "rounding=2 .*allowed: rtne, rtna, rtz"),
        ({"rounding": True}, "rounding=True .*allowed: rtne, rtna, rtz"),
        ({"enable": 1}, "enable=1 .*allowed: true, false"),
        ({"enable": "on"}, "enable='on' .*allowed: true, false"),
        ({"threshold": 0}, "threshold=0 .*below 0"),
        ({"threshold": "low"}, "threshold='low' .*below 0"),
        ({"threshold": "nan"}, "threshold='nan' .*below 0"),
        ({"threshold": True}, "threshold=True .*below 0"),
        ({"threshold": [-6]}, r"threshold=\[-6\] .*below 0"),
        ({"exact_first_steps": -1}, "exact_first_steps=-1 .*allowed: 0, 1, 2"),
        ({"exact_first_steps": 1.5}, "exact_first_steps=1.5 .*allowed: 0, 1, 2"),
        ({"exact_first_steps": True}, "exact_first_steps=True .*allowed: 0, 1, 2"),
        ({"break_even": 1.5}, "break_even=1.5 .*from 0 to 1"),
        ({"break_even": "never"}, "break_even='never' .*from 0 to 1"),
        ({"revive_every": "often"}, "revive_every='often' .*allowed: 0, 1, 2"),
        ({"must_do": [0, 64, 128]}, r"must_do=\[0, 64, 128\] .*start end"),
        ({"must_do": [64, 64]}, r"must_do=\[64, 64\] .*end behind its start"),
        ({"must_do": "0 -64"}, "must_do='0 -64' .*start end"),
        ({"must_do": 64}, "must_do=64 .*start end"),
        ({"log": "yes"}, "log='yes' .*allowed: true, false"),
        ({"dump": __file__}, "dump=.* .*a folder"),
        ({"dump": 3}, "dump=3 .*a folder"),
        ({"calibrate": 0, "dump": "x"}, "calibrate=0 .*above 0"),
        ({"calibrate": "inf", "dump": "x"}, "calibrate='inf' .*above 0"),
        ({"calibrate": 0.1}, "calibrate=0.1 needs dump"),
        ({"calibration": "/nowhere.toml"}, "calibration='/nowhere.toml' .*No such file"),
        ({"calibration": __file__}, "calibration=.*no TOML file"),
    ],
)
def test_bad_configuration_is_refused(settings, config, message):
    with pytest.raises(ValueError, match=message):
        settings.Settings.parse(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("target_error = 0.1\n", "thresholds must be a table"),
        ('target_error = 0.1\n[thresholds]\n"a" = [0.5]\n', "layer 'a', step 0"),
    ],
)
def test_bad_calibration_is_refused(settings, tmp_path, text, message):
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"calibration=.*{message}"):
        settings.Settings.parse({"calibration": str(file)})


def test_keys_of_another_backend_pass_where_one_is_named(settings, monkeypatch):
    lines = []
    monkeypatch.setattr(settings.logger, "warning", lambda text, *values: lines.append(text % values))
    settings.warn_left_over.cache_clear()
    for _ in range(2):
        found = settings.configured(
            '{"topk": 0.5, "rounding": "rtna", "treshold": -6}',
            component_attention_backends="transformer.self=sparge_attn",
        )
    assert found.rounding == "rtna"
    (line,) = lines
    assert line.endswith(": topk, treshold")
    with pytest.raises(ValueError, match="unknown key 'topk'"):
        settings.configured('{"topk": 0.5}')


@pytest.mark.parametrize(
    "named",
    [
        # What SGLang puts in the place of a global name on ROCm and for a ring.
        {"attention_backend": "aiter", "component_attention_backends": "transformer=liteattention_rocm"},
        {"attention_backend": "fa", "component_attention_backends": "transformer=liteattention_rocm"},
        {"component_attention_backends": "transformer.self=torch_sdpa,transformer.cross=aiter"},
        {"attention_backend": "LiteAttention_ROCm"},
    ],
)
def test_misspelt_keys_are_refused_where_no_named_backend_has_options(settings, named):
    with pytest.raises(ValueError, match="unknown key 'treshold'"):
        settings.configured('{"treshold": -10}', **named)


def test_backends_without_options_read_none(settings):
    """SGLang's dense backends: none of their modules mentions the configuration."""
    from importlib.util import find_spec
    from pathlib import Path

    from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum

    dense = {str(member) for member in AttentionBackendEnum if not member.is_sparse}
    assert settings.WITHOUT_OPTIONS - {"fa3", "fa4"} == dense - {"liteattention_rocm"}
    backends = Path(find_spec("sglang.multimodal_gen.runtime.layers.attention.backends").origin).parent
    readers = {file.stem for file in backends.glob("*.py") if "attention_backend_config" in file.read_text()}
    assert readers == {"sliding_tile_attn", "sparge_attn", "subblock_sparse_attn", "sol_attn"}
