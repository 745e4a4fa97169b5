"""What a row costs in tokens, from known costs and from measured ones."""

from __future__ import annotations

import pytest

from forktree.backend.engine.costs import FixedCosts, MeasuredCosts, price_of_row


def test_a_row_beside_one_sequence_costs_little_and_beside_many_a_token():
    costs = FixedCosts(9.0)
    assert price_of_row(costs, 1, 4, 1) == pytest.approx(1 / 10)
    assert price_of_row(costs, 91, 8, 91) == pytest.approx(91 / 100)


def test_estimates_fall_at_once_and_rise_slowly():
    costs = MeasuredCosts()
    costs.note(8, 3.0)
    costs.note(8, 1.0)
    assert costs.of(8) == 1.0
    costs.note(8, 100.0)
    assert costs.of(8) == pytest.approx(1.05)


def test_between_two_numbers_of_rows_costs_lie_on_a_line_and_beyond_on_a_guess():
    costs = MeasuredCosts()
    assert costs.of(8) / costs.of(0) == 2
    costs.note(8, 1.0)
    costs.note(16, 2.0)
    assert costs.of(12) == pytest.approx(1.5)
    assert costs.of(0) == pytest.approx(0.5)
    assert costs.of(40) == pytest.approx(4.0)


def test_numbers_of_rows_that_are_close_are_taken_together():
    costs = MeasuredCosts()
    for num_rows in range(60, 70):
        costs.note(num_rows, (8.0 + num_rows) / 72)
    assert costs.of(64) == pytest.approx(1.0)
    costs.note(5000, 1.0)  # larger than any step
    assert costs.of(64) == pytest.approx(1.0)


def test_a_row_is_never_believed_to_cost_nothing():
    costs = MeasuredCosts()
    costs.note(1, 1.0)
    costs.note(8, 0.5)
    assert price_of_row(costs, 1, 7, 1) == pytest.approx(1 / 33)


def test_the_price_follows_what_is_measured():
    """Eight rows for little more than the time of one, then each at its full price."""
    costs = MeasuredCosts()
    for num_rows in (1, 2, 4, 8, 16, 32, 64):
        costs.note(num_rows, 10.0 + 0.5 * num_rows + 2.0 * max(0, num_rows - 8))
    assert price_of_row(costs, 1, 7, 1) < 0.1
    assert price_of_row(costs, 32, 8, 32) == pytest.approx(1.07, abs=0.05)
