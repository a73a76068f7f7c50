"""Forward attention in Triton: bf16, head dim 128, not causal; and the walk over a skip list.

The arithmetic of csrc/device/attention.hip, tile by tile: P = 2^((S - m)·c) with the running maximum m of
unscaled scores and c = scale·log2(e), the row sum of unrounded P in float32, O divided at the end.
"""

import triton
import triton.language as tl

HEAD_DIM = 128
LOWEST = tl.constexpr(-3.4028234663852886e38)  # a row whose scores are all -Inf keeps it, and its P are 0
LIST_ROWS = tl.constexpr(128)  # query rows of a row of the lists
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
def either(a, b):
    return a | b


@triton.jit
def record(
    trace, lse_row, exists, traced_rows, tile, tiles, scores, p, packed, maximum, total, WIDE: tl.constexpr
):
    """One tile's intermediate values: see `attention.intermediates`."""
    plane = traced_rows * tiles * WIDE
    at = lse_row[:, None] * tiles * WIDE + tile * WIDE + tl.arange(0, WIDE)[None, :]
    tl.store(trace + at, scores, mask=exists[:, None])
    tl.store(trace + plane + at, p, mask=exists[:, None])
    tl.store(trace + 2 * plane + at, packed.to(tl.float32), mask=exists[:, None])
    at = 3 * plane + lse_row * tiles + tile
    tl.store(trace + at, maximum, mask=exists)
    tl.store(trace + traced_rows * tiles + at, total, mask=exists)


@triton.jit
def copied(descriptor, tile, batch, kv_head, WIDE: tl.constexpr, DESCRIBED: tl.constexpr):
    """A KV tile [WIDE, 128] by a tensor descriptor; DESCRIBED: its layout."""
    if DESCRIBED == "bshd":
        rows = descriptor.load([batch, tile * WIDE, kv_head, 0])
    else:
        rows = descriptor.load([batch, kv_head, tile * WIDE, 0])
    return rows.reshape([WIDE, 128])


@triton.jit
def visit(
    tile, q, key, value, k_row, v_row, k_offsets, v_offsets, batch, kv_head, output, maximum, total,
    scale_log2e, columns, trace, lse_row, exists, traced_rows, tiles,
    ROUNDING: tl.constexpr, INTERPRETED: tl.constexpr, WIDE: tl.constexpr, MASKED: tl.constexpr,
    DESCRIBED: tl.constexpr, FUSED: tl.constexpr, LISTED: tl.constexpr, TRACE: tl.constexpr,
):  # fmt: skip
    """One KV tile: the new accumulators, and each row's lead, in log2: its best score over earlier ones."""
    left = tl.arange(0, WIDE) < columns - tile * WIDE
    if DESCRIBED != "":
        k = copied(key, tile, batch, kv_head, WIDE, DESCRIBED)
        if LISTED:
            k = k.T
        v = copied(value, tile, batch, kv_head, WIDE, DESCRIBED)
        # Behind both copies: they then share a barrier. A listed walk has no registers left for that.
        if not LISTED:
            k = k.T
    else:
        first = tl.full((), tile, tl.int64) * WIDE
        k_at = key + first * k_row + k_offsets
        v_at = value + first * v_row + v_offsets
        if MASKED:
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
    if not FUSED:
        p = tl.math.exp2((scores - raised[:, None]) * scale_log2e)
        shrink = tl.math.exp2((maximum - raised) * scale_log2e)
    else:
        # Clamped: a row whose scores are all -Inf keeps the lowest maximum, and -Inf - -Inf is NaN.
        top = tl.maximum(raised * scale_log2e, LOWEST)
        p = tl.math.exp2(scores * scale_log2e - top[:, None])
        shrink = tl.math.exp2(tl.maximum(maximum * scale_log2e, LOWEST) - top)
    total = total * shrink + tl.sum(p, 1)
    packed = round_to_bf16(p, ROUNDING, INTERPRETED)
    output = product(packed, v, output * shrink[:, None], INTERPRETED)
    if TRACE:
        record(trace, lse_row, exists, traced_rows, tile, tiles, scores, p, packed, raised, total, WIDE)
    return output, raised, total, (highest - maximum) * scale_log2e


@triton.jit
def attention_forward(
    query, key, value, out, lse, indices, counts, votes, trace, scale, scale_log2e, threshold,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
    heads, heads_per_kv_head, rows, columns, tiles, words,
    ROUNDING: tl.constexpr, NEGATIVE: tl.constexpr, LSE: tl.constexpr, LISTED: tl.constexpr,
    BACKWARD: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
    DESCRIBED: tl.constexpr, FUSED: tl.constexpr, TRACE: tl.constexpr,
):  # fmt: skip
    """A program owns TALL query rows of one head.

    DESCRIBED: the layout of `key` and `value` where these are tensor descriptors, "" where they are pointers.
    FUSED: P = 2^(S·c - m·c) with a fused multiply-add, which for the largest score is 1 only up to the
    rounding of m·c.
    LISTED: visits the `counts` whole tiles that the row of `indices` names, in that order, and the last,
    partial tile where votes[row, words] marks it: behind them, or before them in a backward walk. Bit i of
    votes[row, w] says whether any query row wants the whole tile at place 32·w + i, votes[row, words] whether
    one wants the partial tile; a NaN wants its tile, and a threshold of NaN stands for -Inf. Votes are
    gathered per query row and exchanged between warps only once in 32 tiles. Otherwise: every tile from the
    first to the last.
    TRACE: also stores what lies between, see `record`.
    """
    query_tile, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_head = head // heads_per_kv_head
    first = query_tile.to(tl.int64) * TALL
    row = tl.arange(0, TALL)
    exists = row < rows - first
    dim = tl.arange(0, 128)
    column = tl.arange(0, WIDE)
    q_at = query + batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head + first * q_row
    q = tl.load(q_at + row[:, None] * q_row + dim[None, :], mask=exists[:, None], other=0.0)
    if NEGATIVE:  # by bits: Triton's interpreter takes bfloat16 for integers
        q = (q.to(tl.uint16, bitcast=True) ^ 0x8000).to(tl.bfloat16, bitcast=True)
    if DESCRIBED == "":
        key += batch.to(tl.int64) * k_batch + kv_head.to(tl.int64) * k_head
        value += batch.to(tl.int64) * v_batch + kv_head.to(tl.int64) * v_head
    # A tile's offsets fit 32 bits; its base does not.
    k_offsets = column[None, :] * k_row + dim[:, None]
    v_offsets = column[:, None] * v_row + dim[None, :]

    lse_row = (batch.to(tl.int64) * heads + head) * rows + first + row
    traced_rows = tl.num_programs(2).to(tl.int64) * heads * rows

    output = tl.zeros([TALL, 128], tl.float32)
    maximum = tl.full([TALL], LOWEST, tl.float32)
    total = tl.zeros([TALL], tl.float32)
    whole = columns // WIDE
    SPLITS: tl.constexpr = LIST_ROWS // TALL  # programs that share a row of the lists
    list_row = (batch.to(tl.int64) * heads + head) * tl.cdiv(rows, LIST_ROWS) + query_tile // SPLITS
    if LISTED:
        index = indices + list_row * tiles
        vote = votes + (list_row * SPLITS + query_tile % SPLITS) * (words + 1)
        ballots = tl.zeros([TALL], tl.int32)
        count = tl.load(counts + list_row)
        partial = tl.load(vote + words)
        if BACKWARD:  # noqa: SIM102 - a constant of the compilation
            if partial != 0:
                output, maximum, total, lead = visit(
                    whole, q, key, value, k_row, v_row, k_offsets, v_offsets, batch, kv_head, output, maximum,
                    total, scale_log2e, columns, trace, lse_row, exists, traced_rows, tiles,
                    ROUNDING, INTERPRETED, WIDE, True, DESCRIBED, FUSED, LISTED, TRACE,
                )  # fmt: skip
        # The next tile's place is read a tile ahead, so that a load of keys never waits for it.
        following = tl.load(index, mask=count > 0, other=0)
        for i in range(count):
            tile = following
            following = tl.load(index + tl.minimum(i + 1, count - 1))
            output, maximum, total, lead = visit(
                tile, q, key, value, k_row, v_row, k_offsets, v_offsets, batch, kv_head, output, maximum,
                total, scale_log2e, columns, trace, lse_row, exists, traced_rows, tiles,
                ROUNDING, INTERPRETED, WIDE, False, DESCRIBED, FUSED, LISTED, TRACE,
            )  # fmt: skip
            # Two ways to say the same: for either direction the one with which ptxas needs fewer registers.
            if BACKWARD:
                ballots |= (((lead <= threshold) == 0) & exists).to(tl.int32) << (i & 31)
            else:
                ballots = tl.where(lead <= threshold, ballots, ballots | (1 << (i & 31)))
            if ((i & 31) == 31) | (i == count - 1):
                if not BACKWARD:
                    ballots = tl.where(exists, ballots, 0)
                tl.store(vote + (i >> 5), tl.reduce(ballots, 0, either))
                ballots = tl.zeros([TALL], tl.int32)
        if not BACKWARD:  # noqa: SIM102
            if partial != 0:
                output, maximum, total, lead = visit(
                    whole, q, key, value, k_row, v_row, k_offsets, v_offsets, batch, kv_head, output, maximum,
                    total, scale_log2e, columns, trace, lse_row, exists, traced_rows, tiles,
                    ROUNDING, INTERPRETED, WIDE, True, DESCRIBED, FUSED, LISTED, TRACE,
                )  # fmt: skip
                tl.store(vote + words, tl.max((((lead <= threshold) == 0) & exists).to(tl.int32), 0))
    else:
        for tile in range(whole):
            output, maximum, total, lead = visit(
                tile, q, key, value, k_row, v_row, k_offsets, v_offsets, batch, kv_head, output, maximum,
                total, scale_log2e, columns, trace, lse_row, exists, traced_rows, tiles,
                ROUNDING, INTERPRETED, WIDE, False, DESCRIBED, FUSED, LISTED, TRACE,
            )  # fmt: skip
        if whole * WIDE < columns:
            output, maximum, total, lead = visit(
                whole, q, key, value, k_row, v_row, k_offsets, v_offsets, batch, kv_head, output, maximum,
                total, scale_log2e, columns, trace, lse_row, exists, traced_rows, tiles,
                    ROUNDING, INTERPRETED, WIDE, True, DESCRIBED, FUSED, LISTED, TRACE,
            )  # fmt: skip

    empty = total == 0.0
    denominator = tl.where(empty, 1.0, total)
    result = tl.where(empty[:, None], 0.0, output / denominator[:, None])
    o_at = out + batch.to(tl.int64) * o_batch + head.to(tl.int64) * o_head + first * o_row
    o_at += row[:, None] * o_row + dim[None, :]
    tl.store(o_at, round_output(result, ROUNDING, INTERPRETED), mask=exists[:, None])
    if LSE:
        if not FUSED:
            log_sum = maximum * scale + tl.math.log2(total) * LN2
        else:
            log_sum = (maximum * scale_log2e + tl.math.log2(total)) * LN2
        tl.store(lse + lse_row, log_sum, mask=exists)


@triton.jit
def unpack_list(
    read_list, indices, counts, votes, tiles, words, whole,
    SPLITS: tl.constexpr, BACKWARD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One list row a program: the whole tiles that are set, in the order of the walk, and their number.

    votes[row, split, words] becomes whether the partial last tile is set, for each of the programs that share
    the row. A list that names no tile is taken for one that names tile 0.
    """
    row = tl.program_id(0).to(tl.int64)
    count = 0
    for start in range(0, whole, CHUNK):
        place = start + tl.arange(0, CHUNK)
        tile = whole - 1 - place if BACKWARD else place
        bits = tl.load(read_list + row * words + tile // 32, mask=place < whole, other=0)
        chosen = (bits >> (tile % 32)) & 1
        before = tl.cumsum(chosen, 0) - chosen
        tl.store(indices + row * tiles + count + before, tile, mask=chosen != 0)
        count += tl.sum(chosen, 0)
    marked = 0
    if whole < tiles:
        marked = (tl.load(read_list + row * words + whole // 32) >> (whole % 32)) & 1
    if count + marked == 0:
        if whole > 0:
            tl.store(indices + row * tiles, 0)
            count = 1
        else:
            marked = 1
    tl.store(counts + row, count)
    for split in range(SPLITS):
        tl.store(votes + (row * SPLITS + split) * (words + 1) + words, marked)


@triton.jit
def pack_list(
    indices, counts, votes, write_list, tiles, words, whole,
    SPLITS: tl.constexpr, PARTIAL_FIRST: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One list row a program: ORs its votes, and the first visited tile, into the row's words.

    PARTIAL_FIRST: a partial tile is visited before the whole ones, so that its mark in `votes` is the one
    that unpack_list left.
    """
    row = tl.program_id(0).to(tl.int64)
    vote = votes + row * SPLITS * (words + 1)
    count = tl.load(counts + row)
    marked = tl.load(vote + words)
    for split in range(1, SPLITS):
        marked |= tl.load(vote + split * (words + 1) + words)
    if count == 0:
        marked = 1
    first = marked if PARTIAL_FIRST else 0
    for start in range(0, count, CHUNK):
        place = start + tl.arange(0, CHUNK)
        listed = place < count
        tile = tl.load(indices + row * tiles + place, mask=listed, other=0)
        bits = tl.load(vote + place // 32, mask=listed, other=0)
        for split in range(1, SPLITS):
            bits |= tl.load(vote + split * (words + 1) + place // 32, mask=listed, other=0)
        kept = ((bits >> (place % 32)) & 1) | ((place + first) == 0).to(tl.int32)
        tl.atomic_or(write_list + row * words + tile // 32, kept << (tile % 32), mask=listed & (kept != 0))
    if marked != 0:
        tl.atomic_or(write_list + row * words + whole // 32, 1 << (whole % 32))
