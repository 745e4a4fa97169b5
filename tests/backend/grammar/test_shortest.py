"""Shortest texts: as short as the shortest that a plain search over states finds, and found soon."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.constraints import Schema
from forktree.backend.grammar.shortest import Shortest
from forktree.backend.grammar.terms import Term

ORDER = [*range(0x20, 0x7F), *range(0x20), *range(0x7F, 0x100)]
BYTES = '{}[]":, x0123457long textrufsabcé'.encode()
NAMES = ["a", "b", "ab", "abc", "é"]
CLOSED = {"type": "object", "additionalProperties": False}
VALUES = st.sampled_from(
    [
        {"const": 1},
        {"enum": ["long text", 12345]},
        {"type": "boolean"},
        {"type": "string", "minLength": 3},
        {"type": "array", "items": {"const": 0}, "minItems": 2, "maxItems": 3},
        {**CLOSED, "properties": {"a": {"const": 0}, "b": {"const": 22}}, "required": ["b", "a"]},
    ]
)


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    required = draw(st.lists(st.sampled_from(names), max_size=4, unique=True))
    schema: dict[str, Any] = {"type": "object", "properties": {name: draw(VALUES) for name in names}}
    schema["required"] = required
    if draw(st.booleans()):
        schema["minProperties"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        schema["maxProperties"] = draw(st.integers(len(required), 4))
    schema["additionalProperties"] = False
    if draw(st.booleans()):
        schema["patternProperties"] = {"^x*$": {"const": 7}}
    if draw(st.integers(0, 3)) == 0:
        schema["dependentRequired"] = {names[0]: [names[-1]]}
    if draw(st.integers(0, 3)) == 0:  # some property has to meet a demand
        schema["not"] = {"additionalProperties": {"type": ["number", "boolean"]}}
    return schema


def fewest_bytes_by_levels(automaton: Automaton, start: Term) -> int:
    """Every state in reach, level by level: no parts, no bounds, no order. Keys are remembered."""
    level, seen, length = {start}, {start}, 0
    while not any(state.nullable for state in level):
        level = {target for state in level for byte in BYTES if (target := automaton.step(state, byte))} - seen
        seen |= level
        length += 1
        assert level, "a state is live, so some text ends from it"
    return length


@settings(max_examples=30, deadline=None)
@given(objects(), st.randoms(use_true_random=False), st.sampled_from(["any", "schema"]))
def test_a_shortest_text_is_as_short_as_a_plain_search_finds(schema: dict[str, Any], rng: Any, order: Any) -> None:
    try:
        automaton = Schema(schema, order=order).automaton
    except ValueError:  # nothing satisfies it
        return
    state = automaton.start
    for _ in range(rng.randrange(30)):
        reached = [target for byte in BYTES if (target := automaton.step(state, byte))]
        if not reached:
            break
        state = rng.choice(reached)
    word = Shortest(automaton, ORDER).of(state)
    end = automaton.run(state, word.data)
    assert end is not None
    assert end.nullable
    assert len(word.data) == fewest_bytes_by_levels(automaton, state)


def test_many_required_names_in_any_order_are_written_in_one_pass() -> None:
    names = [f"name{at}" for at in range(40)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "object", "required": ["x", "y"]} for name in names},
        "required": names,
    }
    automaton = Schema(schema, order="any").automaton
    for prefix in (b"", b'{"name17":', b'{"name17":{"y":0,"x":1},"extra":1,"nam'):
        state = automaton.run(automaton.start, prefix)
        assert state is not None
        word = Shortest(automaton, ORDER).of(state)
        reached = automaton.run(state, word.data)
        assert reached is not None
        assert reached.nullable
        whole = (prefix + word.data).decode()
        assert sum(f'"{name}":' in whole for name in names) == 40
