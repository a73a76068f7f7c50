"""Random attention calls for the fuzzer: what a number stands for, and what must hold of the answer.

A case is drawn from its number alone, so that the number replays it. Answers are held to float64 by a bound
that follows from the kernel's roundings, to AITER's code object in accuracy and in where NaN and Inf land,
and to themselves: the same bits for contiguous inputs, nothing unwritten, nothing written outside.
"""

import dataclasses
import functools
import math
import random

import torch

import liteattention_rocm
from attention_cases import GUARD, LAYOUTS, POISON, ROUNDINGS, bits, same_bits
from liteattention_rocm import aiter_kernel, arguments, reference, runtime

HEAD_DIM = arguments.HEAD_DIM
EDGES = (
    1,
    2,
    3,
    15,
    16,
    17,
    31,
    32,
    33,
    47,
    63,
    64,
    65,
    95,
    96,
    97,
    127,
    128,
    129,
    191,
    192,
    193,
    255,
    256,
    257,
)
FAR_EDGES = (383, 384, 385, 511, 512, 513, 767, 768, 769)
MOST_TILES = 24  # of 128 queries and 64 keys, in calls with several heads or batch entries
FAMILIES = ("forward", "pingpong", "")
MODERATE = ("normal", "normal", "small", "spiky", "rows", "constant")
VALUES = (*MODERATE, "subnormal", "huge", "exponents", "zeros", "specials", "bits")


@dataclasses.dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        number: what it was drawn from.
        batch, heads, kv_heads, seqlen_q, seqlen_kv, layout, rounding, scale, return_lse: as for `attention`.
        variant: as `attention` has it.
        family: dense kernel that is forced, "" for the plan's choice.
        pieces: in how many KV is taken, None for the family's choice.
        values: kinds of the values of q, k and v.
        views: kinds of the strides of q, k, v and out; None for no out.
    """

    number: int
    batch: int
    heads: int
    kv_heads: int
    seqlen_q: int
    seqlen_kv: int
    layout: str
    rounding: str
    scale: float | None
    return_lse: bool
    variant: str
    family: str
    pieces: int | None
    values: tuple[str, str, str]
    views: tuple[str, str, str, str | None]

    def shape(self, heads: int, rows: int) -> tuple[int, int, int, int]:
        pair = (rows, heads) if self.layout == "bshd" else (heads, rows)
        return self.batch, *pair, HEAD_DIM


def length(choice: random.Random) -> int:
    kind = choice.random()
    if kind < 0.45:
        return choice.choice(EDGES)
    if kind < 0.9:
        return choice.randint(1, 260)
    return choice.choice(FAR_EDGES) if kind < 0.95 else choice.randint(261, 800)


def draw(number: int) -> Call:
    """The call that a number stands for."""
    choice = random.Random(number)
    seqlen_q, seqlen_kv = length(choice), length(choice)
    kv_heads, group, batch = (
        choice.choice((1, 1, 2, 3)),
        choice.choice((1, 1, 2, 3)),
        choice.choice((1, 1, 2)),
    )
    if -(-seqlen_q // 128) * -(-seqlen_kv // 64) * kv_heads * group * batch > MOST_TILES:
        kv_heads, group, batch = 1, choice.choice((1, 2)), 1
    scale = choice.choice((None, None, None, choice.uniform(0.01, 1), -choice.uniform(0.01, 0.5), 0.0))
    if choice.random() < 0.05:
        scale = choice.choice((1e-30, 1e10, -3e20))
    values = tuple(choice.choice(MODERATE) for _ in "qkv")
    if choice.random() < 0.5:
        values = tuple(choice.choice(VALUES) for _ in "qkv")
    inputs = tuple(choice.choice(tuple(VIEWS)) for _ in "qkv")
    of_out = choice.choice((None, *OUT_VIEWS))
    exact = (scale is None or scale > 0) and choice.random() < 0.2
    return Call(
        number=number,
        batch=batch,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seqlen_q=seqlen_q,
        seqlen_kv=seqlen_kv,
        layout=choice.choice(LAYOUTS),
        rounding=choice.choice(ROUNDINGS),
        scale=scale,
        return_lse=choice.random() < 0.6,
        variant="aiter_exact" if exact else "fast",
        family=choice.choice(FAMILIES),
        pieces=choice.choice((None, None, 2, 3, 7)),
        values=values,
        views=(*inputs, of_out),
    )


LONGEST = 260


def pair(index: int) -> Call:
    """Call `index` of the 260² that have every pair of lengths from 1 to 260."""
    choice = random.Random(index)
    seqlen_q, seqlen_kv = index // LONGEST + 1, index % LONGEST + 1
    heads = choice.choice((1, 1, 2))
    return Call(
        number=index,
        batch=1,
        heads=heads,
        kv_heads=choice.choice((1, heads)),
        seqlen_q=seqlen_q,
        seqlen_kv=seqlen_kv,
        layout=choice.choice(LAYOUTS),
        rounding=choice.choice(ROUNDINGS),
        scale=None,
        return_lse=choice.random() < 0.5,
        variant="fast" if choice.random() < 0.85 else "aiter_exact",
        family=choice.choice(FAMILIES),
        pieces=choice.choice((None, None, None, 2, 3)),
        values=tuple(choice.choice(MODERATE) for _ in "qkv"),
        views=(*(choice.choice(("contiguous", "fused", "rows padded")) for _ in "qkv"), "guarded"),
    )


# Values


def patterns(shape, generator, finite: bool):
    """Any bit patterns of bfloat16; of finite numbers alone where `finite`."""
    drawn = torch.randint(-(2**15), 2**15, shape, generator=generator, dtype=torch.int16)
    if finite:
        drawn = torch.where(drawn & 0x7F80 == 0x7F80, drawn & ~0x4000, drawn)
    return drawn.view(torch.bfloat16)


def make_values(kind: str, shape, seed: int):
    """bfloat16 of a kind, contiguous; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(shape, generator=generator)
    if kind == "small":
        normal = torch.rand(shape, generator=generator) * 0.2 - 0.1
    elif kind == "spiky":  # a few channels and a few places carry most of the scores
        channels = torch.rand(shape[-1], generator=generator) < 0.05
        normal = normal * torch.where(channels, 8.0, 1.0)
        normal = normal * torch.where(torch.rand(shape, generator=generator) < 0.01, 12.0, 1.0)
    elif kind == "rows":  # a few whole rows stand out
        normal = normal * torch.where(torch.rand(*shape[:3], 1, generator=generator) < 0.05, 10.0, 1.0)
    elif kind == "constant":
        normal = normal[..., :1, :].expand(shape)
    elif kind == "subnormal":
        normal = normal * 1e-39
    elif kind == "huge":
        normal = normal * 10.0 ** torch.randint(15, 38, shape, generator=generator)
        normal = normal.clamp(-3e38, 3e38)
    elif kind == "zeros":
        normal = normal.sign() * torch.where(torch.rand(shape, generator=generator) < 0.9, 0.0, 1.0)
    elif kind == "specials":
        normal = normal.clone()
        for place in torch.randint(normal.numel(), (1 + seed % 4,), generator=generator).tolist():
            normal.view(-1)[place] = (math.inf, -math.inf, math.nan)[place % 3]
    elif kind in ("exponents", "bits"):
        return patterns(shape, generator, finite=kind == "exponents")
    return normal.bfloat16().contiguous()


def make_inputs(call: Call) -> list[torch.Tensor]:
    """q, k and v of a call, contiguous."""
    shapes = [call.shape(call.heads, call.seqlen_q), *[call.shape(call.kv_heads, call.seqlen_kv)] * 2]
    seeds = (3 * call.number + index for index in range(3))
    return [make_values(*one) for one in zip(call.values, shapes, seeds, strict=True)]


# Views. Each makes strides, in elements, and an offset for a shape; memory around the view is NaN.


def contiguous_strides(shape, gap: int = 0):
    row = shape[3] + gap
    return [shape[1] * shape[2] * row, shape[2] * row, row, 1]


def permuted_strides(shape, order):
    """Strides of a tensor that is contiguous once its dimensions stand in this order."""
    strides, step = [0] * 4, 1
    for dimension in reversed(order):
        strides[dimension], step = step, step * shape[dimension]
    return strides


def scaled(strides, factor):
    return [stride * factor for stride in strides]


VIEWS = {
    "contiguous": lambda shape: (contiguous_strides(shape), 0),
    "fused": lambda shape: ([3 * s if d < 2 else s for d, s in enumerate(contiguous_strides(shape))], 0),
    "rows padded": lambda shape: (contiguous_strides(shape, 8), 0),
    "rows padded unevenly": lambda shape: (contiguous_strides(shape, 3), 0),
    "inner dimensions swapped": lambda shape: (permuted_strides(shape, (0, 2, 1, 3)), 8),
    "batch innermost": lambda shape: (permuted_strides(shape, (1, 2, 0, 3)), 0),
    "channels outermost": lambda shape: (permuted_strides(shape, (3, 0, 1, 2)), 0),
    "every other element": lambda shape: (scaled(contiguous_strides(shape), 2), 0),
    "misaligned": lambda shape: (contiguous_strides(shape), 3),
    "one batch entry for all": lambda shape: ([0, *contiguous_strides(shape)[1:]], 0),
    "one for dimension 1": lambda shape: ([s * (d != 1) for d, s in enumerate(contiguous_strides(shape))], 0),
}
OUT_VIEWS = ("guarded", "fused", "rows padded unevenly", "channels outermost", "every other element")


def strided(kind: str, tensor):
    """The values of a contiguous tensor in another place. Expanded views repeat the first entry's."""
    strides, offset = VIEWS[kind](tensor.shape)
    reach = offset + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    memory = torch.full((reach + 1 + 8,), math.nan, dtype=tensor.dtype)
    view = memory.as_strided(tensor.shape, strides, offset)
    one = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
    view[one].copy_(tensor[one])
    return view


class Output:
    """A poisoned output of some strides, with poison all around it."""

    def __init__(self, kind: str, shape):
        strides, offset = VIEWS["contiguous" if kind == "guarded" else kind](shape)
        reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        self.memory = torch.full((2 * GUARD + reach + 1,), POISON, dtype=torch.int16)
        self.tensor = self.memory.view(torch.bfloat16).as_strided(shape, strides, GUARD + offset)

    def check(self) -> None:
        """Nothing outside was written. Spoils the output."""
        self.tensor.view(torch.int16).fill_(POISON)
        require(bool((self.memory == POISON).all()), "memory outside out was written")


# What must hold

# Relative error of a step of bfloat16: half of 2^-7 to nearest, all of it towards zero.
STEP = {"rtne": 2.0**-8, "rtna": 2.0**-8, "rtz": 2.0**-7}
# Of a score, relative to its sum of absolute products: 128 float32 operations, each off by 2^-23 at most.
SCORE_ERROR = 2.0**-16
# Of sums over keys and of exponentials and the division, relative.
SUM_ERROR = 2.0**-14
SMALLEST = 2.0**-126  # below it a float32 or bfloat16 may become zero
LARGEST = 2.0**127
# AITER's exponents are off by a unit in the last place of the scaled maximum, which large scores turn into
# Inf and NaN; a scale of 0 makes NaN of a masked tail of keys, and a negative one finds the wrong maximum.
AITERS_LARGEST = 2.0**24


@dataclasses.dataclass
class Expected:
    """Attention in float64, bhsd, and how far a right kernel may be from it.

    Attributes:
        out, lse: the answer.
        bound, lse_bound: largest deviation of each element.
        low, high: least and greatest value of v in reach of each element, with the roundings of P and O.
        finite: whether the inputs are.
        score_overflows: whether a partial sum of some score may leave float32.
        value_overflows: whether a partial sum of some output may.
        aiters: whether AITER's kernel serves the call.
        regular: whether the roundings of P and O alone decide the error.
    """

    out: torch.Tensor
    lse: torch.Tensor
    bound: torch.Tensor
    lse_bound: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    finite: bool
    score_overflows: bool
    value_overflows: bool
    aiters: bool
    regular: bool


def only_finite(tensor):
    return torch.where(tensor.isfinite(), tensor, 0)


def expected_of(q, k, v, call: Call, mask=None) -> Expected:
    """What must come out; `mask` [batch, heads, rows of q, rows of k] is False for keys that are left out."""
    scale = HEAD_DIM**-0.5 if call.scale is None else call.scale
    finite = all(bool(t.isfinite().all()) for t in (q, k, v))
    q, k, v = reference.per_head(q, k, v, call.layout, torch.float64)
    raw = only_finite(q).abs() @ only_finite(k).abs().transpose(2, 3)
    magnitude = raw * abs(scale)
    scores = q @ k.transpose(2, 3) * scale
    if mask is not None:
        scores, raw, magnitude = scores.masked_fill(~mask, -math.inf), raw * mask, magnitude * mask
    weights = torch.softmax(scores, dim=-1)
    wide = float(only_finite(v).abs().max())
    # How far each row's weights may be from the true ones: numerator and denominator. Products below the
    # smallest float32 may be lost, each of 128.
    off = 2 * (magnitude.amax(-1, keepdim=True) * SCORE_ERROR + 256 * SMALLEST * abs(scale))
    largest = float(raw.max()) * max(1.0, abs(scale) * 2)
    step = STEP[call.rounding]
    out, reach = weights @ v, weights @ v.abs()
    lost = SMALLEST * (4 + k.shape[2] * wide)
    share = torch.expm1(off.clamp(max=60)) + step + SUM_ERROR
    bound = (reach * share) * (1 + step) + out.abs() * step + lost
    slack = wide * (2 * step + 2 * SUM_ERROR) + lost
    lse = torch.logsumexp(scores, dim=-1)
    return Expected(
        out,
        lse,
        bound,
        off.squeeze(-1) + 2.0**-20 * lse.abs() + 5e-6,
        v.amin(2, keepdim=True) - slack,
        v.amax(2, keepdim=True) + slack,
        finite,
        largest >= LARGEST,
        wide * k.shape[2] * 2 >= LARGEST,
        largest < AITERS_LARGEST and scale > 0,
        bool(off.max() < 2.0**-10) and wide < 1e30 and bool(reach.max() > 1e-20),
    )


@functools.cache
def have_aiter() -> bool:
    try:
        aiter_kernel.find()
    except FileNotFoundError:
        return False
    return True


class Disagreement(AssertionError):
    """The kernel's answer is wrong."""


def require(holds, sentence: str) -> None:
    if not holds:
        raise Disagreement(sentence)


def worst(error, bound) -> str:
    """Where an error exceeds its bound most, for a message."""
    excess = torch.nan_to_num(error - bound, nan=math.inf)
    place = int(excess.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), error.shape))
    return f"(batch, head, row, channel) {index}: off by {error[index]:.3e}, allowed {bound[index]:.3e}"


def force(family: str, pieces: int | None) -> None:
    """Dense calls of this process take a kernel and a number of pieces."""
    runtime.forced_family, runtime.forced_pieces = family, pieces


def require_aiters_bits(inputs, options, out) -> None:
    if have_aiter():
        theirs = aiter_kernel.forward(*inputs, **options)
        require(torch.equal(out.isnan(), theirs.isnan()), "NaN lies elsewhere than AITER's")
        number = ~theirs.isnan()  # which of several NaN survives is not settled by bits
        require(torch.equal(bits(out)[number], bits(theirs)[number]), "bits differ from AITER's")


def require_accuracy(bhsd, lse, truth: Expected) -> None:
    """An output as [batch, heads, rows, 128] and, unless None, its LSE against float64."""
    if not truth.finite or truth.score_overflows or truth.value_overflows:
        return
    require(bool(bhsd.isfinite().all()), "finite inputs gave NaN or Inf")
    error = (bhsd.double() - truth.out).abs()
    require(bool((error <= truth.bound).all()), f"out {worst(error, truth.bound)}")
    inside = (bhsd >= truth.low) & (bhsd <= truth.high)
    require(bool(inside.all()), "an element of out is outside the range of v")
    if lse is not None:
        error = (lse.double() - truth.lse).abs()
        require(bool((error <= truth.lse_bound).all()), f"lse {worst(error, truth.lse_bound)}")


def check(call: Call) -> None:
    """Makes the call and holds its answer to everything that must hold.

    Raises:
        Disagreement: a sentence that says what does not.
    """
    values = make_inputs(call)
    views = [strided(view, tensor) for view, tensor in zip(call.views, values, strict=False)]
    inputs = [t.contiguous() for t in views]
    options = {"layout": call.layout, "rounding": call.rounding, "scale": call.scale}
    force(call.family, call.pieces)
    place = None if call.views[3] is None else Output(call.views[3], inputs[0].shape)
    before = [bits(t) for t in views]
    answer = liteattention_rocm.attention(
        *views,
        out=None if place is None else place.tensor,
        return_lse=call.return_lse,
        variant=call.variant,
        **options,
    )
    out, lse = answer if call.return_lse else (answer, None)
    kept = out.clone()
    require(all(torch.equal(a, bits(b)) for a, b in zip(before, views, strict=True)), "an input was changed")
    if place is not None:
        require(out is place.tensor, "out is not what is returned")
        require(not bool((bits(out) == POISON).any()), "an element of out was not written")
        place.check()
    if call.number % 3 == 0:
        again = liteattention_rocm.attention(*inputs, variant=call.variant, **options)
        require(same_bits(again, kept), "contiguous inputs give other bits")

    truth = expected_of(*inputs, call)
    if call.variant == "aiter_exact":
        require_aiters_bits(inputs, options, kept)
        if not truth.aiters:
            return
    bhsd = kept if call.layout == "bhsd" else kept.transpose(1, 2)
    require_accuracy(bhsd, lse, truth)
    if have_aiter() and truth.aiters:
        against_aiter(call, inputs, options, kept, bhsd, truth)


def against_aiter(call: Call, inputs, options, out, bhsd, truth: Expected) -> None:
    theirs = aiter_kernel.forward(*inputs, **options)
    if not truth.value_overflows:
        require(torch.equal(out.isnan(), theirs.isnan()), "NaN lies elsewhere than AITER's")
        infinite = theirs.isinf()
        require(torch.equal(out.isinf(), infinite), "Inf lies elsewhere than AITER's")
        require(torch.equal(bits(out)[infinite], bits(theirs)[infinite]), "Inf of another sign than AITER's")
    if truth.finite and truth.regular and out.numel() >= 2048:
        peers = theirs if call.layout == "bhsd" else theirs.transpose(1, 2)
        ours, bar = reference.rmse(bhsd, truth.out), reference.rmse(peers, truth.out)
        require(ours <= 2 * bar, f"rmse {ours:.3e}, AITER's {bar:.3e}")
