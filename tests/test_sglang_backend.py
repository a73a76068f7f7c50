"""The attention layers of the SGLang backend, called as SGLang calls them."""

import logging

import pytest
import torch

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
    assert error < 1e-2  # a bfloat16 result truncated toward zero is off by 2^-8 / √3 and less


def test_cross_attention_of_another_length(backend):
    q = torch.randn(1, 70, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, 512, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    out = layer(backend, is_cross_attention=True).forward(q, k, v, None)
    expected = reference(q, k, v, HEAD_DIM**-0.5)
    assert (out.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt() < 1e-2


def test_rounding_is_the_peers_and_can_be_configured(backend, monkeypatch):
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
    assert [named["rounding"] for named in passed] == ["rtz", *ROUNDINGS]
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
    """Sq == H·64 and == Tkv: a transposed log-sum-exp would merge into something else."""
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
