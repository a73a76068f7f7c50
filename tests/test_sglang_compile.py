"""SGLang's Wan block under torch.compile, and what a call with our backend asks of the HIP runtime."""

import sys
from types import FunctionType

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

import sglang_models
from liteattention_rocm import simulator
from sglang_host import tiny_model
from simulated_hip import ALLOWED_DURING_CAPTURE

HEADS, HEAD_DIM, TEXT = 2, 128, 24
WIDTH = HEADS * HEAD_DIM


def resolve_fallbacks(monkeypatch):
    """SGLang imports its fallbacks for CPUs at their first call, which a graph can't have in it."""
    from sglang.kernels.ops.diffusion.common import fallback_torch

    for module in [module for name, module in sys.modules.items() if name.startswith("sglang.")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value.__qualname__.startswith("torch_fallback."):
                monkeypatch.setattr(module, name, getattr(fallback_torch, value.__name__))


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    """A Wan block of SGLang's with our backend in both attentions, as a worker has it, dense."""
    from sglang.multimodal_gen.runtime.managers.forward_context import set_forward_context

    fakes = {
        "fused_norm_scale_shift_cpu": lambda x, w, b, scale, shift, kind, eps: torch.empty_like(x),
        "fused_scale_residual_norm_scale_shift_cpu": lambda r, x, gate, w, b, scale, shift, kind, eps: (
            torch.empty_like(x),
            torch.empty_like(r),
        ),
    }
    for name, fake in fakes.items():
        if not torch._library.utils.has_fake_kernel(getattr(torch.ops.sgl_kernel, name).default):
            torch.library.register_fake(f"sgl_kernel::{name}", fake)
    with (
        sglang_models.host(tiny_model(tmp_path_factory), threshold=None),
        pytest.MonkeyPatch.context() as patch,
    ):
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = sglang_models.wan(num_attention_heads=HEADS, ffn_dim=64)
        finally:
            torch.set_default_dtype(torch.float32)
        resolve_fallbacks(patch)
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.data.normal_(std=0.05)
        with set_forward_context(0, None, None), torch.no_grad():
            yield model.blocks[0].to(torch.bfloat16)


def inputs(tokens):
    """hidden states, text, time modulation and rotary tables as the transformer passes them."""
    hidden = torch.randn(1, tokens, WIDTH, dtype=torch.bfloat16)
    text = torch.randn(1, TEXT, WIDTH, dtype=torch.bfloat16)
    modulation = torch.randn(1, 6, WIDTH)
    angles = torch.rand(tokens, HEAD_DIM // 2)
    return hidden, text, modulation, (angles.cos(), angles.sin())


def test_the_block_is_one_graph(block):
    """Both attentions in it, for any number of tokens."""
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return aot_eager(graph, examples)

    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for tokens in (70, 70, 33, 90):
        call = inputs(tokens)
        assert torch.equal(compiled(*call), block(*call))
    assert len(graphs) == 2  # the first shape's, and the one for all others
    for graph in graphs:
        targets = [str(node.target) for node in graph.graph.nodes]
        assert sum("liteattention_rocm.attention" in target for target in targets) == 2, targets


@pytest.mark.full
def test_the_block_with_inductor(block):
    call = inputs(70)
    expected = block(*call)
    error = torch.compile(block, fullgraph=True)(*call).float() - expected.float()
    assert error.abs().max() <= 2**-6 * expected.float().abs().max()  # inductor fuses in float32


# What a call may ask of the HIP runtime while a graph is being captured: nothing that waits, allocates,
# copies or loads. Outputs come from torch's allocator.


def hip_calls(run):
    """The functions that a second run calls, and its launches by kernel."""
    run()
    simulator.reset_statistics()
    run()
    statistics = simulator.statistics()
    called = {name for name, count in statistics["hip_calls"].items() if count}
    return called, {name: kernel["launches"] for name, kernel in statistics["kernels"].items()}


def test_a_block_can_be_captured(block):
    call = inputs(70)
    called, launches = hip_calls(lambda: block(*call))
    assert called <= ALLOWED_DURING_CAPTURE
    assert sum(launches.values()) >= 2 and all(name.endswith("_rtne") for name in launches)


@pytest.mark.parametrize("method", ["dense", "ring", "packed"])
def test_every_call_of_a_layer_can_be_captured(block, method):
    layer = block.attn1.attn_impl
    q, k, v = torch.randn(3, 150, HEADS, HEAD_DIM).to(torch.bfloat16)
    bounds = (0, 70, 70, 150)
    lengths = {"cu_seqlens": torch.tensor(bounds, dtype=torch.int32), "max_seqlen": 80}
    run = {
        "dense": lambda: layer.forward(q[None], k[None], v[None], None),
        "ring": lambda: layer.forward_ring_kv_chunk(q, k[:64], v[:64]),
        "packed": lambda: layer.forward_varlen(q, k, v, **lengths, cu_seqlens_host=bounds),
    }[method]
    called, launches = hip_calls(run)
    assert called <= ALLOWED_DURING_CAPTURE
    assert launches == ({"attention_varlen_rtne": 1} if method == "packed" else launches) != {}
