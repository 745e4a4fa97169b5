"""Draws for a GPU. Nothing in a row's draw knows another row, and every sum has one order.

    edit_kernel        few programs   penalties and biases, into a copy of the rows
    candidates_kernel  rows × blocks  mask, ends and bans; the block's largest logit and what the end weighs in it
    settle_kernel      rows           joins the blocks: the largest logit, the end's mass, whether the row is broken
    cut_kernel         rows           top-k and top-p as a lowest (logit, place); rows without them leave at once
    race_kernel        rows × blocks  the first of each block to finish
    pick_kernel        rows           the first of all

Bytes a row: the logits read, candidates written and read once (twelve times vocab), and once more for each of some 30
halvings of the interval in which the cut lies, from the cache, where there is one to find.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from forktree.kernels.checks import check_tensor
from forktree.kernels.sampling import BROKEN_ROW, DRAWN, NOTHING_LEFT, DrawInputs, Drawn, Edits
from forktree.kernels.triton_aot import POINTER_TYPES, AotSpec

BLOCK = 4096
_EDITS = 256

_BROKEN = tl.constexpr(BROKEN_ROW)
_NOTHING = tl.constexpr(NOTHING_LEFT)
_DRAWN = tl.constexpr(DRAWN)
_LOWEST_KEY = tl.constexpr(-(1 << 31))
_LAST_PLACE = tl.constexpr((1 << 31) - 1)


@triton.jit
def edit_kernel(adjusted, width, starts, tokens, penalties, lowered, biases, SIZE: tl.constexpr):
    """One token is in one lane alone, so that reading and writing the same place is safe."""
    draw = tl.program_id(0)
    first = tl.load(starts + draw)
    last = tl.load(starts + draw + 1)
    for start in range(first, last, SIZE):
        at = start + tl.arange(0, SIZE)
        there = at < last
        token = tl.load(tokens + at, mask=there, other=0)
        place = adjusted + draw.to(tl.int64) * width + token
        penalty = tl.load(penalties + at, mask=there, other=1.0)
        x = tl.load(place, mask=there, other=0.0)
        x = tl.where(x > 0, tl.div_rn(x, penalty), x * penalty)
        x = x - tl.load(lowered + at, mask=there, other=0.0)
        x = x + tl.load(biases + at, mask=there, other=0.0)
        tl.store(place, x, mask=there)


@triton.jit
def candidates_kernel(
    logits,
    stride,
    rows,
    masks,
    words,
    ends,
    banned,
    candidates,
    block_top,
    block_broken,
    outside_top,
    outside_sum,
    width,
    vocab_size,
    NUM_ENDS: tl.constexpr,
    NUM_BANNED: tl.constexpr,
    SIZE: tl.constexpr,
):
    draw = tl.program_id(0)
    block = tl.program_id(1)
    ids = block * SIZE + tl.arange(0, SIZE)
    row = tl.load(rows + draw).to(tl.int64)
    x = tl.load(logits + row * stride + ids, mask=ids < width, other=float("-inf"))
    known = (ids < vocab_size) & (ids < width)
    word = tl.load(masks + draw.to(tl.int64) * words + ids // 32, mask=known & (ids < words * 32), other=0)
    legal = known & (((word >> (ids % 32)) & 1) != 0)
    is_banned = ids < 0
    for i in tl.static_range(NUM_ENDS):
        legal = legal & (ids != tl.load(ends + draw * NUM_ENDS + i))
    for i in tl.static_range(NUM_BANNED):
        is_banned = is_banned | (ids == tl.load(banned + draw * NUM_BANNED + i))
    outside = known & (legal == 0) & (is_banned == 0)
    legal = legal & (is_banned == 0)
    x = tl.where(x == 0.0, 0.0, x)  # −0 and 0 are one value with two bit patterns
    is_broken = (x < float("inf")) == 0
    chosen = tl.where(legal & (is_broken == 0), x, float("-inf"))
    tl.store(candidates + draw.to(tl.int64) * (width + 1) + ids, chosen, mask=ids < width)
    at = draw * tl.num_programs(1) + block
    tl.store(block_top + at, tl.max(chosen, 0))
    tl.store(block_broken + at, tl.max(is_broken.to(tl.int32), 0))
    left = tl.where(outside & (is_broken == 0), x, float("-inf"))
    top = tl.max(left, 0)
    safe = tl.where(top > float("-inf"), top, 0.0)
    tl.store(outside_top + at, top)
    tl.store(outside_sum + at, tl.sum(tl.exp((left - safe).to(tl.float64)), 0))


@triton.jit
def settle_kernel(
    logits,
    stride,
    rows,
    ends,
    candidates,
    block_top,
    block_broken,
    outside_top,
    outside_sum,
    row_top,
    status,
    end_token,
    end_id,
    width,
    vocab_size,
    num_blocks,
    NUM_ENDS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    draw = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    at = draw * num_blocks + block
    there = block < num_blocks
    top = tl.max(tl.load(block_top + at, mask=there, other=float("-inf")), 0)
    broken = tl.max(tl.load(block_broken + at, mask=there, other=0), 0)
    tops = tl.load(outside_top + at, mask=there, other=float("-inf"))
    highest = tl.max(tops, 0)
    safe = tl.where(highest > float("-inf"), highest, 0.0)
    sums = tl.load(outside_sum + at, mask=there, other=0.0) * tl.exp((tops - safe).to(tl.float64))
    total = tl.sum(sums, 0)
    mass = tl.where(total > 0, highest.to(tl.float64) + tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))
    base = logits + tl.load(rows + draw).to(tl.int64) * stride
    best = tl.full((), -1, tl.int32)
    best_value = tl.full((), float("-inf"), tl.float32)
    lowest = tl.full((), 2147483647, tl.int32)
    for i in tl.static_range(NUM_ENDS):
        token = tl.load(ends + draw * NUM_ENDS + i)
        is_known = (token >= 0) & (token < vocab_size) & (token < width)
        value = tl.load(base + token, mask=is_known, other=float("-inf"))
        wins = is_known & ((best < 0) | (value > best_value) | ((value == best_value) & (token < best)))
        best = tl.where(wins, token, best)
        best_value = tl.where(wins, value, best_value)
        lowest = tl.where(is_known, tl.minimum(lowest, token), lowest)
    weight = tl.where(best >= 0, mass.to(tl.float32), float("-inf"))
    weight = tl.where(weight == 0.0, 0.0, weight)
    tl.store(candidates + draw.to(tl.int64) * (width + 1) + width, weight)
    top = tl.maximum(top, weight)
    tl.store(row_top + draw, top)
    tl.store(end_token + draw, best)
    tl.store(end_id + draw, lowest)
    tl.store(status + draw, tl.where(broken > 0, _BROKEN, tl.where(top > float("-inf"), _DRAWN, _NOTHING)))


@triton.jit
def _key(x):
    """int32 that orders as the float32 does."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _weight(x, top, temperature):
    return tl.exp((x.to(tl.float64) - top.to(tl.float64)) / temperature)


@triton.jit
def _amount(row, num, lowest, cut_key, cut_place, top, temperature, IS_MASS: tl.constexpr, SIZE: tl.constexpr):
    """How many candidates are at least `lowest`, or their weight; of those that a cut has left, in blocks in order."""
    amount = tl.zeros((), tl.float64)
    for start in range(0, num, SIZE):
        place = start + tl.arange(0, SIZE)
        x = tl.load(row + place, mask=place < num, other=float("-inf"))
        key = _key(x)
        kept = (x > float("-inf")) & (key >= lowest)
        kept = kept & ((key > cut_key) | ((key == cut_key) & (place <= cut_place)))
        if IS_MASS:
            amount += tl.sum(tl.where(kept, _weight(x, top, temperature), 0.0), 0)
        else:
            amount += tl.sum(kept.to(tl.int32), 0).to(tl.float64)
    return amount


@triton.jit
def _find_cut(row, num, wanted, cut_key, cut_place, top, temperature, IS_MASS: tl.constexpr, SIZE: tl.constexpr):
    """The highest (key, lowest place of it) down to which the amount reaches `wanted`; the old cut if it never does."""
    low = _LOWEST_KEY + tl.zeros((), tl.int64)
    high = _key(top).to(tl.int64) + 1
    while high - low > 1:
        middle = low + (high - low) // 2
        enough = _amount(row, num, middle, cut_key, cut_place, top, temperature, IS_MASS, SIZE) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    above = _amount(row, num, low + 1, cut_key, cut_place, top, temperature, IS_MASS, SIZE)
    last = tl.full((), _LAST_PLACE, tl.int32)
    seen = tl.zeros((), tl.int32)
    for start in range(0, num, SIZE):
        place = start + tl.arange(0, SIZE)
        x = tl.load(row + place, mask=place < num, other=float("-inf"))
        key = _key(x)
        equal = (x > float("-inf")) & (key == low) & ((key > cut_key) | (place <= cut_place))
        count = seen + tl.cumsum(equal.to(tl.int32), 0)
        share = count.to(tl.float64)
        if IS_MASS:
            share = share * _weight(x, top, temperature)
        reached = equal & (above + share >= wanted)
        last = tl.minimum(last, tl.min(tl.where(reached, place, _LAST_PLACE), 0))
        seen += tl.sum(equal.to(tl.int32), 0)
    found = low > _LOWEST_KEY
    key = tl.where(found, low, cut_key.to(tl.int64)).to(tl.int32)
    return key, tl.where(found, last, cut_place)


@triton.jit
def cut_kernel(
    candidates, row_top, temperatures, top_ks, top_ps, statuses, cut_keys, cut_places, width, SIZE: tl.constexpr
):
    draw = tl.program_id(0)
    row = candidates + draw.to(tl.int64) * (width + 1)
    top = tl.load(row_top + draw)
    temperature = tl.load(temperatures + draw)
    top_k = tl.load(top_ks + draw)
    top_p = tl.load(top_ps + draw)
    key = tl.full((), _LOWEST_KEY, tl.int32)
    place = tl.full((), _LAST_PLACE, tl.int32)
    if (temperature > 0) & (tl.load(statuses + draw) == _DRAWN):
        if top_k > 0:
            key, place = _find_cut(row, width + 1, top_k.to(tl.float64), key, place, top, temperature, False, SIZE)
        if top_p < 1.0:
            total = _amount(row, width + 1, _LOWEST_KEY, key, place, top, temperature, True, SIZE)
            key, place = _find_cut(row, width + 1, top_p * total, key, place, top, temperature, True, SIZE)
    tl.store(cut_keys + draw, key)
    tl.store(cut_places + draw, place)


@triton.jit
def _hash(x, first, second):
    x = x ^ first
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    x = x ^ (x >> 16)
    x = x ^ second
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _exponential(ids, keys):
    """−log(1 − u), accurate for small u: log(v) · u / (1 − v) with v = 1 − u as it rounds (W. Kahan)."""
    ids = ids.to(tl.uint32)
    first = tl.load(keys).to(tl.uint32, bitcast=True)
    second = tl.load(keys + 1).to(tl.uint32, bitcast=True)
    third = tl.load(keys + 2).to(tl.uint32, bitcast=True)
    fourth = tl.load(keys + 3).to(tl.uint32, bitcast=True)
    high = _hash(ids, first, second).to(tl.float64) * 2.3283064365386963e-10
    u = high + (_hash(ids, third, fourth).to(tl.float64) + 0.5) * 5.421010862427522e-20
    u = tl.minimum(u, 0.9999999999999999)
    v = 1.0 - u
    rounded = 1.0 - v
    return tl.where(rounded > 0, -tl.log(v) * (u / tl.where(rounded > 0, rounded, 1.0)), u)


@triton.jit
def race_kernel(
    candidates,
    row_top,
    temperatures,
    min_ps,
    keys,
    end_id,
    cut_keys,
    cut_places,
    block_time,
    block_place,
    width,
    SIZE: tl.constexpr,
):
    draw = tl.program_id(0)
    block = tl.program_id(1)
    place = block * SIZE + tl.arange(0, SIZE)
    x = tl.load(candidates + draw.to(tl.int64) * (width + 1) + place, mask=place <= width, other=float("-inf"))
    temperature = tl.load(temperatures + draw)
    if temperature > 0:
        key = _key(x)
        cut_key = tl.load(cut_keys + draw)
        kept = (key > cut_key) | ((key == cut_key) & (place <= tl.load(cut_places + draw)))
        top = tl.load(row_top + draw)
        safe = tl.where(top > float("-inf"), top, 0.0)
        weight = tl.where(kept & (x > float("-inf")), _weight(x, safe, temperature), 0.0)
        kept = (weight > 0) & (weight >= tl.load(min_ps + draw))
        ids = tl.where(place == width, tl.load(end_id + draw), place)
        time = tl.where(kept, _exponential(ids, keys + draw * 4) / tl.where(kept, weight, 1.0), float("inf"))
    else:
        time = -x.to(tl.float64)
    first = tl.min(time, 0)
    at = draw * tl.num_programs(1) + block
    tl.store(block_time + at, first)
    tl.store(block_place + at, tl.min(tl.where(time == first, place, _LAST_PLACE), 0))


@triton.jit
def pick_kernel(
    candidates,
    block_time,
    block_place,
    end_token,
    status,
    token,
    logit,
    width,
    num_blocks,
    BLOCKS: tl.constexpr,
):
    draw = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    there = block < num_blocks
    time = tl.load(block_time + draw * num_blocks + block, mask=there, other=float("inf"))
    place = tl.load(block_place + draw * num_blocks + block, mask=there, other=_LAST_PLACE)
    winner = tl.min(tl.where(time == tl.min(time, 0), place, _LAST_PLACE), 0)
    is_drawn = tl.load(status + draw) == _DRAWN
    winner = tl.where(is_drawn, winner, 0)
    tl.store(token + draw, tl.where(is_drawn & (winner == width), tl.load(end_token + draw), winner))
    tl.store(logit + draw, tl.load(candidates + draw.to(tl.int64) * (width + 1) + winner))


def edit_logits_(adjusted: torch.Tensor, edits: Edits) -> torch.Tensor:
    """Penalise and bias [draws, width] float32 in place; returns it."""
    check_tensor("adjusted", adjusted, (len(edits.start) - 1, None), torch.float32)
    if len(adjusted):
        edit_kernel[(len(adjusted),)](
            adjusted,
            adjusted.shape[1],
            edits.start,
            edits.token,
            edits.penalty,
            edits.lowered,
            edits.bias,
            SIZE=_EDITS,
        )
    return adjusted


def draw_tokens(logits: torch.Tensor, inputs: DrawInputs, *, vocab_size: int, block: int = BLOCK) -> Drawn:
    """`kernels.sampling.draw_tokens` on a device; nothing waits for it.

    Args:
        block: ids of one program: it decides nothing but rounding in sums of float64.
    Raises:
        ShapeError: shapes or types that do not fit.
    """
    check_tensor("logits", logits, (None, None), torch.float32)
    draws, width, device = inputs.num_draws, logits.shape[1], logits.device
    check_tensor("masks", inputs.masks, (draws, None), torch.int32)
    check_tensor("keys", inputs.keys, (draws, 4), torch.int32)
    token = torch.empty(draws, dtype=torch.int32, device=device)
    logit = torch.empty(draws, dtype=torch.float32, device=device)
    status = torch.empty(draws, dtype=torch.int32, device=device)
    if not draws:
        return Drawn(token, logit, status)
    candidates = torch.empty(draws, width + 1, dtype=torch.float32, device=device)
    row_top = torch.empty(draws, dtype=torch.float32, device=device)
    ints = torch.empty(4, draws, dtype=torch.int32, device=device)
    end_token, end_id, cut_key, cut_place = ints
    num_blocks = triton.cdiv(width, block)
    tops = torch.empty(2, draws, num_blocks, dtype=torch.float32, device=device)
    sums = torch.empty(draws, num_blocks, dtype=torch.float64, device=device)
    broken = torch.empty(draws, num_blocks, dtype=torch.int32, device=device)
    num_ends = inputs.ends.shape[1]
    candidates_kernel[(draws, num_blocks)](
        logits,
        logits.stride(0),
        inputs.rows,
        inputs.masks,
        inputs.masks.shape[1],
        inputs.ends,
        inputs.banned,
        candidates,
        tops[0],
        broken,
        tops[1],
        sums,
        width,
        vocab_size,
        NUM_ENDS=num_ends,
        NUM_BANNED=inputs.banned.shape[1],
        SIZE=block,
        num_warps=8,
    )
    settle_kernel[(draws,)](
        logits,
        logits.stride(0),
        inputs.rows,
        inputs.ends,
        candidates,
        tops[0],
        broken,
        tops[1],
        sums,
        row_top,
        status,
        end_token,
        end_id,
        width,
        vocab_size,
        num_blocks,
        NUM_ENDS=num_ends,
        BLOCKS=triton.next_power_of_2(num_blocks),
        num_warps=1,
    )
    cut_kernel[(draws,)](
        candidates,
        row_top,
        inputs.temperature,
        inputs.top_k,
        inputs.top_p,
        status,
        cut_key,
        cut_place,
        width,
        SIZE=block,
        num_warps=16,
    )
    _race(candidates, inputs, row_top, ints, width, block, token, logit, status)
    return Drawn(token, logit, status)


def _race(
    candidates: torch.Tensor,
    inputs: DrawInputs,
    row_top: torch.Tensor,
    ints: torch.Tensor,
    width: int,
    block: int,
    token: torch.Tensor,
    logit: torch.Tensor,
    status: torch.Tensor,
) -> None:
    end_token, end_id, cut_key, cut_place = ints
    draws, num_blocks = inputs.num_draws, triton.cdiv(width + 1, block)
    times = torch.empty(draws, num_blocks, dtype=torch.float64, device=candidates.device)
    places = torch.empty(draws, num_blocks, dtype=torch.int32, device=candidates.device)
    race_kernel[(draws, num_blocks)](
        candidates,
        row_top,
        inputs.temperature,
        inputs.min_p,
        inputs.keys,
        end_id,
        cut_key,
        cut_place,
        times,
        places,
        width,
        SIZE=block,
        num_warps=8,
    )
    pick_kernel[(draws,)](
        candidates,
        times,
        places,
        end_token,
        status,
        token,
        logit,
        width,
        num_blocks,
        BLOCKS=triton.next_power_of_2(num_blocks),
        num_warps=1,
    )


_FLOAT_ARGUMENTS = frozenset(
    (
        "adjusted",
        "logits",
        "candidates",
        "block_top",
        "outside_top",
        "row_top",
        "logit",
        "penalties",
        "lowered",
        "biases",
    )
)
_DOUBLE_ARGUMENTS = frozenset(("outside_sum", "temperatures", "top_ps", "min_ps", "block_time"))
_SCALARS = frozenset(("width", "stride", "words", "vocab_size", "num_blocks"))
_AOT = (
    ("edit_logits", edit_kernel, {"SIZE": _EDITS}, 4),
    ("candidates", candidates_kernel, {"NUM_ENDS": 2, "NUM_BANNED": 2, "SIZE": BLOCK}, 8),
    ("settle", settle_kernel, {"NUM_ENDS": 2, "BLOCKS": 32}, 1),
    ("cut", cut_kernel, {"SIZE": BLOCK}, 16),
    ("race", race_kernel, {"SIZE": BLOCK}, 8),
    ("pick", pick_kernel, {"BLOCKS": 32}, 1),
)


def aot_specs() -> Iterator[AotSpec]:
    """Each kernel once, for a vocabulary of some 128,000."""
    for name, kernel, constants, num_warps in _AOT:
        names = [argument for argument in kernel.arg_names if argument not in constants]
        yield AotSpec(
            name=f"draw {name}",
            kernel=kernel,
            arguments={argument: _aot_type(argument) for argument in names},
            constants=constants,
            num_warps=num_warps,
            enable_fp_fusion=True,
        )


def _aot_type(argument: str) -> str:
    if argument in _SCALARS:
        return "i32"
    if argument in _DOUBLE_ARGUMENTS:
        return "*fp64"
    return POINTER_TYPES[torch.float32 if argument in _FLOAT_ARGUMENTS else torch.int32]
