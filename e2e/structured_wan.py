"""A Wan2.1-T2V in diffusers layout whose attention is local in space and time and drifts over the steps.

Random weights look everywhere alike, and a trained model can't be shipped. Here queries and keys carry a
constant vector, on which the rotary embedding alone acts: the score of two tokens is then a sum of cosines of
their distances in time and height, largest at distance zero. What the tokens hold adds noise to it, and a
channel of the modulation that carries nothing but the timestep turns the queries' vector, which moves the
place a head looks at from step to step.

``python -m e2e.structured_wan`` measures, in PyTorch alone, what share of the attention is negligible.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from e2e import cpu_host, tiny_wan

LOG2_E = math.log2(math.e)
ROTARY_BASE = 10000.0
BANDS = range(1, 5)  # rotary pairs per axis that carry the constant: wavelengths of 10 to 34 tokens
CONTENT_DEVIATION = 0.5  # of a query's or key's channel, beside the constant
DRIFT_CHANNEL = 0  # of the modulated input of every self-attention
DRIFT_UNIT = 0  # of the timestep's embedding
DRIFT_GAIN, DRIFT_OFFSET = 2.0, 4.0  # keep SiLU where it is nearly linear
DRIFT_FREQUENCY = 96  # of 128: sin(t / 1000) rises over the whole schedule
LAST_TIMESTEP = 1000.0
QUERY_TILE, KEY_TILE = 128, 64


@dataclass(frozen=True)
class Head:
    """What a head looks at.

    Attributes:
        time, height: how far the score falls away from its peak, in log2 units of a weight: an axis's
            cosines go from +1 to about −1 times this.
        drift: frames that the place looked at moves from the first timestep to the last, later in the video
            being positive.
        rows: likewise, rows of tokens, downwards.
    """

    time: float
    height: float
    drift: float = 0.0
    rows: float = 0.0


KINDS = (
    Head(time=16, height=4, drift=0.6),
    Head(time=10, height=2, drift=-0.8, rows=1.0),
    Head(time=10, height=8, drift=0.3, rows=-1.0),
    Head(time=2, height=2),
    Head(time=3.5, height=3, rows=0.5),
)


@dataclass(frozen=True)
class Size:
    """Widths of a model and the request that it is made for.

    Attributes:
        grid: tokens of that request in time, height and width.
        text: width of a text token.
    """

    layers: int
    heads: int
    feed_forward: int
    grid: tuple[int, int, int]
    text: int = tiny_wan.TEXT_WIDTH


SIZES = {"tiny": Size(2, 2, 256, (13, 9, 16)), "1.3b": Size(30, 12, 8960, (21, 30, 52), 4096)}


def head_kind(layer: int, head: int) -> Head:
    """The kinds take turns over the heads, and begin one further in every layer."""
    return KINDS[(layer + head) % len(KINDS)]


def make(folder: Path, seed: int = 0, size: str = "tiny", layers: int | None = None) -> Path:
    """Writes the model to ``folder`` unless a complete one lies there, and returns the folder.

    Args:
        folder: where the diffusers pipeline goes.
        seed: seed of torch's generator for every weight.
        size: a key of :data:`SIZES`. ``1.3b`` has the configuration of Wan2.1-T2V-1.3B's transformer, 2.8 GB.
        layers: another number of layers.

    Raises:
        ValueError: an unknown size.
    """
    transformer = functools.partial(build, size, layers)
    return tiny_wan.make(folder, seed, transformer, _find(size).text)


def _find(size: str) -> Size:
    if size not in SIZES:
        raise ValueError(f"size {size!r} (allowed: {', '.join(SIZES)})")
    return SIZES[size]


def build(size: str = "tiny", layers: int | None = None) -> torch.nn.Module:
    """The transformer, in float32; random numbers come from torch's generator.

    Raises:
        ValueError: an unknown size.
    """
    shape = _find(size)
    transformer = tiny_wan.build(layers or shape.layers, shape.heads, shape.feed_forward, shape.text)
    structure(transformer)
    return transformer


def structure(transformer: torch.nn.Module) -> None:
    """Gives every self-attention of a Wan transformer its constants, in place."""
    carry_timestep(transformer)
    for layer, block in enumerate(transformer.blocks):
        kinds = [head_kind(layer, head) for head in range(block.attn1.heads)]
        with torch.no_grad():
            place_constants(block.attn1, kinds)
            # Of the input's modulation only the drift channel is left, which carries nothing else.
            block.scale_shift_table[:, :2] = 0
            block.scale_shift_table[:, 1, DRIFT_CHANNEL] = -1


def carry_timestep(transformer: torch.nn.Module) -> None:
    """Has the shift of :data:`DRIFT_CHANNEL` rise from −1/2 to 1/2 as the timestep falls from 1000 to 0."""
    embedder = transformer.condition_embedder
    first, second = embedder.time_embedder.linear_1, embedder.time_embedder.linear_2
    width = second.out_features

    def carried(timestep: float) -> float:
        frequency = ROTARY_BASE ** (-DRIFT_FREQUENCY / 128)
        unit = torch.tensor(DRIFT_GAIN * math.sin(timestep * frequency) + DRIFT_OFFSET)
        silu = torch.nn.functional.silu
        return silu(silu(unit)).item()

    start, end = carried(LAST_TIMESTEP), carried(0.0)
    slope = 1 / (end - start)
    with torch.no_grad():
        first.weight[DRIFT_UNIT] = 0
        first.weight[DRIFT_UNIT, first.in_features // 2 + DRIFT_FREQUENCY] = DRIFT_GAIN
        first.bias[DRIFT_UNIT] = DRIFT_OFFSET
        second.weight[DRIFT_UNIT] = 0
        second.weight[DRIFT_UNIT, DRIFT_UNIT] = 1
        second.bias[DRIFT_UNIT] = 0
        projection = embedder.time_proj
        projection.weight[: 2 * width] = 0  # shift and scale of the self-attention's input
        projection.bias[: 2 * width] = 0
        projection.weight[DRIFT_CHANNEL, DRIFT_UNIT] = slope
        projection.bias[DRIFT_CHANNEL] = -slope * (start + end) / 2


def place_constants(attention: torch.nn.Module, kinds: list[Head]) -> None:
    """Writes the constant vectors of ``kinds``, one per head, into the projections of Q and K."""
    width = attention.to_q.in_features
    dim = width // len(kinds)
    query, key, turning = (torch.zeros(len(kinds), dim // 2, 2) for _ in range(3))
    for head, kind in enumerate(kinds):
        for pair, frequency, score, drift in constants(kind, dim):
            # scale·|q|·|k| = score / log2 e with |q| = |k| and scale = 1/√dim
            length = math.sqrt(score / LOG2_E * math.sqrt(dim))
            query[head, pair, 0] = key[head, pair, 0] = length
            # A turn by frequency·drift moves the peak by drift tokens; to first order it adds this.
            turning[head, pair, 1] = length * frequency * drift
    for linear, constant in ((attention.to_q, query), (attention.to_k, key)):
        torch.nn.init.normal_(linear.weight, std=CONTENT_DEVIATION * width**-0.5)
        linear.weight[:, DRIFT_CHANNEL] = 0
        linear.bias.copy_(constant.flatten())
    attention.to_q.weight[:, DRIFT_CHANNEL] = turning.flatten()
    for norm, constant in ((attention.norm_q, query), (attention.norm_k, key)):
        # The root mean square that the norm will divide by.
        norm.weight.fill_(math.sqrt(constant.square().mean().item() + CONTENT_DEVIATION**2))


def constants(kind: Head, dim: int) -> Iterator[tuple[int, float, float, float]]:
    """Per rotary pair with a constant: its index, radians a token, log2 units at the peak, drift in tokens.

    Wan gives height and width each ``2·(dim // 6)`` channels and time, which comes first, the rest.
    """
    space = 2 * (dim // 6)
    time = dim - 2 * space
    for first, channels, fall, drift in (
        (0, time, kind.time, kind.drift),
        (time // 2, space, kind.height, kind.rows),
    ):
        for band in BANDS:
            yield first + band, ROTARY_BASE ** (-2 * band / channels), fall / len(BANDS), drift


def skippable(
    query: torch.Tensor, key: torch.Tensor, scale: float, thresholds: list[float], tiles: int | None = None
) -> torch.Tensor:
    """The share of 128-row x 64-column tiles in which no score comes within a threshold of its row's maximum.

    No order of visits takes part: a kernel that compares with the maximum so far skips less at first.

    Args:
        query, key: [S, D] of one head.
        scale: factor on the scores.
        thresholds: negative, in log2 units of a weight.
        tiles: look at so many query tiles, evenly spread; all of them by default.

    Returns:
        One share per threshold, 0…1.
    """
    rows, columns = len(query), len(key)
    starts = range(0, rows, QUERY_TILE)
    if tiles is not None and tiles < len(starts):
        starts = [starts[round(i * (len(starts) - 1) / (tiles - 1))] for i in range(tiles)]
    padding = -columns % KEY_TILE
    skipped = torch.zeros(len(thresholds))
    for start in starts:
        scores = query[start : start + QUERY_TILE].float() @ key.float().T * (scale * LOG2_E)
        below = scores - scores.amax(1, keepdim=True)
        below = torch.nn.functional.pad(below, (0, padding), value=-math.inf)
        best = below.unflatten(1, (-1, KEY_TILE)).amax((0, 2))
        skipped += torch.stack([(best <= threshold).float().mean() for threshold in thresholds])
    return skipped / len(starts)


class Found(Exception):
    """Ends a forward pass once every layer asked for was seen."""


def attention_inputs(
    transformer: torch.nn.Module, latents: torch.Tensor, timestep: float, layers: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Q and K [S, H, D] of the first self-attentions, with the rotary embedding, as diffusers computes them.

    Args:
        latents: [1, 16, F, h, w].
        layers: how many.
    """
    from diffusers.models.transformers import transformer_wan

    found = []
    original = transformer_wan.dispatch_attention_fn

    def watch(query, key, value, **named):
        if query.shape == key.shape:
            found.append((query[0], key[0]))
            if len(found) == layers:
                raise Found
        return original(query, key, value, **named)

    width = transformer.config.text_dim
    text = torch.zeros(1, 512, width, dtype=latents.dtype)
    transformer_wan.dispatch_attention_fn = watch
    try:
        with torch.inference_mode():
            transformer(latents, torch.tensor([timestep]), text)
    except Found:
        pass
    finally:
        transformer_wan.dispatch_attention_fn = original
    return found


def main(argv: list[str] | None = None) -> int:
    """Prints the skippable shares per head at the start, the middle and the end of the schedule."""
    parser = argparse.ArgumentParser(prog="e2e.structured_wan", description=main.__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--layers", type=int, default=1, help="how many to look at")
    parser.add_argument("--tiles", type=int, help="query tiles per head to look at; default: all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    cpu_host.prepare()
    torch.manual_seed(options.seed)
    transformer = build(options.size, options.layers).to(torch.bfloat16)
    frames, rows, columns = SIZES[options.size].grid
    latents = torch.randn(1, 16, frames, 2 * rows, 2 * columns, dtype=torch.bfloat16)
    thresholds = [-10.0, -8.0, -6.0]
    print(f"{frames * rows * columns:,} tokens; share of tiles skippable at {thresholds}")
    for timestep in (999.0, 500.0, 50.0):
        mean = torch.zeros(len(thresholds))
        for layer, (query, key) in enumerate(
            attention_inputs(transformer, latents, timestep, options.layers)
        ):
            heads = query.shape[1]
            for head in range(heads):
                shares = skippable(
                    query[:, head], key[:, head], query.shape[2] ** -0.5, thresholds, options.tiles
                )
                mean += shares / heads / options.layers
                if options.size == "tiny" or head < len(KINDS):
                    print(f"  layer {layer} head {head}: {[round(share, 3) for share in shares.tolist()]}")
        print(f"timestep {timestep:g}: {[round(share, 3) for share in mean.tolist()]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
