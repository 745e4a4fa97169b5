"""JSON Schema: what each keyword means in text, and what is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from grammar_walks import TOY, accepts_by_tokens, check_texts, legal, random_text
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_oracle import compact, loads, oracle

from forktree.backend.grammar.constraints import Schema
from forktree.lang.errors import ConstraintError


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


CASES: list[tuple[str, Any, list[str], list[str]]] = [
    ("non_blank", closed({"memo": {"type": "string", "pattern": r"\S"}}, "memo"),
     ['{"memo":"x"}', '{"memo":" pay rent "}'], ['{"memo":""}', '{"memo":"   "}']),
    ("starts", closed({"key": {"type": "string", "pattern": "^run_"}}, "key"),
     ['{"key":"run_"}', '{"key":"run_7 late"}'], ['{"key":"rerun_7"}', '{"key":"run"}']),
    ("not_ahead", {"type": "string", "pattern": r"^(?!\.{1,2}$)(?!.*[)/])[a-z./)]+$"},
     ['"a.b"', '"..."', '".a"'], ['"."', '".."', '"a/b"', '"a)"', '""']),
    ("ahead", {"type": "string", "pattern": "^(?=.*[0-9])(?=.*[a-z])", "maxLength": 3}, ['"a1"', '"1-a"'], ['"a"', '"11"', '"a--1"']),
    ("mixed", {"enum": [True, False, None, "true", 0, 1.5, ["a"], {"k": 1}]},
     ["true", "false", "null", '"true"', "0", "1.5", '["a"]', '{"k":1}'], ["True", "None", "'true'", '"false"', "1"]),
    ("prefix_numbers", {"enum": [1, 12, 123]}, ["1", "12", "123"], ["", "2", "1234"]),
    ("quoted", {"const": 'say "hi" \\ now'}, ['"say \\"hi\\" \\\\ now"'], ['"say "hi" \\ now"']),
    ("ascii_const", {"const": "é😀"}, ['"é😀"', '"\\u00e9\\ud83d\\ude00"'], ['"e"', '"\\u00e9\\ud83d"']),
    ("odd_key", closed({"a\u0001b": {"type": "integer"}}, "a\u0001b"),
     ['{"a\\u0001b":3}'], ['{"a\u0001b":3}', '{"ab":3}']),
    ("key_letters", closed({'a"b': {"const": 1}, "a.b": {"const": 2}}),
     ['{"a\\"b":1}', '{"a.b":2}', '{"a\\"b":1,"a.b":2}', "{}"], ['{"a"b":1}', '{"axb":2}', '{"a.b":2,"a\\"b":1}']),
    ("lists", closed({"n": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}}, "n", "tags"),
     ['{"n":1,"tags":[]}', '{"n":1,"tags":["a","b"]}'],
     ['{"n":1,"tags":[,]}', '{"n":1,"tags":["a",]}', '{"n": 1,"tags":[]}', '{"tags":[],"n":1}', '{"n":1}']),
    ("open", {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
              "additionalProperties": {"type": "integer"}},
     ["{}", '{"city":"Oslo"}', '{"city":"Oslo","zip":"0150"}', '{"city":"Oslo","floor":3}'],
     ['{"city":3}', '{"city":"Oslo","floor":"x"}', '{"floor":1,"floor":2}', '{"c\\u0069ty":1}', '{"floor":1,"city":"x"}']),
    ("len3", {"type": "string", "maxLength": 3},
     ['""', '"abc"', '"éàü"', '"😀😀😀"', '"\\n\\"\\u00e9"', '"\\ud83d\\ude00"'], ['"abcd"', '"éàüö"', '"\\n\\n\\n\\n"']),
    ("len2_4", {"type": "string", "minLength": 2, "maxLength": 4}, ['"ab"', '"日本語版"'], ['"a"', '"abcde"', '"日"']),
    ("length_and_pattern", {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^a*b"},
     ['"ab"', '"aaab"', '"bxyz"'], ['"b"', '"aaaab"', '"xb"']),
    ("escapes", {"type": "string"},
     ['"\\/\\b\\f\\n\\r\\t"', '"\\u0000"', '"\\uD83D\\uDE00"', '"é\x7f"'],
     ['"\t"', '"\\x41"', '"\\\'"', '"\\ud83d"', '"\\ude00"', '"\\u12"', '"', '"a']),
    ("one_of_objects", {
        "type": "object", "properties": {"op": {"enum": ["move", "stop"]}}, "required": ["op"],
        "oneOf": [{"properties": {"op": {"const": "move"}, "to": {"type": "string"}}, "required": ["to"]},
                  {"properties": {"op": {"const": "stop"}}, "not": {"required": ["to"]}}]},
     ['{"op":"move","to":"hall"}', '{"op":"stop"}'], ['{"op":"move"}', '{"op":"fly"}', '{"to":"hall"}']),
    ("pattern_props", {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False},
     ["{}", '{"x_a":1}', '{"x_a":1,"x_b":2}'], ['{"y":1}', '{"x_a":"1"}', '{"x_a":1,"x_a":1}']),
    ("integers", {"type": "integer", "minimum": -123, "exclusiveMaximum": 43},
     ["-123", "-9", "0", "5", "42"], ["-124", "43", "00", "05", "1.0", "1e1", "-0", "+1", "1.", "123"]),
    ("numbers", {"type": "number", "exclusiveMinimum": 0, "maximum": 99.5},
     ["0.1", "1", "99.5", "99.50", "7.25", "0.00000000000000001"], ["0", "0.0", "-1", "99.51", "100", "1.", ".5", "01"]),
    ("fraction_limit", {"type": "number"}, ["0.12345678901234567", "-0.5"], ["0.123456789012345678", "1e5"]),
    ("multiple", {"type": "number", "multipleOf": 0.01}, ["0", "1.5", "19.99", "-3.10"], ["1.005", "0.001"]),
    ("int_multiple", {"type": "integer", "multipleOf": 7}, ["0", "14", "-7", "700"], ["1", "15", "-0"]),
    ("odd_multiple", {"type": "integer", "multipleOf": 0.123456789}, ["123456789", "0"], ["1" * 30, "123456788"]),
    ("union", {"type": ["integer", "null", "string"]}, ["1", "null", '"x"'], ["true", "1.5", "[]"]),
    ("number_or_int", {"anyOf": [{"type": "integer"}, {"type": "number"}]}, ["1", "1.5"], ["1."]),
    ("all_of", {"allOf": [closed({"a": {"type": "integer"}, "b": True}, "a"), {"properties": {"a": {"minimum": 3}}}]},
     ['{"a":3}', '{"a":9,"b":[]}'], ['{"a":2}', '{"b":1}', '{"a":3,"c":1}']),
    ("not_const", {"type": "string", "not": {"const": "x"}}, ['""', '"xx"', '"y"'], ['"x"', '"\\u0078"']),
    ("not_number", {"not": {"type": "number"}}, ["null", '"1"', "[1]"], ["1", "1.5"]),
    ("if_then", {"if": {"type": "string"}, "then": {"minLength": 2}}, ["1", '"ab"'], ['"a"']),
    ("tuple", {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 1},
     ["[1]", '[1,"a"]'], ["[]", '["a"]', '[1,"a",2]']),
    ("counted", {"type": "array", "items": {"const": 0}, "minItems": 2, "maxItems": 3}, ["[0,0]", "[0,0,0]"],
     ["[0]", "[0,0,0,0]", "[0,0,]"]),
    ("contains", {"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}, "maxContains": 2},
     ["[1]", "[0,1,1]", "[5,1]"], ["[]", "[0]", "[1,1,1]"]),
    ("unique", {"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": True},
     ["[]", '["a","b"]', '[1,"a","b"]'], ['["a","a"]', "[1,1]"]),
    ("unique_text", {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
     ['["a","b"]', "[]"], ['["a","a"]', '["a","\\u0061"]']),
    ("min_props", {"type": "object", "minProperties": 2, "maxProperties": 2, "additionalProperties": {"type": "null"}},
     ['{"a":null,"b":null}'], ['{"a":null}', '{"a":null,"b":null,"c":null}', '{"a":null,"a":null}']),
    ("names", {"type": "object", "propertyNames": {"enum": ["k1", "k2"]}, "minProperties": 2},
     ['{"k1":1,"k2":2}'], ['{"k1":1}', '{"k3":1,"k1":1}']),
    ("dependent", {**closed({"a": True, "b": True}), "dependentRequired": {"a": ["b"]}},
     ["{}", '{"b":1}', '{"a":1,"b":1}'], ['{"a":1}']),
    ("required_undeclared", {"type": "object", "required": ["z"]}, ['{"z":1}', '{"z":[1],"y":2}'], ["{}", '{"y":1}']),
    ("recursion", {"$defs": {"n": closed({"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n"}}, "v")}, "$ref": "#/$defs/n"},
     ['{"v":1}', '{"v":1,"next":{"v":2,"next":{"v":3}}}'], ['{"v":1,"next":{}}', '{"next":{"v":1}}']),
    ("ref_pointer", {"$defs": {"a/b": {"~c": {"type": "null"}}}, "$ref": "#/$defs/a~1b/~0c"}, ["null"], ["1"]),
    ("anything", True, ["1", '{"a":[{}]}', "[]", '""', "null"], ["", "{", "tru"]),
    ("empty_object", {"type": "object", "maxProperties": 0}, ["{}"], ['{"a":1}']),
    ("date", {"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"2024-13-01"', '"2024-04-31"']),
    ("uuid", {"format": "uuid"}, ['"2EB8AA08-aa98-11ea-b4aa-73b441d16380"', "7"], ['"2eb8aa08"']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "accept", "reject"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_schema_allows_exactly_its_texts(schema: Any, accept: list[str], reject: list[str]) -> None:
    constraint = Schema(schema)
    check_texts(constraint, accept, reject)
    validator = oracle(schema)
    for seed in range(10):
        text_or_none = random_text(constraint, random.Random(seed), most=80)
        if text_or_none is not None:
            validator.validate(loads(text_or_none))


@pytest.mark.parametrize(
    ("schema", "pointer", "reason"),
    [
        (closed({"tier": {"type": "string", "enum": []}}, "tier"), "/properties/tier", "nothing can satisfy"),
        (False, "", "nothing can satisfy"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "/maxItems", "below minItems"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "/maxLength", "below minLength"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "", "nothing can satisfy"),
        ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "", "nothing can satisfy"),
        (closed({"a": True}, "b"), "", "nothing can satisfy"),
        ('{"type":"object","required":["\\ud800"]}', "", "nothing can satisfy"),
        ('{"const":{"\\ud800":1}}', "", "nothing can satisfy"),
        ({"type": "string", "pattern": "^a$", "minLength": 2}, "", "nothing can satisfy"),
        ({"type": "strin"}, "/type", "must be one of"),
        ({"type": "object", "properties": []}, "/properties", "must be an object"),
        ({"minLength": -1}, "/minLength", "not negative"),
        ({"required": "a"}, "/required", "a list of different names"),
        ({"properties": {"a": {"multipleOf": 0}}}, "/properties/a/multipleOf", "above zero"),
        ({"$ref": "#/$defs/none"}, "/$ref", "points to nothing"),
        ({"$ref": "https://example.com/other.json"}, "/$ref", "outside this document"),
        ({"$ref": "#"}, "/$ref", "refers to itself without end"),
        ({"$defs": {"n": closed({"next": {"$ref": "#/$defs/n"}}, "next")}, "$ref": "#/$defs/n"}, "/$defs/n/properties/next", "nothing can satisfy"),
        ({"type": "string", "pattern": "a(?=b)"}, "/pattern", "look-ahead"),
        ({"type": "string", "pattern": "^(?!a)b|c"}, "/pattern", "look-ahead"),
        ({"type": "string", "pattern": r"\Aa\Z"}, "/pattern", "bad escape"),
        ({"type": "string", "format": "regex"}, "/format", "cannot be decided"),
        ({"properties": {"h": {"format": "hostname"}}}, "/properties/h/format", "internationalised labels"),
        ('{"maxLength":1e999999999}', "/maxLength", "below 10^30"),
        ('{"minimum":1e999999999}', "/minimum", "more than 400 digits"),
        ('{"items":{"enum":[0,1e999999999]}}', "/items/enum", "more than 400 digits"),
        ({"$schema": "http://example.com/mine"}, "/$schema", "unknown $schema"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMinimum": 3}, "/exclusiveMinimum", "a boolean"),
        ({"items": [True]}, "/items", "prefixItems"),
        ("{", "", "not JSON"),
        ("[1]", "", "must be an object or a boolean"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_where_it_stands(schema: Any, pointer: str, reason: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        Schema(schema)
    assert caught.value.pointer == pointer
    assert reason in caught.value.reason


def test_what_constrains_nothing_is_listed() -> None:
    schema = {
        "title": "t",
        "x-mine": 1,
        "properties": {"a": {"description": "d", "format": "no-such", "type": "integer"}},
    }
    assert Schema(schema).annotations == (
        "/title",
        "/x-mine",
        "/properties/a/description",
        "/properties/a/format",
    )


@pytest.mark.parametrize(
    ("whitespace", "accept", "reject"),
    [
        ("compact", ['{"n":[1,2]}'], ['{"n": [1,2]}', '{ "n":[1,2]}', '{"n":[1, 2]}']),
        (2, ['{"n":[1,2]}', '{ "n" : [\n 1 ,  2 ] }', '{"n":[ ]}'], ['{   "n":[]}']),
        ("bounded", [json.dumps({"n": [1, 2]}, indent=4)], ['{"n":[' + " " * 21 + "]}"]),
    ],
)
def test_blanks_are_as_asked_and_never_without_end(whitespace: Any, accept: list[str], reject: list[str]) -> None:
    schema = closed({"n": {"type": "array", "items": {"type": "integer"}}}, "n")
    check_texts(Schema(schema, whitespace=whitespace), accept, reject)


def test_keys_may_come_in_any_order_if_asked() -> None:
    constraint = Schema(closed({"a": {"type": "integer"}, "b": True, "c": True}, "a", "b"), order="any")
    for text in ('{"a":1,"b":2}', '{"c":0,"b":2,"a":1}', '{"b":2,"a":1}'):
        assert accepts_by_tokens(constraint, text)
    for text in ('{"a":1}', '{"a":1,"b":2,"a":1}', '{"b":2,"b":2,"a":1}'):
        assert not accepts_by_tokens(constraint, text)


def test_a_key_is_never_written_twice_even_inside_one_token() -> None:
    constraint = Schema({"type": "object", "additionalProperties": {"const": 1}})
    matcher = constraint.compile(TOY)
    for byte in b'{"':
        matcher.advance(byte)
    twice = TOY.token_bytes.index(b'a":1,"a')
    assert twice in legal(matcher)  # the second key may still become "ab"
    matcher.advance(twice)
    assert ord('"') not in legal(matcher)
    assert ord("b") in legal(matcher)


@pytest.mark.parametrize(
    ("schema", "accept", "reject"),
    [
        ({"type": "integer"}, ["1", "1.0", "10e-1", "-0", "2.5E1"], ["1.5", "1e-1", "01", "1.", "+1"]),
        ({"type": "integer", "multipleOf": 3, "minimum": 1, "maximum": 10}, ["3", "9.0", "0.6e1"], ["0", "12", "1e1"]),
        ({"type": "number", "exclusiveMaximum": 0.5}, ["0.49", "4e-1", "-1e99"], ["0.5", "5e-1", "0.50"]),
        ({"not": {"type": "integer"}, "type": "number"}, ["1.5", "1e-9"], ["1", "1.0", "1e9"]),
        ({"enum": [1, 2.5, "x"]}, ["1", "1e0", "25e-1", '"x"'], ["2", "2.51"]),
        ({"type": "number", "not": {"const": 100}}, ["99", "1e3"], ["100", "1e2", "100.0"]),
        ({"type": "array", "items": {"multipleOf": 0.01}}, ["[1.01,19.99e0]"], ["[0.001]", "[1e-3]"]),
    ],
)
def test_numbers_are_what_they_mean_if_any_spelling_may_be_written(
    schema: Any, accept: list[str], reject: list[str]
) -> None:
    check_texts(Schema(schema, numbers="any"), accept, reject)


DRAFT = "http://json-schema.org/draft-0{}/schema#"


@pytest.mark.parametrize(
    ("schema", "accept", "reject"),
    [
        ({"$schema": DRAFT.format(4), "maximum": 3, "exclusiveMaximum": True}, ["2"], ["3"]),
        ({"$schema": DRAFT.format(4), "id": "http://a.example/", "$ref": "#/definitions/b",
          "definitions": {"b": {"id": "b", "type": "null"}}}, ["null"], ["1"]),
        ({"$schema": DRAFT.format(4), "format": "hostname"}, ['"xn--a.b-c"'], ['"a..b"', '"-a"', '""']),
        ({"$schema": DRAFT.format(6), "exclusiveMaximum": 3, "contains": {"const": 1}}, ["2", "[0,1]"], ["3", "[]"]),
        ({"$schema": DRAFT.format(7), "$ref": "#/definitions/n", "type": "string", "definitions": {"n": {"type": "null"}}},
         ["null"], ['"x"']),
        ({"$schema": DRAFT.format(7), "items": [{"const": 1}], "additionalItems": {"const": 2}}, ["[1,2]"], ["[1,1]"]),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "items": [True], "unevaluatedItems": False},
         ["[1]", "[]"], ["[1,2]"]),
        ({"dependencies": {"a": ["b"]}, "type": "object"}, ['{"b":1}', '{"a":1,"b":1}'], ['{"a":1}']),
    ],
)  # fmt: skip
def test_a_draft_has_its_own_meaning(schema: Any, accept: list[str], reject: list[str]) -> None:
    constraint = Schema(schema, order="any")
    for text in accept:
        assert constraint.accepts(text), text
    for text in reject:
        assert not constraint.accepts(text), text


@pytest.mark.parametrize("size", [1999, 2000, 8192, 100000])
def test_the_cost_of_a_length_does_not_grow_with_it(size: int) -> None:
    constraint = Schema(closed({"body": {"type": "string", "maxLength": size}}, "body"))
    matcher = constraint.compile(TOY)
    for byte in b'{"body":"x':
        matcher.advance(byte)
    first = matcher.mask()
    for _ in range(100):
        matcher.advance(ord("x"))
        assert matcher.mask() is first
    assert constraint.automaton.num_states < 3000


values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def surrogate_free(value: Any) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in json.dumps(value, ensure_ascii=False))


@settings(max_examples=80, deadline=None)
@given(values.filter(surrogate_free), st.integers(0, 1000))
def test_any_value_is_legal_where_anything_is(value: Any, seed: int) -> None:
    constraint = Schema(True)
    assert accepts_by_tokens(constraint, compact(value), seed=seed)
    assert constraint.accepts(json.dumps(value, separators=(",", ":")))


@settings(max_examples=60, deadline=None)
@given(values.filter(surrogate_free), values.filter(surrogate_free), st.integers(0, 1000))
def test_a_constant_is_legal_and_nothing_else_is(value: Any, other: Any, seed: int) -> None:
    constraint = Schema({"const": value})
    assert accepts_by_tokens(constraint, compact(value), seed=seed)
    is_equal = compact(value) == compact(other)
    assert constraint.accepts(compact(other)) == is_equal


@settings(max_examples=80, deadline=None)
@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.integers(-(10**7), 10**7), st.integers(0, 3))
def test_bounds_of_integers_are_exact(low: int, high: int, value: int, near: int) -> None:
    low, high = min(low, high), max(low, high)
    constraint = Schema({"type": "integer", "minimum": low, "maximum": high})
    for candidate in (value, low - 1 + near, high - 1 + near):
        assert constraint.accepts(str(candidate)) == (low <= candidate <= high)


@settings(max_examples=80, deadline=None)
@given(
    st.decimals(-1000, 1000, places=3),
    st.decimals(-1000, 1000, places=4),
    st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
)
def test_bounds_of_numbers_are_exact(bound: Any, value: Any, keyword: str) -> None:
    constraint = Schema(f'{{"type":"number","{keyword}":{bound}}}')
    wanted = {
        "minimum": lambda one: one >= bound,
        "maximum": lambda one: one <= bound,
        "exclusiveMinimum": lambda one: one > bound,
        "exclusiveMaximum": lambda one: one < bound,
    }[keyword]
    for candidate in (value, bound):
        assert constraint.accepts(f"{candidate:f}") == wanted(candidate)


def test_keys_that_only_propertyNames_lists_come_in_any_order_behind_the_named_ones() -> None:
    names = {"enum": ["foo", "bar", "z", "a"]}
    constraint = Schema({"properties": {"a": {}, "z": {}}, "required": ["z"], "propertyNames": names})
    for text in ('{"z":1,"foo":1,"bar":1}', '{"a":1,"z":1,"bar":1,"foo":1}', '{"z":1}'):
        assert constraint.accepts(text), text
    for text in ('{"z":1,"foo":1,"foo":1}', '{"foo":1,"z":1}', '{"z":1,"a":1}', '{"z":1,"other":1}'):
        assert not constraint.accepts(text), text
