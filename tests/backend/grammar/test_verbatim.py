"""Literal pieces inside JSON: what is written, what is legal, and that masks agree with the automaton."""

from __future__ import annotations

import json
import random
from typing import Annotated, Any

import pytest
from grammar_walks import TOY, accepts_by_tokens, brute_mask, legal, random_text
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from forktree.backend.grammar.constraints import Constraint, Schema, Substring
from forktree.lang.constraints import Unit
from forktree.lang.errors import ConstraintError
from forktree.lang.types import output_from_schema
from forktree.lang.verbatim import Verbatim

TEXTS = st.text(alphabet='ab"\\é道😀\n ', max_size=12)
RECEIPT = 'Shell "Nord"\t12.40 EUR\nthe foobar of 2024: naïve 道路 — abc\\abc'


def field(document: str, unit: Unit = "character", **bounds: int) -> dict[str, Any]:
    return {**Verbatim(document, unit).to_schema(), **bounds}


def is_piece(text: str, document: str, unit: Unit) -> bool:
    """By trying every place."""
    for at in range(len(document) + 1):
        end = at + len(text)
        if document[at:end] != text:
            continue
        begins = at == 0 or document[at - 1].isspace()
        ends = end == len(document) or document[end].isspace()
        if unit == "character" or not text or (begins and ends and text == text.strip()):
            return True
    return False


def assert_masks_are_exact(constraint: Constraint, seed: int, steps: int = 8) -> None:
    """A random walk, every mask on which is what the automaton says byte by byte."""
    rng = random.Random(seed)
    matcher, data = constraint.compile(TOY), b""
    for _ in range(steps):
        allowed = legal(matcher)
        assert set(allowed) == brute_mask(constraint, data)
        texts = [token for token in allowed if token not in TOY.eos_ids]
        if not texts:
            return
        token = rng.choice(texts)
        matcher.advance(token)
        data += TOY.token_bytes[token] or b""


@settings(max_examples=80, deadline=None)
@given(TEXTS, TEXTS, st.sampled_from(["character", "word"]), st.integers(0, 3), st.one_of(st.none(), st.integers(3, 6)))
def test_exactly_the_pieces_of_a_text_are_legal_fields(
    document: str, other: str, unit: Unit, low: int, high: int | None
) -> None:
    bounds = {"minLength": low} | ({} if high is None else {"maxLength": high})
    pieces = {document[a:b] for a in range(len(document) + 1) for b in range(a, len(document) + 1)} | {other}
    right = {
        text
        for text in pieces
        if is_piece(text, document, unit) and low <= len(text) <= (len(text) if high is None else high)
    }
    try:
        constraint = Schema(field(document, unit, **bounds))
    except ConstraintError:
        assert not right
        return
    for text in pieces:
        assert constraint.accepts(json.dumps(text, ensure_ascii=False)) == (text in right)
        assert constraint.accepts(json.dumps(text)) == (text in right)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.sampled_from(["character", "word"]), st.integers(0, 2), st.integers(0, 10_000))
def test_masks_are_what_the_automaton_says(document: str, unit: Unit, low: int, seed: int) -> None:
    assert_masks_are_exact(Substring(document, unit=unit), seed)
    try:
        constraint = Schema(
            {"properties": {"a": field(document, unit, minLength=low)}, "required": ["a"], "type": "object"}
        )
    except ConstraintError:
        return
    assert_masks_are_exact(constraint, seed)


@pytest.mark.parametrize("unit", ["character", "word"])
@pytest.mark.parametrize("bounds", [{}, {"minLength": 1}, {"minLength": 3, "maxLength": 9}])
def test_walks_over_a_receipt_end_in_pieces_of_it(unit: Unit, bounds: dict[str, int]) -> None:
    constraint = Schema({"type": "array", "items": field(RECEIPT, unit, **bounds), "minItems": 1, "maxItems": 3})
    for seed in range(10):
        text = random_text(constraint, random.Random(seed))
        assert text is not None
        assert all(is_piece(piece, RECEIPT, unit) for piece in json.loads(text))
        assert accepts_by_tokens(constraint, text, seed=seed)
        assert_masks_are_exact(constraint, seed)


def test_a_character_is_not_begun_where_it_would_leave_too_few() -> None:
    matcher = Schema(field("\\é", minLength=2)).compile(TOY)
    matcher.advance_bytes(b'"')
    assert legal(matcher) == [ord("\\")]


def test_ascii_is_written_as_json_writers_write_it() -> None:
    constraint = Schema(field('a"b\n'))
    assert constraint.accepts(r'"a\"b\n"')
    assert not constraint.accepts(r'"\u0061"')
    assert not constraint.accepts(r'"\u000a"')


def test_the_algebra_sees_texts_and_not_spellings() -> None:
    excluded = Schema({"type": "string", "not": field("abc")})
    assert not excluded.accepts(r'"\u0061b"')
    assert excluded.accepts('"ca"')
    both = Schema({"allOf": [field("abcabd"), {"pattern": "^ab.$"}]})
    assert [text for text in ("abc", "abd", "ab", "bca") if both.accepts(f'"{text}"')] == ["abc", "abd"]
    assert Schema({"anyOf": [field("abc"), {"type": "null"}]}).accepts("null")
    assert Schema({"enum": ["ab", "cd"], "allOf": [field("abc")]}).accepts('"ab"')
    assert not Schema({"enum": ["ab", "cd"], "allOf": [field("abc")]}).accepts('"cd"')


def test_a_field_of_a_type_is_bound_to_its_document() -> None:
    class Receipt(BaseModel):
        company: Annotated[str, Verbatim("Shell 12"), Field(min_length=1)]
        total: float
        note: Verbatim("x") | None  # type: ignore[valid-type]

    output = output_from_schema(Receipt)
    constraint = Schema(output.spec.schema)  # type: ignore[union-attr]
    assert constraint.accepts('{"company":"hell","total":12,"note":null}')
    assert not constraint.accepts('{"company":"Hell","total":12,"note":null}')
    assert not constraint.accepts('{"company":"","total":12,"note":"x"}')
    assert output.value_of('{"company":"hell","total":12,"note":"x"}') == Receipt(company="hell", total=12, note="x")


def test_what_cannot_be_copied_is_refused_with_a_pointer() -> None:
    with pytest.raises(ConstraintError, match="no document") as caught:
        Schema({"type": "object", "properties": {"a": Verbatim().to_schema()}})
    assert caught.value.pointer == "/properties/a/x-forktree-verbatim"
    with pytest.raises(ConstraintError, match="nothing can satisfy"):
        Schema(field("abc", minLength=4))
    with pytest.raises(ConstraintError, match="lone surrogate") as caught:
        Schema({"items": {"type": "string", "x-forktree-verbatim": {"document": "a\ud800"}}})
    assert caught.value.pointer == "/items/x-forktree-verbatim"
    with pytest.raises(ConstraintError, match="must be an object"):
        Schema({"type": "string", "x-forktree-verbatim": "abc"})
    with pytest.raises(ConstraintError, match="unit must be"):
        Verbatim("abc", unit="line")  # type: ignore[arg-type]
    with pytest.raises(ConstraintError, match="must be a text"):
        Verbatim(3)  # type: ignore[arg-type]


def test_a_long_document_costs_memory_by_its_length() -> None:
    document = "".join(random.Random(0).choices("abcdefgh \n", k=100_000))
    constraint = Schema(field(document))
    assert constraint.accepts(json.dumps(document[70_000:90_000]))
    assert not constraint.accepts(json.dumps(document[70_000:90_000] + "z"))
    assert constraint.automaton.num_states < 50_000


def test_a_mask_needs_no_state_for_each_place_of_the_document() -> None:
    document = " ".join(f"item {n} costs {n * 17}.{n:02}" for n in range(100))
    bounds = {"minLength": 1, "maxLength": 30}
    constraint = Schema({"type": "object", "properties": {"a": field(document, **bounds)}, "required": ["a"]})
    matcher = constraint.compile(TOY)
    matcher.advance_bytes(b'{"a":"')
    assert len(legal(matcher)) > 10
    assert constraint.automaton.num_states < 200
