"""Calls are read back as they come, however the text is cut into pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_tokenizers import CHATML, byte_level

from forktree.backend.grammar.constraints import constraint_from_spec
from forktree.backend.server.tool_calls import (
    ArgumentsGrown,
    CallBegun,
    CallPlan,
    CallReader,
    Said,
    plan_calls,
    written_as_json,
)
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.constraints import SchemaSpec, ToolSpec

DATA = Path(__file__).parents[2] / "data/chat"
TEMPLATES = {
    row["id"]: row["chat_template"]
    for row in map(json.loads, (DATA / "tool_templates.jsonl").read_text(encoding="utf-8").splitlines())
}
CITY = ToolSpec("get", '{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}')
LONGER = ToolSpec("get_all", '{"type":"object","properties":{"limit":{"type":"integer"}}}')


def plan(template: str = CHATML, *, is_required: bool = False, is_parallel: bool = True) -> CallPlan:
    tokenizer = Tokenizer(byte_level(chat_template=template))
    return plan_calls([CITY, LONGER], tokenizer, is_required=is_required, is_parallel=is_parallel)


def read(found: CallPlan | None, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """What is said, and each call's name and arguments."""
    reader = CallReader(found)
    said, calls = "", []
    for events in (*(reader.feed(piece) for piece in pieces), reader.finish()):
        for event in events:
            match event:
                case Said(text):
                    said += text
                case CallBegun(index, id, name):
                    assert index == len(calls)
                    assert len(id) == 9
                    calls.append((name, ""))
                case ArgumentsGrown(index, text):
                    calls[index] = (calls[index][0], calls[index][1] + text)
    assert reader.num_calls == len(calls)
    return said, calls


TRICKY = '{"city": "} \\" {[\\\\"}'
TEXTS = [
    ("Hello {you}", "Hello {you}", []),
    ('{"name": "get", "arguments": {"city": "Oslo"}}', "", [("get", '{"city": "Oslo"}')]),
    ('Sure.\n{"name": "get_all", "arguments": {}}', "Sure.\n", [("get_all", "{}")]),
    (f'{{"name": "get", "arguments": {TRICKY}}}', "", [("get", TRICKY)]),
    (
        '{"name": "get", "arguments":  {"city": "a"} }\n{"name": "get_all", "arguments": {"limit": 3}}',
        "",
        [("get", '{"city": "a"}'), ("get_all", '{"limit": 3}')],
    ),
    ('{"name": "ge', "", []),  # cut in a name
    ('{"name": "get", "arguments": {"city": "Os', "", [("get", '{"city": "Os')]),
    ('{"name"', '{"name"', []),
]


@pytest.mark.parametrize(("text", "said", "calls"), TEXTS)
def test_a_text_reads_alike_however_it_is_cut(text: str, said: str, calls: list[tuple[str, str]]) -> None:
    found = plan()
    for size in (1, 2, 3, 7, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert read(found, pieces) == (said, calls)


def test_without_tools_every_text_is_text() -> None:
    assert read(None, ['{"name": "get", ', '"arguments": {}}']) == ('{"name": "get", "arguments": {}}', [])


def test_text_is_held_back_only_while_it_may_begin_a_call() -> None:
    reader = CallReader(plan())
    assert reader.feed('a {"na') == [Said("a ")]
    assert reader.feed("ture") == [Said('{"nature')]


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("is_required", [False, True])
def test_what_a_template_shows_as_a_call_is_legal_and_read_back(name: str, is_required: bool) -> None:
    """The text is made by walking the constraint along the markup itself."""
    found = plan(TEMPLATES[name], is_required=is_required, is_parallel=False)
    constraint = constraint_from_spec(found.spec(None))
    text = call_text(found)
    assert constraint.accepts(text)
    for size in (1, len(text)):
        said, ((called, arguments),) = read(found, [text[at : at + size] for at in range(0, len(text), size)])
        assert (said, called, json.loads(arguments)) == ("", "get", {"city": "Oslo"})
    assert constraint.accepts("Hello") != is_required


def call_text(found: CallPlan) -> str:
    from forktree.backend.call_markup import CallMarkup, Slot

    begin, _, after, _ = found.written
    if not isinstance(found.markup, CallMarkup):
        markup = found.markup
        return f"{begin}get{markup.within}{markup.arguments({'city': 'Oslo'})}{after}"
    filled = {Slot.NAME: "get", Slot.ARGUMENTS: '{"city": "Oslo"}', Slot.ID: "abcdefghi"}
    return begin + "".join(part if isinstance(part, str) else filled[part] for part in found.markup.parts) + after


def test_with_a_format_the_output_is_either() -> None:
    found = plan()
    constraint = constraint_from_spec(found.spec(SchemaSpec('{"type":"object","maxProperties":0}')))
    assert constraint.accepts("{}")
    assert constraint.accepts('{"name": "get", "arguments": {"city":"x"}}')
    assert not constraint.accepts("Hello")


def test_one_call_only_where_calls_are_not_parallel() -> None:
    two = written_as_json([("get_all", "{}"), ("get_all", "{}")])
    assert constraint_from_spec(plan(is_required=True).spec(None)).accepts(two)
    assert not constraint_from_spec(plan(is_required=True, is_parallel=False).spec(None)).accepts(two)
