"""Neighbours that may become branches, and what stands against it."""

from __future__ import annotations

import pytest

from forktree.backend.fake import Fake
from forktree.lang import ir
from forktree.lang.errors import LanguageError
from forktree.lang.expressions import assistant, gen, select, user
from forktree.lang.independent import fork_independent, independent_generations
from forktree.lang.program import Program as ProgramData
from forktree.runtime.function import function


@function
def describe(s, thing):
    s += f"About {thing}."
    s += "\nColour: " + gen("colour", max_tokens=2)
    s += "\nSize: " + gen("size", max_tokens=2)
    s += "\nUse: " + select("use", ["food", "fuel"])
    s += "\nSo: " + gen("summary", max_tokens=4)
    return s["colour"], s["summary"]


@function
def interview(s):
    s += user("You are a baker.")
    s += user("Your name?") + assistant("I am " + gen("name"))
    s += user("Your age?") + assistant(gen("age") + " years")
    s += user("Goodbye.")
    s += assistant(gen("bye"))


SCRIPT = {"colour": "red", "size": "big", "use": "food", "summary": "nice", "name": "Ada", "age": "9", "bye": "bye"}


def run(program, **arguments):
    fake = Fake(SCRIPT)
    state = program.run(backend=fake, **arguments)
    return state, {request.name: request.prompt for request in fake.requests}


def test_neighbours_that_do_not_read_one_another_are_found() -> None:
    assert independent_generations(describe.trace()) == (("colour", "size", "use", "summary"),)
    assert independent_generations(interview.trace()) == (("name", "age", "bye"),)


def test_named_generations_no_longer_see_one_another_and_what_follows_sees_all() -> None:
    forked = fork_independent(describe.trace(), ("colour", "size", "use"))
    before, plain = run(describe.trace(), thing="apples")
    after, prompts = run(forked, thing="apples")
    assert prompts["colour"] == plain["colour"]
    assert prompts["size"] == "About apples.\nSize: "
    assert prompts["use"] == "About apples.\nUse: "
    assert prompts["summary"] == plain["summary"]
    assert after.text() == before.text()
    assert after.variables() == before.variables()
    assert after.ret_value == ("red", "nice")


def test_generations_in_turns_of_their_own_take_their_turns_with_them() -> None:
    forked = fork_independent(interview.trace(), ("name", "age"))
    before, plain = run(interview.trace())
    after, prompts = run(forked)
    assert "Ada" not in prompts["age"]
    assert prompts["bye"] == plain["bye"]
    assert after.messages() == before.messages()
    assert after["name"] == "Ada"


def test_only_the_last_line_of_the_text_before_goes_with_the_first() -> None:
    @function
    def program(s):
        s += "A fruit.\nIts colour: " + gen("colour") + " Its size: " + gen("size")

    _, prompts = run(fork_independent(program.trace(), ("colour", "size")))
    assert prompts == {"colour": "A fruit.\nIts colour: ", "size": "A fruit. Its size: "}


def test_in_one_turn_the_label_of_the_first_goes_with_it() -> None:
    @function
    def program(s):
        s += user("A fruit.")
        s += assistant("Colour: " + gen("colour") + "\nSize: " + gen("size"))

    state, prompts = run(fork_independent(program.trace(), ("colour", "size")))
    assert prompts == {"colour": "A fruit.Colour: ", "size": "A fruit.\nSize: "}
    assert state.messages()[1]["content"] == "Colour: red\nSize: big"


def test_the_branches_run_together() -> None:
    fake = Fake(SCRIPT)
    fake.hold()
    state = fork_independent(describe.trace(), ("colour", "size", "use")).stream(backend=fake, thing="apples")
    while fake.num_held < 3:
        pass
    fake.release()
    assert state["summary"] == "nice"


def test_the_result_prints_compares_and_survives_json() -> None:
    forked = fork_independent(describe.trace(), ("colour", "size"))
    assert "join 1, 2 as values_and_text" in str(forked)
    assert ProgramData.from_json(forked.to_json()).ops == forked.ops


def test_several_groups_can_be_named() -> None:
    forked = fork_independent(describe.trace(), ("colour", "size"), ("use", "summary"))
    assert [node.branches for node in forked.ops_of(0) if isinstance(node, ir.Fork)] == [(1, 2), (3, 4)]


def refused(body, *names: str) -> str:
    program = function(body).trace()
    assert independent_generations(program) == ()
    with pytest.raises(LanguageError) as error:
        fork_independent(program, names)
    return str(error.value)


def test_a_generation_whose_text_reads_another_stays_where_it_is() -> None:
    def program(s):
        s += gen("a")
        s += f"You said {s['a']}. " + gen("b")

    assert "b reads 'a'" in refused(program, "a", "b")


def test_a_fork_between_them_keeps_them_in_order() -> None:
    def program(s):
        s += gen("a")
        s.fork(1)
        s += gen("b")

    assert "a fork stands between" in refused(program, "a", "b")


def test_a_name_set_twice_or_never_is_refused() -> None:
    def program(s):
        s += gen("a") + gen("a")

    assert "2 generations named 'a'" in refused(program, "a", "b")


def test_the_order_of_the_program_is_the_order_of_the_group() -> None:
    with pytest.raises(LanguageError, match="follow one another"):
        fork_independent(describe.trace(), ("size", "colour"))
    with pytest.raises(LanguageError, match="at least two"):
        fork_independent(describe.trace(), ("size",))


def test_one_turn_and_loose_text_do_not_mix() -> None:
    def program(s):
        s += gen("a")
        s += user("hm") + "x"
        s.role("assistant", "b " + gen("b"))
        s += gen("c")

    with pytest.raises(LanguageError):
        fork_independent(function(program).trace(), ("a", "b"))
