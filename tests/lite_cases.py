"""Inputs whose attention is local, so that skipping engages, and dense attention walked backward."""

import math

import torch

import liteattention_rocm
from liteattention_rocm.lite import lists

HEAD_DIM = 128


def local(batch, heads, rows, *, sharpness=16.0, width=600.0, drift=0.0, noise=0.0, seed=0):
    """q or k whose scores fall off with the distance of the rows: bfloat16 [batch, rows, heads, 128].

    The scaled product of two is sharpness · mean(cos(frequency · distance)) in nats, with 64 frequencies from
    2π/width down to a 32nd of it that differ between heads; `drift` moves all positions by as many rows.
    """
    generator = torch.Generator().manual_seed(seed)
    octaves = torch.rand(heads, HEAD_DIM // 2, generator=generator)
    frequency = 2 * math.pi / width * 32.0**-octaves
    phase = (torch.arange(rows)[:, None, None] + drift) * frequency
    rotor = torch.cat([phase.cos(), phase.sin()], -1) * math.sqrt(sharpness * 128**0.5 / 64)
    result = rotor.expand(batch, rows, heads, HEAD_DIM)
    if noise:
        result = result + noise * torch.randn(batch, rows, heads, HEAD_DIM, generator=generator)
    return result.bfloat16().contiguous()


def inputs(batch=1, heads=2, seqlen_q=300, seqlen_kv=500, drift=0.0, **options):
    """q, k and v; `drift` moves what the queries look at by as many rows."""
    generator = torch.Generator().manual_seed(1)
    q = local(batch, heads, seqlen_q, drift=drift, **options)
    k = local(batch, heads, seqlen_kv, **options)
    v = torch.randn(batch, seqlen_kv, heads, HEAD_DIM, generator=generator).bfloat16()
    return q, k, v


def backward_dense(q, k, v, **options):
    """The dense kernel on the KV tiles in reverse order: what a backward walk that keeps everything computes,
    bit for bit.

    The partial tile, which comes first then, is filled up with rows whose score is −2^100 and whose P is
    therefore 0. That takes a head dim: q must be 0 in the last one, and k too.
    """
    assert not q[..., -1].any() and not k[..., -1].any()
    rows, tile = k.shape[1], lists.KV_ROWS_PER_TILE
    filling = -rows % tile
    q, k = q.clone(), k.clone()
    q[..., -1] = 1
    padded_k = torch.nn.functional.pad(k, (0, 0, 0, 0, 0, filling))
    padded_k[:, rows:, :, -1] = -(2.0**100)
    padded_v = torch.nn.functional.pad(v, (0, 0, 0, 0, 0, filling))
    flipped = [t.unflatten(1, (-1, tile)).flip(1).flatten(1, 2) for t in (padded_k, padded_v)]
    return liteattention_rocm.attention(q, *flipped, **options)


def random_list(batch, heads, seqlen_q, seqlen_kv, share=0.5, seed=0):
    """bool [batch, heads, query tiles, KV tiles], at least one in each row."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads, lists.query_tiles(seqlen_q), lists.kv_tiles(seqlen_kv))
    kept = torch.rand(shape, generator=generator) < share
    anyway = torch.randint(shape[-1], shape[:-1], generator=generator)
    return kept.scatter_(-1, anyway.unsqueeze(-1), True)
