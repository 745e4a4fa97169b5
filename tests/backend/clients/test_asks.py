"""How constraints are asked for, and how answers are checked."""

from __future__ import annotations

import json

import pytest

from forktree.backend.clients.asks import ANSWER, Means, is_strict_schema, means_of
from forktree.backend.clients.checks import can_go_on, check
from forktree.backend.clients.dialects import ANTHROPIC, DEEPSEEK, OLLAMA, OPENAI, SGLANG
from forktree.lang.constraints import (
    ChoicesSpec,
    ConstraintSpec,
    ReasoningSpec,
    RegexSpec,
    SchemaSpec,
    SubstringSpec,
    TagsSpec,
)
from forktree.lang.errors import UnsupportedError

CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "is_strict"),
    [
        (CLOSED, True),
        ({**CLOSED, "required": []}, False),
        ({**CLOSED, "additionalProperties": True}, False),
        ({**CLOSED, "properties": {"a": {"type": "object", "properties": {}}}}, False),
        ({**CLOSED, "properties": {"a": {"type": "string", "minLength": 1}}}, False),
        ({**CLOSED, "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": CLOSED}}, True),
        ({**CLOSED, "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}, True),
        ({**CLOSED, "properties": {"a": True}}, False),
        ({**CLOSED, "properties": {"a": {}}}, False),
        ({**CLOSED, "properties": {"a": {"enum": ["x"]}}}, False),
        ({**CLOSED, "properties": {"a": {"type": ["object", "null"], "enum": [{"b": 1}, None]}}}, False),
    ],
)
def test_strict_mode_takes_closed_objects_of_known_keywords(schema, is_strict: bool) -> None:
    assert is_strict_schema(schema) is is_strict


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"enum": ["x", "y"]}, {"type": "string", "enum": ["x", "y"]}),
        ({"enum": [1, None, True]}, {"type": ["integer", "null", "boolean"], "enum": [1, None, True]}),
        ({"const": 1.5}, {"type": "number", "const": 1.5}),
        (
            {"anyOf": [{"const": "x"}, {"type": "null"}]},
            {"anyOf": [{"type": "string", "const": "x"}, {"type": "null"}]},
        ),
    ],
)
def test_a_bare_enum_is_a_strict_schema_with_its_type_and_never_json_mode(schema, sent) -> None:
    spec = SchemaSpec(json.dumps(schema))
    strict = means_of(spec, OPENAI, has_begun=False)
    assert strict.schema["properties"] == {ANSWER: sent}
    assert (strict.is_strict, strict.key, strict.fields, strict.words) == (True, ANSWER, {}, "")
    told = means_of(spec, DEEPSEEK, has_begun=False)  # its JSON mode promises an object
    assert (told.schema, told.fields) == (None, {})
    assert json.dumps(schema) in told.words


def test_enums_deep_inside_a_strict_schema_have_their_types_too() -> None:
    inner = {"x": {"enum": ["a"]}}
    schema = {**CLOSED, "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": inner}
    means = means_of(SchemaSpec(json.dumps(schema)), OPENAI, has_begun=False)
    assert means.is_strict
    assert means.schema["$defs"] == {"x": {"type": "string", "enum": ["a"]}}
    listed = {**CLOSED, "properties": {"a": {"type": "array", "items": {"const": 3}}}}
    means = means_of(SchemaSpec(json.dumps(listed)), OPENAI, has_begun=False)
    assert means.schema["properties"]["a"]["items"] == {"type": "integer", "const": 3}


def test_a_recursive_root_that_is_no_object_cannot_be_wrapped_and_is_told_in_words() -> None:
    means = means_of(SchemaSpec('{"type": "array", "items": {"$ref": "#"}}'), OPENAI, has_begun=False)
    assert (means.schema, means.key) == (None, "")
    assert "JSON Schema" in means.words


def test_definitions_stay_at_the_root_of_what_is_wrapped() -> None:
    means = means_of(SchemaSpec('{"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}}'), OLLAMA, has_begun=False)
    assert means.key == ANSWER
    assert means.schema["$defs"] == {"x": {"type": "integer"}}
    assert means.schema["properties"][ANSWER] == {"$ref": "#/$defs/x"}


def test_python_s_own_syntax_is_told_in_words_beside_the_schema() -> None:
    common, own = (means_of(RegexSpec(p), OPENAI, has_begun=False) for p in ("[a-c]+", r"(?i)abc"))
    assert common.schema["properties"][ANSWER] == {"type": "string", "pattern": "^(?:[a-c]+)$"}
    assert common.words == ""
    assert own.schema["properties"][ANSWER] == {"type": "string"}
    assert "(?i)abc" in own.words


def test_each_dialect_has_its_own_means() -> None:
    spec = ChoicesSpec(("x", "y"))
    assert means_of(spec, ANTHROPIC, has_begun=False).tools
    assert not means_of(spec, ANTHROPIC, has_begun=True).tools
    assert means_of(spec, DEEPSEEK, has_begun=False).words
    assert means_of(spec, SGLANG, has_begun=False).schema
    assert "literal piece" in means_of(SubstringSpec("some text"), OPENAI, has_begun=False).words


@pytest.mark.parametrize("spec", [TagsSpec(()), ReasoningSpec(begin="<t>", end="</t>"), ReasoningSpec(max_tokens=3)])
def test_what_a_service_has_no_means_for_is_refused(spec) -> None:
    with pytest.raises(UnsupportedError):
        means_of(spec, DEEPSEEK, has_begun=False)


SPEC = SchemaSpec(
    '{"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string"}}, "required": ["a"]}'
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":1}', '{"a":1}'),
        ('  {\n "b": "x y",\n "a": 1e2 }\n', '{\n "b": "x y",\n "a": 1e2 }'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('{"b": "a \\" b", "a": -0.5}', '{"b": "a \\" b", "a": -0.5}'),
    ],
)
def test_json_may_be_written_in_any_form(text: str, value: str) -> None:
    assert check(text, SPEC, means_of(SPEC, OPENAI, has_begun=False)) == (value, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"b": "x"}', "not legal"),
        ('{"a": "1"}', "not legal from"),
        ('{"a": 1', "no JSON"),
        ('{"a": 1, "a": 2}', "comes twice"),
        ('Sure! {"a": 1}', "no JSON"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_what_is_wrong_is_said(text: str, problem: str) -> None:
    assert problem in check(text, SPEC, means_of(SPEC, OPENAI, has_begun=False)).problem


@pytest.mark.parametrize(
    ("text", "spec", "can"),
    [
        ('{"a": 1', SPEC, True),
        ('{ "b" : "x y', SPEC, True),
        ('{"b": "x\\u00', SPEC, True),
        ('```json\n{"a', SPEC, True),
        ("", SPEC, True),
        ('{"a": "1', SPEC, False),
        ('erties":{"title"', SPEC, False),
        (" 12", RegexSpec("[0-9]{3}"), True),
        ("Bob is 5", RegexSpec("[0-9]{3}"), False),
        ("New Y", ChoicesSpec(("New York", "Rome")), True),
        ("Paris", ChoicesSpec(("New York", "Rome")), False),
    ],
)
def test_an_answer_that_was_cut_may_have_been_on_its_way_or_not(text: str, spec: ConstraintSpec, can: bool) -> None:
    assert can_go_on(text, spec, Means()) is can


def test_of_a_wrapped_answer_that_was_cut_nothing_is_known() -> None:
    spec = ChoicesSpec(("yes", "no"))
    assert can_go_on('{"val', spec, means_of(spec, OPENAI, has_begun=False))


def test_blanks_around_a_choice_are_no_part_of_it_where_it_allows_none() -> None:
    spec = ChoicesSpec(("yes", " no"))
    words = means_of(spec, DEEPSEEK, has_begun=False)
    assert check("yes\n", spec, words) == ("yes", "")
    assert check(" no", spec, words) == (" no", "")
    assert check("perhaps", spec, words).problem


def test_what_was_to_be_wrapped_and_is_not_is_said() -> None:
    spec = ChoicesSpec(("yes", "no"))
    means = means_of(spec, OPENAI, has_begun=False)
    assert check('{"answer": "yes"}', spec, means) == ("yes", "")
    for text in ("yes", '{"answers": "yes"}', '{"answer": 3}', "[]"):
        assert "not wrapped as was asked for" in check(text, spec, means).problem
