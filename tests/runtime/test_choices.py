"""The three ways of choosing, on scores that a reader can add up."""

from __future__ import annotations

import itertools
import math

import pytest

from forktree.backend.fake import Fake
from forktree.lang.expressions import select
from forktree.runtime.choices import choose
from forktree.runtime.function import function
from forktree.runtime.protocol import OptionScore, ScoreResult

METHODS = ("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized")


def scored(table: dict[str, list[float]], unconditional: dict[str, list[float]] | None = None) -> ScoreResult:
    return ScoreResult(
        tuple(
            OptionScore(
                tuple(range(len(logprobs))), tuple(logprobs), tuple(unconditional[text]) if unconditional else None
            )
            for text, logprobs in table.items()
        )
    )


@pytest.mark.parametrize(
    ("method", "winner"),
    [
        ("token_length_normalized", "Antananarivo"),
        ("greedy_token_selection", "Rome"),
        ("unconditional_likelihood_normalized", "Rome"),
    ],
)
def test_a_long_option_with_a_predictable_tail_wins_by_the_mean_alone(method, winner) -> None:
    table = {"Rome": [-0.9], "Antananarivo": [-3.0, -0.01, -0.01, -0.01]}
    base = {"Rome": [-6.0], "Antananarivo": [-9.0, -0.5, -0.5, -0.5]}
    index, meta = choose(list(table), scored(table, base), method)
    assert list(table)[index] == winner == meta.text
    assert [option.token_logprobs for option in meta.options] == [tuple(row) for row in table.values()]


@pytest.mark.parametrize(
    ("method", "winner"), [("token_length_normalized", "cloud"), ("greedy_token_selection", "skill")]
)
def test_greedy_selection_follows_a_likely_first_token_into_a_bad_option(method, winner) -> None:
    table = {"skill": [math.log(0.6), math.log(0.01)], "cloud": [math.log(0.4), math.log(0.9)]}
    index, _ = choose(list(table), scored(table), method)
    assert list(table)[index] == winner


@pytest.mark.parametrize("method", METHODS)
def test_permuting_the_options_permutes_the_scores(method) -> None:
    table = {"True": [-1.2], "False": [-0.3], "Unknown": [-2.0, -0.1]}
    base = {text: [-3.0] * len(row) for text, row in table.items()}
    scores = {}
    for order in itertools.permutations(table):
        shuffled = {text: table[text] for text in order}
        index, meta = choose(list(order), scored(shuffled, base), method)
        assert order[index] == "False"
        scores[order] = {option.text: option.score for option in meta.options}
    assert all(each == scores[tuple(table)] for each in scores.values())


def test_probabilities_are_normalised_over_the_options_and_the_rest_is_outside() -> None:
    table = {"a": [math.log(0.5)], "b": [math.log(0.25)]}
    _, meta = choose(["a", "b"], scored(table), "token_length_normalized")
    assert meta.probabilities == pytest.approx({"a": 2 / 3, "b": 1 / 3})
    assert meta.option_logprobs == pytest.approx({"a": math.log(0.5), "b": math.log(0.25)})
    assert meta.outside == pytest.approx(0.25)


def test_an_option_that_begins_with_another_adds_nothing_to_the_covered_mass() -> None:
    table = {"new": [math.log(0.5)], "new york": [math.log(0.5), math.log(0.8)]}
    _, meta = choose(list(table), scored(table), "token_length_normalized")
    assert meta.outside == pytest.approx(0.5)


def test_a_shorter_option_goes_on_with_its_mean_in_greedy_selection() -> None:
    table = {"ab": [-0.5, -0.1], "a": [-0.5]}
    index, _ = choose(list(table), scored(table), "greedy_token_selection")
    assert index == 0
    table = {"ab": [-0.5, -0.9], "a": [-0.5]}
    index, _ = choose(list(table), scored(table), "greedy_token_selection")
    assert index == 1


def test_a_duplicate_is_the_same_option() -> None:
    table = {"a": [math.log(0.4)], "b": [math.log(0.6)]}
    index, meta = choose(["b", "a", "b"], scored({"b": table["b"], "a": table["a"]}), "token_length_normalized")
    assert index == 0
    assert meta.probabilities == pytest.approx({"a": 0.4, "b": 0.6})
    assert len(meta.options) == 3


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_option_is_chosen_only_when_there_is_no_other(method) -> None:
    index, meta = choose(["", "x"], scored({"": [], "x": [-9.0]}, {"": [], "x": [-1.0]}), method)
    assert index == 1
    assert meta.probabilities == {"": 0.0, "x": 1.0}
    assert choose([""], scored({"": []}, {"": []}), method)[0] == 0


@pytest.mark.parametrize("method", METHODS)
def test_one_option_wins(method) -> None:
    assert choose(["a"], scored({"a": [-1.0]}, {"a": [-1.0]}), method)[1].probabilities == {"a": 1.0}


@pytest.mark.parametrize("method", METHODS)
def test_a_program_selects_and_appends_the_option_s_own_text(method) -> None:
    fake = Fake({"kind": {" fuel": [-0.1], " food": [-3.0]}})

    @function
    def program(s):
        s += "It is" + select("kind", [" food", " fuel"], method=method) + "."

    state = program.run(backend=fake)
    assert state.text() == "It is fuel."
    assert state["kind"] == " fuel"
    assert fake.requests[0].unconditional == (method == "unconditional_likelihood_normalized")
