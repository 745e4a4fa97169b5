"""Budgets: an output that closes always closes in time, and the least that it takes is said."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from grammar_walks import TOY, legal, toy_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_oracle import loads, oracle

from forktree.backend.grammar.budget import BudgetedMatcher, within
from forktree.backend.grammar.constraints import Choices, Constraint, Grammar, Regex, Schema, Substring
from forktree.backend.grammar.healing import healed
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import ConstraintError

ROWS = [
    json.loads(line) for line in (Path(__file__).parents[2] / "data/grammar/schemas.jsonl").read_text().splitlines()
]
BYTES = Vocabulary((*(bytes([b]) for b in range(256)), None), frozenset([256]))
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"key": {"type": "string", "minLength": 3}, "left": {"$ref": "#/$defs/child"}},
            "required": ["key", "left"],
            "additionalProperties": False,
        },
        "child": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
}


def least(constraint: Constraint, vocabulary: Vocabulary = TOY) -> int:
    return constraint.compile(vocabulary).completion().cost


def random_output(matcher: BudgetedMatcher, rng: random.Random, vocabulary: Vocabulary = TOY) -> list[int]:
    """Whatever the mask allows, until nothing can follow or an end is drawn."""
    out: list[int] = []
    while not matcher.must_end():
        token = rng.choice(legal(matcher))  # type: ignore[arg-type]
        matcher.advance(token)
        if token in vocabulary.eos_ids:
            break
        out.append(token)
    assert matcher.is_complete()
    return out


def spelt(ids: list[int], vocabulary: Vocabulary = TOY) -> bytes:
    return b"".join(vocabulary.token_bytes[token] or b"" for token in ids)


def test_the_fewest_tokens_are_those_of_the_best_cut() -> None:
    assert least(Choices(["foobar"])) == 1
    assert least(Choices(["foobarx", "12"])) == 1
    assert least(Choices(["", "x"])) == 0
    assert least(Regex("[0-9]{4}")) == 1  # `2024`
    assert least(Regex("[0-9]{4}"), BYTES) == 4
    assert least(Regex("q{1000}"), BYTES) == 1000
    assert least(Substring("some text")) == 0
    # an "a" and then one token beat two bytes that are no token
    assert least(Choices(["aq", "a", "abc"])) == 1


def test_a_budget_that_nothing_fits_is_refused_with_the_least() -> None:
    with pytest.raises(ConstraintError, match=r"is 2, and .* takes 3 tokens: raise max_tokens to 3"):
        within(Regex("q{3,}").compile(TOY), TOY, 2)


def test_only_tokens_after_which_the_rest_fits_are_legal() -> None:
    matcher = within(Regex('"[xy]*"').compile(BYTES), BYTES, 4)
    assert legal(matcher) == [ord('"')]
    matcher.advance(ord('"'))
    assert legal(matcher) == [ord('"'), ord("x"), ord("y")]
    matcher.advance(ord("x"))
    assert legal(matcher) == [ord('"'), ord("x"), ord("y")]
    matcher.advance(ord("y"))
    assert legal(matcher) == [ord('"')]
    matcher.advance(ord('"'))
    assert matcher.must_end()


def test_an_output_that_may_go_on_ends_with_its_budget() -> None:
    matcher = within(Regex("x*").compile(BYTES), BYTES, 2)
    for _ in range(2):
        assert not matcher.must_end()
        assert legal(matcher) == [ord("x"), 256]
        matcher.advance(ord("x"))
    assert matcher.must_end()
    assert matcher.is_complete()


def test_a_token_beyond_the_budget_is_refused_and_changes_nothing() -> None:
    matcher = within(Regex("x|yzzz").compile(BYTES), BYTES, 2)
    with pytest.raises(ConstraintError, match="takes 3 more tokens, and 1 are left"):
        matcher.advance(ord("y"))
    assert legal(matcher) == [ord("x")]


def test_copies_and_rollback_take_the_budget_along() -> None:
    matcher = within(Regex("x{2,9}").compile(BYTES), BYTES, 5)
    matcher.advance(ord("x"))
    twin = matcher.copy()
    for _ in range(4):
        twin.advance(ord("x"))
    assert twin.must_end()
    assert matcher.num_left == 4
    twin.rollback(3)
    assert twin.num_left == 3
    assert not twin.must_end()
    matcher.advance(ord("x"))
    matcher.advance(256)
    assert matcher.must_end()
    matcher.rollback(1)
    assert not matcher.must_end()
    with pytest.raises(ValueError, match="roll back"):
        matcher.rollback(3)


def test_the_bytes_of_a_withdrawn_prefix_are_paid_from_the_budget() -> None:
    def matcher(most: int) -> BudgetedMatcher:
        return within(healed(b"xy", Regex('"[a-c]*"').compile(BYTES), BYTES), BYTES, most)

    with pytest.raises(ConstraintError, match="takes 4 tokens"):
        matcher(3)
    for most in range(4, 9):
        text = spelt(random_output(matcher(most), random.Random(most), BYTES), BYTES)
        assert text.startswith(b'xy"')
        assert text.endswith(b'"')
    toy = within(healed(b"foo", Choices(["bar", "x"]).compile(TOY), TOY), TOY, 1)
    assert spelt(legal(toy)) == b"foobar"


def test_forced_tokens_stay_within_the_budget() -> None:
    vocabulary = toy_vocabulary()
    whole = Choices(["foobar the name"])
    assert least(whole) == 4
    matcher = within(whole.compile(vocabulary), vocabulary, 4)
    for token in matcher.forced():
        matcher.advance(token)
    assert matcher.must_end()


def test_recursion_closes_and_the_least_is_one_level() -> None:
    constraint = Schema(TREE)
    least_bytes = len('{"key":"abc","left":null}')
    assert least(constraint, BYTES) == least_bytes
    for extra in (0, 1, 30, 100):
        matcher = within(constraint.compile(BYTES), BYTES, least_bytes + extra)
        text = spelt(random_output(matcher, random.Random(extra), BYTES), BYTES).decode()
        assert constraint.accepts(text)
        oracle(TREE).validate(loads(text))


def test_a_grammar_closes_its_brackets_in_time() -> None:
    constraint = Grammar('start: "(" start* ")" | /[a-z]{2}/')
    for most in range(2, 30):
        text = spelt(random_output(within(constraint.compile(BYTES), BYTES, most), random.Random(most), BYTES))
        assert len(text) <= most
        assert constraint.accepts(text.decode())


def test_a_vocabulary_that_lacks_bytes_closes_with_what_it_has() -> None:
    pieces = {0: b"a", 1: b"ab", 2: b"c", 3: b"bc"}
    vocabulary = Vocabulary((*pieces.values(), None), frozenset([4]))
    constraint = Regex("(abc|ac)+")
    assert least(constraint, vocabulary) == 2
    for most in range(2, 12):
        matcher = within(constraint.compile(vocabulary), vocabulary, most)
        text = spelt(random_output(matcher, random.Random(most), vocabulary), vocabulary)
        assert constraint.accepts(text.decode())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_random_outputs_of_published_schemas_are_whole_within_any_budget(row: dict[str, Any]) -> None:
    for form in ({}, {"order": "any", "whitespace": 1}):
        try:
            constraint = Schema(row["schema"], **form)
        except ConstraintError:
            continue
        rng = random.Random(row["id"])
        fewest = least(constraint)
        for extra in (0, 1, rng.randrange(60)):
            ids = random_output(within(constraint.compile(TOY), TOY, fewest + extra), rng)
            assert len(ids) <= fewest + extra
            text = spelt(ids).decode()
            assert constraint.accepts(text), text


@settings(max_examples=60, deadline=None)
@given(
    patterns=st.lists(
        st.sampled_from(["a{2,5}", "[xy]+", "(foo|bar)?", "12*", "(ab|abc)z?", "é"]), min_size=1, max_size=4
    ),
    extra=st.integers(0, 12),
    seed=st.integers(0, 1000),
)
def test_random_outputs_of_patterns_are_whole_within_any_budget(patterns: list[str], extra: int, seed: int) -> None:
    constraint = Regex("".join(patterns))
    most = least(constraint) + extra
    ids = random_output(within(constraint.compile(TOY), TOY, most), random.Random(seed))
    assert len(ids) <= most
    assert constraint.accepts(spelt(ids).decode())


@settings(max_examples=60, deadline=None)
@given(options=st.lists(st.text("abrfo12 ", max_size=9), min_size=1, max_size=5))
def test_the_least_of_choices_is_that_of_the_shortest_cut_of_any(options: list[str]) -> None:
    ids = {data: token for token, data in enumerate(TOY.token_bytes) if data}

    def fewest(data: bytes) -> int:
        best = [0] + [len(data)] * len(data)
        for end in range(1, len(data) + 1):
            best[end] = min(best[start] + 1 for start in range(end) if data[start:end] in ids)
        return best[-1]

    assert least(Choices(options)) == min(fewest(option.encode()) for option in options)
