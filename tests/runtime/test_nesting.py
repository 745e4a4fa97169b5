"""Programs inside programs."""

from __future__ import annotations

import threading

import pytest

from forktree.backend.fake import Fake
from forktree.lang.errors import LanguageError, ServerError
from forktree.lang.expressions import gen, user
from forktree.runtime.executor import MAX_BODY_THREADS
from forktree.runtime.function import function


@function
def expand(s, tip):
    s += f"Expand {tip}: " + gen("paragraph")


def test_a_called_program_has_its_own_text_and_runs_beside_its_caller() -> None:
    fake = Fake(lambda request: f"<{request.prompt}>")

    @function
    def tips(s):
        s += "Tips."
        states = [expand(tip) for tip in ("eat", "sleep")]
        s += " ".join(state["paragraph"] for state in states)

    state = tips.run(backend=fake)
    assert state.text() == "Tips.<Expand eat: > <Expand sleep: >"


def test_called_programs_generate_at_the_same_time() -> None:
    fake = Fake(lambda request: "x")
    fake.hold()

    @function
    def tips(s):
        states = [expand(tip) for tip in range(2)]
        while fake.num_held < 2:
            threading.Event().wait(0.001)
        fake.release()
        return [state["paragraph"] for state in states]

    assert tips.run(backend=fake).ret_value == ["x", "x"]


def test_call_runs_a_program_on_this_state_and_returns_its_value() -> None:
    @function
    def ask(s, question):
        s += user(question)
        return question.upper()

    @function
    def outer(s):
        return s.call(ask, "a"), s.call(ask, question="b")

    state = outer.run(backend=Fake([]))
    assert state.ret_value == ("A", "B")
    assert state.text() == "ab"


def test_every_mix_of_sync_and_async_nests() -> None:
    @function
    def sync_leaf(s, x):
        s += f"{x}" + gen("v")
        return s["v"]

    @function
    async def async_leaf(s, x):
        s += f"{x}" + gen("v")
        return await s.aget("v")

    @function
    def sync_outer(s):
        return sync_leaf("a").ret_value, async_leaf("b").ret_value, s.call(async_leaf, "c"), s.call(sync_leaf, "d")

    @function
    async def async_outer(s):
        children = sync_leaf("a"), async_leaf("b")
        values = [await child.aget("v") for child in children]
        return (*values, await s.call(async_leaf, "c"), await s.call(sync_leaf, "d"))

    def script(request):
        return request.prompt[-1].upper()

    assert sync_outer.run(backend=Fake(script)).ret_value == ("A", "B", "C", "D")
    assert async_outer.run(backend=Fake(script)).ret_value == ("A", "B", "C", "D")


def test_deep_recursion_of_synchronous_programs_uses_no_more_than_the_pool_and_ends() -> None:
    peak = 0

    @function
    def down(s, depth):
        nonlocal peak
        peak = max(peak, sum(thread.name == "forktree-body" for thread in threading.enumerate()))
        if depth:
            return down(depth - 1).ret_value + 1
        s += gen("x")
        return len(s["x"])

    assert down.run(100, backend=Fake(["1"])).ret_value == 101
    assert peak <= MAX_BODY_THREADS


def test_synchronous_programs_called_from_async_ones_do_not_deadlock_when_no_thread_is_free() -> None:
    @function
    def leaf(s):
        s += gen("x")
        return s["x"]

    @function
    async def middle(s):
        return await leaf().aget("x")

    @function
    def outer(s):
        return middle().ret_value

    fake = Fake(lambda request: "1")
    results = outer.using(backend=fake).map([{}] * 200, concurrency=200)
    assert [result.value for result in results] == ["1"] * 200


def test_a_failed_call_that_nobody_reads_is_raised_from_the_caller_s_run() -> None:
    def script(request):
        raise ServerError("down")

    @function
    def outer(s):
        expand("a")

    with pytest.raises(ServerError):
        outer.run(backend=Fake(script))


def test_a_failed_call_that_the_caller_handles_is_handled() -> None:
    def script(request):
        raise ServerError("down")

    @function
    def outer(s):
        child = expand("a")
        try:
            return child["paragraph"]
        except ServerError:
            return "handled"

    assert outer.run(backend=Fake(script)).ret_value == "handled"


def test_an_exception_of_a_called_body_is_raised_where_its_value_is_read() -> None:
    @function
    def bad(s):
        raise ValueError("inner")

    @function
    def outer(s):
        return bad().ret_value

    with pytest.raises(ValueError, match="inner"):
        outer.run(backend=Fake([]))


def test_wrong_arguments_of_a_call_are_a_type_error_at_the_call() -> None:
    @function
    def outer(s):
        expand()

    with pytest.raises(TypeError, match="'tip'"):
        outer.run(backend=Fake([]))


def test_the_record_shows_the_call_and_what_it_did() -> None:
    @function
    def outer(s):
        s += "a"
        expand("b")

    printed = str(outer.run(backend=Fake(["x"])).program)
    assert "call expand" in printed
    assert '"Expand b: "' in printed


def test_a_foreign_branch_cannot_be_joined() -> None:
    @function
    def outer(s):
        s.join(expand("b"))

    with pytest.raises(LanguageError, match="join takes branches"):
        outer.run(backend=Fake(["x"]))
