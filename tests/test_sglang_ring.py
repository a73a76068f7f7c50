"""A layer of SGLang's under Ulysses and ring degrees of 2 together: four processes over gloo."""

import pytest
import torch

from sglang_host import python, tiny_model

# Ranks are spawned: they import this file again, and with it what SGLang lacks on a CPU.
SCRIPT = """
import os, sys
from e2e import cpu_host, tiny_wan
cpu_host.prepare()
import torch

ULYSSES, RING, HEADS, TOKENS, REAL = 2, 2, 2, 320, 290

def work(rank, model, port, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ULYSSES * RING), LITEATTENTION_ROCM_SIM_THREADS="1")
    torch.set_num_threads(1)
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks
    apply_plugin_hooks()
    from sglang.multimodal_gen.runtime.server_args import ServerArgs, set_global_server_args
    set_global_server_args(ServerArgs.from_kwargs(model_path=model, model_id=tiny_wan.MODEL_ID,
        num_gpus=ULYSSES * RING, ulysses_degree=ULYSSES, ring_degree=RING,
        attention_backend="liteattention_rocm"))
    from sglang.multimodal_gen.runtime.distributed import (
        maybe_init_distributed_environment_and_model_parallel as initialise)
    initialise(tp_size=1, sp_size=ULYSSES * RING, ulysses_degree=ULYSSES, ring_degree=RING)
    from sglang.multimodal_gen.runtime.layers.attention.layer import USPAttention
    from sglang.multimodal_gen.runtime.layers.usp import _ring_attention_varlen
    from sglang.multimodal_gen.runtime.managers.forward_context import set_forward_context
    torch.set_default_dtype(torch.bfloat16)
    layer = USPAttention(num_heads=HEADS // ULYSSES, head_size=128, prefix="blocks.0.attn1")
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, TOKENS, HEADS, 128, dtype=torch.bfloat16)
    rows = TOKENS // (ULYSSES * RING)
    mine = slice(rank * rows, (rank + 1) * rows)
    with set_forward_context(0, None, None), torch.no_grad():
        whole = layer(q[:, mine], k[:, mine], v[:, mine])
        # What SGLang's padded ring calls, by ring chunks of this rank's head.
        ring_rank, head = rank // ULYSSES, slice(rank % ULYSSES, rank % ULYSSES + 1)
        chunk = slice(ring_rank * TOKENS // RING, (ring_rank + 1) * TOKENS // RING)
        parts = [t[0, chunk, head] for t in (q, k, v)]
        packed = _ring_attention_varlen(*parts, attn_impl=layer.attn_impl, real_seq_len=REAL, ring_ws=RING)
    torch.save({"name": type(layer.attn_impl).__name__, "whole": whole, "packed": packed,
        "q": q, "k": k, "v": v, "mine": mine, "chunk": chunk, "head": head}, f"{out}/{rank}.pt")

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, sys.argv[1:], nprocs=ULYSSES * RING)
"""


def attention(q, k, v):
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    return (torch.softmax(q @ k.transpose(-1, -2) / 128**0.5, dim=-1) @ v).transpose(1, 2)


@pytest.mark.full
def test_ulysses_and_ring_together(tmp_path, tmp_path_factory):
    import socket

    script = tmp_path / "ring.py"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    finished = python(str(script), str(tiny_model(tmp_path_factory)), str(port), str(tmp_path))
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-3000:]
    for rank in range(4):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert got["name"] == "LiteAttentionImpl"
        expected = attention(got["q"], got["k"], got["v"])
        # Roundings to bfloat16 of P, of a chunk and of the merge.
        difference = got["whole"].double() - expected[:, got["mine"]]
        assert difference.square().mean().sqrt() < 1e-2 * expected.square().mean().sqrt()
        real = attention(got["q"], got["k"][:, :290], got["v"][:, :290])[0, got["chunk"], got["head"]]
        assert (got["packed"].double() - real).square().mean().sqrt() < 1e-2 * real.square().mean().sqrt()
