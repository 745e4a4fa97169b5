"""Errors surface where the value is read, as themselves."""

from __future__ import annotations

import pytest

from forktree.backend.fake import Fake
from forktree.lang.errors import BackendError, RateLimitError, UnsupportedError
from forktree.lang.expressions import gen, image, select
from forktree.runtime import protocol
from forktree.runtime.function import function


def failing(request) -> str:
    if request.name == "bad":
        raise RateLimitError("slow down", retry_after=2.0)
    return "fine"


def test_reading_a_failed_generation_raises_the_backend_s_own_error_with_the_line() -> None:
    @function
    def program(s):
        s += gen("bad")
        return s["bad"]

    with pytest.raises(RateLimitError) as caught:
        program.run(backend=Fake(failing))
    assert caught.value.retry_after == 2.0
    notes = "\n".join(caught.value.__notes__)
    assert "gen('bad') of program" in notes
    assert "test_errors.py:" in notes


def test_a_failed_generation_that_nobody_reads_is_raised_from_run() -> None:
    @function
    def program(s):
        s += "a" + gen("bad") + "b"
        return "done"

    with pytest.raises(RateLimitError):
        program.run(backend=Fake(failing))


def test_what_comes_behind_a_failed_generation_fails_with_it() -> None:
    fake = Fake(failing)

    @function
    def program(s):
        s += gen("bad") + gen("next")
        return s["next"]

    with pytest.raises(RateLimitError):
        program.run(backend=fake)
    assert fake.num_requests == 1


def test_a_program_that_handles_the_error_goes_on_from_before_it() -> None:
    fake = Fake([RateLimitError("slow down"), "second try"])

    @function
    def program(s):
        s += "Q: "
        for _ in range(2):
            s += gen("x")
            try:
                return s["x"]
            except RateLimitError:
                continue
        return None

    state = program.run(backend=fake)
    assert state.ret_value == "second try"
    assert state.text() == "Q: second try"


def test_a_foreign_exception_of_a_backend_is_a_backend_error_with_its_cause() -> None:
    @function
    def program(s):
        s += gen("x")

    def script(request):
        return {}["missing"]

    with pytest.raises(BackendError, match="Fake failed: KeyError: 'missing'") as caught:
        program.run(backend=Fake(script))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_user_s_exception_comes_out_as_itself_with_the_program_s_line() -> None:
    class Mine(Exception):
        pass

    @function
    def program(s):
        s += gen("x")
        raise Mine("reason")

    with pytest.raises(Mine, match=r"^reason") as caught:
        program.run(backend=Fake(["1"]))
    assert any("program program (" in note and "test_errors.py:" in note for note in caught.value.__notes__)


def test_an_exception_of_the_body_cancels_what_is_pending() -> None:
    fake = Fake(["never"])
    fake.hold()

    @function
    def program(s):
        s += gen("x")
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        program.run(backend=fake)


def test_reading_an_error_twice_raises_it_twice() -> None:
    @function
    def program(s):
        s += gen("bad")
        for _ in range(2):
            with pytest.raises(RateLimitError):
                s["bad"]
        with pytest.raises(RateLimitError):
            "bad" in s  # noqa: B015
        return "ok"

    assert program.run(backend=Fake(failing)).ret_value == "ok"


class Poor(Fake):
    """A backend that can only generate."""

    @property
    def capabilities(self) -> protocol.Capabilities:
        return protocol.Capabilities()


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (gen("x", regex="a+"), "cannot enforce a RegexSpec"),
        (gen("x", logprobs=2), "no log-probabilities"),
        (select("x", ["a", "b"]), "cannot score"),
        (image(b"\x89PNG\r\n\x1a\n") + gen("x"), "cannot see"),
    ],
)
def test_what_a_backend_cannot_do_is_an_error_and_no_request(expr, message) -> None:
    fake = Poor(["a"])

    @function
    def program(s):
        s += expr

    with pytest.raises(UnsupportedError, match=message):
        program.run(backend=fake)
    assert fake.num_requests == 0


def test_error_tells_what_the_program_ended_with() -> None:
    @function
    def program(s):
        s += gen("bad")

    state = program.stream(backend=Fake(failing))
    assert isinstance(state.error(), RateLimitError)
    assert program.stream(backend=Fake({"bad": "ok"})).error() is None
