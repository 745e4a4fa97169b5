"""Reasoning before an answer, and tags in free text, as a program says them."""

from __future__ import annotations

from typing import Any

import pytest

import forktree as ft
from forktree.backend.fake import Fake
from forktree.lang.constraints import ReasoningSpec, RegexSpec, SchemaSpec
from forktree.lang.errors import BackendError, LanguageError
from forktree.lang.expressions import gen

THOUGHT = "<think>\nSeven is odd.\n</think>\n\n"


@ft.function
def ask(s, **options):
    s += ft.user("Is 7 odd?")
    s += ft.assistant(ft.gen("x", **options))
    return s["x"]


def spec_of(**options: Any) -> Any:
    output = gen("x", **options).output
    return None if output is None else output.spec


def test_it_wraps_whatever_constraint_there_is() -> None:
    assert spec_of(reasoning=True) == ReasoningSpec(None)
    assert spec_of(reasoning=False) is None
    assert spec_of(regex="a", reasoning=True) == ReasoningSpec(RegexSpec("a"))
    bounded = ft.Reasoning("<a>", "</a>", max_tokens=5)
    assert spec_of(schema={}, reasoning=bounded) == ReasoningSpec(SchemaSpec("{}"), "<a>", "</a>", 5)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"begin": "<a>"}, "together"),
        ({"begin": "", "end": "x"}, "not empty"),
        ({"max_tokens": -1}, "as a count"),
        ({"max_tokens": True}, "as a count"),
    ],
)
def test_what_is_no_reasoning_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(LanguageError, match=reason):
        ft.Reasoning(**arguments)
    with pytest.raises(LanguageError, match="True, False or"):
        gen("x", reasoning="yes")  # type: ignore[arg-type]


def test_the_value_excludes_the_reasoning_and_the_meta_has_it() -> None:
    state = ask.run(choices=["yes", "no"], reasoning=True, backend=Fake([THOUGHT + "yes"]))
    assert state["x"] == "yes"
    assert state.meta("x").reasoning == "Seven is odd."
    assert state.meta("x").to_dict()["reasoning"] == "Seven is odd."
    assert state.text() == "Is 7 odd?yes"
    assert ask.run(dtype=int, reasoning=True, backend=Fake(["7"]))["x"] == 7
    assert ask.run(reasoning=True, backend=Fake([THOUGHT + "So."]))["x"] == "So."


def test_the_constraint_holds_for_the_answer() -> None:
    with pytest.raises(BackendError, match="its constraint forbids"):
        ask.run(choices=["yes", "no"], reasoning=True, backend=Fake([THOUGHT + "maybe"]))


def test_stops_are_looked_for_in_the_answer_alone() -> None:
    state = ask.run(stop="odd", reasoning=True, backend=Fake([THOUGHT + "It is odd."]))
    assert state["x"] == "It is "
    assert state.meta("x").reasoning == "Seven is odd."


def test_programs_with_tags_tools_and_reasoning_print_and_survive_json() -> None:
    def look(place: str) -> str:
        """What is there."""
        return place

    tags = ft.Tags([ft.Tag("<a>", ft.Choices(["x"]), "</a>"), ft.Tag("[", None, "]")], triggers=["<a"], at_least=1)

    @ft.function
    def program(s):
        s += ft.gen("a", constraint=tags)
        s += ft.gen("b", tools=[look], parallel=2)
        s += ft.gen("c", schema={"type": "null"}, reasoning=ft.Reasoning(max_tokens=9))

    traced = program.trace()
    assert ft.Program.from_json(traced.to_json()) == traced
    text = str(traced)
    assert "text with" in text
    assert "list[tools[look]]" in text
    assert "reasoning, then schema" in text
