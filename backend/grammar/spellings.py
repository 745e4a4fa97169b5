"""Every spelling that RFC 8259 gives the numbers of a set: digits, fraction and exponent.

Which spellings mean a number in a set is no regular language: `10…0e-n` is 1 exactly when the zeros are n. But a
state needs only what was read so far, in a form that forgets what cannot matter any more, and whether some end is
in reach can be calculated: an exponent may be any integer, so from digits `d…` the values in reach are those whose
own digits begin with `d…`, at every power of ten. Once an `e` was read the value is that of the digits times ten
to the exponent, and the legal exponents are an interval less single points.

There is no limit on digits, places or exponents; only the numbers in a schema have one (`MAX_DIGITS`).
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import gcd
from typing import Literal, NamedTuple

from forktree.backend.grammar.number_sets import Numbers, between, magnitudes, mirrored, significand

_ZERO = ord("0")
_Phase = Literal["start", "minus", "zero", "whole", "point", "fraction"]
_DIGITS = "0123456789"


class Mantissa(NamedTuple):
    """What was read before any exponent.

    Attributes:
        digits: from the first that is not zero; cut where the rest cannot matter.
        places: digits after the point.
        top: the power of ten of the first digit; while there is none, of the next one.
    """

    phase: _Phase
    is_negative: bool = False
    digits: str = ""
    places: int = 0
    top: int = -1


class Exponents(NamedTuple):
    """Integers: an interval (None is without end) less some, or only some."""

    low: int | None
    high: int | None
    excluded: frozenset[int] = frozenset()
    only: frozenset[int] | None = None

    def has(self, value: int) -> bool:
        return self.has_any(value, value)

    def has_any(self, first: int, last: int | None) -> bool:
        """Whether one of them lies in [first, last]."""
        if self.only is not None:
            return any(first <= one and (last is None or one <= last) for one in self.only)
        first = first if self.low is None else max(first, self.low)
        last = self.high if last is None else last if self.high is None else min(last, self.high)
        if last is None:
            return True
        return last - first + 1 > sum(first <= one <= last for one in self.excluded)

    def mirrored(self) -> Exponents:
        return Exponents(
            None if self.high is None else -self.high,
            None if self.low is None else -self.low,
            frozenset(-one for one in self.excluded),
            None if self.only is None else frozenset(-one for one in self.only),
        )

    @property
    def most(self) -> int:
        """Above this, integers are all alike."""
        points = [*self.excluded, *(self.only or ()), *(one for one in (self.low, self.high) if one is not None)]
        return max((abs(one) for one in points), default=0)


class Power(NamedTuple):
    """An exponent so far: which are legal (without its sign), whether the sign or a digit was read."""

    legal: Exponents
    is_signed: bool = False
    value: int | None = None


class Spellings:
    """A machine (see `terms.Machine`) of the JSON spellings of a set of numbers, which must not be empty."""

    def __init__(self, numbers: Numbers) -> None:
        self._sides = (_Side(magnitudes(numbers)), _Side(magnitudes(mirrored(numbers))))
        self._has_zero = numbers.has(Decimal(0))
        self._has_end = lru_cache(maxsize=100_000)(self._finds_end)

    @property
    def start(self) -> Mantissa:
        return Mantissa("start")

    def is_final(self, state: Mantissa | Power) -> bool:
        if isinstance(state, Power):
            return state.value is not None and state.legal.has(state.value)
        return state.phase in ("zero", "whole", "fraction") and self._exponents(state).has(0)

    def arcs(self, state: Mantissa | Power) -> list[tuple[int, Mantissa | Power]]:
        after = _after_exponent(state) if isinstance(state, Power) else self._after(state)
        masks: dict[Mantissa | Power, int] = {}
        for chars, reached in after:
            if self._has_end(reached):
                masks[reached] = masks.get(reached, 0) | sum(1 << ord(char) for char in chars)
        return [(mask, reached) for reached, mask in masks.items()]

    def _after(self, state: Mantissa) -> Iterable[tuple[str, Mantissa | Power]]:
        if state.phase == "start":
            yield "-", state._replace(phase="minus", is_negative=True)
        if state.phase != "zero":
            for digit in _DIGITS:
                yield digit, self._with_digit(state, digit)
        if state.phase in ("zero", "whole"):
            yield ".", state._replace(phase="point")
        if state.phase in ("zero", "whole", "fraction"):
            yield "eE", Power(self._exponents(state))

    def _with_digit(self, state: Mantissa, digit: str) -> Mantissa:
        is_first = not state.digits
        digits = "" if is_first and digit == "0" else state.digits + digit
        if state.phase in ("point", "fraction"):
            top = state.top - 1 if is_first and digit == "0" else state.top
            found = state._replace(phase="fraction", digits=digits, places=state.places + 1, top=top)
        else:
            phase: _Phase = "whole" if digits else "zero"
            found = state._replace(phase=phase, digits=digits, top=state.top + 1 if digits else -1)
        return self._sides[state.is_negative].shortened(found)

    def _exponents(self, state: Mantissa) -> Exponents:
        if not state.digits:
            return Exponents(None, None) if self._has_zero else Exponents(1, 0)
        return self._sides[state.is_negative].exponents(state)

    def _finds_end(self, state: Mantissa | Power) -> bool:
        if isinstance(state, Power):
            return _can_end(state)
        side = self._sides[state.is_negative]
        return (self._has_zero and not state.digits) or side.has_prefix(state.digits)


def _after_exponent(state: Power) -> Iterable[tuple[str, Power]]:
    if not state.is_signed and state.value is None:
        yield "+", state._replace(is_signed=True)
        yield "-", Power(state.legal.mirrored(), is_signed=True)
    most = state.legal.most
    for digit in range(10):
        value = (state.value or 0) * 10 + digit
        yield str(digit), Power(state.legal, True, min(value, most + 1))


def _can_end(state: Power) -> bool:
    """Whether a legal exponent begins so."""
    legal = state.legal
    if state.value is None:
        return legal.has_any(0, None) or (not state.is_signed and legal.mirrored().has_any(0, None))
    first, last = state.value, state.value
    if first == 0:
        return legal.has_any(0, None)
    while first <= legal.most:
        if legal.has_any(first, last):
            return True
        first, last = first * 10, last * 10 + 9
    return legal.has_any(first, None)


class _Side:
    """The magnitudes of one sign, zero aside: `numbers` lies above zero, or is None where nothing does."""

    def __init__(self, numbers: Numbers | None) -> None:
        self._numbers = numbers
        points = [] if numbers is None else [*(numbers.only or ()), *numbers.excluded]
        bounds = [] if numbers is None else [one for one in (numbers.low, numbers.high) if one]
        self._marks = sorted({significand(one) for one in [*points, *bounds]})
        self._steps = [] if numbers is None else [_Step(one) for one in (numbers.step, *numbers.not_steps) if one]
        self._modulus = 1
        for step in self._steps:
            self._modulus *= step.odd_part // gcd(self._modulus, step.odd_part)

    # -- what may be forgotten ------------------------------------------------------------------------

    def shortened(self, state: Mantissa) -> Mantissa:
        """A state from which the same can follow, out of fewer of them."""
        if not state.digits:
            places = state.places if self._steps else 0
            return state._replace(places=places, top=state.top if self._marks else -1)
        if self._steps:
            if self._numbers is None or not self._marks:
                return self._by_remainder(state)
            return self._by_both(self._numbers, state)
        digits = self._cut(state.digits)
        return state._replace(digits=digits, places=0, top=state.top if self._marks else 0)

    def _cut(self, digits: str) -> str:
        """Digits up to where they leave every bound's, or without zeros that follow a bound's."""
        if not self._marks:
            return "1"
        most = max(map(len, self._marks))
        for size in range(1, min(len(digits), most + 1) + 1):
            if not any(mark.ljust(size, "0").startswith(digits[:size]) for mark in self._marks):
                return digits[:size]
        return digits[:most]

    def _by_remainder(self, state: Mantissa) -> Mantissa:
        """The least digits with the same remainders and as many zeros at the end."""
        body = state.digits.rstrip("0")
        least = int(body) % self._modulus
        while least % 10 == 0:
            least += self._modulus
        return state._replace(digits=f"{least}{'0' * (len(state.digits) - len(body))}", top=0)

    def _by_both(self, numbers: Numbers, state: Mantissa) -> Mantissa:
        """Digits that left the bounds' count by their remainder, except under an upper bound, where a multiple has only
        so many digits. Many zeros are alike, once `places` says how many they were."""
        body = state.digits.rstrip("0")
        num_zeros = len(state.digits) - len(body)
        if numbers.high is not None:
            spare = max(num_zeros - self._most_digits(numbers, numbers.high), 0)
            state = state._replace(places=state.places - spare)
            num_zeros -= spare
        if numbers.high is None or numbers.step is None:
            body = self._same_remainder(body)
        return state._replace(digits=body + "0" * num_zeros)

    def _same_remainder(self, body: str) -> str:
        head, width = self._cut(body), len(str(self._modulus)) + 1
        if self._is_of_marks(head) or len(body) <= len(head) + width:
            return body
        missing = (int(body) - int(head) * 10**width) % self._modulus
        while missing % 10 == 0:
            missing += self._modulus
        return f"{head}{missing:0{width}}"

    def _most_digits(self, numbers: Numbers, high: Decimal) -> int:
        """More than a multiple below the upper bound has; without a step, more than any bound has."""
        if numbers.step is None:
            return max(map(len, self._marks)) + 1
        return max(high.adjusted() - _Step(numbers.step).power, 0) + 2

    def _is_of_marks(self, digits: str) -> bool:
        return any(mark.ljust(len(digits), "0").startswith(digits) for mark in self._marks)

    # -- what can follow ------------------------------------------------------------------------------

    def has_prefix(self, digits: str) -> bool:
        """Whether a value's digits begin so, at some power of ten."""
        numbers = self._numbers
        if numbers is None:
            return False
        if numbers.only is not None:
            body = digits.rstrip("0")
            return any(mark.startswith(digits) or mark == body for mark in self._marks)
        if numbers.high is None or not digits or (not numbers.low and numbers.step is None):
            return True
        last = numbers.high.adjusted()
        first = numbers.low.adjusted() if numbers.low else numbers.step.adjusted() - 1  # type: ignore[union-attr]
        for top in range(last, first - 1, -1):
            unit = Fraction(10) ** (top - len(digits) + 1)
            if between(numbers, int(digits) * unit, (int(digits) + 1) * unit):
                return True
        return False

    def exponents(self, state: Mantissa) -> Exponents:
        """Which exponents make these digits a value of the set."""
        numbers = self._numbers
        if numbers is None:
            return Exponents(1, 0)
        body = state.digits.rstrip("0")
        if numbers.only is not None:
            return Exponents(None, None, only=frozenset(self._equal(numbers.only, body, state.top)))
        low = high = None
        if numbers.low:
            mark = significand(numbers.low)
            is_enough = body > mark or (body == mark and not numbers.is_above)
            low = numbers.low.adjusted() - state.top + (not is_enough)
        if numbers.high is not None:
            mark = significand(numbers.high)
            is_little = body < mark or (body == mark and not numbers.is_below)
            high = numbers.high.adjusted() - state.top - (not is_little)
        for step in self._steps:
            least = step.least_exponent(int(body), len(state.digits) - len(body) - state.places)
            if step.value == numbers.step:
                if least is None:
                    return Exponents(1, 0)
                low = least if low is None else max(low, least)
            elif least is not None:
                high = least - 1 if high is None else min(high, least - 1)
        if low is not None and high is not None and low > high:
            return Exponents(1, 0)
        return Exponents(low, high, frozenset(self._equal(numbers.excluded, body, state.top)))

    def _equal(self, values: Iterable[Decimal], body: str, top: int) -> Iterable[int]:
        return (value.adjusted() - top for value in values if value and significand(value) == body)


class _Step:
    """Multiples of `odd_part` times ten to the `power`; ten does not divide `odd_part`."""

    def __init__(self, value: Decimal) -> None:
        digits = significand(value)
        self.value = value
        self.odd_part = int(digits)
        self.power = value.adjusted() - len(digits) + 1

    def least_exponent(self, body: int, shift: int) -> int | None:
        """The least e with body · 10^(shift + e) a multiple, and all above it too; ten does not divide `body`."""
        for power in range(self.odd_part.bit_length() + 1):
            if body * 10**power % self.odd_part == 0:
                return power + self.power - shift
        return None
