"""What log-probabilities of a service can tell of options, and what they cannot."""

from __future__ import annotations

import math

import pytest

import forktree as ft
from forktree.backend.clients.scoring import first_token_logprobs
from forktree.runtime.protocol import TokenLogprob


def entry(*likeliest: tuple[str, float]) -> TokenLogprob:
    text, logprob = likeliest[0]
    top = tuple((-1, value) for _, value in likeliest)
    return TokenLogprob(-1, text, logprob, top, tuple(text for text, _ in likeliest))


def test_an_option_has_the_probability_of_all_tokens_that_it_begins_with() -> None:
    yes, no = first_token_logprobs(["yes", "no"], entry(("yes", -1.0), (" yes", -2.0), ("no", -3.0)))
    assert yes == pytest.approx(math.log(math.exp(-1) + math.exp(-2)))
    assert no == -3.0


def test_an_option_that_is_not_among_the_likeliest_has_less_than_the_least() -> None:
    assert first_token_logprobs(["yes", "purple", ""], entry(("yes", -1.0), ("no", -3.0))) == [-1.0, -3.001, None]


def test_options_that_begin_alike_cannot_be_told_apart() -> None:
    with pytest.raises(ft.UnsupportedError, match="'blue' and 'blueish' begin with the same token 'bl'"):
        first_token_logprobs(["blue", "blueish"], entry(("bl", -1.0)))
    with pytest.raises(ft.UnsupportedError, match="none of"):
        first_token_logprobs(["blue"], entry(("red", -1.0)))


@ft.function
def choose(s, options=("yes", "no"), method="token_length_normalized"):
    s += ft.user("Is it?")
    s += ft.assistant(ft.select("x", list(options), method=method))


def test_a_conversation_is_scored_by_its_first_token(service, openai) -> None:
    state = choose.run(backend=openai())
    assert state["x"] == "yes"
    assert state.meta("x").option_logprobs["no"] == -1.5
    (body,) = service.bodies
    assert (body["logprobs"], body["top_logprobs"], body["max_completion_tokens"]) == (True, 20, 1)
    with pytest.raises(ft.UnsupportedError, match="scores options behind a prompt alone"):
        choose.run(method="unconditional_likelihood_normalized", backend=openai())


def test_plain_text_is_scored_by_what_the_service_echoes(service, openai) -> None:
    @ft.function
    def plain(s, method):
        s += "It is" + ft.select("x", [" red", " dark blue"], method=method)

    state = plain.run("token_length_normalized", backend=openai("vllm"))
    logprobs = {option.text: option.token_logprobs for option in state.meta("x").options}
    assert logprobs == {" red": pytest.approx((-0.4,)), " dark blue": pytest.approx((-0.5, -0.5))}
    assert {body["prompt"] for body in service.bodies} == {"It is red", "It is dark blue"}
    plain.run("unconditional_likelihood_normalized", backend=openai("vllm"))
    assert len(service.bodies) == 6


def test_a_service_without_log_probabilities_says_what_to_write(service, openai) -> None:
    with pytest.raises(ft.UnsupportedError, match="no select; use gen"):
        choose.run(backend=openai("gemini"))
    assert service.seen == []
