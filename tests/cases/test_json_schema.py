"""Schemas that other systems got wrong: combined keywords, blanks, lengths, keys in a late order."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import jsonschema
import pytest
from grammar_walks import TOY, accepts_by_tokens, ends, legal, random_text
from schema_oracle import loads, oracle

from forktree.backend.grammar.constraints import Schema
from forktree.backend.grammar.matcher import Matcher
from forktree.lang.errors import ConstraintError


def walked(constraint: Schema, text: str) -> Matcher:
    """A matcher behind a text, byte by byte; every byte is legal where it stands."""
    matcher = constraint.compile(TOY)
    for byte in text.encode():
        assert byte in legal(matcher), (text, bytes([byte]))
        matcher.advance(byte)
    return matcher


def test_a_search_pattern_may_match_anywhere_in_the_text() -> None:
    schema = {"type": "object", "properties": {"memo": {"type": "string", "pattern": r"\S"}}, "required": ["memo"]}
    assert accepts_by_tokens(Schema({**schema, "additionalProperties": False}), '{"memo":"two words"}')


def test_a_slash_in_a_constant_is_written_plainly() -> None:
    constraint = Schema({"const": "https://docs.example/a/b"})
    assert accepts_by_tokens(constraint, '"https://docs.example/a/b"')
    for text in ('"https://docs.example/a"', "https://docs.example/a/b"):
        assert not accepts_by_tokens(constraint, text)


# --- blanks ----------------------------------------------------------------------------------------------------

TAGS = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["n", "tags"],
    "additionalProperties": False,
}
BLANKS = b" \n\t\r"


@pytest.mark.parametrize("whitespace", ["compact", "bounded", 2])
def test_a_setting_of_blanks_changes_no_verdict_on_compact_text(whitespace: Any) -> None:
    constraint = Schema(TAGS, whitespace=whitespace)
    for text in ('{"n":1,"tags":[]}', '{"n":1,"tags":["a","b"]}'):
        assert accepts_by_tokens(constraint, text)
    for text in ('{"n":1,"tags":[,]}', '{"n":1,"tags":["a",]}'):
        assert not accepts_by_tokens(constraint, text)


@pytest.mark.parametrize("whitespace", ["bounded", 2])
def test_what_may_follow_before_a_blank_may_follow_after_it(whitespace: Any) -> None:
    """A list that a newline follows can still be closed, and so at every other place of the document."""
    constraint = Schema(TAGS, whitespace=whitespace)
    text = '{"n":1,"tags":["a","b"]}'
    for at in (1, 4, 5, 7, 13, 14, 15, 18, 22, 23):
        spaced = text[:at] + "\n" + text[at:]
        assert accepts_by_tokens(constraint, spaced), spaced
    assert accepts_by_tokens(constraint, '{"n":1,"tags":[\n]}')


def test_compact_output_has_no_blank_outside_its_texts() -> None:
    constraint = Schema(TAGS)
    text = '{"n":1,"tags":["a b"]}'
    for size in range(len(text) + 1):
        inside = 16 <= size < 20
        blanks = set(BLANKS) & set(legal(walked(constraint, text[:size])))
        assert blanks == ({ord(" ")} if inside else set()), text[:size]


@pytest.mark.parametrize(("whitespace", "most"), [(2, 2), ("bounded", 1000)])
def test_a_run_of_blanks_comes_to_an_end(whitespace: Any, most: int) -> None:
    matcher = walked(Schema(TAGS, whitespace=whitespace), "{")
    num_blanks = 0
    while set(legal(matcher)) & set(BLANKS) and num_blanks <= most:
        matcher.advance(ord(" "))
        num_blanks += 1
    assert num_blanks <= most
    assert ord('"') in legal(matcher)


# --- keys ------------------------------------------------------------------------------------------------------

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
    "additionalProperties": {"type": "integer"},
}


@pytest.mark.parametrize("order", ["schema", "any"])
def test_a_declared_key_named_late_is_no_trap(order: Any) -> None:
    """Either the key cannot be begun that far, or it can be closed; an escape is never the one way on."""
    matcher = Schema(PLACE, order=order).compile(TOY)
    for byte in b'{"zip":"0150","city':
        allowed = set(legal(matcher))
        assert allowed - set(b"\\"), "only an escape is left"
        if byte not in allowed:
            return
        matcher.advance(byte)
    assert set(legal(matcher)) - set(b"\\"), "only an escape is left"
    assert order == "schema" or ord('"') in legal(matcher)


@pytest.mark.parametrize("order", ["schema", "any"])
def test_every_random_object_with_open_keys_is_valid(order: Any) -> None:
    constraint = Schema(PLACE, order=order)
    validator = oracle(PLACE)
    texts = [random_text(constraint, random.Random(seed), most=40) for seed in range(60)]
    finished = [text for text in texts if text is not None]
    assert len(finished) > 20
    for text in finished:
        validator.validate(loads(text))  # which refuses a key that comes twice


# --- lengths ---------------------------------------------------------------------------------------------------


def body(size: int | None, **more: Any) -> dict[str, Any]:
    text = {"type": "string", **({} if size is None else {"maxLength": size}), **more}
    return {"type": "object", "properties": {"body": text}, "required": ["body"]}


def test_a_length_costs_the_same_whatever_it_is() -> None:
    """Inside the text there is one mask, whatever was written, and the states are as many as for any other length."""
    num_states = set()
    for size in (1999, 2000, 2001, 8192, 100_000):
        constraint = Schema(body(size))
        matcher = walked(constraint, '{"body":"x')
        first = matcher.mask()
        for _ in range(300):
            matcher.advance(ord("x"))
            assert matcher.mask() is first
        num_states.add(constraint.automaton.num_states)
    assert max(num_states) <= 1.1 * min(num_states)


def test_a_limit_is_exact_on_both_sides() -> None:
    for size in (1999, 2000, 2001):
        constraint = Schema(body(size))
        assert constraint.accepts(json.dumps({"body": "x" * size}, separators=(",", ":")))
        assert not constraint.accepts(json.dumps({"body": "x" * (size + 1)}, separators=(",", ":")))


def test_a_list_of_values_and_a_length_hold_together() -> None:
    constraint = Schema(body(2000, enum=["short", "y" * 2001, "z" * 2000]))
    assert constraint.accepts('{"body":"short"}')
    assert constraint.accepts('{"body":"' + "z" * 2000 + '"}')
    assert not constraint.accepts('{"body":"' + "y" * 2001 + '"}')


# --- keywords that were dropped --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"type": "integer", "multipleOf": 3},
        {"type": "object", "minProperties": 2},
        {"type": "string", "not": {"const": "x"}},
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        {"type": "array", "contains": {"const": 1}},
        {"type": "object", "propertyNames": {"pattern": "^k"}},
        {"if": {"type": "string"}, "then": {"minLength": 2}},
        {"type": "string", "format": "no-such-format"},
    ],
    ids=lambda schema: next(iter({**schema} if "type" not in schema else list(schema)[1:])),
)
def test_a_keyword_is_enforced_or_refused_by_name_or_listed(schema: dict[str, Any]) -> None:
    try:
        constraint = Schema(schema)
    except ConstraintError as refusal:
        keyword = refusal.pointer.rpartition("/")[2]
        assert keyword in schema
        return
    validator = jsonschema.Draft202012Validator(schema)
    texts = [random_text(constraint, random.Random(seed), most=40) for seed in range(40)]
    finished = {text for text in texts if text is not None}
    assert finished
    for text in finished:
        validator.validate(loads(text))
    if schema.get("format"):
        assert constraint.annotations == ("/format",)


ONE, TWO = {"const": 1}, {"const": 2}


@pytest.mark.parametrize(
    "keywords",
    [
        {"oneOf": [{"contains": ONE}, {"contains": TWO}]},
        {"contains": ONE, "not": {"contains": TWO}},
        {"contains": ONE, "not": {"items": ONE}},
        {"contains": ONE, "not": {"anyOf": [{"items": ONE}, {"contains": TWO}]}},
        {"oneOf": [{"anyOf": [{"items": ONE}, {"contains": TWO}]}, {"anyOf": [{"items": TWO}, {"contains": ONE}]}]},
        {"allOf": [{"contains": ONE, "maxContains": 1}, {"contains": TWO, "minContains": 2}]},
    ],
    ids=["one_of", "not_contains", "not_items", "not_any_of", "nested", "counts"],
)
def test_several_demands_for_an_item_forbid_no_valid_list(keywords: dict[str, Any]) -> None:
    """A demand that is met makes no difference to the items that follow, whatever the others still ask."""
    schema = {"type": "array", **keywords}
    constraint, validator = Schema(schema), jsonschema.Draft202012Validator(schema)
    for size in range(5):
        for items in itertools.product((1, 2, 3), repeat=size):
            text = json.dumps(items, separators=(",", ":"))
            assert constraint.accepts(text) == validator.is_valid(list(items)), text


def test_a_finished_output_may_end_where_the_mask_says_so() -> None:
    matcher = walked(Schema(PLACE), '{"city":"Oslo"')
    assert not ends(matcher)
    matcher.advance(ord("}"))
    assert ends(matcher)
