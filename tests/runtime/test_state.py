"""What a program's state means."""

from __future__ import annotations

import pytest

from forktree.backend.fake import Fake
from forktree.lang.errors import (
    IncompleteError,
    LanguageError,
    RoleError,
    TimeoutError,
    UndefinedVariableError,
)
from forktree.lang.expressions import assistant, gen, role_begin, role_end, select, system, user
from forktree.lang.sampling import Sampling
from forktree.runtime import protocol
from forktree.runtime.function import function


def test_text_is_what_the_program_wrote_and_the_values_in_between() -> None:
    @function
    def program(s):
        s += "Hello " + gen("name", max_tokens=2) + "!"

    assert program.run(backend=Fake(["Ada"])).text() == "Hello Ada!"


def test_reading_a_variable_waits_for_its_generation() -> None:
    @function
    def program(s):
        s += gen("a")
        return s["a"] + s["a"]

    assert program.run(backend=Fake(["x"])).ret_value == "xx"


def test_what_was_generated_stays_as_the_ids_it_was_generated_as() -> None:
    fake = Fake(["two words", "more"])

    @function
    def program(s):
        s += "a" + gen("x") + "b" + gen("y")

    program.run(backend=fake)
    segments = fake.requests[1].branch.segments()
    assert [type(segment) for segment in segments] == [protocol.Text, protocol.Generated, protocol.Text]
    assert len(segments[1].ids) == 2


def test_an_assignment_comes_in_program_order_before_a_pending_generation_of_the_name() -> None:
    fake = Fake(["late"])
    fake.hold()

    @function
    def program(s):
        s += gen("x")
        s["x"] = "mine"
        seen = s["x"]
        fake.release()
        s += "end"
        return seen

    state = program.run(backend=fake)
    assert state.ret_value == "mine"
    assert state["x"] == "mine"
    assert state.text() == "lateend"


def test_a_later_generation_of_a_name_is_the_one_that_is_read() -> None:
    @function
    def program(s):
        s += gen("x") + gen("x")
        first_is_gone = s["x"]
        s += gen("x")
        return first_is_gone, s["x"]

    assert program.run(backend=Fake(["1", "2", "3"])).ret_value == ("2", "3")


def test_in_waits_for_a_pending_value_and_is_false_for_a_name_that_never_comes() -> None:
    @function
    def program(s):
        s += gen("x")
        return "x" in s, "y" in s

    assert program.run(backend=Fake(["1"])).ret_value == (True, False)


def test_a_name_that_nothing_sets_is_a_key_error_that_names_what_is_set() -> None:
    @function
    def program(s):
        s += gen("answer")
        s["anwser"]

    with pytest.raises(UndefinedVariableError, match=r"'anwser'.*'answer'") as caught:
        program.run(backend=Fake(["1"]))
    assert isinstance(caught.value, KeyError)
    assert "test_state.py" in str(caught.value)


@pytest.mark.parametrize("wrong", [5, None, 1.5, ["a"], object()])
def test_appending_what_is_no_text_is_an_error_at_that_line(wrong) -> None:
    @function
    def program(s):
        s += wrong

    with pytest.raises(LanguageError, match=r"test_state\.py:\d+"):
        program.run(backend=Fake([]))


def test_unnamed_generations_are_not_stored() -> None:
    @function
    def program(s):
        s += gen() + gen(max_tokens=3) + select(options=["a", "b"])

    state = program.run(backend=Fake(["x", "y", "b"]))
    assert state.variables() == {}
    assert state.text() == "xyb"


def test_several_samples_are_a_list_and_the_first_continues_the_text() -> None:
    @function
    def program(s):
        s += "a" + gen("x", n=3, temperature=1.0) + "b"

    fake = Fake(lambda request: f"sample{request.sample_index}")
    state = program.run(backend=fake)
    assert state["x"] == ["sample0", "sample1", "sample2"]
    assert state.text() == "asample0b"
    assert [meta.text for meta in state.meta("x").samples] == state["x"]


def test_reading_a_cut_constrained_output_raises_with_its_text_and_unread_it_does_not() -> None:
    @function
    def program(s):
        s += gen("x", choices=["one two", "three"], max_tokens=1)

    state = program.run(backend=Fake(["one two"]))
    assert state.text() == "one"
    with pytest.raises(IncompleteError, match="max_tokens") as caught:
        state["x"]
    assert caught.value.text == "one"
    assert state.meta("x").finish_reason == "length"
    assert not state.meta("x").is_complete


def test_typed_values_come_out_typed() -> None:
    @function
    def program(s):
        s += gen("n", dtype=int) + gen("f", dtype=float) + gen("b", dtype=bool)

    state = program.run(backend=Fake({"n": 24, "f": "-1.5", "b": "False"}))
    assert state.variables() == {"n": 24, "f": -1.5, "b": False}


def test_get_gives_up_after_its_timeout() -> None:
    fake = Fake(["late"])
    fake.hold()

    @function
    def program(s):
        s += gen("x")
        try:
            s.get("x", timeout=0.01)
        except TimeoutError as error:
            fake.release()
            return str(error), s["x"]

    message, value = program.run(backend=fake).ret_value
    assert "'x'" in message
    assert value == "late"


# Turns


def test_turns_become_messages_and_segments_but_no_text() -> None:
    fake = Fake(["Rome"])

    @function
    def program(s):
        s += system("Be brief.") + user("Capital of Italy?")
        s += assistant(gen("a"))

    state = program.run(backend=fake)
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Capital of Italy?"},
        {"role": "assistant", "content": "Rome"},
    ]
    assert state.text() == "Be brief.Capital of Italy?Rome"
    assert fake.requests[0].branch.segments()[-1] == protocol.RoleBegin("assistant")


@pytest.mark.parametrize("form", ["method", "appended", "block", "begin and end"])
def test_every_form_of_a_turn_appends_it_once(form) -> None:
    @function
    def program(s):
        if form == "method":
            s.user("hi")
        elif form == "appended":
            s += s.user("hi")
        elif form == "block":
            with s.user():
                s += "hi"
        else:
            s += role_begin("user") + "hi" + role_end("user")

    assert program.run(backend=Fake([])).messages() == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("form", ["method", "function"])
def test_a_turn_of_none_is_a_value_that_was_lost_and_is_refused(form) -> None:
    @function
    def program(s):
        if form == "method":
            s.user(None)
        else:
            s += user(None)

    with pytest.raises(LanguageError, match=r"None.*cannot be appended"):
        program.run(backend=Fake([]))


def test_a_turn_without_an_expression_is_empty() -> None:
    @function
    def program(s):
        s += user()

    assert program.run(backend=Fake([])).messages() == [{"role": "user", "content": ""}]


def test_turns_do_not_nest_and_the_error_is_raised_at_the_line() -> None:
    @function
    def program(s):
        with s.user():
            s += assistant("no")

    with pytest.raises(RoleError, match=r"assistant turn begins inside an open user turn.*test_state"):
        program.run(backend=Fake([]))


def test_a_turn_that_is_not_open_cannot_end() -> None:
    @function
    def program(s):
        s += role_end("user")

    with pytest.raises(RoleError, match="no turn is open"):
        program.run(backend=Fake([]))


def test_a_failing_block_leaves_its_own_error() -> None:
    @function
    def program(s):
        with s.user():
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        program.run(backend=Fake([]))


def test_a_scope_captures_the_text_inside() -> None:
    @function
    def program(s):
        s += "a"
        with s.scope("inner"):
            s += "b" + gen("x")
            s += "d"
        s += "e"
        return s["inner"]

    assert program.run(backend=Fake(["c"])).ret_value == "bcd"


# Sampling


def test_a_generation_s_own_sampling_wins_over_the_run_s_and_that_over_the_program_s() -> None:
    fake = Fake(lambda request: "x")

    @function
    def program(s):
        s += gen("a", temperature=0.5) + gen("b")

    settled = program.using(sampling=Sampling(temperature=0.1, top_p=0.9), seed=1)
    settled.run(backend=fake, sampling=Sampling(top_p=0.8), seed=2)
    assert [(r.sampling.temperature, r.sampling.top_p, r.sampling.seed) for r in fake.requests] == [
        (0.5, 0.8, 2),
        (0.1, 0.8, 2),
    ]


def test_what_nobody_gives_is_left_to_the_model() -> None:
    fake = Fake(["x"])

    @function
    def program(s):
        s += gen("a")

    program.run(backend=fake)
    assert fake.requests[0].sampling == Sampling()


def test_a_finished_state_can_be_continued() -> None:
    @function
    def program(s):
        s += "a" + gen("x")

    state = program.run(backend=Fake(["1", "2"]))
    state += "b" + gen("y")
    assert state["y"] == "2"
    assert state.text() == "a1b2"


def test_tokens_are_the_backend_s_ids() -> None:
    @function
    def program(s):
        s += "one two" + gen("x")

    assert len(program.run(backend=Fake(["three"])).tokens()) == 3


def test_meta_has_the_counts() -> None:
    @function
    def program(s):
        s += "one two" + gen("x", stop="!")

    meta = program.run(backend=Fake(["three four!"])).meta("x")
    assert (meta.finish_reason, meta.stop, meta.prompt_tokens, meta.completion_tokens) == ("stop", "!", 2, 2)


def test_text_in_one_append_or_in_several_gives_the_same_ids_and_no_blank_is_lost() -> None:
    @function
    def in_one(s):
        s += "Name: " + gen("n", regex="[A-Z][a-z]+") + "."

    @function
    def in_several(s):
        s += "Na"
        s += "me: "
        s += gen("n", regex="[A-Z][a-z]+")
        s += "."

    one, several = (program.run(backend=Fake(["Ada"])) for program in (in_one, in_several))
    assert one.text() == several.text() == "Name: Ada."
    assert one.tokens() == several.tokens()
