"""Choices: any texts, in any number."""

from __future__ import annotations

import pytest
from grammar_walks import TOY, accepts_by_tokens, ends, legal

from forktree.backend.grammar.constraints import Choices
from forktree.lang.errors import ConstraintError


@pytest.mark.parametrize(
    "options",
    [
        ["a", "ab", "abc"],
        ["", "x"],
        [""],
        ["a.b", "a*b", "[x]", "(?i)y", "\\d", '"', "\n"],
        [" leading", "tail ", "道", "é", "😀", "foo", "foobar"],
        ["<|im_end|>", "<|im_start|>"],
        [f"option {number}" for number in range(1000)],
    ],
)
def test_exactly_the_options_are_legal(options: list[str]) -> None:
    constraint = Choices(options)
    for option in options[:50]:
        assert accepts_by_tokens(constraint, option)
        assert (option + "~") in options or not accepts_by_tokens(constraint, option + "~")
    assert not constraint.accepts("option")
    assert constraint.accepts_prefix(options[0][:1])


def test_duplicates_count_once() -> None:
    assert Choices(["b", "a", "b"]).spec.options == ("b", "a")


def test_an_output_must_end_where_no_option_goes_on() -> None:
    matcher = Choices(["a", "ab"]).compile(TOY)
    matcher.advance(ord("a"))
    assert ends(matcher)
    assert not matcher.must_end()
    matcher.advance(ord("b"))
    assert matcher.must_end()
    assert set(legal(matcher)) == set(TOY.eos_ids)


@pytest.mark.parametrize(
    ("options", "reason"),
    [([], "must not be empty"), (["a", 1], "must be a text"), ("abc", "not one text"), (["\ud800"], "surrogate")],
)
def test_bad_options_are_refused(options: object, reason: str) -> None:
    with pytest.raises(ConstraintError, match=reason):
        Choices(options)  # type: ignore[arg-type]
