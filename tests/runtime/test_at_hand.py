"""Answers that are at hand are taken where the program is: in its thread, in its order, without a turn of the loop."""

from __future__ import annotations

import threading

import pytest

import forktree as ft
from forktree.backend.fake import Fake
from forktree.runtime.executor import get_executor


class Watched:
    """A Fake of data that notes the threads that ask it, and whether they ask the verb or the stream."""

    def __init__(self, answers) -> None:
        self._fake = Fake(answers)
        self.asked: list[tuple[str, int]] = []

    def __getattr__(self, name):
        return getattr(self._fake, name)

    def answer_at_hand(self, request):
        self.asked.append(("at hand", threading.get_ident()))
        return self._fake.answer_at_hand(request) if request.name != "far" else None

    def stream(self, request):
        self.asked.append(("stream", threading.get_ident()))
        return self._fake.stream(request)


ANSWERS = {"x": "a", "far": "b", "y": "c"}


def test_a_program_whose_answers_are_at_hand_never_leaves_its_thread() -> None:
    @ft.function
    def program(s):
        s += "one" + ft.gen("x")
        forks = s.fork(2)
        forks += ft.gen("y")
        forks.join()
        return s["x"], s["y"]

    backend = Watched(ANSWERS)
    here = threading.get_ident()
    assert program.run(backend=backend).ret_value == ("a", ["c", "c"])
    assert program.trace().run(backend=backend).ret_value == ("a", ["c", "c"])
    assert backend.asked == [("at hand", here)] * 6


def test_what_has_to_be_asked_goes_to_the_loop_and_what_comes_behind_follows_it() -> None:
    @ft.function
    def program(s):
        s += ft.gen("x") + "," + ft.gen("far") + "," + ft.gen("y")
        return s["y"]

    backend = Watched(ANSWERS)
    state = program.run(backend=backend)
    assert state.text() == "a,b,c"
    loop = get_executor()._thread.ident
    here = threading.get_ident()
    assert backend.asked[:2] == [("at hand", here), ("at hand", here)]
    assert ("stream", loop) in backend.asked
    assert backend.asked[-1] == ("at hand", loop)


def test_several_samples_and_choices_are_asked_for_on_the_loop() -> None:
    @ft.function
    def program(s):
        s += ft.gen("x", n=2) + ft.select("y", ["c", "d"])
        return s["x"], s["y"]

    backend = Watched(ANSWERS)
    assert program.run(backend=backend).ret_value == (["a", "a"], "c")
    assert {kind for kind, _ in backend.asked} == {"stream"}


def test_an_error_at_hand_is_the_value_s_and_names_the_line() -> None:
    @ft.function
    def program(s):
        s += ft.gen("x") + ft.gen("y")
        try:
            s["y"]
        except ft.ServerError as error:
            return error.__notes__

    (note,) = program.run(backend=Fake({"x": ft.ServerError("down"), "y": "c"})).ret_value
    assert "gen('x') of program" in note
    assert "test_at_hand.py" in note


def test_an_interrupt_while_an_answer_is_taken_ends_the_run() -> None:
    @ft.function
    def program(s):
        s += ft.gen("x")

    with pytest.raises(KeyboardInterrupt):
        program.run(backend=Fake([KeyboardInterrupt()]))
    state = program.stream(backend=Fake([KeyboardInterrupt()]))
    assert isinstance(state.error(), KeyboardInterrupt)


def test_a_held_script_is_not_at_hand() -> None:
    fake = Fake(ANSWERS)
    fake.hold()

    @ft.function
    def program(s):
        s += ft.gen("x")

    state = program.stream(backend=fake)
    assert fake.answer_at_hand is None
    fake.release()
    assert state["x"] == "a"
    assert Fake(lambda request: "a").answer_at_hand is None


def test_branches_of_many_threads_keep_to_themselves() -> None:
    @ft.function
    def program(s):
        forks = s.fork(8)
        threads = [threading.Thread(target=fill, args=(fork, i)) for i, fork in enumerate(forks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [fork.text() for fork in forks]

    def fill(fork, i):
        for _ in range(5):
            fork += f"{i}" + ft.gen("x") + ft.gen("far")

    assert program.run(backend=Watched(ANSWERS)).ret_value == [f"{i}ab" * 5 for i in range(8)]
