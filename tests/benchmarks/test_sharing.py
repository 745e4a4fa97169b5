"""The fewest prompt tokens that requests can compute, on trees small enough to count by hand."""

from __future__ import annotations

from forktree.benchmarks.sharing import Sharing, Written, count_least
from forktree.runtime.protocol import PlannedPrompt


def prompt(*ids: int, num_scratch: int = 0) -> PlannedPrompt:
    return PlannedPrompt(ids, len(ids) - 1, num_scratch)


def test_one_prompt_is_computed_whole() -> None:
    assert count_least([prompt(1, 2, 3)], []) == 3


def test_a_shared_beginning_is_computed_once() -> None:
    assert count_least([prompt(1, 2, 3, 4), prompt(1, 2, 3, 5)], []) == 5


def test_every_request_computes_its_last_token() -> None:
    assert count_least([prompt(1, 2), prompt(1, 2)], []) == 3


def test_a_last_token_serves_those_that_go_on_behind_it() -> None:
    assert count_least([prompt(1, 2), prompt(1, 2, 3)], []) == 3


def test_what_the_model_wrote_is_not_computed_again() -> None:
    turns = [prompt(1, 2), prompt(1, 2, 7, 8, 3)]
    assert count_least(turns, [Written((1, 2, 7, 8), 2)]) == 3
    assert count_least(turns, [Written((1, 2, 7), 2)]) == 4  # the last one was drawn, and never fed


def test_options_are_computed_by_every_select() -> None:
    assert count_least([prompt(1, 2, num_scratch=4), prompt(1, 2, num_scratch=4)], []) == 3 + 8


def test_rates_are_shares_of_what_was_asked() -> None:
    sharing = Sharing(requested=10, computed=4, least=2)
    assert (sharing.hit_rate, sharing.best_rate) == (0.6, 0.8)
