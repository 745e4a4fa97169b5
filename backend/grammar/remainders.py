"""`multipleOf` as an automaton over the digits of a plain number: the remainder is the state."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from math import gcd
from typing import Literal, NamedTuple

from forktree.backend.grammar.decimals import MAX_FRACTION

_ZERO = ord("0")
_Phase = Literal["start", "minus", "zero", "whole", "point", "fraction"]


class _State(NamedTuple):
    """Where in the number, the remainder of the digits so far, and how many fraction digits there were."""

    phase: _Phase
    remainder: int = 0
    places: int = 0


@dataclass(frozen=True, slots=True)
class Multiples:
    """Plain spellings of the multiples of `numerator / 10**scale`, zero included; digits only if `is_integer`.

    Every state can still reach a multiple, so the language is never empty from one.
    """

    numerator: int
    scale: int
    is_integer: bool

    @classmethod
    def of(cls, divisor: Decimal, *, is_integer: bool) -> Multiples:
        _, digits, exponent = divisor.normalize().as_tuple()
        assert isinstance(exponent, int)
        value = int("".join(map(str, digits)))
        if exponent >= 0:
            return cls(value * 10**exponent, 0, is_integer)
        if is_integer:  # n is a multiple of p / 10^s exactly when it is one of p / gcd(p, 10^s)
            return cls(value // gcd(value, 10**-exponent), 0, True)
        return cls(value, -exponent, False)

    @property
    def start(self) -> _State:
        return _State("start")

    def is_final(self, state: _State) -> bool:
        if state.phase in ("start", "minus", "point"):
            return False
        left = self.scale - state.places
        return left < 0 or state.remainder * 10**left % self.numerator == 0

    def arcs(self, state: _State) -> list[tuple[int, _State]]:
        arcs: dict[_State, int] = {}
        for digit in range(10):
            reached = self._after(state, digit)
            if reached is not None and self._can_end(reached):
                arcs[reached] = arcs.get(reached, 0) | 1 << (_ZERO + digit)
        if state.phase == "start":
            arcs[_State("minus")] = 1 << ord("-")
        point = _State("point", state.remainder)
        if state.phase in ("zero", "whole") and not self.is_integer and self._can_end(point):
            arcs[point] = 1 << ord(".")
        return [(mask, reached) for reached, mask in arcs.items()]

    def _after(self, state: _State, digit: int) -> _State | None:
        more = (state.remainder * 10 + digit) % self.numerator
        match state.phase:
            case "start" | "minus":
                if digit == 0:  # an integer has no minus zero
                    return None if self.is_integer and state.phase == "minus" else _State("zero")
                return _State("whole", more)
            case "zero":
                return None
            case "whole":
                return _State("whole", more)
        if state.places >= MAX_FRACTION or (state.places >= self.scale and digit):
            return None
        if state.places >= self.scale:
            return _State("fraction", state.remainder, state.places + 1)
        return _State("fraction", more, state.places + 1)

    def _can_end(self, state: _State) -> bool:
        """Some further digits make a multiple."""
        if state.phase in ("start", "minus", "whole"):
            return True  # enough digits can add any value
        left = self.scale - state.places
        if left < 0 or (state.phase == "zero" and self.is_integer):
            return self.is_final(state)
        room = 10 ** min(left, MAX_FRACTION - state.places)
        shift = 10 ** (left - min(left, MAX_FRACTION - state.places))
        # some x in [0, room) with (remainder * room + x) * shift divisible by the numerator
        step = self.numerator // gcd(self.numerator, shift)
        return -state.remainder * room % step < room
