"""Draws tokens from logits, one row at a time: nothing in a draw knows the rows beside it.

    logits → penalties → bias → what may be drawn → temperature → top-k → top-p → min-p → draw
                              └ log-probabilities are those of this point, over every id

The draw is a race: token i finishes at E_i / w_i, where w_i is its weight and E_i an exponential variate that
is a hash of (seed, position, i); the first one wins, which draws i with probability w_i / Σ w. No state
passes from one draw to another, so a seeded request draws the same in any batch, in any order, after any
preemption; and a token that a mask removes moves no other token's variate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from forktree.backend.engine.messages import SampleRow, SamplerParams, TokenInfo
from forktree.kernels.logits import logsumexp_rows
from forktree.kernels.native import Native
from forktree.lang.errors import EngineError

Floats = np.ndarray[tuple[int], np.dtype[np.float32]]
Doubles = np.ndarray[tuple[int], np.dtype[np.float64]]
Ids = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

_BLOCK = 32


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What may be drawn: ids ascending, with their logits.

    Where a constrained output may end, the last candidate is the end: `end` is the token that stands for it,
    and its logit is the log of the mass of everything that would leave the language.
    """

    ids: Ids
    logits: Floats
    end: int | None = None

    def keep(self, which: Ids | Flags) -> Candidates:
        return Candidates(self.ids[which], self.logits[which], self.end)


@dataclass(frozen=True, slots=True)
class _Draw:
    """One row's outcome before its log-probability: `logit` is a token's own, or the end's mass."""

    token: int
    logit: float
    adjusted: Floats
    is_changed: bool


class Sampler:
    """Draws for one model.

    Args:
        vocab_size: ids from here on are padding of the output layer and are never drawn.
        native: for the normalisers of log-probabilities.
    """

    def __init__(self, *, vocab_size: int, native: Native | None = None) -> None:
        self._vocab_size = vocab_size
        self._native = native

    def sample(self, logits: torch.Tensor, rows: Sequence[tuple[int, SampleRow]]) -> list[TokenInfo]:
        """Draw one token for each (row of `logits`, what to draw).

        Args:
            logits: [rows, vocab] float32; not altered.
        Raises:
            EngineError: a row has a NaN or +inf, or nothing that may be drawn; the message names the row.
        """
        table: np.ndarray[tuple[int, int], np.dtype[np.float32]] = logits.detach().numpy()
        draws = [self._draw(table[row], row, what) for row, what in rows]
        norms = self._norms(logits, rows, draws)
        return [self._info(draw, what.params, norm) for draw, (_, what), norm in zip(draws, rows, norms, strict=True)]

    def _draw(self, raw: Floats, row: int, what: SampleRow) -> _Draw:
        adjusted = adjust_logits(raw, what)
        top = adjusted.max()
        if not top < np.inf:
            raise EngineError(f"row {row} of the logits holds {top}; the model's weights or its input are broken")
        candidates = find_candidates(adjusted, what, self._vocab_size)
        best = _likeliest(candidates.logits) if len(candidates.ids) else None
        if best is None or candidates.logits[best] == -np.inf:
            raise EngineError(f"row {row} has no token that may be drawn: mask, bans and bias exclude every one")
        at = best if what.params.temperature == 0 else _draw_at(candidates, what)
        return _Draw(_token(candidates, at), float(candidates.logits[at]), adjusted, adjusted is not raw)

    def _norms(self, logits: torch.Tensor, rows: Sequence[tuple[int, SampleRow]], draws: list[_Draw]) -> list[float]:
        """The log-sum-exp of each row that reports log-probabilities; 0 for the others."""
        norms = [0.0] * len(draws)
        asked = [i for i, (_, what) in enumerate(rows) if what.params.num_logprobs is not None]
        plain = [i for i in asked if not draws[i].is_changed]
        for i, norm in zip(
            plain, logsumexp_rows(logits, [rows[i][0] for i in plain], native=self._native), strict=True
        ):
            norms[i] = norm
        for i in asked:
            if draws[i].is_changed:
                (norms[i],) = logsumexp_rows(torch.from_numpy(draws[i].adjusted)[None], [0], native=self._native)
        return norms

    def _info(self, draw: _Draw, params: SamplerParams, norm: float) -> TokenInfo:
        if params.num_logprobs is None:
            return TokenInfo(draw.token)
        top = find_top(draw.adjusted[: self._vocab_size], params.num_logprobs)
        alternatives = tuple((int(i), float(draw.adjusted[i]) - norm) for i in top)
        return TokenInfo(draw.token, draw.logit - norm, alternatives)


def adjust_logits(raw: Floats, what: SampleRow) -> Floats:
    """Penalties and bias; `raw` itself where all are neutral, so that neutral values change no bit.

    Repetition counts prompt and output; frequency and presence count the output alone.
    """
    params = what.params
    repeats = params.repetition_penalty != 1.0
    counts = bool(params.frequency_penalty or params.presence_penalty) and bool(len(what.output_ids))
    if not (repeats or counts or params.logit_bias):
        return raw
    adjusted = raw.copy()
    if repeats:
        seen = _known(np.unique(np.asarray([*what.prompt_ids, *what.output_ids], dtype=np.int64)), len(raw))
        values = adjusted[seen]
        penalty = np.float32(params.repetition_penalty)
        adjusted[seen] = np.where(values > 0, values / penalty, values * penalty)
    if counts:
        ids, times = np.unique(np.asarray(what.output_ids, dtype=np.int64), return_counts=True)
        known = ids < len(raw)
        lowered_by = times * params.frequency_penalty + params.presence_penalty
        adjusted[ids[known]] -= lowered_by[known].astype(np.float32)
    for token, bias in params.logit_bias:
        if 0 <= token < len(raw):
            adjusted[token] += np.float32(bias)
    return adjusted


def find_candidates(logits: Floats, what: SampleRow, vocab_size: int) -> Candidates:
    """What may be drawn from one row."""
    width = min(len(logits), vocab_size)
    values = logits[:width]
    if what.mask is None and not what.end_ids and not what.banned_ids:
        return Candidates(np.arange(width), values)
    legal = _unpack(what.mask, width)
    ends = sorted(_known(np.asarray(sorted(what.end_ids - what.banned_ids), dtype=np.int64), width).tolist())
    banned = _known(np.asarray(sorted(what.banned_ids), dtype=np.int64), width)
    legal[ends] = False
    outside = ~legal
    legal[banned] = False
    outside[banned] = False
    ids = np.flatnonzero(legal)
    if not ends:
        return Candidates(ids, values[ids])
    end = max(ends, key=lambda token: (values[token], -token))
    mass = np.float32(_log_sum_exp(values[outside].astype(np.float64)))
    return Candidates(np.append(ids, min(ends)), np.append(values[ids], mass), end)


def find_top(values: Floats, k: int) -> Ids:
    """Indices of the k largest, largest first; the lower index first among equals."""
    k = min(k, len(values))
    if k == 0:
        return np.empty(0, dtype=np.int64)
    eligible = np.flatnonzero(values >= _lower_bound(values, k))
    found = values[eligible]
    threshold = np.partition(found, len(found) - k)[len(found) - k]
    above = eligible[found > threshold]
    chosen = np.concatenate([above, eligible[found == threshold][: k - len(above)]])
    order: Ids = chosen[np.argsort(-values[chosen], kind="stable")]
    return order


def _lower_bound(values: Floats, k: int) -> np.float32:
    """A number that at least k values reach: the k-th largest of the maxima of short blocks.

    Selecting among all values is what takes the time; few reach this bound.
    """
    num_blocks = len(values) // _BLOCK
    if k > num_blocks:
        return np.float32(-np.inf)
    maxima = values[: num_blocks * _BLOCK].reshape(num_blocks, _BLOCK).max(axis=1)
    bound: np.float32 = np.partition(maxima, num_blocks - k)[num_blocks - k]
    return bound


def truncate(candidates: Candidates, params: SamplerParams) -> tuple[Candidates, Doubles]:
    """Temperature, top-k, top-p and min-p, in this order: what is left, with weights relative to the likeliest."""
    if 0 < params.top_k < len(candidates.ids):
        candidates = candidates.keep(np.sort(find_top(candidates.logits, params.top_k)))
    logits = candidates.logits.astype(np.float64)
    weights = np.exp((logits - logits.max()) / params.temperature)
    if params.top_p < 1.0:
        kept = _nucleus(weights, params.top_p)
        candidates, weights = candidates.keep(kept), weights[kept]
    if params.min_p > 0.0:
        kept = np.flatnonzero(weights >= params.min_p * weights.max())
        candidates, weights = candidates.keep(kept), weights[kept]
    return candidates, weights


def _nucleus(weights: Doubles, top_p: float) -> Ids:
    """The fewest of the heaviest whose share reaches `top_p`; the lower index first among equals.

    Only those above (1 − top_p) / n of the whole can be among them: the others together are lighter than
    1 − top_p, so the nucleus is full before it comes to them.
    """
    total = weights.sum()
    eligible = np.flatnonzero(weights >= 0.5 * (1.0 - top_p) * total / len(weights))
    order = eligible[np.argsort(-weights[eligible], kind="stable")]
    reached = np.cumsum(weights[order]) >= top_p * total
    num_kept = int(np.argmax(reached)) + 1 if reached.any() else len(order)
    nucleus: Ids = np.sort(order[:num_kept])
    return nucleus


def _draw_at(candidates: Candidates, what: SampleRow) -> int:
    """Index, among all candidates, of the one drawn."""
    left, weights = truncate(candidates, what.params)
    winner = run_race(left.ids, weights, seed=what.params.seed, position=what.position)
    return int(np.flatnonzero(candidates.ids == left.ids[winner])[0])


def run_race(ids: Ids, weights: Doubles, *, seed: int, position: int) -> int:
    """Index of the first to finish at E / weight, E exponential and a hash of (seed, position, id).

    Few have to be run: E ≥ u, its uniform variate, so whoever has u / weight beyond the time of the heaviest
    cannot win. The high half of u decides that for nearly all.
    """
    keys = race_keys(seed, position)
    high: Doubles = _hash(ids, keys[0], keys[1]).astype(np.float64) * 2.0**-32
    heaviest = int(np.argmax(weights))
    at = np.asarray([heaviest])
    limit = _exponential(ids[at], high[at], keys)[0] / weights[heaviest]
    runners = np.flatnonzero(high <= weights * (limit * (1.0 + 1e-9)))
    runners = runners[weights[runners] > 0]
    times = _exponential(ids[runners], high[runners], keys) / weights[runners]
    return int(runners[np.argmin(times)])


def _exponential(ids: Ids, high: Doubles, keys: tuple[np.uint32, ...]) -> Doubles:
    low = _hash(ids, keys[2], keys[3])
    uniform = high + (low + 0.5) * 2.0**-64
    exponential: Doubles = -np.log1p(-np.minimum(uniform, 1.0 - 2.0**-53))
    return exponential


def race_keys(seed: int, position: int) -> tuple[np.uint32, ...]:
    """Four keys of 32 bits for the variates of one draw."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=16).digest()
    return tuple(np.frombuffer(digest, dtype="<u4"))


def _hash(ids: Ids, first: np.uint32, second: np.uint32) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """32 mixed bits of each id under two keys (twice the `lowbias32` finaliser of C. Wellons)."""
    x = ids.astype(np.uint32)
    for key in (first, second):
        x ^= key
        x ^= x >> np.uint32(16)
        x *= np.uint32(0x7FEB352D)
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x846CA68B)
        x ^= x >> np.uint32(16)
    return x


def _likeliest(values: Floats) -> int:
    """The lowest index of the largest value: ties do not depend on the library's order."""
    return int(np.argmax(values))


def _token(candidates: Candidates, at: int) -> int:
    if candidates.end is not None and at == len(candidates.ids) - 1:
        return candidates.end
    return int(candidates.ids[at])


def _unpack(mask: np.ndarray[tuple[int], np.dtype[np.int32]] | None, width: int) -> Flags:
    """Packed bits to [width] flags; ids that the mask is too narrow for are not legal."""
    if mask is None:
        return np.ones(width, dtype=np.bool_)
    bits = np.unpackbits(np.ascontiguousarray(mask, dtype="<i4").view(np.uint8), bitorder="little")[:width]
    return np.pad(bits, (0, width - len(bits))).astype(np.bool_)


def _known(ids: Ids, width: int) -> Ids:
    return ids[(ids >= 0) & (ids < width)]


def _log_sum_exp(values: Doubles) -> float:
    top = values.max(initial=-np.inf)
    if top == -np.inf:
        return -np.inf
    return float(top + np.log(np.exp(values - top).sum()))
