"""Plain spellings of sets whose conditions would multiply into too many states as languages of digits.

A state is the digits so far. From whole digits `d` the values in reach lie in [d · 10^n, (d + 1) · 10^n) for some n,
from a fraction in one such interval; whether the set has a value there is calculated (`number_sets`).
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import prod
from typing import Literal, NamedTuple

from forktree.backend.grammar.decimals import MAX_FRACTION
from forktree.backend.grammar.number_sets import (
    Numbers,
    between,
    both_numbers,
    exactly,
    magnitudes,
    mirrored,
)

_MANY = 1_000  # remainders
_GRID = Numbers(step=Decimal(1).scaleb(-MAX_FRACTION))


class Plain(NamedTuple):
    phase: Literal["start", "minus", "zero", "whole", "point", "fraction"]
    is_negative: bool = False
    digits: int = 0
    places: int = 0


class PlainSpellings:
    """A machine (see `terms.Machine`) of the plain spellings of a set of numbers that is no enumeration."""

    def __init__(self, numbers: Numbers) -> None:
        on_grid = both_numbers(numbers, _GRID)
        self._numbers = numbers
        self._sides = [None, None] if on_grid is None else [magnitudes(on_grid), magnitudes(mirrored(on_grid))]

    @property
    def start(self) -> Plain:
        return Plain("start")

    @property
    def is_empty(self) -> bool:
        return not self._has_end(self.start)

    def is_final(self, state: Plain) -> bool:
        if state.phase in ("start", "minus", "point"):
            return False
        value = exactly(state.digits, -state.places)
        is_minus_zero = state.is_negative and not state.digits and self._numbers.is_integer
        return not is_minus_zero and self._numbers.has(value.copy_negate() if state.is_negative else value)

    def arcs(self, state: Plain) -> list[tuple[int, Plain]]:
        masks: dict[Plain, int] = {}
        for digit in range(10) if state.phase != "zero" else ():
            masks[self._with_digit(state, digit)] = 1 << (ord("0") + digit)
        if state.phase == "start":
            masks[state._replace(phase="minus", is_negative=True)] = 1 << ord("-")
        if state.phase in ("zero", "whole") and not self._numbers.is_integer:
            masks[state._replace(phase="point")] = 1 << ord(".")
        return [(mask, reached) for reached, mask in masks.items() if self._has_end(reached)]

    def _with_digit(self, state: Plain, digit: int) -> Plain:
        digits = state.digits * 10 + digit
        if state.phase in ("point", "fraction"):
            return state._replace(phase="fraction", digits=digits, places=state.places + 1)
        return state._replace(phase="whole" if digits else "zero", digits=digits)

    def _has_end(self, state: Plain) -> bool:
        if state.phase == "start":
            return self._has_end(state._replace(phase="minus")) or self._has_end(Plain("minus", True))
        if state.places > MAX_FRACTION or (state.phase == "point" and state.places == MAX_FRACTION):
            return False
        if self.is_final(state):
            return True
        side = self._sides[state.is_negative]
        if not state.digits and self.is_final(state._replace(phase="zero")):
            return True  # zeros may follow
        return side is not None and self._has_value(side, state)

    def _has_value(self, side: Numbers, state: Plain) -> bool:
        if state.phase == "minus":
            return True
        unit = Fraction(1, 10**state.places)
        if state.phase != "whole":
            is_done = state.phase == "zero" and self._numbers.is_integer
            return not is_done and between(side, state.digits * unit, (state.digits + 1) * unit)
        if side.high is None:
            return True
        while state.digits * unit <= Fraction(side.high):
            if between(side, state.digits * unit, (state.digits + 1) * unit):
                return True
            unit *= 10
        return False


def needs_calculation(numbers: Numbers) -> bool:
    """Whether the conditions of a set multiply into more states than a language of digits should have."""
    steps = [step for step in (numbers.step, *numbers.not_steps) if step is not None]
    is_single = len(steps) + (numbers.low is not None) + (numbers.high is not None) < 2
    return not is_single and numbers.only is None and prod(Fraction(step).numerator for step in steps) > _MANY
