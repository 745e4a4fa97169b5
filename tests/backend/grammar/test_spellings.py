"""Numbers in every spelling: the automaton says what the value says, and never leads into a dead end."""

from __future__ import annotations

import random
import re
from decimal import Decimal, localcontext
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from number_sets import number_sets

from forktree.backend.grammar.number_sets import Numbers, is_met
from forktree.backend.grammar.spellings import Mantissa, Power, Spellings

D = Decimal
RFC_8259 = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def accepts(machine: Spellings, text: str) -> bool:
    state: Mantissa | Power | None = machine.start
    for char in text:
        assert state is not None
        state = next((after for mask, after in machine.arcs(state) if mask >> ord(char) & 1), None)
        if state is None:
            return False
    return state is not None and machine.is_final(state)


def random_spelling(machine: Spellings, rng: random.Random) -> str:
    """A walk that ends: from every state on the way, an end is in reach."""
    state: Mantissa | Power = machine.start
    text = ""
    for _ in range(60):
        if machine.is_final(state) and rng.random() < 0.4:
            return text
        arcs = machine.arcs(state)
        if not arcs:
            assert machine.is_final(state), f"dead end after {text!r}"
            return text
        mask, state = rng.choice(arcs)
        text += rng.choice([chr(byte) for byte in range(128) if mask >> byte & 1])
    return text if machine.is_final(state) else ""


SHORT = [
    text
    for size in range(1, 5)
    for text in map("".join, product("0125-.e", repeat=size))
    if RFC_8259.fullmatch(text)
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(number_sets(), st.integers(0, 999))
def test_a_spelling_is_legal_exactly_when_its_value_is(shape: Numbers, seed: int) -> None:
    if not is_met(shape):
        return
    machine = Spellings(shape)
    rng = random.Random(seed)
    for text in rng.sample(SHORT, 60):
        assert accepts(machine, text) == shape.has(D(text)), text
    for _ in range(6):
        text = random_spelling(machine, rng)
        if text and len(text.partition("e")[2]) < 8 and len(text.partition("E")[2]) < 8:
            assert RFC_8259.fullmatch(text)
            assert shape.has(D(text)), text


@settings(max_examples=60, deadline=None)
@given(number_sets(), st.integers(-900, 900), st.integers(-3, 3), st.integers(0, 4), st.integers(-6, 6))
def test_every_way_to_write_one_value_is_judged_alike(
    shape: Numbers, digits: int, exponent: int, zeros: int, shift: int
) -> None:
    if not is_met(shape):
        return
    machine = Spellings(shape)
    value = D(digits).scaleb(exponent)
    moved = f"{value.scaleb(-shift):f}"
    more = "0" * zeros if "." in moved else "." + "0" * zeros if zeros else ""
    for text in (f"{moved}{more}e{shift}", f"{moved}{more}E{shift:+04}"):
        assert accepts(machine, text) == shape.has(value), text


@pytest.mark.parametrize(
    ("shape", "legal", "illegal"),
    [
        (Numbers(step=D(1)), ["1.0", "10e-1", "1.50e1", "0.0e-9", "-0", "5e99999"], ["1.5", "1e-1", "01", "1."]),
        (Numbers(low=D(0), high=D(1)), ["0", "-0.0", "1", "1.000", "100e-2", "1e-400"], ["1.01", "2", "1e1", "-1"]),
        (Numbers(only=frozenset([D("12.5")])), ["12.5", "1.25e1", "1250e-2"], ["12", "125", "-12.5", "12.55"]),
        (Numbers(low=D(5), high=D(5)), ["5", "0.5e1", "0.0005e+4"], ["5.1", "50", "4"]),
        (Numbers(step=D("0.01"), low=D(1)), ["1.01", "101e-2", "1e0"], ["1.001", "0.5"]),
    ],
)  # fmt: skip
def test_known_spellings(shape: Numbers, legal: list[str], illegal: list[str]) -> None:
    machine = Spellings(shape)
    assert [text for text in legal if not accepts(machine, text)] == []
    assert [text for text in illegal if accepts(machine, text)] == []


@pytest.mark.parametrize("shape", [Numbers(), Numbers(low=D(0)), Numbers(high=D(0), is_below=True)])
def test_a_number_without_bounds_needs_few_states(shape: Numbers) -> None:
    machine = Spellings(shape)
    seen: set[Mantissa | Power] = {machine.start}
    pending: list[Mantissa | Power] = [machine.start]
    while pending and len(seen) < 1_000:
        for _, after in machine.arcs(pending.pop()):
            if after not in seen:
                seen.add(after)
                pending.append(after)
    assert len(seen) < 30


def test_no_digit_leads_where_nothing_can_follow() -> None:
    machine = Spellings(Numbers(low=D("0.95"), high=D("1.05"), step=D("0.1")))
    state: Mantissa | Power = machine.start
    assert {chr(b) for mask, _ in machine.arcs(state) for b in range(128) if mask >> b & 1} == {"0", "1"}


@pytest.mark.parametrize(
    "shape",
    [
        Numbers(step=D(1), low=D(1)),
        Numbers(step=D(3), low=D(-7), high=D(95)),
        Numbers(step=D("0.25"), low=D(2), is_above=True, not_steps=frozenset([D(1)])),
        Numbers(not_steps=frozenset([D(1), D("0.1")]), low=D(1), high=D(5)),
    ],
)
@pytest.mark.parametrize("start", ["7", "1." + "0" * 30, "30" * 20, "4." + "1" * 40, "5" + "0" * 40])
def test_long_numbers_are_judged_like_short_ones(shape: Numbers, start: str) -> None:
    machine = Spellings(shape)
    with localcontext(prec=200):
        for more in ("", "e0", "e-1", "5", "0e-30", "e-40", "25e-41", "12e-41", "000"):
            assert accepts(machine, start + more) == shape.has(D(start + more)), more


def test_thousands_of_digits_are_no_trouble() -> None:
    for shape in (Numbers(step=D(1), low=D(1)), Numbers(step=D(3), high=D(100)), Numbers(low=D(0), high=D(1))):
        assert accepts(Spellings(shape), "1" * 6_000 + "e-6000") == (shape.step is None)
        assert accepts(Spellings(shape), "0." + "0" * 6_000 + "3e6001") == (shape.low != 0)
