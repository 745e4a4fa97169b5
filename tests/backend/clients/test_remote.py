"""`Remote`: traced programs go to the server whole, all else step by step."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pytest
from scripted_service import Fault

import forktree as ft


@pytest.fixture
def remote(service, opened) -> ft.Remote:
    return opened(ft.Remote(service.url + "/"))


class Kind(enum.Enum):
    FOOD = "food"
    FUEL = "fuel"


@dataclass
class Fact:
    name: str
    year: int


@ft.function
def program(s, question):
    s += ft.user(question)
    s += ft.assistant("It is " + ft.gen("kind", dtype=Kind) + ft.gen("fact", schema=Fact))
    left, right = s.fork(2)
    left += ft.user("Left") + ft.assistant(ft.gen("a"))
    right += ft.user("Right") + ft.assistant(ft.select("b", ["x", "y"]))
    s.join(left, right)
    return s["fact"], [s["kind"], "constant"], s["a"]


SCRIPT = {"kind": "fuel", "fact": {"name": "Ada", "year": 1815}, "a": "an answer", "b": "y"}


@pytest.mark.parametrize("url", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_as_it_likes_and_the_model_is_the_one_that_is_served(url, service, opened, ask) -> None:
    ask.run(backend=opened(ft.Remote(service.url + url)))
    assert [seen.path for seen in service.seen] == ["/v1/models", "/v1/chat/completions"]
    assert service.bodies[1]["model"] == "scripted"


def test_a_traced_program_is_one_round_trip_and_its_state_is_what_a_run_here_gives(service, remote) -> None:
    service.runs_on = ft.Fake(SCRIPT)
    traced = program.trace()
    here = traced.run(question="Which?", backend=ft.Fake(SCRIPT))
    there = traced.run(question="Which?", backend=remote)
    assert [seen.path for seen in service.seen] == ["/v1/programs"]
    assert there.ret_value == here.ret_value == (Fact("Ada", 1815), [Kind.FUEL, "constant"], "an answer")
    assert there.variables() == here.variables()
    assert there.messages() == here.messages()
    assert there.text() == here.text()
    assert there.meta("b").probabilities == here.meta("b").probabilities
    assert remote.stats().prompt_tokens == 5
    assert ft.explain_run(there).prompt_tokens == 5


async def test_it_runs_in_any_loop_and_over_many_rows(service, remote, tmp_path) -> None:
    service.runs_on = ft.Fake(SCRIPT)
    traced = program.trace()
    assert (await traced.arun(question="Which?", backend=remote)).ret_value[2] == "an answer"


def test_a_map_of_a_traced_program_has_its_journal(service, remote, tmp_path, monkeypatch) -> None:
    service.runs_on = ft.Fake(SCRIPT)
    traced = program.trace()
    ft.use(remote)
    try:
        rows = [{"question": f"Question {number}"} for number in range(6)]
        first = traced.map(rows, journal=tmp_path / "rows.db", concurrency=2)
        again = traced.map(rows, journal=tmp_path / "rows.db")
    finally:
        ft.use(None)
    assert [result.value for result in first] == [result.value for result in again]
    assert all(result.replayed for result in again)
    assert len(service.seen) == 6


def test_a_journal_knows_a_server_again_whose_model_was_asked_for_meanwhile(service, remote, tmp_path, ask) -> None:
    program = ask.using(backend=remote)
    rows = [{"question": "Hi"}]
    program.map(rows, journal=tmp_path / "rows.db")
    assert program.map(rows, journal=tmp_path / "rows.db")[0].replayed


def test_sampling_goes_along(service, remote) -> None:
    service.runs_on = fake = ft.Fake(SCRIPT)
    program.trace().run(question="Which?", backend=remote, seed=3, temperature=0.5, stop=["END"])
    assert service.bodies[0]["sampling"] == {"seed": 3, "temperature": 0.5, "stop": ["END"]}
    assert fake.requests[0].sampling.temperature == 0.5


def test_what_the_program_failed_with_there_is_raised_here_as_itself(service, remote) -> None:
    def run(error: Exception) -> None:
        service.runs_on = ft.Fake({**SCRIPT, "a": error})
        program.trace().run(question="Which?", backend=remote)

    with pytest.raises(ft.RateLimitError, match="slow down") as caught:
        run(ft.RateLimitError("slow down", retry_after=3.0))
    assert caught.value.retry_after == 3.0
    with pytest.raises(ft.ContextLengthError) as too_long:
        run(ft.ContextLengthError("too long", limit=10, tokens=12))
    assert (too_long.value.limit, too_long.value.tokens) == (10, 12)
    with pytest.raises(ft.BackendError, match="the program failed on the server: ZeroDivisionError: oh"):
        run(ZeroDivisionError("oh"))


def test_a_server_without_the_route_is_asked_step_by_step(service, remote) -> None:
    @ft.function
    def simple(s, question):
        s += ft.user(question)
        s += ft.assistant(ft.gen("a"))
        return s["a"]

    traced = simple.trace()
    assert traced.run(question="Hi", backend=remote).ret_value == " some words to read"
    assert traced.run(question="Ho", backend=remote).ret_value == " some words to read"
    paths = [seen.path for seen in service.seen]
    assert paths == ["/v1/programs", "/v1/models", "/v1/chat/completions", "/v1/chat/completions"]


def test_a_run_that_is_cancelled_leaves_the_server(service, remote) -> None:
    service.faults.append(Fault("silence"))
    traced = program.trace()
    state = traced.stream(question="Hi", backend=remote)
    state._run.cancel()
    with pytest.raises(ft.RunCancelledError):
        state["fact"]


def test_an_argument_that_cannot_be_sent_is_named(remote) -> None:
    with pytest.raises(ft.LanguageError, match="cannot be stored"):
        program.trace().run(question=object(), backend=remote)
