"""`multipleOf` as an automaton over the digits of a plain number: the remainder is the state."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

_ZERO = ord("0")


class _State(NamedTuple):
    """Remainder of the digits so far; `places` counts fraction digits, None before the point."""

    remainder: int
    places: int | None = None


@dataclass(frozen=True, slots=True)
class Multiples:
    """Spellings of the multiples of `numerator / 10**scale`, zero included.

    Only digits are looked at: intersect it with the language of numbers.
    """

    numerator: int
    scale: int

    @classmethod
    def of(cls, divisor: Decimal) -> Multiples:
        sign, digits, exponent = divisor.normalize().as_tuple()
        assert isinstance(exponent, int)
        value = int("".join(map(str, digits)))
        return cls(value * 10**exponent, 0) if exponent >= 0 else cls(value, -exponent)

    @property
    def start(self) -> _State:
        return _State(0)

    def is_final(self, state: _State) -> bool:
        left = self.scale - (state.places or 0)
        return left < 0 or state.remainder * 10**left % self.numerator == 0

    def arcs(self, state: _State) -> list[tuple[int, _State]]:
        arcs: dict[_State, int] = {}
        for digit in range(10):
            reached = self._after(state, digit)
            if reached is not None and self._can_end(reached):
                arcs[reached] = arcs.get(reached, 0) | 1 << (_ZERO + digit)
        if state == self.start:
            arcs[state] = arcs.get(state, 0) | 1 << ord("-")
        point = _State(state.remainder, 0)
        if state.places is None and self._can_end(point):
            arcs[point] = arcs.get(point, 0) | 1 << ord(".")
        return [(mask, reached) for reached, mask in arcs.items()]

    def _after(self, state: _State, digit: int) -> _State | None:
        if state.places is None:
            return _State((state.remainder * 10 + digit) % self.numerator)
        if state.places >= self.scale:
            return state if digit == 0 else None
        return _State((state.remainder * 10 + digit) % self.numerator, state.places + 1)

    def _can_end(self, state: _State) -> bool:
        """Some further digits make a multiple."""
        if state.places is None:
            return True  # enough digits can add any value
        room = 10 ** (self.scale - state.places)
        return -state.remainder * room % self.numerator < room
