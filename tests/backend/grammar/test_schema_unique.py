"""`uniqueItems`: items differ by value, whatever they are and however they are written."""

from __future__ import annotations

import random
from typing import Any

import pytest
from grammar_walks import TOY, accepts_by_tokens, brute_mask, check_texts, legal, random_text
from schema_oracle import loads, oracle

from forktree.backend.grammar.constraints import Schema
from forktree.lang.errors import ConstraintError

PAIR = {"type": "array", "prefixItems": [{"enum": ["a", "b"]}], "items": {"type": "integer"}, "maxItems": 2}

THING = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "tag": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}


def unique(items: Any = True, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True, **more}


CASES: list[tuple[str, Any, list[str], list[str]]] = [
    ("anything", unique(),
     ["[]", "[1,2]", '[1,1.5,"1",true,null,{},[]]', '[{"a":1},{"a":2}]', "[[1],[2],[1,2]]", "[[1,1]]"],
     ["[1,1]", "[1,1.0]", "[{},{}]", '[{"a":1,"b":2},{"b":2,"a":1}]', "[[1],[1.0]]", '["a","\\u0061"]', "[1,2,1]"]),
    ("integers", unique({"type": "integer"}, minItems=2), ["[1,2]", "[12,1,2]"], ["[1,1]", "[0]", "[0,10,0]"]),
    ("objects", unique(THING),
     ['[{"id":1},{"id":2}]', '[{"id":1},{"id":1,"tag":""}]'],
     ['[{"id":1},{"id":1}]', '[{"id":1,"tag":"x"},{"id":1,"tag":"\\u0078"}]']),
    ("free_keys", unique({"type": "object", "additionalProperties": {"type": "null"}}),
     ['[{},{"a":null},{"b":null}]'],
     ['[{"a":null},{"a":null}]', '[{"a":null,"a":null}]', '[{"a":null,"b":null},{"b":null,"a":null}]']),
    ("few_values", unique({"type": "array", "items": {"const": "x"}, "maxItems": 1}),
     ['[[],["x"]]', '[["x"],[]]'], ['[[],["x"],[]]', "[[],[]]"]),
    ("places", unique(PAIR, prefixItems=[{"type": "boolean"}, {"type": "boolean"}]),
     ["[true,false]", '[false,true,["a",1],["a",2]]'], ["[true,true]", "[true,true,[]]", "[true,false,[],[]]"]),
    ("contains", unique(contains={"type": "object"}),
     ["[{}]", "[1,{}]", "[{},1]"], ["[]", "[1]", "[{},{}]", "[1,{},1]"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "accept", "reject"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_items_that_differ_are_legal_and_equal_ones_are_not(schema: Any, accept: list[str], reject: list[str]) -> None:
    constraint = Schema(schema)
    check_texts(constraint, accept, reject)
    validator = oracle(schema)
    for seed in range(6):
        text_or_none = random_text(constraint, random.Random(seed), most=60)
        if text_or_none is not None:
            validator.validate(loads(text_or_none))


@pytest.mark.parametrize("prefix", [b"[1,", b"[1", b"[[],[", b'[{"a":1},{"a":', b'["x","x', b"[12,1"])
def test_masks_know_what_was_written_also_inside_one_token(prefix: bytes) -> None:
    constraint = Schema({"type": "array", "uniqueItems": True})
    matcher = constraint.compile(TOY)
    for byte in prefix:
        matcher.advance(byte)
    assert set(legal(matcher)) == brute_mask(constraint, prefix)


def test_numbers_are_equal_in_every_spelling() -> None:
    constraint = Schema({"type": "array", "uniqueItems": True, "items": {"type": "number"}}, numbers="any")
    for text in ("[1,10,0.1]", "[1e1,1]"):
        assert accepts_by_tokens(constraint, text)
    for text in ("[1,1e0]", "[10,1.0E+1]", "[0,-0]", "[0.5,5e-1]"):
        assert not accepts_by_tokens(constraint, text)


def test_blanks_tell_no_items_apart() -> None:
    constraint = Schema({"type": "array", "uniqueItems": True}, whitespace=1)
    assert accepts_by_tokens(constraint, "[ 1 , [ 1 ] ]")
    assert not accepts_by_tokens(constraint, "[1 , 1]")
    assert not accepts_by_tokens(constraint, '[{"a" :1},{ "a":1 }]')


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {"uniqueItems": True}, "type": "array"}, "equal items"),
        ({"type": "array", "uniqueItems": True, "contains": {"type": "object"}, "maxContains": 3}, "maxContains"),
        ({"type": "array", "uniqueItems": True, "items": PAIR | {"items": False}, "minItems": 3}, "few values"),
    ],
)
def test_what_cannot_be_decided_is_refused_where_it_stands(schema: Any, reason: str) -> None:
    with pytest.raises(ConstraintError, match=reason) as caught:
        Schema(schema)
    assert caught.value.pointer.endswith("/uniqueItems")


def test_too_few_values_satisfy_nothing() -> None:
    with pytest.raises(ConstraintError, match="nothing can satisfy"):
        Schema({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3})
