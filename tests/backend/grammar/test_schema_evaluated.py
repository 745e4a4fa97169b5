"""Keys and items that nothing looked at, and references that depend on the way here."""

from __future__ import annotations

from typing import Any

import pytest
from grammar_walks import check_texts

from forktree.backend.grammar.constraints import Schema
from forktree.lang.errors import ConstraintError

OBJECT = {"type": "object"}
A, B = {"properties": {"a": {"const": 1}}, "required": ["a"]}, {"properties": {"b": {"const": 2}}, "required": ["b"]}
CLOSED = {"type": "object", "unevaluatedProperties": False}

CASES: list[tuple[str, Any, list[str], list[str]]] = [
    ("own", {**CLOSED, "properties": {"a": True}, "patternProperties": {"^x": True}},
     ["{}", '{"a":1,"x1":2}'], ['{"b":1}']),
    ("all_of", {**CLOSED, "allOf": [A, B]}, ['{"a":1,"b":2}'], ['{"a":1}', '{"a":1,"b":2,"c":3}']),
    ("any_of", {**CLOSED, "anyOf": [A, B]},
     ['{"a":1}', '{"b":2}', '{"a":1,"b":2}'], ["{}", '{"a":1,"b":3}', '{"b":2,"a":0}', '{"a":1,"c":1}']),
    ("one_of", {**CLOSED, "oneOf": [A, B]}, ['{"a":1}', '{"b":2}'], ['{"a":1,"b":2}', '{"a":1,"b":3}']),
    ("if", {**CLOSED, "if": A, "then": {"properties": {"t": True}}, "else": {"properties": {"e": True}}},
     ['{"a":1,"t":0}', '{"e":0}', "{}"], ['{"a":1,"e":0}', '{"t":0}', '{"a":2}']),
    ("dependent", {**CLOSED, "properties": {"a": True}, "dependentSchemas": {"a": {"properties": {"b": True}}}},
     ['{"a":1,"b":1}', "{}"], ['{"b":1}']),
    ("ref", {**CLOSED, "$ref": "#/$defs/a", "properties": {"k": True}, "$defs": {"a": A}},
     ['{"a":1,"k":1}'], ['{"a":1,"b":1}']),
    ("nested", {**CLOSED, "allOf": [{"properties": {"a": True}, "unevaluatedProperties": {"type": "integer"}}]},
     ['{"a":"x","z":1}'], ['{"a":1,"z":"x"}']),
    ("schema", {"type": "object", "properties": {"a": True}, "unevaluatedProperties": {"type": "null"}},
     ['{"a":1,"n":null}'], ['{"n":1}']),
    ("items", {"type": "array", "allOf": [{"prefixItems": [{"const": 1}]}], "unevaluatedItems": {"const": 2}},
     ["[]", "[1]", "[1,2,2]"], ["[2]", "[1,1]"]),
    ("contains", {"type": "array", "contains": {"const": 1}, "unevaluatedItems": {"const": 2}},
     ["[1]", "[2,1,1,2]"], ["[2]", "[1,3]"]),
    ("tuples", {"type": "array", "anyOf": [{"prefixItems": [{"const": 1}]},
                                           {"prefixItems": [True, {"const": 2}]}], "unevaluatedItems": False},
     ["[]", "[1]", "[0,2]", "[1,2]"], ["[1,3]", "[1,2,3]"]),
    ("dynamic", {
        "$id": "https://x.example/strings", "$ref": "list", "$defs": {
            "item": {"$dynamicAnchor": "item", "type": "string"},
            "list": {"$id": "list", "type": "array", "items": {"$dynamicRef": "#item"},
                     "$defs": {"item": {"$dynamicAnchor": "item"}}}}},
     ['["a"]', "[]"], ["[1]"]),
    ("recursive", {
        "$schema": "https://json-schema.org/draft/2019-09/schema", "$id": "https://x.example/strict",
        "$recursiveAnchor": True, "$ref": "tree", "unevaluatedProperties": False, "$defs": {
            "tree": {"$id": "tree", "$recursiveAnchor": True, "type": "object",
                     "properties": {"next": {"$recursiveRef": "#"}}}}},
     ["{}", '{"next":{"next":{}}}'], ['{"x":1}', '{"next":{"x":1}}']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "accept", "reject"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_nothing_looked_at_is_held_to_the_rest(schema: Any, accept: list[str], reject: list[str]) -> None:
    check_texts(Schema(schema, order="any"), accept, reject)


def test_a_negation_evaluates_nothing() -> None:
    with pytest.raises(ConstraintError, match="nothing can satisfy"):
        Schema({**CLOSED, "not": {"not": A}})


def test_the_same_items_are_not_evaluated_by_contains_in_2019_09() -> None:
    schema = {"type": "array", "contains": {"const": 1}, "unevaluatedItems": {"const": 2}}
    with pytest.raises(ConstraintError, match="nothing can satisfy"):
        Schema({"$schema": "https://json-schema.org/draft/2019-09/schema", **schema})


def test_a_urn_is_a_base_like_any_other() -> None:
    schema = {"$id": "urn:uuid:1", "$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}
    assert Schema(schema).accepts("null")
    assert not Schema(schema).accepts("1")
