"""Draws from rows of logits: penalties, masks, ends, temperature, top-k, top-p, min-p and a counter-seeded race.

The contract and the plain reference of what a GPU does; `backend/sampler.py` is the same on a CPU, one row at a time,
and draws the same tokens. Weights, sums of weights and race times are float64.

    logits ── edits ──► adjusted ── mask, ends, bans ──► candidates ── top-k, top-p, min-p, race ──► token

A candidate's place is its id. Where a constrained output may end, one more candidate stands at the last place: it
weighs what everything outside the language weighs together, and is drawn as one of the row's end tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from forktree.kernels.bitmask import unpack

DRAWN, BROKEN_ROW, NOTHING_LEFT = 0, 1, 2
"""Outcomes of a row: a token; a NaN or +inf among the logits; no token that may be drawn."""


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """Penalties and biases, a list for each draw: value → (value ≤ 0 ? value · p : value / p) − lowered + bias.

    Attributes:
        start:   [draws + 1] int32, into the others
        token:   [edits] int32, none twice in a row
        penalty: [edits] float32; lowered: [edits] float32; bias: [edits] float32
    """

    start: torch.Tensor
    token: torch.Tensor
    penalty: torch.Tensor
    lowered: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DrawInputs:
    """What to draw, all on one device.

    Attributes:
        rows:        [draws] int32 row of the logits
        masks:       [draws, words] int32, see `apply_bitmask`; all ones where everything is legal
        ends:        [draws, num_ends] int32: tokens that stand for the end, −1 behind the last; none of them banned
        banned:      [draws, num_banned] int32: tokens that may not be drawn, −1 behind the last
        temperature: [draws] float64; 0 takes the likeliest, the lowest place among equals
        top_k:       [draws] int32; 0 keeps all
        top_p, min_p: [draws] float64; 1 and 0 keep all
        keys:        [draws, 4] int32: bits of the race's keys
    """

    rows: torch.Tensor
    masks: torch.Tensor
    ends: torch.Tensor
    banned: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    keys: torch.Tensor

    @property
    def num_draws(self) -> int:
        return len(self.rows)


class Drawn(NamedTuple):
    """token [draws] int32; logit [draws] float32, the end's mass where it was drawn; status [draws] int32."""

    token: torch.Tensor
    logit: torch.Tensor
    status: torch.Tensor


def edit_logits(logits: torch.Tensor, rows: torch.Tensor, edits: Edits) -> torch.Tensor:
    """A copy [draws, width] of the rows, penalised and biased."""
    adjusted = logits[rows.long()]
    if logits.is_cuda:
        from forktree.kernels.sampling_triton import edit_logits_ as on_device

        return on_device(adjusted, edits)
    for draw in range(len(rows)):
        part = slice(int(edits.start[draw]), int(edits.start[draw + 1]))
        tokens, penalty = edits.token[part].long(), edits.penalty[part]
        values = adjusted[draw, tokens]
        values = torch.where(values > 0, values / penalty, values * penalty)
        adjusted[draw, tokens] = values - edits.lowered[part] + edits.bias[part]
    return adjusted


def draw_tokens(logits: torch.Tensor, inputs: DrawInputs, *, vocab_size: int) -> Drawn:
    """Draw one token for each entry of `inputs`.

    Args:
        logits: [rows, width] float32, adjusted; not altered
        vocab_size: ids from here on are never drawn.
    """
    if logits.is_cuda:
        from forktree.kernels.sampling_triton import draw_tokens as on_device

        return on_device(logits, inputs, vocab_size=vocab_size)
    found = list(_reference(logits, inputs, vocab_size))
    token, logit, status = zip(*found, strict=True) if found else ((), (), ())
    return Drawn(
        torch.tensor(token, dtype=torch.int32),
        torch.tensor(logit, dtype=torch.float32),
        torch.tensor(status, dtype=torch.int32),
    )


def _reference(logits: torch.Tensor, inputs: DrawInputs, vocab_size: int) -> Iterator[tuple[int, float, int]]:
    for draw in range(inputs.num_draws):
        row = logits[int(inputs.rows[draw])]
        if not bool((row < float("inf")).all()):
            yield 0, 0.0, BROKEN_ROW
            continue
        values, hash_ids, end = _candidates(row, inputs, draw, vocab_size)
        if values.max() == float("-inf"):
            yield 0, 0.0, NOTHING_LEFT
            continue
        temperature = float(inputs.temperature[draw])
        place = int(values.argmax()) if temperature == 0 else _race(values, hash_ids, inputs, draw)
        yield end if place == len(row) else place, float(values[place]), DRAWN


def _candidates(
    row: torch.Tensor, inputs: DrawInputs, draw: int, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """[width + 1] logits by place, −inf where there is no candidate; the places' ids; the token for the end."""
    width = len(row)
    legal = unpack(inputs.masks[draw : draw + 1], width, vocab_size)[0]
    known = torch.arange(width) < vocab_size
    ends = [int(token) for token in inputs.ends[draw] if 0 <= token < min(width, vocab_size)]
    banned = [int(token) for token in inputs.banned[draw] if 0 <= token < width]
    legal[ends] = False
    outside = known & ~legal
    legal[banned] = outside[banned] = False
    values = torch.full((width + 1,), float("-inf"))
    values[:width] = row.masked_fill(~legal, float("-inf"))
    hash_ids = torch.arange(width + 1)
    if not ends:
        return values, hash_ids, 0
    values[width] = torch.logsumexp(row[outside].double(), 0)
    hash_ids[width] = min(ends)
    return values, hash_ids, max(ends, key=lambda token: (float(row[token]), -token))


def _race(values: torch.Tensor, hash_ids: torch.Tensor, inputs: DrawInputs, draw: int) -> int:
    order = torch.sort(values, descending=True, stable=True).indices
    order = order[values[order] > float("-inf")]
    top_k, top_p = int(inputs.top_k[draw]), float(inputs.top_p[draw])
    if top_k > 0:
        order = order[:top_k]
    weights = torch.exp((values[order].double() - values[order[0]].double()) / inputs.temperature[draw])
    if top_p < 1.0:
        reached = weights.cumsum(0) >= top_p * weights.sum()
        num_kept = int(reached.long().argmax()) + 1 if bool(reached.any()) else len(order)
        order, weights = order[:num_kept], weights[:num_kept]
    kept = weights >= float(inputs.min_p[draw])
    order, weights = order[kept], weights[kept]
    times = exponential(hash_ids[order], inputs.keys[draw]) / weights
    return int(order[times == times.min()].min())


def exponential(ids: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Of each id a variate that is a hash of it under four 32-bit keys: float64, see `backend/sampler.py`."""
    first, second, third, fourth = (int(key) & 0xFFFFFFFF for key in keys)
    high = _hash(ids, first, second).double() * 2.0**-32
    uniform = high + (_hash(ids, third, fourth).double() + 0.5) * 2.0**-64
    return -torch.log1p(-uniform.clamp(max=1.0 - 2.0**-53))


def _hash(ids: torch.Tensor, first: int, second: int) -> torch.Tensor:
    x = ids.long() & 0xFFFFFFFF
    for key in (first, second):
        x = x ^ key
        x = x ^ (x >> 16)
        x = (x * 0x7FEB352D) & 0xFFFFFFFF
        x = x ^ (x >> 15)
        x = (x * 0x846CA68B) & 0xFFFFFFFF
        x = x ^ (x >> 16)
    return x
