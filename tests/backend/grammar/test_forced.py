"""Forced runs: what must come next, cut as the tokenizer cuts it, and never further than is certain."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from grammar_walks import TOY, legal
from schema_oracle import compact

from forktree.backend.grammar.constraints import Choices, Constraint, Regex, Schema
from forktree.backend.grammar.forced import ForcedRuns, forced_bytes
from forktree.backend.grammar.healing import healed
from forktree.backend.grammar.matcher import Matcher
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import ConstraintError

ROWS = [
    json.loads(line) for line in (Path(__file__).parents[2] / "data/grammar/schemas.jsonl").read_text().splitlines()
]
OBJECT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "kind": {"enum": ["food", "fuel"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


def spelt(ids: tuple[int, ...] | list[int], vocabulary: Vocabulary = TOY) -> list[bytes]:
    return [vocabulary.token_bytes[token] or b"" for token in ids]


def test_one_option_is_forced_to_its_end() -> None:
    matcher = Choices(["the name"]).compile(TOY)
    assert spelt(matcher.forced()) == [b"the", b" ", b"name"]
    for token in matcher.forced():
        assert token in legal(matcher)
        matcher.advance(token)
    assert matcher.must_end()
    assert matcher.forced() == ()


def test_an_output_that_may_end_is_not_forced_on() -> None:
    matcher = Choices(["x", "xyz"]).compile(TOY)
    assert spelt(matcher.forced()) == [b"x"]
    matcher.advance(ord("x"))
    assert matcher.forced() == ()


def test_tokens_that_may_merge_with_what_follows_are_withheld() -> None:
    # after `ab`, a "c" would make the token `abc`, and `foo` may be the beginning of `foobar`
    assert spelt(Regex("ab(c|d)").compile(TOY).forced()) == []
    assert spelt(Regex("ab(x|d)").compile(TOY).forced()) == [b"ab"]
    assert spelt(Regex("12foo(bar|d)").compile(TOY).forced()) == [b"12"]
    assert spelt(Regex("12foo(x|d)").compile(TOY).forced()) == [b"12", b"foo"]


def test_a_schema_forces_its_punctuation_and_names() -> None:
    matcher = Schema(OBJECT).compile(TOY)
    assert spelt(matcher.forced()) == [b'{"', b"name"]  # `":"` and then `,"` might become `":` and `","`
    for data in (b'{"', b"name", b'":', b'"', b"x", b'","'):
        matcher.advance(TOY.token_bytes.index(data))
    assert spelt(matcher.forced()) == [b"k", b"in", b"d", b'":"']  # foo begins with an f


def test_a_withdrawn_prefix_is_forced_with_what_follows_it() -> None:
    matcher = healed(b"x:", Choices(["ab"]).compile(TOY), TOY)
    assert spelt(matcher.forced()) == [b"x", b":", b"ab"]
    for token in matcher.forced():
        matcher.advance(token)
    assert matcher.must_end()


def test_a_prefix_that_some_token_goes_beyond_is_not_forced() -> None:
    assert healed(b"fo", None, TOY).forced() == ()
    assert spelt(healed(b"foobar", None, TOY).forced()) == [b"foobar"]
    assert spelt(healed(b"foo", Regex("x*").compile(TOY), TOY).forced()) == [b"foo"]
    assert healed(b"foo", Regex("(bar)?").compile(TOY), TOY).forced() == ()


def test_half_a_character_is_not_forced_alone() -> None:
    vocabulary = Vocabulary((*TOY.token_bytes[:256], None), frozenset([256]), spell=lambda text: tuple(text.encode()))
    assert spelt(Regex("xé").compile(vocabulary).forced()) == [b"x", b"\xc3", b"\xa9"]
    assert spelt(Regex("x[éè]").compile(vocabulary).forced()) == [b"x"]


def test_a_tokenizer_that_rewrites_text_forces_nothing() -> None:
    vocabulary = Vocabulary((*TOY.token_bytes[:256], None), frozenset([256]), spell=lambda text: (32, *text.encode()))
    assert Regex("abc").compile(vocabulary).forced() == ()


def test_a_vocabulary_that_lacks_bytes_is_forced_only_where_it_can_go_on() -> None:
    vocabulary = Vocabulary((b"a", b"ab", b"c", b"b", None), frozenset([4]), spell=lambda text: (0, 3, 2))
    assert Regex("abc").compile(vocabulary).forced() == (0, 3, 2)
    without = Vocabulary((b"a", b"ab", b"c", None), frozenset([3]), spell=lambda text: (0, 2))
    assert Regex("abc").compile(without).forced() == ()


def test_what_is_forced_is_legal_and_is_all_that_the_bytes_allow() -> None:
    for row in ROWS[::4]:
        try:
            constraint = Schema(row["schema"])
        except ConstraintError:
            continue
        rng = random.Random(row["id"])
        matcher = constraint.compile(TOY)
        for _ in range(30):
            matcher = _after_forced(constraint, matcher)
            tokens = [token for token in legal(matcher) if token not in TOY.eos_ids]
            if not tokens:
                break
            matcher.advance(rng.choice(tokens))


def _after_forced(constraint: Constraint, matcher: Matcher) -> Matcher:
    """Takes the forced tokens one by one; each is legal and continues the only bytes there are."""
    assert matcher.state is not None
    data, _ = forced_bytes(constraint.automaton, matcher.state)
    run = matcher.forced()
    assert data.startswith(b"".join(spelt(run)))
    twin = matcher.copy()
    for token in run:
        assert token in legal(twin)
        assert not TOY.eos_ids & set(legal(twin))
        twin.advance(token)
    matcher.rollback(0)
    return twin


@pytest.mark.model
def test_the_tokenizer_writes_the_forced_tokens_for_the_whole_text(smol_tokenizer) -> None:
    num_forced = num_tokens = 0
    for row in ROWS:
        try:
            constraint = Schema(row["schema"])
        except ConstraintError:
            continue
        for value in row["valid"]:
            text = compact(value)
            if constraint.accepts(text):
                ids = smol_tokenizer(text, add_special_tokens=False).input_ids
                num_forced += _count_forced(constraint.compile(smol_tokenizer), ids)
                num_tokens += len(ids)
    assert num_forced > num_tokens / 20


def _count_forced(matcher: Matcher, ids: list[int]) -> int:
    at = count = 0
    while at < len(ids):
        run = list(matcher.forced()) or ids[at : at + 1]
        count += len(matcher.forced())
        assert ids[at : at + len(run)] == run
        for token in run:
            matcher.advance(token)
        at += len(run)
    return count


def test_runs_are_found_once() -> None:
    masks = Schema(OBJECT).compile(TOY).masks
    runs = ForcedRuns(masks)
    assert runs.after(masks.automaton.start) is runs.after(masks.automaton.start)
