"""The scripted backend."""

from __future__ import annotations

import asyncio
import threading

import pytest

from forktree.backend.fake import Fake
from forktree.lang.errors import BackendError, ServerError
from forktree.lang.expressions import gen, select
from forktree.runtime.function import function


def answer(fake: Fake, **options) -> object:
    @function
    def program(s):
        s += "prompt" + gen("x", **options)
        return s["x"]

    return program.run(backend=fake).ret_value


def test_a_list_answers_in_order_and_runs_out_with_an_error() -> None:
    fake = Fake(["one", "two"])
    assert [answer(fake), answer(fake)] == ["one", "two"]
    with pytest.raises(BackendError, match="no answer left for request 3, 'x'"):
        answer(fake)


def test_a_dict_answers_by_variable_and_a_list_in_it_in_turn() -> None:
    fake = Fake({"x": ["one", "two"]})
    assert [answer(fake), answer(fake)] == ["one", "two"]
    with pytest.raises(BackendError, match="no answer left for 'x'"):
        answer(fake)
    with pytest.raises(BackendError, match=r"no answer for 'x'; it has \['y'\]"):
        answer(Fake({"y": "z"}))


def test_functions_sync_and_async_see_the_request() -> None:
    async def later(request):
        await asyncio.sleep(0)
        return request.name

    assert answer(Fake(lambda request: request.prompt.upper())) == "PROMPT"
    assert answer(Fake(later)) == "x"


def test_an_exception_in_a_script_is_raised() -> None:
    with pytest.raises(ServerError):
        answer(Fake([ServerError("down")]))


class Mine(Exception):
    """A user's own."""


@pytest.mark.parametrize("script", [[Mine("down")], {"x": Mine("down")}, lambda request: Mine("down")])
def test_a_user_s_own_exception_in_a_script_comes_out_as_itself_with_the_line(script) -> None:
    with pytest.raises(Mine, match="down") as caught:
        answer(Fake(script))
    assert any("gen('x') of program" in note for note in caught.value.__notes__)


def test_what_a_script_s_function_raises_is_the_backend_s_fault() -> None:
    def script(request):
        raise Mine("broken")

    with pytest.raises(BackendError, match="Fake failed: Mine: broken"):
        answer(Fake(script))


def test_an_answer_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(BackendError, match=r"an answer is text, an exception or plain data, not \{1\}"):
        answer(Fake([{1}]))


def test_plain_data_is_written_as_compact_json() -> None:
    assert answer(Fake([{"a": [1, "é"]}])) == '{"a":[1,"é"]}'


@pytest.mark.parametrize(
    ("text", "options", "value"),
    [
        ("one two three", {"max_tokens": 2}, "one two"),
        ("one. two", {"stop": "."}, "one"),
        ("three ladies had run", {"stop": ["wake"]}, "three ladies had run"),
        ("aXbXc", {"stop": ["Xb", "X"]}, "a"),
        ("abc", {"stop": ["abc"]}, ""),
        ("Result 5 DONE extra", {"stop": ["DONE"]}, "Result 5 "),
        ("abc12de", {"stop_regex": "[0-9]+"}, "abc"),
    ],
)
def test_ends_are_honoured(text, options, value) -> None:
    assert answer(Fake([text]), **options) == value


def test_a_stop_is_searched_in_the_answer_and_never_in_the_prompt() -> None:
    fake = Fake([" yes\nprompt: more"])

    @function
    def program(s):
        s += "prompt: stop?\nA:" + gen("x", stop="prompt:")

    state = program.run(backend=fake)
    assert state["x"] == " yes\n"
    assert state.meta("x").stop == "prompt:"


def test_an_answer_that_its_constraint_forbids_is_an_error() -> None:
    with pytest.raises(BackendError, match="'maybe', which its constraint forbids"):
        answer(Fake(["maybe"]), choices=["yes", "no"])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("12x4", {"regex": "[0-9]+"}, r"character 2 is 'x', and behind '12' RegexSpec\(pattern='\[0-9\]\+'\)"),
        ("x", {"choices": ["a", "b"]}, "character 0 is 'x', and at the beginning ChoicesSpec"),
        ("ab", {"regex": "abc"}, "it ends too early for RegexSpec"),
        ("<think>so</think>x", {"regex": "[0-9]+", "reasoning": True}, "character 0 is 'x'"),
    ],
)
def test_an_illegal_answer_names_its_constraint_and_where_it_leaves_it(text, options, message) -> None:
    with pytest.raises(BackendError, match=message):
        answer(Fake([text]), **options)


def test_an_answer_that_a_budget_would_have_closed_is_an_error() -> None:
    options = {"regex": "(ab ?)+c", "max_tokens": 2}
    with pytest.raises(BackendError, match=r'up to max_tokens=2 .*on_budget="close" would have ended it'):
        answer(Fake(["ab ab c"]), **options, on_budget="close")
    assert answer(Fake(["ab c"]), **options, on_budget="close") == "ab c"


@pytest.mark.parametrize("script", ["text", 5, None])
def test_a_script_is_a_list_a_dict_or_a_function(script) -> None:
    with pytest.raises(BackendError, match="a list of answers, a dict or a function"):
        Fake(script)


# Scores


def choose(fake: Fake, options=("a", "b"), **more) -> object:
    @function
    def program(s):
        s += select("x", options, **more)
        return s["x"]

    return program.run(backend=fake).ret_value


def test_the_scripted_option_wins_and_the_first_where_nothing_is_said() -> None:
    assert choose(Fake({"x": "b"})) == "b"
    assert choose(Fake(["b"])) == "b"
    assert choose(Fake(lambda request: request.options[-1])) == "b"
    assert choose(Fake({})) == "a"


def test_scores_may_be_given_per_option_or_per_token() -> None:
    assert choose(Fake({"x": {"a": -2.0, "b": [-0.5, -1.0]}})) == "b"


@pytest.mark.parametrize("script", [{"x": "c"}, {"x": {"a": -1.0}}])
def test_a_script_that_scores_other_options_is_an_error(script) -> None:
    with pytest.raises(BackendError, match="'x'"):
        choose(Fake(script))


# Holding


def test_held_requests_are_answered_at_the_release() -> None:
    fake = Fake(["one"])
    fake.hold()
    asked = threading.Event()

    @function
    def program(s):
        s += gen("x")
        asked.set()
        return s["x"]

    state = program.stream(backend=fake)
    assert asked.wait(10)
    fake.release()
    assert state.ret_value == "one"


def test_a_closed_fake_answers_with_an_error() -> None:
    fake = Fake(["one"])
    fake.close()
    fake.close()
    with pytest.raises(BackendError, match="closed"):
        answer(fake)


def test_every_request_is_kept() -> None:
    fake = Fake({"x": "1"})
    answer(fake, max_tokens=7)
    assert fake.num_requests == 1
    assert fake.requests[0].sampling.max_tokens == 7
