"""What may move ahead of a varying part: only what the caller names, and never over anything but text."""

from __future__ import annotations

import pytest

from forktree.backend.fake import Fake
from forktree.lang import ir
from forktree.lang.errors import LanguageError
from forktree.lang.expressions import assistant, gen, user
from forktree.lang.hoist import hoist_constants
from forktree.lang.passes import share_trunk
from forktree.runtime.function import function


@function
def judge(s, essay):
    s += user(f"Essay: {essay}\nJudge it in one word.")
    s += assistant(gen("verdict", max_tokens=2))


@function
def translate(s, text):
    s += user(f"{text}")
    s += user("Translate that to French.")
    s += assistant(gen("french", max_tokens=4))


def prompt_of(program, **arguments) -> str:
    fake = Fake(lambda request: "x")
    program.run(backend=fake, **arguments)
    return fake.requests[0].prompt


def test_nothing_moves_that_is_not_named() -> None:
    assert hoist_constants(judge.trace()) == share_trunk(judge.trace())


def test_a_named_text_moves_ahead_of_the_first_varying_piece_of_its_run() -> None:
    hoisted = hoist_constants(judge.trace(), move=["\nJudge it in one word."])
    assert prompt_of(judge.trace(), essay="…") == "Essay: …\nJudge it in one word."
    assert prompt_of(hoisted, essay="…") == "Essay: \nJudge it in one word.…"


def test_the_rows_then_share_it() -> None:
    rows = [{"essay": f"e{i}"} for i in range(3)]
    before, after = Fake(lambda _: "x"), Fake(lambda _: "x")
    [judge.trace().run(backend=before, **row) for row in rows]
    hoisted = hoist_constants(judge.trace(), move=["\nJudge it in one word."])
    [hoisted.run(backend=after, **row) for row in rows]

    def common(fake: Fake) -> int:
        prompts = [request.prompt for request in fake.requests]
        return next(i for i, letters in enumerate(zip(*prompts, strict=True)) if len(set(letters)) > 1)

    assert common(before) == len("Essay: e")
    assert common(after) == len("Essay: \nJudge it in one word.e")


def test_part_of_a_text_can_be_named() -> None:
    hoisted = hoist_constants(judge.trace(), move=["Judge it in one word."])
    assert prompt_of(hoisted, essay="…") == "Essay: Judge it in one word.…\n"


def test_a_whole_turn_moves_ahead_of_varying_turns_of_its_role() -> None:
    hoisted = hoist_constants(translate.trace(), move=["Translate that to French."])
    assert [type(node).__name__ for node in hoisted.ops_of(0)[:6]] == [
        *("RoleBegin", "Text", "RoleEnd"),
        *("RoleBegin", "Argument", "RoleEnd"),
    ]


def test_every_branch_that_holds_the_text_moves_it() -> None:
    @function
    def program(s, a, b):
        for item, branch in zip((a, b), s.fork(2), strict=True):
            branch += user(f"{item} Be brief.") + gen("x")

    hoisted = hoist_constants(program.trace(), move=[" Be brief."])
    texts = [[node.text for node in hoisted.ops_of(branch) if isinstance(node, ir.Text)] for branch in (1, 2)]
    assert texts == [[" Be brief."], [" Be brief."]]


@pytest.mark.parametrize("text", ["Essay: ", "no such text", ""])
def test_a_text_that_stands_behind_nothing_varying_is_an_error(text) -> None:
    with pytest.raises(LanguageError, match="behind a varying part"):
        hoist_constants(judge.trace(), move=[text])


def test_text_never_moves_over_a_generation_or_a_turn_of_another_role() -> None:
    @function
    def program(s, question):
        s += user(f"{question}")
        s += assistant("Let me see. ")
        s += f"{question}" + gen("x") + "So:"

    for text in ("Let me see. ", "So:"):
        with pytest.raises(LanguageError, match="behind a varying part"):
            hoist_constants(program.trace(), move=[text])


def test_one_text_in_place_of_a_list_is_an_error() -> None:
    with pytest.raises(LanguageError, match=r"\['So'\]"):
        hoist_constants(judge.trace(), move="So")
