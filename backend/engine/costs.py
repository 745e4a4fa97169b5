"""What a forward pass costs by the number of its rows, as measured: whether one more row is worth its time.

A few rows cost little more than one, because reading the weights takes the time; with many, each has its full
price. Where the one goes over into the other depends on the model, its precision and the machine, so it is
measured. Only time depends on these figures, never a result.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

_CENTERS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 90, 128, 181, 256, 362, 512, 724, 1024, 1448, 2048)
_GUESS = 8.0  # rows' worth of a pass besides its rows, where nothing else is known
_MOST = 32.0  # and the most that is believed
_RISE = 0.05  # how fast an estimate follows what takes longer; it follows at once what takes less


class Costs(Protocol):
    """The time of a pass, in any unit."""

    def of(self, num_rows: int) -> float: ...

    def note(self, num_rows: int, seconds: float) -> None:
        """A pass over so many rows took so long."""
        ...


class FixedCosts:
    """A pass costs as much as `fixed_rows` rows, and each row."""

    def __init__(self, fixed_rows: float) -> None:
        self._fixed_rows = fixed_rows

    def of(self, num_rows: int) -> float:
        return self._fixed_rows + num_rows

    def note(self, num_rows: int, seconds: float) -> None:
        pass


class MeasuredCosts:
    """Estimates for some numbers of rows, and lines between them.

    An estimate is what a pass takes when nothing disturbs it: it falls at once and rises slowly.
    """

    def __init__(self) -> None:
        self._known: dict[int, float] = {}  # seconds, by center

    def of(self, num_rows: int) -> float:
        known = sorted(self._known)
        if not known:
            return _GUESS + num_rows
        at = bisect_left(known, num_rows)
        if at == 0 or at == len(known):
            nearest = known[max(0, at - 1)]
            return self._known[nearest] * (_GUESS + num_rows) / (_GUESS + nearest)
        low, high = known[at - 1], known[at]
        share = (num_rows - low) / (high - low)
        return (1 - share) * self._known[low] + share * self._known[high]

    def note(self, num_rows: int, seconds: float) -> None:
        at = bisect_left(_CENTERS, num_rows)
        if at == len(_CENTERS):
            return
        if at and num_rows - _CENTERS[at - 1] < _CENTERS[at] - num_rows:
            at -= 1
        center = _CENTERS[at]
        cost = seconds * (_GUESS + center) / (_GUESS + num_rows)
        known = self._known.get(center)
        if known is None or cost < known:
            self._known[center] = cost
        else:
            self._known[center] = known + _RISE * min(cost - known, known)


def price_of_row(costs: Costs, num_rows: int, num_more: int, num_decoding: int) -> float:
    """What one of `num_more` rows more than `num_rows` costs, in tokens: what decoding yields in that time.

    A row that brings a token with this chance, or a higher one, is worth it.
    """
    here = costs.of(num_rows)
    row = max((costs.of(num_rows + num_more) - here) / num_more, here / (_MOST + num_rows))
    return row * num_decoding / costs.of(num_decoding)
