"""The attention layers of the SGLang backend, called as SGLang calls them."""

import itertools
import logging

import pytest
import torch

from liteattention_rocm import simulator
from sglang_host import server_args, tiny_model

HEADS, HEAD_DIM = 2, 128


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    """The backend module, plugins loaded and our backend chosen."""
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks

    apply_plugin_hooks()
    server_args(tiny_model(tmp_path_factory), attention_backend="liteattention_rocm")
    from sglang_integration import backend

    return backend


def layer(backend, *, scale=HEAD_DIM**-0.5, **arguments):
    return backend.LiteAttentionImpl(
        num_heads=HEADS, head_size=HEAD_DIM, softmax_scale=scale, prefix="blocks.0.attn1.impl", **arguments
    )


def fused_projection(length, kv_heads=HEADS):
    """q, k contiguous and v a slice of the fused projection, as SGLang's Wan blocks pass them."""
    fused = torch.randn(1, length, 3 * HEADS * HEAD_DIM, dtype=torch.bfloat16)
    q, k, v = (part.unflatten(2, (HEADS, HEAD_DIM)) for part in fused.chunk(3, dim=-1))
    return q.contiguous(), k.contiguous(), v


def reference(q, k, v, scale):
    """Attention in float64, [B, S, H, D]."""
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    return (torch.softmax(q @ k.transpose(-1, -2) * scale, dim=-1) @ v).transpose(1, 2)


@pytest.mark.parametrize("scale", [HEAD_DIM**-0.5, 0.25])
def test_self_attention_with_strided_v_honours_the_scale(backend, scale):
    q, k, v = fused_projection(100)
    assert v.stride(1) == 3 * HEADS * HEAD_DIM
    out = layer(backend, scale=scale).forward(q, k, v, None)
    assert out.shape == q.shape and out.dtype == torch.bfloat16
    assert torch.equal(out, layer(backend, scale=scale).forward(q, k, v.contiguous(), None))
    expected = reference(q, k, v, scale)
    error = (out.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < 4e-3  # P and the result are rounded to bfloat16: each is off by 2^-9 / √3 and less


def test_cross_attention_of_another_length(backend):
    q = torch.randn(1, 70, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, 512, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    out = layer(backend, is_cross_attention=True).forward(q, k, v, None)
    expected = reference(q, k, v, HEAD_DIM**-0.5)
    assert (out.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt() < 1e-2


def test_rounding_is_to_nearest_even_and_can_be_configured(backend, monkeypatch):
    from sglang_integration.settings import ROUNDINGS, Settings

    passed = []
    monkeypatch.setattr(
        backend.liteattention_rocm, "attention", lambda q, k, v, **named: passed.append(named) or q
    )
    q = torch.zeros(1, 4, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    layer(backend).forward(q, q, q, None)
    for settings in (Settings(rounding=name) for name in ROUNDINGS):
        monkeypatch.setattr(backend, "configured_settings", lambda settings=settings: settings)
        layer(backend).forward(q, q, q, None)
    assert [named["rounding"] for named in passed] == ["rtne", *ROUNDINGS]
    assert all(named["layout"] == "bshd" and named["scale"] == HEAD_DIM**-0.5 for named in passed)


@pytest.mark.parametrize(
    ("dtype", "causal", "named"), [(torch.float16, False, "float16"), (torch.bfloat16, True, "causal")]
)
def test_what_selection_cannot_see_runs_in_sdpa(backend, caplog, dtype, causal, named):
    backend.warn_fallback.cache_clear()
    q, k, v = torch.randn(3, 1, 40, HEADS, HEAD_DIM).to(dtype)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            out = layer(backend, causal=causal).forward(q, k, v, None)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (q, k, v)), is_causal=causal, scale=HEAD_DIM**-0.5
    ).transpose(1, 2)
    assert torch.equal(out, expected)
    warnings = [record for record in caplog.records if record.name == backend.__name__]
    assert len(warnings) == 1 and named in warnings[0].getMessage()


def test_heads_that_do_not_divide_are_refused(backend):
    with pytest.raises(ValueError, match=r"num_heads=2 .*num_kv_heads=3"):
        layer(backend, num_kv_heads=3)


def test_metadata_is_not_claimed(backend):
    with pytest.raises(NotImplementedError):
        backend.LiteAttentionBackend.get_builder_cls()


def by_chunks(layer, q, k, v, packed):
    """Attention as SGLang's ring makes it: chunk by chunk of the keys, merged by SGLang."""
    from sglang.multimodal_gen.runtime.layers.usp import _ring_merge_attention

    out, lse = None, None
    for begin, end in ((0, 64), (64, 101), (101, 102), (102, 160)):
        chunk = [t[:, begin:end] for t in (k, v)]
        if packed:
            step = layer.forward_ring_kv_chunk(q[0], *(t[0] for t in chunk))
        else:
            step = layer.forward(q, *chunk, attn_metadata=None, return_softmax_lse=True)
        out, lse = _ring_merge_attention(out, lse, *step)
    return (out[None], lse[None]) if packed else (out, lse)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kv_heads", [1, HEADS])
def test_chunks_of_a_ring_merge_to_the_whole(backend, packed, kv_heads):
    """Sq == H: a transposed log-sum-exp would merge into something else. One chunk is a single key."""
    q = torch.randn(1, HEADS, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, 160, kv_heads, HEAD_DIM, dtype=torch.bfloat16)
    assert backend.LiteAttentionBackend.supports_ring_rotation()
    ours = layer(backend, scale=0.2, num_kv_heads=kv_heads)
    out, lse = by_chunks(ours, q, k, v, packed)
    wide = [t.repeat_interleave(HEADS // kv_heads, dim=2) for t in (k, v)]
    expected = reference(q, *wide, 0.2)
    error = (out.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < 1e-2
    scores = torch.einsum("bqhd,bkhd->bqhk", q.double(), wide[0].double()) * 0.2
    assert torch.allclose(lse.double()[..., 0], scores.logsumexp(-1), atol=1e-4, rtol=0)


def test_a_ring_is_refused_what_has_no_log_sum_exp(backend):
    q = torch.randn(1, 5, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match=r"ring attention for causal attention: blocks\.0\.attn1"):
        layer(backend, causal=True).forward(q, q, q, return_softmax_lse=True)
    half = q.half()
    with pytest.raises(NotImplementedError, match=r"torch\.float16 \(allowed: torch\.bfloat16\)"):
        layer(backend).forward_ring_kv_chunk(half[0], half[0], half[0])


def test_a_ring_is_dense_and_says_so_once(backend, monkeypatch, caplog):
    from sglang_integration.settings import Settings

    backend.warn_ring_is_dense.cache_clear()
    monkeypatch.setattr(backend, "configured_settings", lambda: Settings(threshold=-3.0))
    q = torch.randn(1, 70, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    skipping = layer(backend, is_cross_attention=False)
    assert skipping.skips
    with caplog.at_level(logging.WARNING):
        results = [skipping.forward(q, q, q, return_softmax_lse=True) for _ in range(2)]
    expected = layer(backend).dense_forward(q, q, q)
    assert all(torch.equal(out, expected) for out, _ in results)
    assert len([record for record in caplog.records if record.name == backend.__name__]) == 1


# Packed sequences


LENGTHS = (0, 70, 70, 103, 200)  # the second sequence is empty


def packed(dtype=torch.bfloat16, kv_heads=HEADS):
    q = torch.randn(LENGTHS[-1], HEADS, HEAD_DIM).to(dtype)
    k, v = torch.randn(2, LENGTHS[-1], kv_heads, HEAD_DIM).to(dtype)
    return q, k, v


def one_by_one(layer, q, k, v):
    rows = [slice(*pair) for pair in itertools.pairwise(LENGTHS)]
    return torch.cat([reference(q[None, r], k[None, r], v[None, r], layer.softmax_scale)[0] for r in rows])


@pytest.mark.parametrize("kv_heads", [1, HEADS])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_packed_sequences_are_one_launch(backend, kv_heads, dtype):
    assert backend.LiteAttentionBackend.supports_packed_varlen()
    ours, call = layer(backend, scale=0.2, num_kv_heads=kv_heads), packed(kv_heads=kv_heads)
    lengths = {"cu_seqlens": torch.tensor(LENGTHS, dtype=dtype), "max_seqlen": 97}
    simulator.reset_statistics()
    out = ours.forward_varlen(*call, **lengths)
    assert simulator.statistics()["kernels"]["attention_varlen_rtne"]["launches"] == 1
    wide = [t.repeat_interleave(HEADS // kv_heads, dim=1) for t in call[1:]]
    expected = one_by_one(ours, call[0], *wide)
    assert (out.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt() < 1e-2
    assert torch.equal(ours.forward_varlen(*call, **lengths, cu_seqlens_host=LENGTHS), out)


def test_padding_may_be_longer_than_the_longest_sequence(backend):
    """SGLang's packed form of one padded sequence: its rows, then those of the padding."""
    call, bounds = packed(), (0, 30, 200)
    lengths = {"cu_seqlens": torch.tensor(bounds, dtype=torch.int32), "max_seqlen": 30}
    out = layer(backend).forward_varlen(*call, **lengths, cu_seqlens_host=bounds)
    alone = layer(backend).dense_forward(*(t[None, :30] for t in call))[0]
    assert torch.allclose(out[:30].float(), alone.float(), atol=2e-2) and out.isfinite().all()


@pytest.mark.parametrize("what", ["float16", "causal", "triton"])
def test_packed_sequences_that_are_not_served_run_in_sdpa(backend, monkeypatch, what):
    if what == "triton":
        monkeypatch.setattr(backend.dispatch, "serving", lambda device: backend.dispatch.Triton("sm_90"))
    call = packed(torch.float16 if what == "float16" else torch.bfloat16)
    ours = layer(backend, causal=what == "causal")
    lengths = {"cu_seqlens": torch.tensor(LENGTHS, dtype=torch.int32), "max_seqlen": 97}
    simulator.reset_statistics()
    out = ours.forward_varlen(*call, **lengths, cu_seqlens_host=LENGTHS)
    assert simulator.statistics()["kernels"] == {}
    assert torch.equal(out, ours.sdpa.forward_varlen(*call, **lengths, cu_seqlens_host=LENGTHS))
    if what != "causal":
        expected = one_by_one(ours, *call)
        assert torch.allclose(out.double(), expected, atol=2e-2)


def test_a_layer_that_needs_packed_sequences_gets_our_backend(backend):
    from sglang.multimodal_gen.runtime.layers.attention import selector
    from sglang.multimodal_gen.runtime.layers.attention.backends.attention_backend import (
        AttentionRequirements,
    )

    requirements = AttentionRequirements(packed_varlen=True)
    chosen = selector.get_attn_backend(HEAD_DIM, torch.bfloat16, attention_requirements=requirements)
    assert chosen is backend.LiteAttentionBackend


# A launch that fails


class Aiter:
    """A layer of SGLang's AITER backend; tests/test_sglang_aiter.py has SGLang's own."""

    def __init__(self, num_heads, head_size, softmax_scale, **others):
        self.made = num_heads, head_size, softmax_scale, others["prefix"]

    def forward(self, query, key, value, attn_metadata=None):
        assert self.made == (HEADS, HEAD_DIM, HEAD_DIM**-0.5, "blocks.0.attn1.impl")
        return torch.full_like(query, 5)

    def forward_varlen(self, query, key, value, *, cu_seqlens, max_seqlen, cu_seqlens_host=None):
        return torch.full_like(query, 6)


@pytest.fixture
def failing(backend, monkeypatch):
    """The backend, set to fall back; the call after so many fails. Collects what is logged."""
    from sglang_integration.settings import Settings

    state, lines = {"left": 1, "launches": 0}, []

    def settings():
        return Settings(fallback=state.get("fallback", "aiter"))

    def launch(*arguments, **options):
        state["launches"] += 1
        if state["left"] == 0:
            raise state.get("error", RuntimeError("hipErrorLaunchFailure: hipModuleLaunchKernel"))
        state["left"] -= 1
        return torch.full_like(arguments[0], 1)

    monkeypatch.setattr(backend, "configured_settings", settings)
    monkeypatch.setattr(backend, "_failures", [])
    monkeypatch.setattr(backend, "aiter_layer", lambda: Aiter)
    monkeypatch.setattr(backend.liteattention_rocm, "attention", launch)
    monkeypatch.setattr(backend.liteattention_rocm, "attention_varlen", launch)
    monkeypatch.setattr(backend.logger, "error", lambda text, *values: lines.append(text % values))
    state["lines"] = lines
    return state


def call(layer):
    q = torch.zeros(1, 4, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    return layer.forward(q, q, q, None).unique().tolist()


def call_packed(layer):
    q = torch.zeros(4, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    bounds = torch.tensor([0, 4], dtype=torch.int32)
    return layer.forward_varlen(q, q, q, cu_seqlens=bounds, max_seqlen=4).unique().tolist()


def test_a_failing_launch_gives_way_to_aiter_where_asked(backend, failing):
    first, second = layer(backend), layer(backend)
    assert [call(first), call(first), call(second), call(first)] == [[1], [5], [5], [5]]
    assert [call_packed(first)] == [[6]]
    assert failing["launches"] == 2  # ours is not tried again
    assert failing["lines"] == [
        "liteattention_rocm gives way to AITER in this process: hipErrorLaunchFailure: hipModuleLaunchKernel"
    ]


def test_without_being_asked_a_failing_launch_is_an_error(backend, failing):
    failing.update(left=0, fallback="none")
    for run in (call, call_packed):
        with pytest.raises(RuntimeError, match="hipErrorLaunchFailure"):
            run(layer(backend))
    assert failing["lines"] == []


@pytest.mark.parametrize(
    ("scale", "error"),
    [
        (0.2, RuntimeError("hipErrorLaunchFailure")),  # SGLang's AITER backend computes with 1/sqrt(128)
        (HEAD_DIM**-0.5, torch.OutOfMemoryError("out of memory")),
        (HEAD_DIM**-0.5, ValueError("q must have 4 dimensions")),
    ],
)
def test_what_aiter_would_not_mend_stays_an_error(backend, failing, scale, error):
    failing.update(left=0, error=error)
    with pytest.raises(type(error)):
        call(layer(backend, scale=scale))
    assert failing["lines"] == []


def test_layers_of_another_scale_stay_ours_when_others_have_given_way(backend, failing):
    other = layer(backend, scale=0.2)
    assert call(layer(backend)) == [1] and call(layer(backend)) == [5]
    failing["left"] = 2
    assert [call(other), call_packed(other)] == [[1], [1]]
    for run in (call, call_packed):
        with pytest.raises(RuntimeError, match="hipErrorLaunchFailure"):
            run(other)
    assert call(layer(backend)) == [5] and failing["launches"] == 6


def test_a_ring_does_not_fall_back(backend, failing):
    failing.update(left=0)
    q = torch.zeros(4, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="hipErrorLaunchFailure"):
        layer(backend).forward_ring_kv_chunk(q, q, q)


def unfit(*arguments, **options):
    raise RuntimeError("no kernel passed the self-test")


@pytest.fixture
def unfit_device(backend, failing, monkeypatch):
    """A device on which neither the self-test nor any launch succeeds; SGLang's selector."""
    from sglang.multimodal_gen.runtime.layers.attention import selector

    for function in ("prepare", "attention", "attention_varlen"):
        monkeypatch.setattr(backend.liteattention_rocm, function, unfit)
    monkeypatch.setattr(backend.dispatch, "serving", unfit)
    selector._cached_get_attn_backend.cache_clear()
    yield selector
    selector._cached_get_attn_backend.cache_clear()


def test_a_device_that_cannot_run_gives_way_at_selection(backend, failing, unfit_device):
    """Our class stays, as SGLang demands of an override; its layers of the default scale run in AITER."""
    from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum

    with unfit_device.component_attn_backend_context_manager(
        AttentionBackendEnum["LITEATTENTION_ROCM"], "transformer", require_backend_selection=True
    ):
        for cross in (False, True):
            chosen = unfit_device.get_attn_backend(HEAD_DIM, torch.bfloat16, is_cross_attention=cross)
            assert chosen is backend.LiteAttentionBackend
    assert failing["lines"] == [
        "liteattention_rocm gives way to AITER in this process: no kernel passed the self-test"
    ]
    assert call(layer(backend)) == [5] and call_packed(layer(backend)) == [6]
    for run in (call, call_packed):
        with pytest.raises(RuntimeError, match="no kernel passed the self-test"):
            run(layer(backend, scale=0.2))


def test_a_device_that_cannot_run_is_refused_where_nothing_is_to_serve_it(failing, unfit_device):
    failing["fallback"] = "none"
    with pytest.raises(ValueError, match="no kernel passed the self-test"):
        unfit_device.get_attn_backend(HEAD_DIM, torch.bfloat16)
    assert failing["lines"] == []


@pytest.mark.parametrize(
    ("override", "hip", "gpu", "refused"),
    [
        ("", "7.1.0", True, True),
        ("", "7.1.0", False, False),  # a CPU host with a ROCm build
        ("", None, True, False),
        (" CPU ", "7.1.0", True, False),  # asked for
    ],
)
def test_a_gpu_that_sglang_does_not_see_is_not_simulated(backend, monkeypatch, override, hip, gpu, refused):
    monkeypatch.setenv(backend.PLATFORM_VARIABLE, override)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(backend.liteattention_rocm, "prepare", lambda device, rounding: None)

    def check(device):
        backend.check_layer(HEAD_DIM, torch.bfloat16, torch.device(device))

    check("cuda:0")
    if refused:
        with pytest.raises(ValueError, match=r"the CPU .*amdsmi.*SGLANG_DIFFUSION_PLATFORM_OVERRIDE=rocm"):
            check("cpu")
    else:
        check("cpu")


def test_a_fallback_that_is_not_there_is_refused_at_selection(backend, monkeypatch):
    from sglang_integration.settings import Settings

    monkeypatch.setattr(backend, "configured_settings", lambda: Settings(fallback="aiter"))
    with pytest.raises(
        ValueError, match=r"fallback=aiter needs SGLang's AITER backend: No module named 'aiter'"
    ):
        backend.check_layer(HEAD_DIM, torch.bfloat16, torch.device("cpu"))
