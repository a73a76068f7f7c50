"""Packed sequences and skip lists for the fuzzer, drawn from a number and held to float64."""

import dataclasses
import math
import random

import torch

import liteattention_rocm
from attention_cases import LAYOUTS, ROUNDINGS
from fuzz_attention import (
    MODERATE,
    Call,
    expected_of,
    force,
    length,
    make_inputs,
    require,
    require_accuracy,
)
from liteattention_rocm import LiteAttention
from liteattention_rocm.lite import lists


def plain_call(number: int, choice: random.Random, **sizes) -> Call:
    """A call of moderate values and contiguous inputs."""
    kv_heads = choice.choice((1, 1, 2))
    return Call(
        number=number,
        heads=kv_heads * choice.choice((1, 1, 2)),
        kv_heads=kv_heads,
        rounding=choice.choice(ROUNDINGS),
        scale=choice.choice((None, None, choice.uniform(0.01, 0.5), -choice.uniform(0.01, 0.5), 0.0)),
        return_lse=True,
        variant="fast",
        family="",
        pieces=None,
        values=tuple(choice.choice(MODERATE) for _ in "qkv"),
        views=("contiguous",) * 4,
        **sizes,
    )


# Packed sequences


@dataclasses.dataclass(frozen=True)
class Packed:
    """One call of `attention_varlen`: `call` has the totals, rows_q and rows_kv the lengths."""

    call: Call
    rows_q: tuple[int, ...]
    rows_kv: tuple[int, ...]


def draw_packed(number: int) -> Packed:
    choice = random.Random(number)
    sequences = choice.randint(1, 5)
    rows_q = [choice.choice((0, 1, length(choice) % 261)) for _ in range(sequences)]
    rows_kv = [choice.choice((0, 1, length(choice) % 261)) for _ in range(sequences)]
    rows_q[-1], rows_kv[0] = rows_q[-1] or 3, rows_kv[0] or 5
    sizes = {"batch": 1, "layout": "bshd", "seqlen_q": sum(rows_q), "seqlen_kv": sum(rows_kv)}
    return Packed(plain_call(number, choice, **sizes), tuple(rows_q), tuple(rows_kv))


def cumulative(rows) -> torch.Tensor:
    return torch.tensor([0, *rows]).cumsum(0).to(torch.int32)


def check_packed(number: int) -> None:
    """Raises Disagreement where a sequence's rows are not those of a call of its own."""
    packed = draw_packed(number)
    call = packed.call
    force("", None)
    q, k, v = (tensor[0] for tensor in make_inputs(call))
    at_q, at_kv = cumulative(packed.rows_q), cumulative(packed.rows_kv)
    options = {"rounding": call.rounding, "scale": call.scale}
    longest = max(packed.rows_q), max(packed.rows_kv)
    out, lse = liteattention_rocm.attention_varlen(q, k, v, at_q, at_kv, *longest, return_lse=True, **options)
    for index in range(len(packed.rows_q)):
        of_q, of_kv = slice(*at_q[index : index + 2].tolist()), slice(*at_kv[index : index + 2].tolist())
        if of_q.start == of_q.stop:
            continue
        if of_kv.start == of_kv.stop:
            require(bool((out[of_q] == 0).all()), f"sequence {index} has no keys and another answer than 0")
            require(bool((lse[:, of_q] == -math.inf).all()), f"sequence {index} has no keys and an LSE")
            continue
        truth = expected_of(q[None, of_q], k[None, of_kv], v[None, of_kv], call)
        require_accuracy(out[None, of_q].transpose(1, 2), lse[None, :, of_q], truth)


# Skip lists


@dataclasses.dataclass(frozen=True)
class Listed:
    """One call of LiteAttention with a list of the caller's: call.pieces of each walk; None: as planned."""

    call: Call
    share: float


def draw_listed(number: int) -> Listed:
    choice = random.Random(number)
    sizes = {"batch": choice.choice((1, 1, 2)), "layout": choice.choice(LAYOUTS)}
    sizes |= {"seqlen_q": length(choice), "seqlen_kv": length(choice) + 64 * choice.choice((0, 0, 5, 40))}
    call, share = plain_call(number, choice, **sizes), choice.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    return Listed(dataclasses.replace(call, pieces=choice.choice((None, None, 2, 3, 7))), share)


def check_listed(number: int) -> None:
    """Raises Disagreement where a call is not over the listed tiles, or the list written names others."""
    listed = draw_listed(number)
    call = listed.call
    generator = torch.Generator().manual_seed(number)
    tiles_q, tiles_kv = lists.query_tiles(call.seqlen_q), lists.kv_tiles(call.seqlen_kv)
    kept = torch.rand(call.batch, call.heads, tiles_q, tiles_kv, generator=generator) < listed.share
    last = torch.randint(tiles_kv, kept.shape[:3], generator=generator)  # no list is empty
    kept.scatter_(3, last[..., None], True)
    q, k, v = make_inputs(call)
    layer = LiteAttention(threshold=-math.inf, break_even=0, layout=call.layout, rounding=call.rounding)
    layer.read_list = lists.to_ranges(lists.pack(kept), tiles_kv, 1)
    mask = kept.repeat_interleave(lists.QUERY_ROWS_PER_TILE, 2).repeat_interleave(lists.KV_ROWS_PER_TILE, 3)
    truth = expected_of(q, k, v, call, mask[:, :, : call.seqlen_q, : call.seqlen_kv])
    force(call.family, call.pieces)
    for _ in range(2):  # from either end
        out, lse = layer(q, k, v, scale=call.scale, return_softmax_lse=True)
        bhsd = out if call.layout == "bhsd" else out.transpose(1, 2)
        require_accuracy(bhsd, lse, truth)
        written = lists.unpack(*lists.from_ranges(layer.read_list, layer._phase))
        require(torch.equal(written, kept), "at a threshold of -inf the list has changed")
