"""Reading text while it is made."""

from __future__ import annotations

import threading

import pytest

from forktree.backend.fake import Fake
from forktree.lang.errors import BackendError, LanguageError, UndefinedVariableError
from forktree.lang.expressions import gen, select
from forktree.runtime.function import function


@function
def branching(s):
    s += "Pick " + select("kind", ["apple", "pear"])
    if s["kind"] == "apple":
        s += gen("why_a", max_tokens=5)
    else:
        s += gen("why_p", max_tokens=5)


SCRIPT = {"kind": "apple", "why_a": "it is red", "why_p": "it is green"}


def test_a_selected_variable_is_one_piece() -> None:
    assert list(branching.stream(backend=Fake(SCRIPT)).text_iter("kind")) == ["apple"]


def test_the_pieces_of_a_generation_join_to_its_value() -> None:
    state = branching.stream(backend=Fake(SCRIPT))
    pieces = list(state.text_iter("why_a"))
    assert pieces == ["it", " is", " red"]
    assert "".join(pieces) == state["why_a"]


@pytest.mark.parametrize("name", ["why_p", "typo"])
def test_a_name_that_is_never_reached_ends_the_iteration_with_an_undefined_variable(name) -> None:
    with pytest.raises(UndefinedVariableError, match=name):
        list(branching.stream(backend=Fake(SCRIPT)).text_iter(name))


def test_all_pieces_join_to_the_text() -> None:
    state = branching.stream(backend=Fake(SCRIPT))
    assert "".join(state.text_iter()) == state.text() == "Pick appleit is red"


async def test_the_asynchronous_face_gives_the_same_pieces() -> None:
    state = branching.stream(backend=Fake(SCRIPT))
    assert [piece async for piece in state.text_async_iter("why_a")] == ["it", " is", " red"]
    assert "".join([piece async for piece in state.text_async_iter()]) == state.text()
    with pytest.raises(UndefinedVariableError):
        [piece async for piece in state.text_async_iter("typo")]


def test_a_finished_run_can_be_iterated_over_too() -> None:
    state = branching.run(backend=Fake(SCRIPT))
    assert "".join(state.text_iter("why_a")) == "it is red"
    assert "".join(state.text_iter()) == state.text()


def test_pieces_come_while_the_generation_is_still_running() -> None:
    gate = threading.Event()

    class Slow(Fake):
        async def stream(self, request):
            async for event in Fake.stream(self, request):
                yield event
                import asyncio

                await asyncio.get_running_loop().run_in_executor(None, gate.wait)

    @function
    def program(s):
        s += gen("x")

    pieces = program.stream(backend=Slow(["one two"])).text_iter("x")
    assert next(pieces) == "one"
    gate.set()
    assert list(pieces) == [" two"]


def test_leaving_early_cancels_the_request_and_ends_the_body() -> None:
    ended = threading.Event()
    fake = Fake({"a": "one two", "b": "never"})

    @function
    def program(s):
        try:
            s += gen("a")
            s["a"]
            fake.hold()
            s += gen("b")
            s["b"]
        finally:
            ended.set()

    for piece in program.stream(backend=fake).text_iter("a"):
        assert piece == "one"
        break
    assert ended.wait(timeout=10)


def test_stream_returns_before_anything_is_answered() -> None:
    fake = Fake(SCRIPT)
    fake.hold()
    state = branching.stream(backend=fake)
    fake.release()
    assert state["why_a"] == "it is red"


@pytest.mark.parametrize("name", ["x", None])
def test_a_failing_program_raises_its_real_error_at_the_end(name) -> None:
    def script(request):
        raise RuntimeError("down")

    @function
    def program(s):
        s += "text" + gen("x")

    pieces: list[str] = []
    with pytest.raises(BackendError, match="down"):
        pieces.extend(program.stream(backend=Fake(script)).text_iter(name))


def test_an_error_of_the_body_ends_the_iteration_of_a_name_that_never_comes() -> None:
    @function
    def program(s):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        list(program.stream(backend=Fake([])).text_iter("x"))


def test_a_program_may_iterate_over_its_own_branch() -> None:
    @function
    def program(s):
        s += "a" + gen("x")
        own = list(s.text_iter("x")), "".join(s.text_iter())
        (branch,) = s.fork(1)
        branch += "b"
        return own, "".join(branch.text_iter())

    assert program.run(backend=Fake(["1 2"])).ret_value == ((["1", " 2"], "a1 2"), "a1 2b")


def test_no_thread_is_left_after_streams() -> None:
    list(branching.stream(backend=Fake(SCRIPT)).text_iter())
    before = threading.active_count()
    for _ in range(20):
        list(branching.stream(backend=Fake(SCRIPT)).text_iter())
    assert threading.active_count() <= before + 1


async def test_pieces_come_with_meta_data_and_the_whole_meta_comes_last() -> None:
    state = branching.stream(backend=Fake(SCRIPT))
    pairs = [pair async for pair in state.text_async_iter("why_a", return_meta_data=True)]
    assert [piece for piece, _ in pairs] == ["it", " is", " red", ""]
    assert [meta["text"] for _, meta in pairs] == ["it", "it is", "it is red", "it is red"]
    assert [meta["finish_reason"] for _, meta in pairs] == [None, None, None, "stop"]
    assert pairs[-1][1] == state.get_meta_info("why_a")
    assert [pair[0] async for pair in state.text_async_iter("kind", return_meta_data=True)] == ["apple", ""]


async def test_meta_data_without_a_variable_is_refused() -> None:
    state = branching.stream(backend=Fake(SCRIPT))
    with pytest.raises(LanguageError, match="goes with a variable"):
        state.text_async_iter(return_meta_data=True)


async def test_meta_data_of_a_generation_that_fails_ends_with_the_real_error() -> None:
    @function
    def program(s):
        s += gen("x")

    state = program.stream(backend=Fake([BackendError("down")]))
    with pytest.raises(BackendError, match="down"):
        [pair async for pair in state.text_async_iter("x", return_meta_data=True)]


async def test_leaving_an_iteration_with_meta_data_cancels_the_run() -> None:
    state = branching.stream(backend=Fake({**SCRIPT, "why_a": "a b c d e"}))
    pairs = state.text_async_iter("why_a", return_meta_data=True)
    assert (await anext(pairs))[0] == "a"
    await pairs.aclose()
    assert state._run.cancelled_by is not None or state._run.is_settled
