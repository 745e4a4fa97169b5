"""How the numbers of a schema are written: plainly, or in every spelling of RFC 8259."""

from __future__ import annotations

from decimal import Decimal
from typing import Protocol

from forktree.backend.grammar.choices import any_of
from forktree.backend.grammar.decimals import PlainNumbers, spellings
from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.number_sets import ALL_NUMBERS, Numbers
from forktree.backend.grammar.plain_spellings import PlainSpellings, needs_calculation
from forktree.backend.grammar.remainders import Multiples
from forktree.backend.grammar.spellings import Spellings
from forktree.backend.grammar.terms import Term

_ONE = Decimal(1)


class NumberWriting(Protocol):
    """A way to write numbers."""

    def text(self, shape: Numbers) -> Term:
        """The spellings of a set's values."""
        ...

    def can_write(self, shape: Numbers) -> bool:
        """Whether some value of a set that is not empty has a spelling."""
        ...


class AnyWriting:
    """All of RFC 8259: `1`, `1.0`, `10e-1` and `1E+00` are one number."""

    def __init__(self, derivatives: Derivatives) -> None:
        self._terms = derivatives.terms
        self._known: dict[Numbers, Term] = {}

    def text(self, shape: Numbers) -> Term:
        found = self._known.get(shape)
        if found is None:
            machine = Spellings(shape)
            found = self._known[shape] = self._terms.machine(machine, machine.start)
        return found

    def can_write(self, shape: Numbers) -> bool:
        return True


class PlainWriting:
    """Integers as digits, other numbers with an optional fraction of at most 17 digits, no exponent."""

    def __init__(self, derivatives: Derivatives) -> None:
        self._derivatives = derivatives
        self._terms = derivatives.terms
        self._plain = PlainNumbers(derivatives.terms)
        self._known: dict[Numbers, Term] = {}

    def text(self, shape: Numbers) -> Term:
        found = self._known.get(shape)
        if found is None:
            found = self._known[shape] = self._made(shape)
        return found

    def can_write(self, shape: Numbers) -> bool:
        return shape.only is not None or shape == ALL_NUMBERS or self._derivatives.is_live(self.text(shape))

    def _made(self, shape: Numbers) -> Term:
        terms, plain = self._terms, self._plain
        if needs_calculation(shape):
            machine = PlainSpellings(shape)
            return terms.empty if machine.is_empty else terms.machine(machine, machine.start)
        if shape.only is not None:
            return any_of(terms, (text for value in shape.only for text in spellings(value)))
        parts = [self._multiples(shape.step, is_integer=shape.is_integer) if shape.step is not None else plain.number]
        if shape.low is not None:
            parts.append(plain.at_least(shape.low, strictly=shape.is_above))
        if shape.high is not None:
            parts.append(plain.at_most(shape.high, strictly=shape.is_below))
        parts += [terms.without(self._multiples(step, is_integer=False)) for step in sorted(shape.not_steps)]
        parts += [terms.without(plain.equal_to(value)) for value in sorted(shape.excluded)]
        return terms.both(parts)

    def _multiples(self, step: Decimal, *, is_integer: bool) -> Term:
        if step == _ONE:
            return self._plain.integer if is_integer else self._plain.whole
        machine = Multiples.of(step, is_integer=is_integer)
        return self._terms.machine(machine, machine.start)
