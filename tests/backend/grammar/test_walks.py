"""Real schemas under a real tokenizer: texts are legal token by token, walks end in valid outputs.

`python -m forktree.benchmarks.walks --schemas FILE.jsonl` makes the same claims of any file.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forktree.backend.grammar.constraints import Regex, Schema
from forktree.backend.tokenizer import vocabulary_of
from forktree.benchmarks.grammar_rows import Row, load_rows
from forktree.benchmarks.walks import Order, Spelling, check_row, misstep
from forktree.lang.errors import ConstraintError

DATA = Path(__file__).parents[2] / "data"
SUITE = load_rows(DATA / "grammar/schemas.jsonl")[::3]
PUBLISHED = load_rows(DATA / "constrained/schemas.jsonl")[::2]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def spelling(smol_tokenizer: Any) -> Spelling:
    return Spelling(vocabulary_of(smol_tokenizer), lambda text: smol_tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize("row", [*SUITE, *PUBLISHED], ids=lambda row: row.name)
def test_accepted_texts_are_legal_token_by_token_and_walks_end_in_valid_outputs(
    row: Row, order: Order, spelling: Spelling
) -> None:
    try:
        faults = check_row(row, spelling, order, num_splits=1, num_walks=1)
    except ConstraintError as error:
        assert error.reason
        return
    assert faults == []


INSTANCE = '{"name":"Zoë \\"Z\\" Ångström","tags":["日本","","a\\nb"],"at":{"x":-12.5,"y":1e3}}'
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        "at": {"type": "object", "additionalProperties": {"type": "number"}},
    },
    "required": ["name", "tags"],
}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_an_instance_is_accepted_however_it_is_cut_into_tokens(seed: int, spelling: Spelling) -> None:
    constraint = Schema(SCHEMA, numbers="any")
    tokens = spelling.random(INSTANCE, random.Random(seed))
    assert tokens is not None
    assert misstep(constraint.compile(spelling.vocabulary), tokens) is None


def test_a_walk_that_leaves_the_language_is_told_where(spelling: Spelling) -> None:
    matcher = Regex("ab").compile(spelling.vocabulary)
    wrong = spelling.own("abc")
    assert "is not in the mask" in str(misstep(matcher, wrong))
    assert misstep(Regex("abc").compile(spelling.vocabulary), wrong) is None
    assert "may not end" in str(misstep(Regex("abcd").compile(spelling.vocabulary), spelling.own("abc")))


def test_a_rejected_valid_instance_is_a_fault(spelling: Spelling) -> None:
    row = Row("made", {"type": "integer"}, valid=(('"x"',),), invalid=(("3",),))
    kinds = [fault.detail for fault in check_row(row, spelling, "schema", num_splits=0, num_walks=0)]
    assert kinds == ["a valid instance is rejected", "an invalid instance is accepted"]
