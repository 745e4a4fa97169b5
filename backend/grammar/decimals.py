"""JSON numbers as languages of digits, in the plain spelling: digits, then perhaps a fraction; no exponent.

A comparison with a bound is regular: digits are compared from the left once the lengths of the integer parts are
known. Every language here is closed under equal spellings (`1`, `1.0`, `1.00`), so that complements mean what they
say about values.
"""

from __future__ import annotations

from decimal import Decimal

from forktree.backend.grammar.terms import Term, Terms

MAX_FRACTION = 17
_ZERO = ord("0")


def _digits(low: int, high: int) -> int:
    """Byte mask of the digits [low, high]."""
    return ((1 << (high - low + 1)) - 1) << (_ZERO + low) if high >= low else 0


_DIGIT = _digits(0, 9)
_NONZERO = _digits(1, 9)


class PlainNumbers:
    """Builds number languages in one arena."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        t = terms
        digits = t.repeat(t.byte(_DIGIT), 0, None)
        self._zero = t.literal("0")
        self._whole = t.alt([self._zero, t.cat(t.byte(_NONZERO), digits)])
        self._minus = t.optional(t.literal("-"))
        self._more = digits
        self._any_fraction = t.optional(t.cat(t.literal("."), digits))
        self.number = t.cats(
            [self._minus, self._whole, t.optional(t.cat(t.literal("."), t.repeat(t.byte(_DIGIT), 1, MAX_FRACTION)))]
        )
        self.integer = t.alt([self._zero, t.cats([self._minus, t.byte(_NONZERO), digits])])
        self._zeros = t.repeat(t.byte(_digits(0, 0)), 0, None)
        point_zeros = t.cat(t.literal("."), t.repeat(t.byte(_digits(0, 0)), 1, MAX_FRACTION))
        self.whole = t.cats([self._minus, self._whole, t.optional(point_zeros)])

    def at_least(self, bound: Decimal, *, strictly: bool) -> Term:
        """Values ≥ bound, or > bound."""
        t = self._terms
        if bound > 0:
            return self._magnitude_above(bound, or_equal=not strictly)
        anything = t.cat(self._whole, self._any_fraction)
        if bound == 0 and strictly:
            return self._magnitude_above(Decimal(0), or_equal=False)
        below = self._magnitude_below(-bound, or_equal=not strictly)
        return t.alt([anything, t.cat(t.literal("-"), below)])

    def at_most(self, bound: Decimal, *, strictly: bool) -> Term:
        """Values ≤ bound, or < bound."""
        t = self._terms
        minus = t.literal("-")
        if bound < 0:
            return t.cat(minus, self._magnitude_above(-bound, or_equal=not strictly))
        anything = t.cats([minus, self._whole, self._any_fraction])
        if bound == 0 and strictly:
            return t.cat(minus, self._magnitude_above(Decimal(0), or_equal=False))
        return t.alt([anything, self._magnitude_below(bound, or_equal=not strictly)])

    def equal_to(self, value: Decimal) -> Term:
        """Every spelling of one value."""
        t = self._terms
        whole, fraction = _parts(abs(value))
        magnitude = t.cats([t.literal(whole), self._fraction_equal(fraction)])
        if value == 0:
            return t.cat(self._minus, magnitude)
        return t.cat(t.literal("-"), magnitude) if value < 0 else magnitude

    def _magnitude_above(self, bound: Decimal, *, or_equal: bool) -> Term:
        t = self._terms
        whole, fraction = _parts(bound)
        size = len(whole)
        longer = t.cats([t.byte(_NONZERO), t.repeat(t.byte(_DIGIT), size, None), self._any_fraction])
        options = [longer]
        for at, digit in enumerate(whole):
            higher = t.byte(_digits(max(int(digit) + 1, 1 if at == 0 and size > 1 else 0), 9))
            rest = t.repeat(t.byte(_DIGIT), size - at - 1, size - at - 1)
            options.append(t.cats([t.literal(whole[:at]), higher, rest, self._any_fraction]))
        equal_whole = t.literal(whole)
        options.append(t.cats([equal_whole, t.literal("."), self._fraction_above(fraction)]))
        if or_equal:
            options.append(t.cat(equal_whole, self._fraction_equal(fraction)))
        return t.alt(options)

    def _magnitude_below(self, bound: Decimal, *, or_equal: bool) -> Term:
        t = self._terms
        whole, fraction = _parts(bound)
        size = len(whole)
        options = []
        if size > 1:
            shorter = t.cat(t.byte(_NONZERO), t.repeat(t.byte(_DIGIT), 0, size - 2))
            options.append(t.cat(t.alt([self._zero, shorter]), self._any_fraction))
        for at, digit in enumerate(whole):
            lower = t.byte(_digits(1 if at == 0 and size > 1 else 0, int(digit) - 1))
            rest = t.repeat(t.byte(_DIGIT), size - at - 1, size - at - 1)
            options.append(t.cats([t.literal(whole[:at]), lower, rest, self._any_fraction]))
        equal_whole = t.literal(whole)
        options.append(t.cat(equal_whole, self._fraction_below(fraction)))
        if or_equal:
            options.append(t.cat(equal_whole, self._fraction_equal(fraction)))
        return t.alt(options)

    def _fraction_above(self, digits: str) -> Term:
        """Fraction digits (without the point) whose value is above these."""
        t = self._terms
        options = [t.cats([t.literal(digits), self._zeros, t.byte(_NONZERO), self._more])]
        for at, digit in enumerate(digits):
            options.append(t.cats([t.literal(digits[:at]), t.byte(_digits(int(digit) + 1, 9)), self._more]))
        return t.alt(options)

    def _fraction_below(self, digits: str) -> Term:
        """A fraction (with its point, or none) below these digits, which do not end in a zero."""
        t = self._terms
        if not digits:
            return t.empty
        options = [t.epsilon]
        for at, digit in enumerate(digits):
            start = t.cat(t.literal("."), t.literal(digits[:at]))
            options.append(t.cats([start, t.byte(_digits(0, int(digit) - 1)), self._more]))
            if at:
                options.append(start)
        return t.alt(options)

    def _fraction_equal(self, digits: str) -> Term:
        t = self._terms
        if not digits:
            return t.optional(t.cat(t.literal("."), self._zeros))
        return t.cats([t.literal("."), t.literal(digits), self._zeros])


def _parts(value: Decimal) -> tuple[str, str]:
    """Digits before and after the point, without needless zeros."""
    text = f"{value:f}"
    whole, _, fraction = text.partition(".")
    return whole.lstrip("0") or "0", fraction.rstrip("0")


def plain(value: Decimal) -> str:
    """The shortest plain spelling."""
    whole, fraction = _parts(abs(value))
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def spellings(value: Decimal) -> list[str]:
    """A number as digits, and as written with a needless fraction where the schema does so."""
    shortest = plain(value)
    exponent = value.as_tuple().exponent
    written_long = isinstance(exponent, int) and exponent < 0 and "." not in shortest
    return [shortest, f"{shortest}.0"] if written_long else [shortest]
