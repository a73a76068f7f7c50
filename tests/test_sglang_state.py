"""Skip lists in SGLang: what a layer keeps, for how long, and when it starts over.

Layers are driven through SGLang's own forward context, request and guidance branches. Where only the lists'
lives matter, a stand-in for ``LiteAttention`` notes what it is asked.
"""

import gc
import itertools
import json
import logging
import weakref
from unittest.mock import MagicMock

import pytest
import torch

from sglang_host import server_args, tiny_model

HEADS, HEAD_DIM = 2, 128
SCALE = HEAD_DIM**-0.5


class Lists:
    """In the place of ``LiteAttention``: says which of its calls since a reset this is."""

    made: list

    def __init__(self, enable_skipping, threshold, **options):
        self.options, self.threshold, self.calls, self.must_do = options, threshold, 0, []
        self.thresholds = []
        self.last_was_dense = False
        type(self).made.append(weakref.ref(self))

    def reset_skip_state(self):
        self.calls = 0

    def set_threshold(self, threshold):
        self.thresholds.append(threshold)

    def calc_percentage(self):
        return 0.125 * self.calls

    def __call__(self, query, key, value, scale, must_do_list=None):
        assert scale == SCALE
        self.calls += 1
        self.must_do.append(must_do_list)
        return torch.full_like(query, self.calls)


def alive():
    return [reference() for reference in Lists.made if reference() is not None]


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks

    apply_plugin_hooks()
    server_args(tiny_model(tmp_path_factory), attention_backend="liteattention_rocm")
    from sglang_integration import backend, state

    return backend, state


@pytest.fixture
def configure(modules, monkeypatch):
    """Sets the configuration of the layers that the test makes."""
    backend, _ = modules
    from sglang_integration.settings import Settings

    def apply(**config):
        monkeypatch.setattr(backend, "configured_settings", lambda: Settings.parse(config))

    apply(threshold=-10)
    return apply


@pytest.fixture
def fake(modules, configure, monkeypatch):
    """Layers whose lists are :class:`Lists`, and whose dense calls return 0."""
    backend, state = modules
    Lists.made = []
    monkeypatch.setattr(state.lite, "LiteAttention", Lists)
    for module in (state, backend):
        monkeypatch.setattr(
            module.liteattention_rocm, "attention", lambda q, k, v, **named: torch.zeros_like(q)
        )
    return backend


def make_layer(backend, number=0, *, cross=False, **extra):
    return backend.LiteAttentionImpl(
        num_heads=HEADS,
        head_size=HEAD_DIM,
        softmax_scale=SCALE,
        prefix=f"blocks.{number}.attn1.impl",
        is_cross_attention=cross,
        **extra,
    )


def make_request(**fields):
    from sglang.multimodal_gen.runtime.pipelines_core.schedule_batch import Req

    return Req(prompt="a river", **fields)


def call(layer, request, step, negative=False, length=8, kv_length=None):
    """One call within SGLang's forward context; which of its lists' calls it was, 0 for a dense one."""
    from sglang.multimodal_gen.runtime.distributed.cfg_policy import CFGBranch
    from sglang.multimodal_gen.runtime.managers.forward_context import set_forward_context

    query = torch.zeros(1, length, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    key = torch.zeros(1, kv_length or length, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    if request is not None:
        CFGBranch("branch", not negative, {}).configure_batch(request)
    with set_forward_context(current_timestep=step, attn_metadata=None, forward_batch=request):
        out = layer.forward(query, key, key, None)
    (value,) = out.unique().tolist()
    return int(value)


def end_loop(request):
    """What the denoising stage does when its loop ends, by its own code."""
    from sglang.multimodal_gen.runtime.pipelines_core.stages.denoising import DenoisingStage

    stage = MagicMock(_sp_world_size=lambda: 1, _postprocess_sp_latents=lambda batch, *latents: latents)
    DenoisingStage._post_denoising_loop(stage, request, None, [], [], MagicMock())


def test_each_layer_and_branch_has_lists_of_its_own(fake):
    layers, request = [make_layer(fake, number) for number in range(3)], make_request()
    for step in range(3):
        for negative in (False, True):
            assert [call(layer, request, step, negative) for layer in layers] == [step + 1] * 3
    assert len(alive()) == 6


def test_lists_are_gone_when_the_loop_ends(fake):
    layer, request = make_layer(fake), make_request()
    for step in range(2):
        call(layer, request, step)
    assert len(alive()) == 1
    end_loop(request)
    assert not alive()  # at once, without a collection
    assert call(layer, request, 2) == 1  # nothing of the first loop is left


def test_dropping_a_broken_request_frees_its_lists(fake):
    layer, request = make_layer(fake), make_request()
    call(layer, request, 0)
    del request
    gc.collect()
    assert not alive()


def test_requests_in_turn_and_the_same_seed_again(fake):
    layer = make_layer(fake)
    for _ in range(3):
        request = make_request(seeds=[42])
        assert [call(layer, request, step) for step in range(3)] == [1, 2, 3]
        end_loop(request)


def test_interleaved_requests_do_not_meet(fake):
    layer, requests = make_layer(fake), [make_request(), make_request()]
    for step in range(3):
        assert [call(layer, request, step) for request in requests] == [step + 1] * 2
    late = make_request()
    assert call(layer, late, 0) == 1 and call(layer, requests[0], 3) == 4 and call(layer, late, 1) == 2
    assert len(alive()) == 3


def test_one_step_runs(fake):
    layer = make_layer(fake)
    for _ in range(3):
        request = make_request()
        assert [call(layer, request, 0, negative) for negative in (False, True)] == [1, 1]
        end_loop(request)
    assert not alive()


def test_one_step_loops_within_one_request(fake):
    """A clip model that denoises in one step: the index never advances, and no clip sees another's lists."""
    layer, request = make_layer(fake), make_request()
    assert [call(layer, request, 0) for _ in range(3)] == [1, 1, 1]


def test_loop_that_a_clip_model_runs_again_starts_over(fake):
    layer, request = make_layer(fake), make_request()
    for _ in range(3):  # no end_loop between clips
        assert [call(layer, request, step) for step in range(4)] == [1, 2, 3, 4]
    run = next(iter(request.extra.values()))["liteattention_rocm"]
    assert run.loops == 2 and len(alive()) == 1


def test_list_of_a_layer_that_misses_a_loops_start_is_dropped(fake):
    """Two clips of two steps, a cache answering for one layer in between: no list of the first clip's."""
    layer, cached, request = make_layer(fake, 0), make_layer(fake, 1), make_request()
    assert [call(cached, request, 0), call(layer, request, 0), call(layer, request, 1)] == [1, 1, 2]
    assert [call(layer, request, 0), call(layer, request, 1), call(cached, request, 1)] == [1, 2, 1]


@pytest.mark.parametrize("index", [-1, None])
def test_passes_beside_a_loop_are_dense_and_leave_its_lists(fake, index):
    """LingBot-World fills caches at index -1."""
    layer, request = make_layer(fake), make_request()
    assert call(layer, request, index) == 0 and not Lists.made
    assert [call(layer, request, step) for step in (0, index, 1, index, 2)] == [1, 0, 2, 0, 3]


def test_pass_at_index_0_before_a_clips_loop(fake):
    """In whichever branch came last: that one is called twice in step 0, and its lists begin with step 1."""
    layer, request = make_layer(fake), make_request()
    for _ in range(2):
        assert call(layer, request, 0, negative=True) == 1
        calls = [[call(layer, request, step, negative) for negative in (False, True)] for step in range(3)]
        assert calls == [[1, 1], [2, 1], [3, 2]]


def test_warm_up_request_leaves_nothing(fake, configure, tmp_path):
    configure(threshold=-10, dump=str(tmp_path))
    layer, warmup = make_layer(fake), make_request(is_warmup=True)
    assert [call(layer, warmup, step) for step in range(2)] == [1, 2]
    end_loop(warmup)
    assert not alive() and not list(tmp_path.iterdir())
    assert call(layer, make_request(), 2) == 1


def test_skipped_blocks_and_steps_start_their_layers_over(fake):
    """Cache-DiT answers for single blocks, TeaCache for whole steps."""
    first, cached, request = make_layer(fake, 0), make_layer(fake, 1), make_request()
    seen = {0: [], 1: []}
    for step in range(6):
        if step == 4:
            continue  # a whole step
        seen[0].append(call(first, request, step))
        if step != 2:
            seen[1].append(call(cached, request, step))
    assert seen == {0: [1, 2, 3, 4, 1], 1: [1, 2, 1, 1]}


def test_branch_of_guidance_that_rests_starts_over(fake):
    """SGLang's guidance gate reuses the unconditional prediction's difference for some steps."""
    layer, request = make_layer(fake), make_request()
    negative = []
    for step in range(6):
        assert call(layer, request, step) == step + 1
        if step not in (2, 3):
            negative.append(call(layer, request, step, negative=True))
    assert negative == [1, 2, 1, 2]


def test_second_expert_starts_at_the_boundary_and_the_first_is_freed(fake):
    """Wan2.2: two transformers with layers of the same names."""
    high, low, request = make_layer(fake), make_layer(fake), make_request()
    assert [call(high, request, step) for step in range(3)] == [1, 2, 3]
    assert [call(low, request, step) for step in range(3, 6)] == [1, 2, 3]
    assert len(alive()) == 1
    run = next(iter(request.extra.values()))["liteattention_rocm"]
    assert list(run.names.values()) == ["blocks.0.attn1", "blocks.0.attn1@2"]


def test_branch_per_rank_of_guidance_parallelism(fake):
    """Each rank of CFG parallelism sees one branch only."""
    for negative in (False, True):
        layer, request = make_layer(fake), make_request()
        assert [call(layer, request, step, negative) for step in range(3)] == [1, 2, 3]
        assert len(alive()) == 1
        end_loop(request)


def test_layer_called_twice_in_a_step_never_reads_a_list(fake):
    """A policy of three branches, two of them conditional, or a solver that evaluates twice."""
    layer, request = make_layer(fake), make_request()
    assert [call(layer, request, step) for step in (0, 0, 1, 1, 2, 3)] == [1, 1, 1, 1, 1, 2]


def test_branches_that_nothing_tells_apart_do_not_read_each_others_lists(modules, configure):
    """Two prompts in turn, each looking elsewhere, without a word of which is which: dense to the bit."""
    from sglang.multimodal_gen.runtime.managers.forward_context import set_forward_context

    backend, _ = modules
    configure(threshold=-6, break_even=0)
    layer, request = make_layer(backend, cross=False), make_request()
    branches = []
    for looked_at in (slice(384, 512), slice(0, 128)):
        q, k, v = 0.1 * torch.randn(3, 1, 512, HEADS, HEAD_DIM)
        q[..., 0] = k[:, looked_at, :, 0] = 20
        branches.append([t.to(torch.bfloat16) for t in (q, k, v)])
    dense = [layer.dense_forward(*branch) for branch in branches]
    for step in range(3):
        with set_forward_context(step, None, request):
            for branch, expected in zip(branches, dense, strict=True):
                assert torch.equal(layer.forward(*branch, None), expected), step


def test_another_shape_starts_over(fake):
    layer, request = make_layer(fake), make_request()
    lengths = [8, 8, 9, 9]
    assert [call(layer, request, step, length=length) for step, length in enumerate(lengths)] == [1, 2, 1, 2]
    assert [call(layer, request, 4, length=9, kv_length=17)] == [1]


def test_cross_attention_is_dense_by_the_layers_word(fake):
    request = make_request()
    unsaid = fake.LiteAttentionImpl(HEADS, HEAD_DIM, SCALE, prefix="x.impl")
    for step in range(2):
        assert call(make_layer(fake, cross=True), request, step, length=8, kv_length=8) == 0
        assert call(unsaid, request, step) == 0
    rectangular = make_layer(fake)
    assert [call(rectangular, request, step, length=8, kv_length=16) for step in range(2)] == [1, 2]


def test_real_layers_say_what_they_are(modules, configure, monkeypatch):
    """SGLang's own Wan attention layers, as its transformer builds them."""
    backend, _ = modules
    from sglang.multimodal_gen.runtime.layers.attention import USPAttention, layer
    from sglang.multimodal_gen.runtime.loader.utils import set_default_torch_dtype
    from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum

    monkeypatch.setattr(layer, "get_ring_parallel_world_size", lambda: 1)  # no groups in this process
    supported = {AttentionBackendEnum.LITEATTENTION_ROCM, AttentionBackendEnum.TORCH_SDPA}
    with set_default_torch_dtype(torch.bfloat16):
        skips = [
            USPAttention(
                num_heads=HEADS,
                head_size=HEAD_DIM,
                causal=False,
                supported_attention_backends=supported,
                prefix="blocks.3.attn",
                is_cross_attention=cross,
                skip_sequence_parallel=cross,
            ).attn_impl
            for cross in (False, True)
        ]
    assert all(isinstance(impl, backend.LiteAttentionImpl) for impl in skips)
    assert [impl.skips for impl in skips] == [True, False]
    assert skips[0].name == "blocks.3.attn"


def test_outside_a_denoising_loop_attention_is_dense(fake):
    layer = make_layer(fake)
    q = torch.zeros(1, 4, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    assert not layer.forward(q, q, q, None).any()
    assert call(layer, None, 0) == 0  # a text encoder's context has no request
    assert not Lists.made


def test_nothing_skips_unless_asked(fake, configure):
    for config, skips in (
        ({}, False),
        ({"threshold": -6}, True),
        ({"threshold": -6, "enable": False}, False),
        ({"enable": True}, True),
        ({"exact_first_steps": 3}, False),
    ):
        configure(**config)
        assert make_layer(fake).skips is skips, config
    configure(threshold=-6)
    assert not make_layer(fake, causal=True).skips


@pytest.mark.parametrize(("exact", "expected"), [(0, [1, 2, 3, 4]), (1, [1, 2, 3, 4]), (3, [0, 0, 1, 2])])
def test_exact_first_steps(fake, configure, exact, expected):
    configure(threshold=-10, exact_first_steps=exact)
    layer, request = make_layer(fake), make_request()
    assert [call(layer, request, step) for step in range(4)] == expected
    (lists,) = alive()
    assert lists.options["exact_first_step"] is (exact > 0)


def test_settings_reach_the_lists(fake, configure, tmp_path):
    file = tmp_path / "calibration.toml"
    file.write_text('target_error = 0.1\n[thresholds]\n"blocks.0.attn1" = [-9.0, -7.5]\n')
    configure(
        calibration=str(file),
        must_do="0 3 6 99 200 300",
        revive_every=5,
        break_even=0.5,
        rounding="rtna",
        threshold=-11,
    )
    layers, request = [make_layer(fake, number) for number in range(2)], make_request()
    for step in range(3):
        for layer in layers:
            call(layer, request, step)
    calibrated, other = alive()
    assert calibrated.thresholds == [-9.0, -7.5, -7.5] and other.thresholds == [-11.0] * 3
    assert calibrated.must_do == [[0, 3, 6, 8]] * 3
    assert calibrated.options == {
        "layout": "bshd",
        "rounding": "rtna",
        "exact_first_step": True,
        "skip_within_call": False,
        "revive_every": 5,
        "break_even": 0.5,
        "name": "blocks.0.attn1",
    }


def test_sparsity_is_dumped_per_run_and_logged_per_step(fake, configure, tmp_path, caplog):
    configure(threshold="-inf", log="true", dump=str(tmp_path / "new" / "folder"), exact_first_steps=2)
    layers = [make_layer(fake, number) for number in range(2)]
    with caplog.at_level(logging.INFO, "sglang_integration.sparsity"):
        for _ in range(2):
            request = make_request()
            for step, negative, layer in itertools.product(range(3), (False, True), layers):
                call(layer, request, step, negative)
            end_loop(request)
    files = sorted((tmp_path / "new" / "folder").iterdir())
    assert [file.name for file in files] == ["sparsity-0-0001.json", "sparsity-0-0002.json"]
    dumped = json.loads(files[1].read_text())
    assert dumped["settings"]["threshold"] == "-inf" and dumped["rank"] == 0
    assert len(dumped["calls"]) == 12
    assert [(entry["action"], entry["skipped"]) for entry in dumped["calls"][::4]] == [
        ("dense", 0.0),
        ("fresh", 0.125),
        ("skip", 0.25),
    ]
    assert dumped["calls"][3] == {
        "layer": "blocks.1.attn1",
        "branch": "unconditional",
        "step": 0,
        "loop": 0,
        "action": "dense",
        "skipped": 0.0,
        "threshold": "-inf",
        "shape": [1, 8, HEADS, HEAD_DIM, 8],
    }
    assert dumped["skipped"] == 0.125
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 6  # the last step of a run included
    assert "step 2: 25.0 % of the KV tiles skipped (25.0 to 25.0 % over 2 layers)" in lines[2]


def test_dump_says_what_each_call_did(modules, configure, tmp_path):
    """Random data, of which nothing can be skipped: dense after some tries, until the next one."""
    from sglang.multimodal_gen.runtime.managers.forward_context import set_forward_context

    from liteattention_rocm.lite import fallback

    configure(threshold=-30, break_even=0.1, dump=str(tmp_path))
    layer, request = make_layer(modules[0]), make_request()
    q, k, v = torch.randn(3, 1, 256, HEADS, HEAD_DIM).to(torch.bfloat16)
    for step in range(fallback.PATIENCE + fallback.PROBE_EVERY + 2):
        with set_forward_context(step, None, request):
            layer.forward(q, k, v, None)
    end_loop(request)
    (file,) = tmp_path.iterdir()
    actions = [entry["action"] for entry in json.loads(file.read_text())["calls"]]
    assert actions == ["fresh", "skip", "skip", *fallback.PROBE_EVERY * ["dense"], "skip", "dense"]


def test_calibration_run_is_dense_and_saves_thresholds(fake, configure, modules, monkeypatch, tmp_path):
    from liteattention_rocm.lite import Calibration

    class Search(Lists):
        made = Lists.made

        def __init__(self, target, **options):
            assert target == 0.02 and options == {"layout": "bshd", "rounding": "rtne"}
            super().__init__(True, None)

        def __call__(self, query, key, value, scale):
            self.thresholds.append(-float(query.shape[1] + len(self.thresholds)))
            return torch.zeros_like(query)

    monkeypatch.setattr(modules[1].lite, "ThresholdSearch", Search)
    configure(calibrate=0.02, dump=str(tmp_path / "x"))
    layers, request = [make_layer(fake, number) for number in range(2)], make_request()
    for step in range(4):
        assert call(layers[0], request, step) == call(layers[0], request, step, True, length=9) == 0
        if step in (1, 3):
            call(layers[1], request, step)
    end_loop(request)
    (file,) = (tmp_path / "x").iterdir()
    assert file.name == "calibration-0-0001.toml" and not alive()
    found = Calibration.load(file)
    assert found.target_error == 0.02
    assert found.thresholds == {
        "blocks.0.attn1": [-9.0, -10.0, -11.0, -12.0],  # of the branch that needs the lower one
        "blocks.1.attn1": [-8.0, -8.0, -8.0, -8.0],
    }
    configure(calibration=str(file))
    assert make_layer(fake).settings.threshold_for("blocks.0.attn1", 2) == -11


def test_sparsity_that_cannot_be_written_is_one_line_in_the_log(fake, configure, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    configure(threshold=-10, dump=str(tmp_path / "file" / "below"))
    request = make_request()
    call(make_layer(fake), request, 0)
    end_loop(request)
    (error,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "is lost" in error.getMessage()


def test_batch_entries_and_heads_are_independent(modules, configure):
    """Batched guidance, and heads split over ranks as Ulysses splits them: the same bits as by themselves."""
    backend, _ = modules
    from sglang.multimodal_gen.runtime.managers.forward_context import set_forward_context

    configure(threshold=-3)
    # Three steps of two entries. A query looks for its own block of 64 tokens, which lies elsewhere in the
    # other entry, and more sharply in the first head than in the second.
    block = torch.arange(300) // 64
    codes = torch.randn(5, HEADS, HEAD_DIM) * torch.tensor([1.0, 0.6])[:, None]
    q = codes[block].expand(3, 2, -1, -1, -1)
    k = torch.stack([codes[block], codes[(block + 2) % 5]]).expand(3, -1, -1, -1, -1)
    q, k, v = ((t + 0.1 * torch.randn(3, 2, 300, HEADS, HEAD_DIM)).to(torch.bfloat16) for t in (q, k, 0 * q))

    def video(select):
        layer, request, outputs = make_layer(backend), make_request(), []
        for step in range(3):
            with set_forward_context(step, None, request):
                outputs.append(layer.forward(*(select(t[step]) for t in (q, k, v)), None))
        (lists,) = next(iter(request.extra.values()))["liteattention_rocm"].lists.values()
        assert 0 < lists.attention.calc_percentage() < 1
        return torch.stack(outputs)

    whole = video(lambda t: t)
    for entry in range(2):
        assert torch.equal(video(lambda t, entry=entry: t[entry : entry + 1]), whole[:, entry : entry + 1])
    for head in range(HEADS):
        alone = video(lambda t, head=head: t[:, :, head : head + 1])
        assert torch.equal(alone, whole[:, :, :, head : head + 1])


def test_compiled_layer_keeps_its_lists(fake):
    from sglang.multimodal_gen.runtime.managers.forward_context import set_forward_context

    layer, request = make_layer(fake), make_request()
    q = torch.zeros(1, 8, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    compiled = torch.compile(lambda q: layer.forward(q, q, q, None) + 0, backend="eager")
    for step in range(3):
        with set_forward_context(step, None, request):
            assert compiled(q).unique().tolist() == [step + 1]
