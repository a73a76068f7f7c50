"""Calls of the Triton kernels and what their results have to be, for the interpreter and for gfx942."""

import math
from dataclasses import dataclass, field

import torch

import liteattention_rocm
from attention_cases import HEAD_DIM, POISON, GuardedOut, bits, same_bits
from lite_cases import inputs as local_inputs
from lite_cases import random_list
from liteattention_rocm import arguments, reference
from liteattention_rocm.lite import lists
from liteattention_rocm.lite.reference import step as reference_step

SCALE = HEAD_DIM**-0.5
VOTE_ROUNDING = 1e-3  # log2 units; scores of the cases here reach 100
LSE_ROUNDING = 5e-6


@dataclass
class Call:
    """One launch: inputs, options, poisoned outputs."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    rounding: str = "rtne"
    layout: str = "bshd"
    scale: float = SCALE
    kept: torch.Tensor | None = None  # bool [batch, heads, query tiles, KV tiles]: a skip list
    threshold: float = -6.0
    backward: bool = False
    pinned: torch.Tensor | None = None
    made: dict = field(default_factory=dict)

    def __post_init__(self):
        self.sizes = arguments.check_inputs(self.q, self.k, self.v, self.layout)

    def launch(self) -> tuple[str, dict]:
        """(name of the launch, its arguments), with outputs that are poison."""
        guarded = GuardedOut(self.q.shape, gap=8)
        call = {
            "q": self.q, "k": self.k, "v": self.v, "out": guarded.tensor,
            "lse": torch.full(self.sizes.lse_shape(), math.nan), "sizes": self.sizes,
            "layout": self.layout, "scale": self.scale, "rounding": self.rounding,
        }  # fmt: skip
        if self.kept is None:
            return "forward", call
        read = lists.pack(self.kept)
        write = torch.zeros_like(read) if self.pinned is None else lists.pack(self.pinned)
        call |= {"read_list": read, "write_list": write}
        return "skip_forward", call | {"threshold": self.threshold, "backward": self.backward}

    def take(self, made: dict) -> None:
        """The tensors after the launch. Every element of out is written, and nothing around them."""
        out = made["out"]
        self.made = made | {"out": out.clone()}
        assert not (out.view(torch.int16) == POISON).any()
        out.view(torch.int16).fill_(POISON)
        memory = torch.empty(0, dtype=torch.int16).set_(out.untyped_storage())
        assert (memory == POISON).all()

    @property
    def out(self) -> torch.Tensor:
        return self.made["out"]

    @property
    def lse(self) -> torch.Tensor:
        return self.made["lse"]

    @property
    def written(self) -> torch.Tensor:
        return lists.unpack(self.made["write_list"], self.kept.shape[-1])

    def hip(self):
        """out, lse and written list of the HIP kernel, simulated."""
        options = {"scale": self.scale, "layout": self.layout, "rounding": self.rounding, "return_lse": True}
        if self.kept is None:
            return *liteattention_rocm.attention(self.q, self.k, self.v, **options), None
        _, call = self.launch()
        out, lse = torch.ops.liteattention_rocm.attention_skip(
            self.q, self.k, self.v, call["read_list"], call["write_list"], threshold=self.threshold,
            backward=self.backward, **options,
        )  # fmt: skip
        return out, lse, lists.unpack(call["write_list"], self.kept.shape[-1])


def judge_dense(call: Call) -> None:
    """No farther from float64 than the rounding rules put the replica, and alike but for float32 sums."""
    expected, expected_lse = reference.attention(call.q, call.k, call.v, scale=call.scale, layout=call.layout)
    replica, _ = reference.replica(
        call.q, call.k, call.v, scale=call.scale, layout=call.layout, rounding=call.rounding
    )
    assert reference.rmse(call.out, expected) <= 1.02 * reference.rmse(replica, expected) + 1e-9
    assert (call.lse.double() - expected_lse).abs().max() <= LSE_ROUNDING
    judge_same_arithmetic(call.out, replica, expected)


def judge_same_arithmetic(out, other, expected) -> None:
    """The two differ by far less than either does from float64: in the order of float32 sums, not in a
    rounding mode. Which P and which outputs fall to the other side of a tie, that order decides."""
    assert reference.rmse(out, other) <= 0.5 * reference.rmse(other, expected)


def judge_skipping(call: Call) -> int:
    """Against the reference; returns the number of votes that differ where rounding may decide."""
    expected = reference_step(
        call.q, call.k, call.v, call.kept, threshold=call.threshold, backward=call.backward,
        scale=call.scale, layout=call.layout,
    )  # fmt: skip
    assert reference.rmse(call.out, expected.out) < 4e-3
    assert (call.lse.double() - expected.lse).abs().max() < 1e-4
    wanted = expected.kept if call.pinned is None else expected.kept | call.pinned
    different = call.written != wanted
    assert not (different & (expected.margin > VOTE_ROUNDING)).any()
    return int(different.sum())


def skipping_calls() -> dict[str, Call]:
    """Walks in both directions over local attention: partial tiles, two words, thresholds, pinned tiles."""
    calls = {}
    for backward in (False, True):
        direction = "backward" if backward else "forward"
        q, k, v = local_inputs(1, 2, 150, 333, noise=0.3)
        grouped = {"q": q, "k": k[:, :, :1], "v": v[:, :, :1], "backward": backward}
        kept = random_list(1, 2, 150, 333, share=0.6)
        calls[f"{direction}, partial tile, grouped heads"] = Call(**grouped, kept=kept)
        everything = torch.ones_like(kept)
        calls[f"{direction}, threshold -inf"] = Call(**grouped, kept=kept, threshold=-math.inf)
        pinned = torch.zeros_like(kept)
        pinned[..., 3] = True
        calls[f"{direction}, threshold +inf"] = Call(**grouped, kept=everything, threshold=math.inf)
        calls[f"{direction}, pinned"] = Call(**grouped, kept=everything, threshold=math.inf, pinned=pinned)
        q, k, v = local_inputs(1, 1, 40, 64 * 37 + 5, noise=0.3)
        kept = random_list(1, 1, 40, 64 * 37 + 5, share=0.7)
        calls[f"{direction}, two words"] = Call(q, k, v, kept=kept, rounding="rtz", backward=backward)
        one = torch.zeros(1, 1, 1, 38, dtype=torch.bool)
        one[..., 37] = True
        calls[f"{direction}, only the partial tile"] = Call(q, k, v, kept=one, backward=backward)
        calls[f"{direction}, none"] = Call(q, k, v, kept=torch.zeros_like(one), backward=backward)
    return calls


def judge_against_hip(call: Call) -> None:
    """The lists in the same form with the same votes, and outputs by the same arithmetic."""
    out, lse, written = call.hip()
    if call.kept is None:
        expected, _ = reference.attention(call.q, call.k, call.v, scale=call.scale, layout=call.layout)
    else:
        assert torch.equal(call.written, written)
        visited = call.kept.clone()
        visited[..., 0] |= ~visited.any(-1)  # a list that names no tile is walked as tile 0
        expected = reference_step(
            call.q, call.k, call.v, visited, threshold=-6.0, backward=call.backward,
            scale=call.scale, layout=call.layout,
        ).out  # fmt: skip
    judge_same_arithmetic(call.out, out, expected)
    assert (call.lse - lse).abs().max() <= 1e-4


def judge_skipping_call(name: str, call: Call) -> int:
    """What the case is about, and the reference. Returns the votes that rounding decided."""
    if name.endswith("none"):  # walked as tile 0
        only = torch.zeros_like(call.kept)
        only[..., 0] = True
        assert torch.equal(call.written, only)
        expected, _ = reference.attention(call.q, call.k[:, :64], call.v[:, :64])
        assert reference.rmse(call.out, expected) < 4e-3
        return 0
    if name.endswith("-inf"):
        assert torch.equal(call.written, call.kept)
    if name.endswith("+inf"):
        assert (call.written.sum(-1) == 1).all()
        assert call.written[..., -1 if call.backward else 0].all()
    if name.endswith("pinned"):
        assert call.written[..., 3].all() and (call.written.sum(-1) == 2).all()
    return judge_skipping(call)


def halves(rounding: str) -> Call:
    """Every output is the middle of two values: many are ties of the rounding, of both signs."""
    v = torch.randn(1, 2, 2, HEAD_DIM).bfloat16()
    v[:, 1] = (v[:, 0].view(torch.int16) + torch.randint(-3, 4, v[:, 0].shape).short()).view(torch.bfloat16)
    return Call(
        torch.zeros(1, 3, 2, HEAD_DIM).bfloat16(), torch.randn(1, 2, 2, HEAD_DIM).bfloat16(), v, rounding
    )


def judge_halves(call: Call) -> None:
    middle = (call.v[:, 0].float() + call.v[:, 1].float()) / 2
    expected = {mode: reference.round_to_bfloat16(middle, mode) for mode in ("rtne", "rtna", "rtz")}
    assert all(not same_bits(expected[call.rounding], x) for m, x in expected.items() if m != call.rounding)
    assert same_bits(call.out, expected[call.rounding].unsqueeze(1).expand_as(call.out))


def very_negative(rounding: str) -> Call:
    """Every logit is -1e6, and S·c is far from its float32 rounding: a fused 2^(S·c - m·c) is 1.035."""
    q = torch.ones(1, 70, 1, HEAD_DIM).bfloat16()
    k = torch.full((1, 133, 1, HEAD_DIM), -111 / HEAD_DIM).bfloat16()
    return Call(q, k, torch.ones_like(k), rounding, scale=1e6 / 111)


def special(rounding: str) -> Call:
    """NaN of several payloads and Inf in rows of Q and K; the second head has no score above -Inf."""
    q, k, v = (torch.randn(1, rows, 2, HEAD_DIM).bfloat16() for rows in (70, 150, 150))
    for tensor, row, element, pattern in ((q, 3, 5, 0x7FC0), (q, 69, 127, -0x2B), (q, 20, 0, 0x7F81)):
        tensor.view(torch.int16)[0, row, 0, element] = pattern
    q[0, 33, 0, 7], q[0, 50, 0, 9] = math.inf, -math.inf
    k[0, 140, 0, 77] = math.inf
    q[:, :, 1], k[:, :, 1] = 1.0, -math.inf
    return Call(q, k, v, rounding)


def judge_special(call: Call) -> None:
    """Every element is NaN, infinite or finite as the HIP kernel's, with its bits but for the NaN of rtz."""
    out, lse, _ = call.hip()
    assert call.out.isnan().any() and call.out[:, :, 0].isfinite().any()
    assert torch.equal(call.out.isnan(), out.isnan())
    if call.rounding != "rtz":
        assert (bits(call.out)[call.out.isnan()] == 0x7FFF).all()
    assert not call.out[:, :, 1].any()
    assert (call.lse[:, 1] == -math.inf).all()
    assert torch.equal(call.out.isinf(), out.isinf())
    finite = out.isfinite()
    assert torch.allclose(call.out[finite].float(), out[finite].float(), atol=1e-2)
    assert torch.allclose(call.lse, lse, atol=LSE_ROUNDING, equal_nan=True)
