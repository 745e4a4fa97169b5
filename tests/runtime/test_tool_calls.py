"""Tool calls in a program: constrained, typed, run, and their results in turns of their own."""

from __future__ import annotations

import json

import pytest

import forktree as ft
from forktree.backend.fake import Fake
from forktree.lang.errors import BackendError, LanguageError


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def capital(country: str) -> str:
    """The capital of a country."""
    return {"France": "Paris"}[country]


@ft.function
def assistant(s, question):
    s += ft.user(question)
    s += ft.assistant(ft.gen("calls", tools=[add, capital], parallel=4))
    for call in s["calls"]:
        try:
            result = str(call())
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        s += ft.tool(result)
    s += ft.assistant(ft.gen("answer"))
    return s["answer"]


CALLS = [
    {"name": "add", "arguments": {"a": 1, "b": 2}},
    {"name": "capital", "arguments": {"country": "France"}},
    {"name": "capital", "arguments": {"country": "Oz"}},
]


def test_several_calls_run_and_each_result_is_a_turn() -> None:
    state = assistant.run("?", backend=Fake({"calls": json.dumps(CALLS, separators=(",", ":")), "answer": "done"}))
    assert [call.name for call in state["calls"]] == ["add", "capital", "capital"]
    turns = [(message["role"], message["content"]) for message in state.messages()]
    assert turns[2:] == [("tool", "3"), ("tool", "Paris"), ("tool", "KeyError: 'Oz'"), ("assistant", "done")]


@pytest.mark.parametrize(
    "calls", [[], CALLS[:1] * 5, [{"name": "divide", "arguments": {}}], [{"name": "add", "arguments": {"a": 1}}]]
)
def test_calls_that_are_not_legal_are_never_accepted(calls) -> None:
    with pytest.raises(BackendError, match="constraint forbids"):
        assistant.run("?", backend=Fake({"calls": json.dumps(calls, separators=(",", ":")), "answer": "done"}))


def test_a_traced_program_reads_into_the_calls() -> None:
    @ft.function
    def first_of(s):
        s += ft.gen("calls", tools=[add], parallel=True)
        s += f" calls {s['calls'][0].name}" + ft.gen("answer")

    state = first_of.trace().run(backend=Fake({"calls": json.dumps(CALLS[:1], separators=(",", ":")), "answer": "x"}))
    assert state.text().endswith(" calls addx")


# Telling the model what tools there are


def test_tools_are_told_before_the_first_turn_and_are_no_message() -> None:
    @ft.function
    def told(s, question):
        s += ft.tools([add, capital])
        s += ft.user(question)
        s += ft.assistant(ft.gen("calls", tools=[add, capital]))

    fake = Fake({"calls": json.dumps(CALLS[0], separators=(",", ":"))})
    state = told.run("?", backend=fake)
    head = fake.requests[0].branch.segments()[0]
    assert [each["function"]["name"] for each in json.loads(head.definitions)] == ["add", "capital"]
    assert [message["role"] for message in state.messages()] == ["user", "assistant"]
    assert state.program == told.trace("?").run(backend=fake).program
    assert ft.Program.from_json(told.trace().to_json()) == told.trace()
    assert "tools add, capital" in str(told.trace())
    asked_for = told.explain([("?",)], backend=fake).requested_tokens
    assert asked_for == state.meta("calls").prompt_tokens


@pytest.mark.parametrize("way", ["run", "trace"])
@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.user("hi"),
        lambda s: s.__iadd__(ft.tools([capital])),
        lambda s: s.__iadd__(ft.role_begin("user")),
    ],
    ids=["a turn", "tools", "an open turn"],
)
@pytest.mark.parametrize("place", ["trunk", "branch"])
def test_tools_behind_the_head_are_a_role_error_with_the_line(way, write, place) -> None:
    @ft.function
    def late(s):
        write(s)
        branch = s.fork(1)[0] if place == "branch" else s
        branch += ft.tools([add])

    with pytest.raises(ft.RoleError, match=r"once, before any turn \(at .*test_tool_calls.py"):
        late.run(backend=Fake([])) if way == "run" else late.trace()


def test_a_program_from_outside_keeps_the_rule() -> None:
    @ft.function
    def told(s):
        s += ft.tools([add])
        s += ft.user("hi")

    text = told.trace().to_json()
    document = json.loads(text)
    document["ops"].append(document["ops"][0])
    with pytest.raises(ft.RoleError, match="before any turn"):
        ft.Program.from_json(json.dumps(document))


def test_tools_survive_a_recording_and_a_journal(tmp_path) -> None:
    @ft.function
    def told(s, question):
        s += ft.tools([add])
        s += ft.user(question)
        s += ft.assistant(ft.gen("x"))
        return s["x"]

    with ft.Replay(tmp_path / "run.jsonl", Fake({"x": "yes"})) as recording:
        told.run("?", backend=recording)
    assert told.run("?", backend=ft.Replay(tmp_path / "run.jsonl")).ret_value == "yes"
    kept = told.using(backend=Fake({"x": "yes"}))
    (first,) = kept.map([("?",)], journal=tmp_path / "j.db")
    (again,) = kept.map([("?",)], journal=tmp_path / "j.db")
    assert again.replayed
    assert again.state._cursor.tip.segments() == first.state._cursor.tip.segments()


def test_the_same_tool_twice_is_an_error() -> None:
    with pytest.raises(LanguageError, match="each name once"):
        ft.tools([add, add])
