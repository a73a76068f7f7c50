"""SGLang's own AITER backend over a stub of AITER: as our fallback, and as the harness's arms on ROCm."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from e2e import arms, generate
from sglang_host import server_args, tiny_model

HEADS, HEAD_DIM = 2, 128


@pytest.fixture
def aiter(monkeypatch, tmp_path_factory):
    """SGLang's module over a stub, and the options with which it calls AITER.

    AITER must not be there when SGLang itself is imported without ROCm.
    """
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks

    apply_plugin_hooks()
    server_args(tiny_model(tmp_path_factory), attention_backend="liteattention_rocm")
    from sglang_integration import backend

    calls = []

    def flash_attn_func(query, key, value, **options):
        calls.append(options)
        return torch.full_like(query, 5)

    stub = ModuleType("aiter")
    stub.flash_attn_func = flash_attn_func
    stub.flash_attn_varlen_func = lambda q, **options: calls.append(options) or torch.full_like(q, 6)
    core = ModuleType("aiter.jit.core")
    core.ENABLE_CK = True
    for name, module in (("aiter", stub), ("aiter.jit", ModuleType("aiter.jit")), ("aiter.jit.core", core)):
        monkeypatch.setitem(sys.modules, name, module)
    # Both places that an import fills are as before at the end: the module holds the stub.
    parent, _, name = backend.AITER_MODULE.rpartition(".")
    monkeypatch.setattr(importlib.import_module(parent), name, None, raising=False)
    monkeypatch.setitem(sys.modules, backend.AITER_MODULE, None)
    del sys.modules[backend.AITER_MODULE]
    return importlib.import_module(backend.AITER_MODULE), calls


def query(*shape):
    return torch.zeros(*shape, HEADS, HEAD_DIM, dtype=torch.bfloat16)


def test_a_failing_launch_is_served_by_sglangs_own_layer(aiter, monkeypatch):
    from sglang_integration import backend
    from sglang_integration.settings import Settings

    _, calls = aiter

    def launch(*arguments, **options):
        raise RuntimeError("hipErrorLaunchFailure: hipModuleLaunchKernel")

    monkeypatch.setattr(backend, "configured_settings", lambda: Settings(fallback="aiter"))
    monkeypatch.setattr(backend, "_failures", [])
    monkeypatch.setattr(backend.liteattention_rocm, "attention", launch)
    layer = backend.LiteAttentionImpl(HEADS, HEAD_DIM, HEAD_DIM**-0.5, prefix="blocks.0.attn1.impl")
    q = query(1, 4)
    assert layer.forward(q, q, q, None).unique().tolist() == [5]
    bounds = torch.tensor([0, 4], dtype=torch.int32)
    assert layer.forward_varlen(q[0], q[0], q[0], cu_seqlens=bounds, max_seqlen=4).unique().tolist() == [6]
    assert calls[0]["causal"] is False and calls[0]["how_v3_bf16_cvt"] == 2  # rtz: SGLang's, not ours
    assert len(calls) == 2


def test_a_fallback_without_sglangs_layer_is_refused(aiter, monkeypatch):
    from sglang_integration import backend

    module, _ = aiter
    monkeypatch.delattr(module, "AITerImpl")
    with pytest.raises(ValueError, match=r"fallback=aiter needs SGLang's AITER backend: .*AITerImpl"):
        backend.aiter_layer()


def test_arms_of_aiters_pass_their_mode_to_aiter(aiter, monkeypatch):
    """The noise floor: without a change of mode both arms would make one video."""
    module, calls = aiter
    device = SimpleNamespace(device="rocm")
    for arm in (arms.PEER_RTNE, arms.PEER):
        generate.set_up_aiter(device, arms.find(arm))
        q = query(1, 4)
        module.AITerImpl(HEADS, HEAD_DIM, HEAD_DIM**-0.5).forward(q, q, q)
    assert [options["how_v3_bf16_cvt"] for options in calls] == [0, 2]
    monkeypatch.delattr(module, "AITER_BF16_CVT_MODE")
    with pytest.raises(RuntimeError, match="has no AITER_BF16_CVT_MODE"):
        generate.set_up_aiter(device, arms.find(arms.PEER))
