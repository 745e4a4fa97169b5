"""What a forward pass costs by the number of its rows, as measured: whether a row is worth it, how long a chunk may be.

A few rows cost little more than one, because reading the weights takes the time; with many, each has its full
price. Where the one goes over into the other depends on the model, its precision and the machine, so it is
measured. Only time depends on these figures, never a result.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import NamedTuple, Protocol

from forktree.backend.engine.config import EngineConfig

_CENTERS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 90, 128, 181, 256, 362, 512, 724, 1024, 1448, 2048)
_GUESS = 4.0  # rows' worth of a pass besides its rows, where nothing else is known
_MOST = 32.0  # and the most that is believed
_MARGIN = 1.1  # a row costs a little besides the pass: it is looked for, checked and thrown away
_LEAST = 1e-3  # the least weight of a point that counts, if there is a nearer one
_RISE = 0.05  # how fast an estimate follows what takes longer; it follows at once what takes less


class Cost(NamedTuple):
    """Of a pass, in any unit, and of one more row in it."""

    whole: float
    row: float


class Costs(Protocol):
    def at(self, num_rows: float) -> Cost: ...

    def note(self, num_rows: int, seconds: float) -> None:
        """A pass over so many rows took so long."""
        ...


class FixedCosts:
    """A pass costs as much as `fixed_rows` rows, and each row."""

    def __init__(self, fixed_rows: float) -> None:
        self._fixed_rows = fixed_rows

    def at(self, num_rows: float) -> Cost:
        return Cost(self._fixed_rows + num_rows, 1.0)

    def note(self, num_rows: int, seconds: float) -> None:
        pass


def make_costs(config: EngineConfig) -> Costs:
    """Those that the configuration states, or measured ones."""
    return MeasuredCosts() if config.fixed_rows is None else FixedCosts(config.fixed_rows)


class MeasuredCosts:
    """An estimate for each of some numbers of rows, and a line through those near the number that is asked for.

    An estimate is what a pass takes when nothing disturbs it: it falls at once and rises slowly.
    """

    def __init__(self) -> None:
        self._known: dict[int, float] = {}  # seconds, by center
        self._asked: dict[float, Cost] = {}  # until more is known

    def at(self, num_rows: float) -> Cost:
        cost = self._asked.get(num_rows)
        if cost is None:
            cost = self._asked[num_rows] = self._fit(num_rows)
        return cost

    def note(self, num_rows: int, seconds: float) -> None:
        at = bisect_left(_CENTERS, num_rows)
        if at == len(_CENTERS):
            return
        if at and num_rows - _CENTERS[at - 1] < _CENTERS[at] - num_rows:
            at -= 1
        center = _CENTERS[at]
        cost = seconds * (_GUESS + center) / (_GUESS + num_rows)
        known = self._known.get(center)
        if known is not None and cost >= known:
            cost = known + _RISE * min(cost - known, known)
        self._known[center] = cost
        self._asked.clear()

    def _fit(self, num_rows: float) -> Cost:
        """Weighted least squares; a point twice or half as large weighs 1/e of one that is there, one far off nothing.

        The slope is kept between what reading the weights could hide and the average price of a row.
        """
        if not self._known:
            return Cost(_GUESS + num_rows, 1.0)
        nearest = max(_weight(at, num_rows) for at in self._known)
        least = min(nearest, _LEAST)
        points = [(at, cost, weight) for at, cost in self._known.items() if (weight := _weight(at, num_rows)) >= least]
        total = sum(weight for _, _, weight in points)
        mean_at = sum(weight * at for at, _, weight in points) / total
        mean = sum(weight * cost for _, cost, weight in points) / total
        spread = sum(weight * (at - mean_at) ** 2 for at, _, weight in points)
        guess = mean / (_GUESS + mean_at)
        row = guess
        if spread > 1e-9 * total * mean_at**2:
            row = sum(weight * (at - mean_at) * (cost - mean) for at, cost, weight in points) / spread
        row = min(max(row, mean / (_MOST + mean_at)), mean / mean_at)
        return Cost(max(mean + row * (num_rows - mean_at), guess), row)


def _weight(at: int, num_rows: float) -> float:
    return math.exp(-((math.log(at / num_rows) / math.log(2)) ** 2)) + 1e-300


def price_of_row(costs: Costs, num_rows: float, num_decoding: int) -> float:
    """What one row more than `num_rows` costs, in tokens: what decoding so many sequences yields in that time.

    A row that brings a token with this chance, or a higher one, is worth it.
    """
    return _MARGIN * costs.at(num_rows).row * num_decoding / costs.at(num_decoding).whole


def count_prefill(costs: Costs, num_decoding: int, most: int, config: EngineConfig) -> int:
    """How many tokens of prompts, at most `most`, go into a step that decodes `num_decoding` rows.

    With nothing decoding nobody is kept waiting: all of them. Otherwise as many as let the pass take at most
    `max_slowdown` times what the decodes alone would, and never fewer than are worth `min_chunk` passes of one row.

    *Why a least chunk.* Let a pass cost F rows besides its rows. Decodes of one row alone cost F + 1 each, and twice
    that is no room for a prompt: short chunks would pay F again and again. A chunk of c tokens adds F / c to the
    price of its tokens, unless its pass would have run for the decodes anyway; with c = min_chunk x (F + 1) that is
    below 1 / min_chunk, 3 % by default. With F = 3 that is 128 tokens; with F = 16, where reading weights or
    launching kernels weighs more, 544: the whole of a default step.

    *Example.* F = 3, 64 decoding, max_slowdown 4: alone they cost 67 rows, so the step may cost 268: 201 tokens.
    """
    if num_decoding == 0:
        return most
    limit = config.max_slowdown * costs.at(num_decoding).whole
    fitting = bisect_right(range(1, most + 1), limit, key=lambda count: costs.at(num_decoding + count).whole)
    lone = costs.at(1)
    return min(most, max(fitting, math.ceil(config.min_chunk * lone.whole / lone.row)))
