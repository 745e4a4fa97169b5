"""Tool calls in a program: constrained, typed, run, and their results in turns of their own."""

from __future__ import annotations

import json

import pytest

import forktree as ft
from forktree.backend.fake import Fake
from forktree.lang.errors import BackendError


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
