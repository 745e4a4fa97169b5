"""Sets of numbers: intersection and complement are what they say of every value."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from number_sets import number_sets

from forktree.backend.grammar.number_sets import (
    ALL_NUMBERS,
    Numbers,
    both_numbers,
    common_multiple,
    decimal_of,
    is_met,
    not_numbers,
)
from forktree.lang.errors import ConstraintError

D = Decimal


@settings(max_examples=150, deadline=None)
@given(number_sets(), number_sets(), st.integers(-1300, 1300).map(lambda n: D(n).scaleb(-2)))
def test_intersection_and_complement_say_the_same_of_every_value(left: Numbers, right: Numbers, value: Decimal) -> None:
    both = both_numbers(left, right)
    assert (both is not None and both.has(value)) == (left.has(value) and right.has(value))
    assert any(one.has(value) for one in not_numbers(left)) == (not left.has(value))


@settings(max_examples=60, deadline=None)
@given(number_sets())
def test_a_set_is_met_exactly_when_it_has_a_value(shape: Numbers) -> None:
    values = [D(n).scaleb(-3) for n in range(-61_000, 61_001, 100)]
    if any(shape.has(value) for value in values):
        assert is_met(shape)
    elif is_met(shape):  # then what it has lies beyond the values tried, or between two of them
        is_dense = shape.step is None and not shape.is_integer
        assert shape.low is None or shape.high is None or (is_dense and shape.low < shape.high)


def test_bounds_that_touch_leave_one_value_or_none() -> None:
    assert is_met(Numbers(low=D(2), high=D(2)))
    assert not is_met(Numbers(low=D(2), high=D(2), is_above=True))
    assert not is_met(Numbers(low=D("0.1"), high=D("0.9"), step=D(1)))
    assert not is_met(Numbers(step=D(4), not_steps=frozenset([D(2)])))
    assert is_met(Numbers(low=D("1e-30"), high=D("2e-30"), is_above=True, is_below=True))


def test_common_multiples_are_exact_and_limited() -> None:
    assert common_multiple(D("0.6"), D("1.5")) == D(3)
    assert common_multiple(D(7), D(1)) == D(7)
    assert decimal_of(Fraction(-1, 8)) == D("-0.125")
    with pytest.raises(ConstraintError, match="more than 400 digits"):
        common_multiple(D(7**300), D(11**300))


def test_all_numbers_are_all() -> None:
    assert ALL_NUMBERS.has(D("-1e99"))
    assert not ALL_NUMBERS.is_bounded
    assert not_numbers(ALL_NUMBERS) == []
