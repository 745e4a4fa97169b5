"""Look-ahead right after a leading `^`, split off; anything else stays in the pattern."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.grammar.constraints import Schema
from forktree.backend.grammar.schema_lookahead import Lookahead, split_lookaheads


def test_each_is_a_pattern_of_its_own() -> None:
    assert split_lookaheads("^(?!a|b)(?=[)]c)d$") == (
        [Lookahead("^(?:a|b)", True), Lookahead("^(?:[)]c)", False)],
        "^d$",
    )


@pytest.mark.parametrize("pattern", ["(?!a)b", "^(?!a)b|c", "^a(?!b)", "^(?!a)*b", "^(?:a)", "^(?!a", "^"])
def test_where_the_split_would_change_the_meaning_there_is_none(pattern: str) -> None:
    assert split_lookaheads(pattern) == ([], pattern)


PATTERNS = [r"^(?!a)", r"^(?!ab?$)[ab]+$", r"^(?=.*b)(?!.*bb)a", r"^(?!b(a|$)).b?"]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(PATTERNS), st.text("abc", max_size=5))
def test_the_meaning_is_that_of_the_whole_pattern(pattern: str, text: str) -> None:
    constraint = Schema({"type": "string", "pattern": pattern})
    assert constraint.accepts(f'"{text}"') == (re.search(pattern, text) is not None)
