"""What explodes ends within the limit, with an error that says so; what does not is not touched by it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from grammar_walks import TOY

from forktree.backend.grammar import derivatives, masks, specs
from forktree.backend.grammar.constraints import Choices, Constraint, Grammar, Regex, Schema
from forktree.backend.grammar.terms import Terms
from forktree.backend.grammar.work import COMPILE_STEPS, Work
from forktree.lang.errors import ConstraintError


def multiples(*divisors: int) -> dict[str, Any]:
    return {"anyOf": [{"multipleOf": one} for one in divisors]}


def test_steps_beyond_an_allowance_raise_and_the_next_allowance_is_whole() -> None:
    work = Work()
    work.spend(10**9)
    for _ in range(2):
        with work.limited(5_000):
            work.spend(5_000)
            with pytest.raises(ConstraintError, match="more than 5000 steps"):
                work.spend()
    with work.limited(10), work.limited(10**6), pytest.raises(ConstraintError, match="more than 10 steps"):
        work.spend(11)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


EXPLODING = {
    "multiples of everything": {
        "type": "number",
        "allOf": [multiples(*(base + 2 * at for at in range(4))) for base in (33, 77, 127, 131, 151, 171)],
    },
    "patterns that demand each other": {
        "type": "string",
        "allOf": [{"pattern": f"{letter}.{{{20 + at}}}x"} for at, letter in enumerate("abcdefgh")],
        "maxLength": 60,
    },
    "patterns that forbid each other": {
        "type": "string",
        "allOf": [{"not": {"pattern": f"{letter}.{{{20 + at}}}x"}} for at, letter in enumerate("abcdefgh")],
        "pattern": "^(.{17}y){9}$",
    },
}


def walk(constraint: Constraint, data: bytes) -> None:
    matcher = constraint.compile(TOY)
    for byte in data:
        matcher.mask()
        matcher.advance(byte)


@pytest.mark.parametrize("name", EXPLODING)
def test_a_schema_that_explodes_is_refused_within_the_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "COMPILE_STEPS", COMPILE_STEPS // 10)
    with pytest.raises(ConstraintError, match=r"explodes|more than"):
        walk(Schema(EXPLODING[name]), b'"' + b"abcdefgh" * 40)


HUGE = {
    "an enumeration of 20,000 texts": {"enum": [f"value {at}" for at in range(20_000)]},
    "an enumeration of 20,000 numbers": {"enum": list(range(5_000))},
    "1,000 properties": {"properties": {f"name {at}": {"type": "integer"} for at in range(1_000)}},
    "3,000 required properties": {
        "properties": {f"name {at}": {"type": "integer"} for at in range(3_000)},
        "required": [f"name {at}" for at in range(3_000)],
    },
    "a constant of 200,000 characters": {"const": "x" * 200_000},
    "a pattern of 20,000 characters": {"pattern": "^" + "ab?" * 7_000 + "$"},
    "a description of 200,000 characters": {"description": "x" * 200_000, "type": "integer"},
    "1,000 definitions in a chain": {
        "$defs": {f"d{at}": {"items": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(1_000)} | {"d1000": True},
        "$ref": "#/$defs/d0",
    },
    "objects 200 deep": nested(200),
    "a maxLength of a billion": {"type": "string", "minLength": 10**9, "maxLength": 10**9},
    "a billion items": {"type": "array", "minItems": 10**9},
}


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize("name", HUGE)
def test_a_huge_schema_gives_a_mask_or_is_refused(name: str, order: Any) -> None:
    try:
        matcher = Schema(json.dumps(HUGE[name]), order=order).compile(TOY)
        assert matcher.mask().any()
    except ConstraintError as error:
        assert error.reason


@pytest.mark.parametrize(
    "pattern",
    [
        "((a{1,1000}){1,1000}){1,1000}",
        "(((((a|b)*c)*d)*e)*f)*",
        "(a?){500}a{500}",
        "(a|aa|aaa|aaaa)*b(a|aa|aaa){100}",
        ".*a.{500}",
        "(.*a.{9}.*){20}",
        "(x+x+)+y",
        "|".join(f"{at}" for at in range(5_000)),
        "(?:" * 60 + "a" + ")*" * 60,
        "((((((((((a{0,9}){0,9}){0,9}){0,9}){0,9}){0,9}){0,9}){0,9}){0,9}){0,9})",
    ],
    ids=lambda pattern: pattern[:24],
)
def test_nested_repeats_are_walked_or_refused(pattern: str) -> None:
    try:
        matcher = Regex(pattern).compile(TOY)
        for byte in b"aaaaaaaab":
            if not matcher.mask()[byte // 32] >> (byte % 32) & 1:
                break
            matcher.advance(byte)
    except ConstraintError as error:
        assert error.reason


def test_an_explosion_while_decoding_fails_that_output_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    constraint, other = Regex("(.*a.{40}|.*b.{41}|.*c.{42})x"), Regex("[a-z]*")
    matcher, twin = constraint.compile(TOY), other.compile(TOY)
    for byte in b"abcabcaabbcc":
        matcher.advance(byte)
    with monkeypatch.context() as patched:
        for module in (masks, derivatives):
            patched.setattr(module, "MASK_STEPS", 0)
        with pytest.raises(ConstraintError, match="more than 0 steps"):
            matcher.mask()
        with pytest.raises(ConstraintError, match="more than 0 steps"):
            matcher.advance(ord("b"))
        assert twin.mask().any()
        twin.advance(ord("b"))
    assert matcher.mask().any()  # it stands where it stood
    matcher.advance(ord("b"))


def test_what_explodes_at_the_first_token_is_refused_when_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    constraint = Regex("(.*a.{30}|.*b.{31}|.*c.{32})y")
    monkeypatch.setattr(masks, "MASK_STEPS", 3)
    with pytest.raises(ConstraintError, match="more than 3 steps"):
        constraint.compile(TOY)
    monkeypatch.undo()
    assert constraint.compile(TOY).mask().any()


def test_many_choices_are_a_trie() -> None:
    options = [f"option number {at}" for at in range(20_000)]
    constraint = Choices(options)
    assert constraint.accepts("option number 19999")
    assert constraint.compile(TOY).mask().any()


def test_a_grammar_that_explodes_ends() -> None:
    lines = ["start: r0"]
    for at in range(11):
        pairs = [f"r{(at * 7 + k) % 11} r{(at + k) % 11}" for k in range(6)]
        lines.append(f"r{at}: " + " | ".join([*pairs, f'"{at}"']))
    try:
        walk(Grammar("\n".join(lines)), b"012")
    except ConstraintError as error:
        assert error.reason


def test_other_threads_go_on_while_a_constraint_is_compiled_and_the_message_names_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = COMPILE_STEPS // 5
    monkeypatch.setattr(specs, "COMPILE_STEPS", limit)
    done = threading.Event()
    ticks = 0

    def compile_it() -> None:
        with pytest.raises(ConstraintError, match=str(limit)):
            Schema(EXPLODING["patterns that demand each other"], order="any")
        done.set()

    thread = threading.Thread(target=compile_it)
    thread.start()
    while not done.wait(0.001) and ticks < 10**5:
        ticks += 1
    thread.join()
    assert done.is_set()
    assert ticks


def test_each_operand_of_a_union_counts_although_it_makes_no_term() -> None:
    terms = Terms()
    operands = [terms.literal(f"{at}") for at in range(3_200)]
    union = terms.alt(operands)
    with terms.work.limited(150), pytest.raises(ConstraintError, match="explodes"):
        terms.alt([*operands[1:], operands[0]])  # the same union again
    assert terms.alt([*operands[2:], *operands[:2]]) is union
