"""Forward attention in Triton: bf16, head dim 128, not causal; and the walk over a skip list.

The same arithmetic as csrc/device/attention.hip, tile by tile: P = 2^((S - m)·c) with the running maximum m of
unscaled scores and c = scale·log2(e), the row sum of unrounded P in float32, O divided at the end.
"""

import triton
import triton.language as tl

HEAD_DIM = 128
LOWEST = tl.constexpr(-3.4028234663852886e38)  # a row whose scores are all -Inf keeps it, and its P are 0
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def round_to_bf16(x, ROUNDING: tl.constexpr, INTERPRETED: tl.constexpr):
    """float32 to bfloat16; finite values and infinities. Triton's interpreter truncates where it converts."""
    if ROUNDING == "rtne" and not INTERPRETED:
        return x.to(tl.bfloat16)
    bits = x.to(tl.uint32, bitcast=True)
    if ROUNDING == "rtne":
        bits += 0x7FFF + ((bits >> 16) & 1)
    if ROUNDING == "rtna":
        bits += 0x8000
    return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def round_output(x, ROUNDING: tl.constexpr, INTERPRETED: tl.constexpr):
    """As round_to_bf16; a NaN becomes 0x7FFF in rtne and rtna and keeps its upper 16 bits in rtz."""
    rounded = round_to_bf16(x, ROUNDING, INTERPRETED)
    if ROUNDING == "rtz":
        return rounded
    quiet = tl.full(x.shape, 0x7FFF, tl.uint16).to(tl.bfloat16, bitcast=True)
    return tl.where(x == x, rounded, quiet)


@triton.jit
def product(a, b, c, INTERPRETED: tl.constexpr):
    """a b + c in float32. Triton's interpreter has no bf16 products."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), c)
    return tl.dot(a, b, c)


@triton.jit
def visit(
    tile, q, k_head, v_head, k_row, v_row, k_offsets, v_offsets, output, maximum, total, scale_log2e, columns,
    ROUNDING: tl.constexpr, INTERPRETED: tl.constexpr, WIDE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One KV tile: the new accumulators, and by how many log2 units its best score leads each row's earlier ones."""
    first = tl.full((), tile, tl.int64) * WIDE
    k_at = k_head + first * k_row + k_offsets
    v_at = v_head + first * v_row + v_offsets
    if MASKED:
        left = tl.arange(0, WIDE) < columns - tile * WIDE
        k = tl.load(k_at, mask=left[None, :], other=0.0)
        v = tl.load(v_at, mask=left[:, None], other=0.0)
    else:
        k = tl.load(k_at)
        v = tl.load(v_at)
    scores = product(q, k, tl.zeros([q.shape[0], WIDE], tl.float32), INTERPRETED)
    if MASKED:
        scores = tl.where(left[None, :], scores, -float("inf"))
    highest = tl.max(scores, 1)
    raised = tl.maximum(maximum, highest)
    p = tl.math.exp2((scores - raised[:, None]) * scale_log2e)
    shrink = tl.math.exp2((maximum - raised) * scale_log2e)
    total = total * shrink + tl.sum(p, 1)
    output = product(round_to_bf16(p, ROUNDING, INTERPRETED), v, output * shrink[:, None], INTERPRETED)
    return output, raised, total, (highest - maximum) * scale_log2e


@triton.jit
def forward(
    query, key, value, out, lse, indices, counts, votes, scale, scale_log2e, threshold,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
    heads, heads_per_kv_head, rows, columns, tiles,
    ROUNDING: tl.constexpr, NEGATIVE: tl.constexpr, LSE: tl.constexpr, LISTED: tl.constexpr,
    BACKWARD: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """A program owns TALL query rows of one head.

    LISTED: visits the `counts` whole tiles that the row of `indices` names, in that order, and the last, partial
    tile where votes[row, tiles - 1] marks it, as the walk's direction has it. Every row that wants a tile sets
    votes[row, tile] to 1; a NaN wants its tile, and a threshold of NaN stands for -Inf. Nothing is exchanged
    between warps. Otherwise: every tile from the first to the last.
    """
    query_tile, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    kv_head = (head // heads_per_kv_head).to(tl.int64)
    first = query_tile.to(tl.int64) * TALL
    row = tl.arange(0, TALL)
    exists = row < rows - first
    dim = tl.arange(0, 128)
    column = tl.arange(0, WIDE)
    q_at = query + batch * q_batch + head.to(tl.int64) * q_head + first * q_row
    q = tl.load(q_at + row[:, None] * q_row + dim[None, :], mask=exists[:, None], other=0.0)
    if NEGATIVE:
        q = -q
    k_base = key + batch * k_batch + kv_head * k_head
    v_base = value + batch * v_batch + kv_head * v_head
    # A tile's offsets fit 32 bits; its base does not.
    k_offsets = column[None, :] * k_row + dim[:, None]
    v_offsets = column[:, None] * v_row + dim[None, :]

    output = tl.zeros([TALL, 128], tl.float32)
    maximum = tl.full([TALL], LOWEST, tl.float32)
    total = tl.zeros([TALL], tl.float32)
    whole = columns // WIDE
    list_row = (batch * heads + head) * tl.num_programs(0) + query_tile
    if LISTED:
        index = indices + list_row * tiles
        vote = votes + list_row * tiles
        nowhere = tl.zeros([TALL], tl.int32)
        count = tl.load(counts + list_row)
        partial = 0
        visited = 0
        if whole < tiles:
            partial = tl.load(vote + whole).to(tl.int32)
        if BACKWARD:
            if partial != 0:  # visited first, so that its mark in `votes` stays
                output, maximum, total, lead = visit(
                    whole, q, k_base, v_base, k_row, v_row, k_offsets, v_offsets, output, maximum, total,
                    scale_log2e, columns, ROUNDING, INTERPRETED, WIDE, True,
                )  # fmt: skip
                visited = 1
        for i in range(count):
            tile = tl.load(index + i)
            output, maximum, total, lead = visit(
                tile, q, k_base, v_base, k_row, v_row, k_offsets, v_offsets, output, maximum, total,
                scale_log2e, columns, ROUNDING, INTERPRETED, WIDE, False,
            )  # fmt: skip
            wanted = (((lead <= threshold) == 0) & exists) | (nowhere + (i + visited) == 0)
            tl.store(vote + tile + nowhere, tl.full([TALL], 1, tl.uint8), mask=wanted)
        if not BACKWARD:
            if partial != 0:
                output, maximum, total, lead = visit(
                    whole, q, k_base, v_base, k_row, v_row, k_offsets, v_offsets, output, maximum, total,
                    scale_log2e, columns, ROUNDING, INTERPRETED, WIDE, True,
                )  # fmt: skip
                wanted = tl.max((((lead <= threshold) == 0) & exists).to(tl.int32), 0) | (count == 0)
                tl.store(vote + whole, wanted.to(tl.uint8))
    else:
        for tile in range(whole):
            output, maximum, total, lead = visit(
                tile, q, k_base, v_base, k_row, v_row, k_offsets, v_offsets, output, maximum, total,
                scale_log2e, columns, ROUNDING, INTERPRETED, WIDE, False,
            )  # fmt: skip
        if whole * WIDE < columns:
            output, maximum, total, lead = visit(
                whole, q, k_base, v_base, k_row, v_row, k_offsets, v_offsets, output, maximum, total,
                scale_log2e, columns, ROUNDING, INTERPRETED, WIDE, True,
            )  # fmt: skip

    empty = total == 0.0
    denominator = tl.where(empty, 1.0, total)
    result = tl.where(empty[:, None], 0.0, output / denominator[:, None])
    o_at = out + batch * o_batch + head.to(tl.int64) * o_head + first * o_row
    o_at += row[:, None] * o_row + dim[None, :]
    tl.store(o_at, round_output(result, ROUNDING, INTERPRETED), mask=exists[:, None])
    if LSE:
        lse_at = lse + (batch * heads + head) * rows + first + row
        tl.store(lse_at, maximum * scale + tl.math.log2(total) * LN2, mask=exists)


@triton.jit
def unpack_list(
    read_list, indices, counts, votes, tiles, words, whole, BACKWARD: tl.constexpr, WORD: tl.constexpr
):
    """One list row a program: the whole tiles that are set, in the order of the walk, and their number.

    `votes` of the row becomes 0, but for a partial last tile: there it says whether the tile is listed. A list
    that names no tile is taken for one that names tile 0.
    """
    row = tl.program_id(0).to(tl.int64)
    count = 0
    marked = 0  # the partial tile
    lane = tl.arange(0, WORD)
    for step in range(words):
        word = words - 1 - step if BACKWARD else step
        bits = tl.load(read_list + row * words + word)
        place = WORD - 1 - lane if BACKWARD else lane
        tile = word * WORD + place
        listed = (bits >> place) & 1
        chosen = listed * (tile < whole).to(tl.int32)
        before = tl.cumsum(chosen, 0) - chosen
        tl.store(indices + row * tiles + count + before, tile, mask=chosen != 0)
        partial = (tile >= whole) & (listed != 0)
        tl.store(votes + row * tiles + tile, partial.to(tl.uint8), mask=tile < tiles)
        count += tl.sum(chosen, 0)
        marked += tl.sum((partial & (tile < tiles)).to(tl.int32), 0)
    if count + marked == 0:
        if whole > 0:
            tl.store(indices + row * tiles, 0)
            count = 1
        else:
            tl.store(votes + row * tiles, tl.full((), 1, tl.uint8))
    tl.store(counts + row, count)


@triton.jit
def pack_list(votes, write_list, tiles, words, WORD: tl.constexpr):
    """One list row a program: ORs its votes into the row's words."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WORD)
    for word in range(words):
        tile = word * WORD + lane
        kept = tl.load(votes + row * tiles + tile, mask=tile < tiles, other=0).to(tl.int32)
        bits = tl.sum(kept << lane, 0)
        at = write_list + row * words + word
        tl.store(at, tl.load(at) | bits)
