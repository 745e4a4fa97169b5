"""Plain numbers by calculation: the same language as by digits, and no dead ends where that would be too large."""

from __future__ import annotations

import random
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st
from number_sets import number_sets

from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.number_sets import Numbers, is_met
from forktree.backend.grammar.plain_spellings import Plain, PlainSpellings, needs_calculation
from forktree.backend.grammar.schema_numbers import PlainWriting
from forktree.backend.grammar.terms import Terms

D = Decimal


def reached(machine: PlainSpellings, text: str) -> Plain | None:
    state: Plain | None = machine.start
    for char in text:
        if state is not None:
            state = next((after for mask, after in machine.arcs(state) if mask >> ord(char) & 1), None)
    return state


@settings(max_examples=60, deadline=None)
@given(number_sets(), st.integers(0, 999))
def test_calculation_and_digits_agree_on_every_text_and_prefix(shape: Numbers, seed: int) -> None:
    if not is_met(shape) or shape.only is not None:
        return
    derivatives = Derivatives(Terms())
    term = PlainWriting(derivatives).text(shape)
    machine = PlainSpellings(shape)
    assert machine.is_empty == (not derivatives.is_live(term))
    rng = random.Random(seed)
    for _ in range(20):
        whole = rng.choice(["", "0", str(rng.randint(1, 70))])
        text = rng.choice(["", "-"]) + whole + rng.choice(["", ".", ".5", ".30"])
        after, state = reached(machine, text), derivatives.run(term, text.encode())
        if not machine.is_empty:
            assert (after is None) == (state is None), text
            assert (after is not None and machine.is_final(after)) == (state is not None and state.nullable), text


def test_many_remainders_are_calculated() -> None:
    primes = [D(one) for one in (2, 3, 5, 7, 11, 13, 37)]
    shape = Numbers(low=D(-100_000), high=D(-10_000), step=D("323"), not_steps=frozenset(primes))
    assert needs_calculation(shape)
    machine = PlainSpellings(shape)
    legal = [n for n in range(-100_000, -9_999) if n % 323 == 0 and all(n % int(p) for p in primes)]
    assert legal
    for number in (legal[0], legal[-1], legal[0] + 323):
        after = reached(machine, str(number))
        assert (after is not None and machine.is_final(after)) == (number in legal)
    assert reached(machine, "9") is None
