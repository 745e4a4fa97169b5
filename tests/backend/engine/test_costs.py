"""What a row costs in tokens, from known costs and from measured ones."""

from __future__ import annotations

import random

import pytest

from forktree.backend.engine.costs import Cost, FixedCosts, MeasuredCosts, price_of_row


def test_a_row_beside_one_sequence_costs_little_and_beside_many_a_token():
    costs = FixedCosts(9.0)
    assert price_of_row(costs, 1, 1) == pytest.approx(1.1 / 10)
    assert price_of_row(costs, 91, 91) == pytest.approx(1.1 * 91 / 100)


def test_estimates_fall_at_once_and_rise_slowly():
    costs = MeasuredCosts()
    costs.note(8, 3.0)
    costs.note(8, 1.0)
    assert costs.at(8).whole == pytest.approx(1.0)
    costs.note(8, 100.0)
    assert costs.at(8).whole == pytest.approx(1.05)


def test_without_a_second_number_of_rows_a_row_costs_what_it_does_mostly():
    costs = MeasuredCosts()
    assert costs.at(8) == Cost(12.0, 1.0)
    costs.note(8, 1.2)
    costs.note(512, 900.0)  # far off: it says nothing about few rows
    assert costs.at(8) == pytest.approx(Cost(1.2, 0.1))
    assert costs.at(18).whole == pytest.approx(2.2)


def test_numbers_of_rows_that_are_close_are_taken_together():
    costs = MeasuredCosts()
    for num_rows in range(60, 70):
        costs.note(num_rows, (4.0 + num_rows) / 68)
    assert costs.at(64).whole == pytest.approx(1.0)
    costs.note(5000, 1.0)  # larger than any step
    assert costs.at(64).whole == pytest.approx(1.0)


def test_a_row_is_never_believed_to_cost_nothing_nor_more_than_its_share():
    costs = MeasuredCosts()
    costs.note(1, 1.0)
    costs.note(8, 0.5)
    assert 0 < price_of_row(costs, 4, 1) < 0.11
    costs = MeasuredCosts()
    costs.note(32, 0.1)
    costs.note(64, 9.9)
    assert price_of_row(costs, 45, 45) == pytest.approx(1.1)


def test_the_price_follows_what_is_measured_through_noise():
    """Eight rows for little more than the time of one, then each at its full price; single figures are 15 % off."""
    rng = random.Random(0)
    costs = MeasuredCosts()
    for _ in range(40):
        for num_rows in (1, 2, 4, 8, 16, 32, 64):
            time = 10.0 + 0.5 * num_rows + 2.0 * max(0, num_rows - 8)
            costs.note(num_rows, time * rng.uniform(1.0, 1.15))
    assert price_of_row(costs, 3, 1) < 0.13
    assert 0.95 < price_of_row(costs, 40, 32) <= 1.15
