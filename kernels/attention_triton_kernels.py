"""Paged attention on a GPU: one split of KV × a tile of queries, merged in order of splits.

Every query's state over a split (top score, sum of weights, weighted values) comes out of `_split_state`: the same
tile shapes, the same order of keys, whether one query reads the split or many. `attend_items` stores these states
and `merge_states` puts them together; `attend_chunks` keeps them in registers and merges as it goes, with the same
`_merge`. Products and sums that both kernels take are written as one `fma` each, so that no compiler may choose.

States are in base 2: `top` is max(score · log2 e), `total` = Σ 2^(score·log2 e − top). A state of no keys is
(−∞, 0, 0), which merges as nothing.

A tile of queries is (row, query head) pairs of one KV head, row by row. Offsets into pools are 64 bits wide.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _capped(scores, soft_cap):
    """soft_cap · tanh(score / soft_cap), all in base 2: tanh(x) = 1 − 2 / (1 + e^2x), e^2x = 2^(2·x·log2 e)."""
    return soft_cap * (1.0 - 2.0 / (1.0 + tl.exp2(scores * (2.8853900817779268 / soft_cap))))


@triton.jit
def _split_state(
    q,
    first,
    count,
    pages,
    by_slot,
    k_head,
    v_head,
    scale,
    soft_cap,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """State of queries q [QUERIES, DIM] over tokens [first, count) of a split, in the slots that `pages` lists.

    `pages` holds ids of pages, or of single slots where `by_slot`. Lanes without a query have first ≥ count.
    WIDEN is for the interpreter (`triton_mode.is_interpreted`).
    """
    if WIDEN:
        q = q.to(tl.float32)
    dims = tl.arange(0, DIM)
    in_head = (dims < HEAD_DIM)[None, :]
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.full([QUERIES], 0.0, tl.float32)
    values = tl.full([QUERIES, DIM], 0.0, tl.float32)
    end = tl.max(count, 0)
    begin = tl.min(first, 0) // KEYS * KEYS  # a multiple of KEYS: tiles lie at fixed positions
    for start in range(begin, end, KEYS):
        tokens = start + tl.arange(0, KEYS)
        there = tokens < end
        index = tl.where(by_slot, tokens, tokens // PAGE_SIZE)
        listed = tl.load(pages + index, mask=there, other=0).to(tl.int64)
        slot = tl.where(by_slot, listed, listed * PAGE_SIZE + tokens % PAGE_SIZE)
        offset = slot[:, None] * TOKEN_STRIDE + dims[None, :]
        loaded = there[:, None] & in_head
        k = tl.load(k_head + offset, mask=loaded, other=0.0)
        if WIDEN:
            k = k.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if HAS_CAP:
            scores = _capped(scores * scale, soft_cap) * 1.4426950408889634
        else:
            scores = scores * (scale * 1.4426950408889634)
        seen = (tokens[None, :] >= first[:, None]) & (tokens[None, :] < count[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - safe[:, None])
        kept = tl.exp2(top - safe)
        total = tl.fma(total, kept, tl.sum(weights, 1))
        v = tl.load(v_head + offset, mask=loaded, other=0.0)
        weights = weights.to(v.dtype)
        if WIDEN:
            weights = weights.to(tl.float32)
            v = v.to(tl.float32)
        values = tl.dot(weights, v, values * kept[:, None], input_precision="ieee")
        top = new_top
    return top, total, values


@triton.jit
def _merge(top, total, values, more_top, more_total, more_values):
    """The state of all keys so far and the next split's."""
    new_top = tl.maximum(top, more_top)
    safe = tl.where(new_top == float("-inf"), 0.0, new_top)
    kept = tl.exp2(top - safe)
    factor = tl.exp2(more_top - safe)
    total = tl.fma(more_total, factor, total * kept)
    spread = tl.broadcast_to(factor[:, None], more_values.shape)
    values = tl.fma(more_values, spread, values * kept[:, None])
    return new_top, total, values


@triton.jit
def _normalised(total, values):
    """Weighted values over the sum of weights; zero where nothing was seen."""
    return tl.where((total > 0.0)[:, None], values / tl.where(total > 0.0, total, 1.0)[:, None], 0.0)


@triton.jit
def attend_items(
    q,
    k_pages,
    v_pages,
    partial,
    stats,
    counts,
    tile_item,
    tile_query,
    item_page_start,
    item_pages,
    item_unit,
    item_start,
    entry_row,
    entry_first,
    entry_count,
    entry_pair,
    scale,
    soft_cap,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One tile of one item's queries for one KV head: their states over the item's split.

    A program beyond `counts[0]` tiles does nothing, so that a captured launch serves any plan that fits.
    """
    GROUP: tl.constexpr = Q_HEADS // KV_HEADS
    tile = tl.program_id(0) // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    if tile >= tl.load(counts):
        return
    item = tl.load(tile_item + tile)
    start = tl.load(item_start + item)
    queries = tl.load(tile_query + tile) + tl.arange(0, QUERIES)
    entry = start + queries // GROUP
    real = entry < tl.load(item_start + item + 1)
    head = kv_head * GROUP + queries % GROUP
    row = tl.load(entry_row + entry, mask=real, other=0).to(tl.int64)
    pair = tl.load(entry_pair + entry, mask=real, other=0).to(tl.int64)
    first = tl.load(entry_first + entry, mask=real, other=2147483647)
    count = tl.load(entry_count + entry, mask=real, other=0)
    dims = tl.arange(0, DIM)
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(q + (row * Q_HEADS + head)[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    top, total, values = _split_state(
        query,
        first,
        count,
        item_pages + tl.load(item_page_start + item),
        tl.load(item_unit + item) == 1,
        k_pages + kv_head * HEAD_DIM,
        v_pages + kv_head * HEAD_DIM,
        scale,
        soft_cap,
        QUERIES,
        KEYS,
        DIM,
        HEAD_DIM,
        KV_HEADS * HEAD_DIM,
        PAGE_SIZE,
        HAS_CAP,
        WIDEN,
    )
    at = pair * Q_HEADS + head
    tl.store(stats + 2 * at, top, mask=real)
    tl.store(stats + 2 * at + 1, total, mask=real)
    tl.store(partial + at[:, None] * HEAD_DIM + dims[None, :], values, mask=inside)


@triton.jit
def merge_states(
    partial,
    stats,
    out,
    counts,
    merge_row,
    pair_begin,
    pair_end,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    Q_HEADS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """One row's states [pair_begin, pair_end) in order, for HEADS query heads; AHEAD of them are fetched at once."""
    BLOCKS: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS
    index = tl.program_id(0) // BLOCKS
    head = tl.program_id(0) % BLOCKS * HEADS + tl.arange(0, HEADS)
    if index >= tl.load(counts + 1):
        return
    begin = tl.load(pair_begin + index)
    end = tl.load(pair_end + index)
    dims = tl.arange(0, DIM)
    real = head < Q_HEADS
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.full([HEADS], 0.0, tl.float32)
    values = tl.full([HEADS, DIM], 0.0, tl.float32)
    for block in range(begin, end, AHEAD):
        for step in tl.static_range(AHEAD):
            pair = tl.full([HEADS], 0, tl.int64) + (block + step)
            there = real & (pair < end)
            at = pair * Q_HEADS + head
            more_top = tl.load(stats + 2 * at, mask=there, other=float("-inf"))
            more_total = tl.load(stats + 2 * at + 1, mask=there, other=0.0)
            place = partial + at[:, None] * HEAD_DIM + dims[None, :]
            more_values = tl.load(place, mask=inside & there[:, None], other=0.0)
            top, total, values = _merge(top, total, values, more_top, more_total, more_values)
    row = tl.load(merge_row + index).to(tl.int64)
    place = out + (row * Q_HEADS + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(place, _normalised(total, values).to(out.dtype.element_ty), mask=inside)


@triton.jit
def attend_chunks(
    q,
    k_pages,
    v_pages,
    out,
    counts,
    chunk_tile,
    chunk_tile_query,
    chunk_row,
    chunk_rows,
    chunk_position,
    chunk_page_start,
    chunk_pages,
    window,
    scale,
    soft_cap,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    HAS_CAP: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One tile of a chunk's queries (rows at consecutive positions of one sequence) for one KV head.

    A row at position p sees (p − window, p]; without a window, `window` is larger than any position.
    """
    GROUP: tl.constexpr = Q_HEADS // KV_HEADS
    tile = tl.program_id(0) // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    if tile >= tl.load(counts + 2):
        return
    chunk = tl.load(chunk_tile + tile)
    queries = tl.load(chunk_tile_query + tile) + tl.arange(0, QUERIES)
    step = queries // GROUP
    real = step < tl.load(chunk_rows + chunk)
    head = kv_head * GROUP + queries % GROUP
    row = (tl.load(chunk_row + chunk) + step).to(tl.int64)
    position = tl.load(chunk_position + chunk) + step
    dims = tl.arange(0, DIM)
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    place = (row * Q_HEADS + head)[:, None] * HEAD_DIM + dims[None, :]
    query = tl.load(q + place, mask=inside, other=0.0)
    low = tl.where(real, tl.maximum(position - window + 1, 0), 2147483647)
    high = tl.where(real, position + 1, 0)
    pages = chunk_pages + tl.load(chunk_page_start + chunk)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.full([QUERIES], 0.0, tl.float32)
    values = tl.full([QUERIES, DIM], 0.0, tl.float32)
    for begin in range(tl.min(low, 0) // SPLIT * SPLIT, tl.max(high, 0), SPLIT):
        more_top, more_total, more_values = _split_state(
            query,
            tl.maximum(low - begin, 0),
            tl.minimum(high - begin, SPLIT),
            pages + begin // PAGE_SIZE,
            False,
            k_pages + kv_head * HEAD_DIM,
            v_pages + kv_head * HEAD_DIM,
            scale,
            soft_cap,
            QUERIES,
            KEYS,
            DIM,
            HEAD_DIM,
            KV_HEADS * HEAD_DIM,
            PAGE_SIZE,
            HAS_CAP,
            WIDEN,
        )
        top, total, values = _merge(top, total, values, more_top, more_total, more_values)
    tl.store(out + place, _normalised(total, values).to(out.dtype.element_ty), mask=inside)
