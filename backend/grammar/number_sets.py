"""Sets of numbers by value: an interval, what its members are multiples of, and what they are not.

Closed under intersection and complement, so whether a combination of numeric keywords can be met at all is decided
on values, exactly, before anything is said about how a number is written (`decimals` for plain numbers,
`spellings` for all of RFC 8259). The values are the decimal fractions, which lie densely.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from fractions import Fraction
from math import ceil, floor, gcd

from forktree.lang.errors import ConstraintError

MAX_DIGITS = 400  # of a number in a schema, before or after the point
_MAX_TRIED = 100_000
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The values between two bounds that meet every condition.

    Attributes:
        low, high: None is without end; `is_above`, `is_below`: the bound itself is excluded.
        step: every value is a multiple of it.
        not_steps: no value is a multiple of any of them.
        excluded: values that are left out.
        only: the finite set that an enumeration leaves; then nothing else is said.
        is_integer: an integer was demanded, so the plain spelling is digits. It says nothing about values.
    """

    low: Decimal | None = None
    high: Decimal | None = None
    is_above: bool = False
    is_below: bool = False
    step: Decimal | None = None
    not_steps: frozenset[Decimal] = frozenset()
    excluded: frozenset[Decimal] = frozenset()
    only: frozenset[Decimal] | None = None
    is_integer: bool = False

    def has(self, value: Decimal) -> bool:
        if self.only is not None:
            return value in self.only
        if self.low is not None and (value < self.low or (self.is_above and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.is_below and value == self.high)):
            return False
        if value in self.excluded or (self.step is not None and not _divides(self.step, value)):
            return False
        return not any(_divides(step, value) for step in self.not_steps)

    @property
    def is_bounded(self) -> bool:
        """Some value is excluded by a bound or one by one."""
        return self.low is not None or self.high is not None or bool(self.excluded) or self.only is not None


ALL_NUMBERS = Numbers()


def both_numbers(left: Numbers, right: Numbers) -> Numbers | None:
    """What both allow; None where that is nothing."""
    is_integer = left.is_integer or right.is_integer
    if left.only is not None or right.only is not None:
        one, other = (left, right) if left.only is not None else (right, left)
        kept = frozenset(value for value in one.only or () if other.has(value))
        return Numbers(only=kept, is_integer=is_integer) if kept else None
    low, is_above = _stricter(left.low, left.is_above, right.low, right.is_above, sign=1)
    high, is_below = _stricter(left.high, left.is_below, right.high, right.is_below, sign=-1)
    steps = [step for step in (left.step, right.step) if step is not None]
    found = Numbers(
        low,
        high,
        is_above,
        is_below,
        steps[0] if len(steps) == 1 else common_multiple(*steps) if steps else None,
        left.not_steps | right.not_steps,
        left.excluded | right.excluded,
        None,
        is_integer,
    )
    return found if is_met(found) else None


def not_numbers(shape: Numbers) -> list[Numbers]:
    """The numbers that the shape excludes."""
    if shape.only is not None:
        return [Numbers(excluded=shape.only)]
    out = []
    if shape.low is not None:
        out.append(Numbers(high=shape.low, is_below=not shape.is_above))
    if shape.high is not None:
        out.append(Numbers(low=shape.high, is_above=not shape.is_below))
    if shape.step is not None:
        out.append(Numbers(not_steps=frozenset([shape.step])))
    out += [Numbers(step=step) for step in sorted(shape.not_steps)]
    if shape.excluded:
        out.append(Numbers(only=shape.excluded))
    return out


def is_met(shape: Numbers) -> bool:
    """Whether some number is in the set."""
    if shape.only is not None:
        return bool(shape.only)
    if shape.step is None:
        if shape.low is None or shape.high is None:
            return True
        if shape.low < shape.high:
            return True  # multiples and single values leave room in every interval
        return shape.low == shape.high and shape.has(shape.low)
    return _has_multiple(shape, Fraction(shape.step))


def _has_multiple(shape: Numbers, step: Fraction) -> bool:
    """Whether a multiple of the step lies in the set; the k-th one has to be no multiple of any `rounds`."""
    rounds = [_common(step, Fraction(other)) / step for other in shape.not_steps]
    if any(one == 1 for one in rounds):
        return False
    if shape.low is None or shape.high is None:
        return True
    low, high = Fraction(shape.low) / step, Fraction(shape.high) / step
    first = floor(low) + 1 if shape.is_above else ceil(low)
    last = ceil(high) - 1 if shape.is_below else floor(high)
    excluded = {Fraction(value) / step for value in shape.excluded}
    for at in range(first, min(last, first + _MAX_TRIED) + 1):
        if at not in excluded and all(at % one for one in rounds):
            return True
    if last > first + _MAX_TRIED:
        raise ConstraintError(f"none of {_MAX_TRIED} multiples of {shape.step} meets the other conditions")
    return False


def magnitudes(numbers: Numbers) -> Numbers | None:
    """The part above zero."""
    if numbers.only is not None:
        kept = frozenset(value for value in numbers.only if value > 0)
        return Numbers(only=kept) if kept else None
    if numbers.high is not None and numbers.high <= 0:
        return None
    kept = frozenset(value for value in numbers.excluded if value > 0)
    is_above_zero = numbers.low is not None and numbers.low > 0
    low, is_above = (numbers.low, numbers.is_above) if is_above_zero else (Decimal(0), True)
    found = replace(numbers, low=low, is_above=is_above, excluded=kept, is_integer=False)
    return found if is_met(found) else None


def mirrored(numbers: Numbers) -> Numbers:
    """The same values with the other sign."""

    def minus(value: Decimal | None) -> Decimal | None:
        return None if value is None else value.copy_negate()

    return Numbers(
        minus(numbers.high),
        minus(numbers.low),
        numbers.is_below,
        numbers.is_above,
        numbers.step,
        numbers.not_steps,
        frozenset(value.copy_negate() for value in numbers.excluded),
        None if numbers.only is None else frozenset(value.copy_negate() for value in numbers.only),
    )


def between(shape: Numbers, low: Fraction, high: Fraction) -> bool:
    """Whether the set, which has a finite upper bound or a step, has a value in [low, high)."""
    first, last = decimal_of(low), decimal_of(high)
    window = Numbers(low=first, high=last, is_below=True)
    return both_numbers(replace(shape, is_integer=False), window) is not None


def _stricter(
    left: Decimal | None, left_open: bool, right: Decimal | None, right_open: bool, *, sign: int
) -> tuple[Decimal | None, bool]:
    if left is None or right is None:
        return (right, right_open) if left is None else (left, left_open)
    if left == right:
        return left, left_open or right_open
    is_left = left > right if sign > 0 else left < right
    return (left, left_open) if is_left else (right, right_open)


def _divides(step: Decimal, value: Decimal) -> bool:
    return (Fraction(value) / Fraction(step)).denominator == 1


def common_multiple(left: Decimal, right: Decimal) -> Decimal:
    """The least number that is a multiple of both, exactly.

    Raises:
        ConstraintError: it has more than `MAX_DIGITS` digits.
    """
    found = decimal_of(_common(Fraction(left), Fraction(right)))
    if abs(found.adjusted()) > MAX_DIGITS:
        raise ConstraintError(f"the common multiples of {left} and {right} have more than {MAX_DIGITS} digits")
    return found


def _common(left: Fraction, right: Fraction) -> Fraction:
    scale = left.denominator * right.denominator // gcd(left.denominator, right.denominator)
    a, b = int(left * scale), int(right * scale)
    return Fraction(a * b // gcd(a, b), scale)


def decimal_of(value: Fraction) -> Decimal:
    """A decimal fraction as a `Decimal`, whatever the context's precision."""
    digits, places = value.numerator, 0
    left = value.denominator
    while left != 1:
        digits *= 10
        places += 1
        common = gcd(digits, left)
        digits //= common
        left //= common
    return exactly(digits, -places)


def exactly(digits: int, exponent: int) -> Decimal:
    """`digits` · 10 ^ `exponent`, however many digits there are."""
    return Decimal(digits).scaleb(exponent, _EXACT)


def significand(value: Decimal) -> str:
    """The digits of a value, from the first to the last that is not zero; "" for zero."""
    return "".join(map(str, value.as_tuple().digits)).strip("0")
