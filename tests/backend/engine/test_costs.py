"""What a row costs in tokens, from known costs and from measured ones."""

from __future__ import annotations

import math
import random

import pytest

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.costs import Cost, FixedCosts, MeasuredCosts, count_prefill, make_costs, price_of_row


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


# --- the mix of prompts and decodes ---------------------------------------------------------------------------------


def mixed(num_decoding: int, fixed_rows: float = 3.0, most: int = 500, **config: float) -> int:
    return count_prefill(FixedCosts(fixed_rows), num_decoding, most, EngineConfig(**config))


def test_with_nothing_decoding_all_is_for_prompts():
    assert mixed(0, max_slowdown=1.0, min_chunk=1.0) == 500


def test_prompts_slow_decodes_down_by_the_stated_factor_and_no_more():
    assert mixed(64) == 4 * (3 + 64) - (3 + 64)  # the example of the docstring
    assert mixed(7, max_slowdown=2.0, min_chunk=1.0) == 10  # 10 rows alone, 20 together
    assert mixed(7, max_slowdown=math.inf) == 500


def test_a_chunk_is_never_so_short_that_it_costs_more_than_it_is_worth():
    assert mixed(1) == 32 * (3 + 1)
    assert mixed(1, fixed_rows=16.0) == 500  # 544: the whole step
    assert mixed(7, max_slowdown=1.0, min_chunk=2.0) == 8


def test_the_mix_keeps_what_is_left_of_the_step():
    assert mixed(64, most=30) == 30
    assert mixed(64, most=0) == 0


def test_the_price_of_a_prompt_rises_by_no_more_than_a_few_percent():
    """Against one pass for all of it, if every chunk needs a pass that would not have run otherwise."""
    for fixed_rows in (0.0, 0.5, 3.0, 10.0, 15.0, 100.0):
        for num_decoding in (1, 4, 16, 64):
            chunk = mixed(num_decoding, fixed_rows)
            assert fixed_rows / chunk - fixed_rows / 500 <= 1 / 32


def test_the_mix_follows_what_is_measured():
    costs = make_costs(EngineConfig())
    for num_rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        costs.note(num_rows, 0.003 + 0.001 * num_rows)
    assert count_prefill(costs, 64, 448, EngineConfig()) == pytest.approx(201, abs=8)
    assert count_prefill(costs, 1, 511, EngineConfig()) == pytest.approx(128, abs=8)


def test_before_anything_is_measured_the_mix_follows_a_guess():
    assert 100 < count_prefill(MeasuredCosts(), 1, 511, EngineConfig()) < 200
