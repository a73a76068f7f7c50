"""Counts the calls of SGLang's attention layers, whichever backend serves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch


class LayerCalls:
    """Watches every attention layer of a model.

    Attributes:
        self_instructions: executed by each call of a self-attention, in order.

    Args:
        model: the diffusion transformer as SGLang loaded it.
        on_call: called with the number of calls so far after each call.
        count: reads a counter of executed instructions, which the calls are charged with; None where there is
            none.

    Raises:
        RuntimeError: the model has no attention layer of SGLang's: its loader fell back to another
            implementation.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        on_call: Callable[[int], None] = lambda calls: None,
        count: Callable[[], int] | None = None,
    ) -> None:
        self._calls: Counter[tuple] = Counter()
        self._instructions: Counter[tuple] = Counter()
        self._on_call = on_call
        self._told_before = 0
        self._count = count or (lambda: 0)
        self.self_instructions: list[int] = []
        self.backends: set[str] = set()
        for name, module in model.named_modules():
            if hasattr(module, "attn_impl"):
                self.backends.add(str(module.backend))
                self._watch(name, module)
        if not self.backends:
            raise RuntimeError(
                f"{type(model).__module__}.{type(model).__name__} has no attention layer of SGLang's"
            )

    def _watch(self, name: str, module: torch.nn.Module) -> None:
        role = "cross" if module.is_cross_attention else "self"
        forward = module.attn_impl.forward

        def counted(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **named: Any
        ) -> Any:
            before = self._count()
            output = forward(query, key, value, *rest, **named)
            executed = self._count() - before
            kind = (role, str(module.backend), tuple(query.shape), key.shape[1], not value.is_contiguous())
            self._calls[kind] += 1
            self._instructions[kind] += executed
            if role == "self":
                self.self_instructions.append(executed)
            self._on_call(self._told_before + self.total)
            return output

        module.attn_impl.forward = counted

    @property
    def total(self) -> int:
        return sum(self._calls.values())

    def clear(self, told_before: int = 0) -> None:
        """Forgets all calls. ``told_before`` is added to the number that ``on_call`` is given."""
        self._told_before = told_before
        self._calls.clear()
        self._instructions.clear()
        self.self_instructions.clear()

    def summary(self) -> list[dict[str, Any]]:
        """Per kind of call: role, backend, counts, query shape [B, S, H, D], KV length, V strided or not."""
        return [
            {
                "role": role,
                "backend": backend,
                "calls": calls,
                "instructions": self._instructions[role, backend, shape, kv_length, strided],
                "query_shape": list(shape),
                "kv_length": kv_length,
                "value_strided": strided,
            }
            for (role, backend, shape, kv_length, strided), calls in sorted(self._calls.items(), reverse=True)
        ]
