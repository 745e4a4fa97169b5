"""Prompts that are too long: by a limit that is known, or by what the service says; and what requests cost."""

from __future__ import annotations

import json

import pytest
from scripted_service import Fault

import forktree as ft
from forktree.backend.clients.counting import counter_of, estimate
from forktree.backend.clients.options import prices_of


def words(text: str) -> list[str]:
    return text.split()


LONG = " ".join(f"w{i}" for i in range(400))


def test_a_prompt_over_a_known_limit_is_refused_before_any_request(service, openai, ask) -> None:
    with pytest.raises(ft.ContextLengthError, match='truncate="middle"') as caught:
        ask.run(LONG, max_tokens=20, backend=openai(context_limit=200, tokenizer=words))
    assert caught.value.limit == 180
    assert service.seen == []


@pytest.mark.parametrize(("how", "kept"), [("middle", ["w0", "w399"]), ("oldest", [])])
def test_a_known_limit_cuts_the_prompt_as_was_asked(how, kept, service, openai) -> None:
    @ft.function
    def program(s):
        s += ft.system("Be kind.")
        s += ft.user(LONG)
        s += ft.assistant("Yes.")
        s += ft.user("And now?")
        s += ft.assistant(ft.gen("a", max_tokens=20))

    backend = openai(context_limit=200, tokenizer=words, truncate=how)
    program.run(backend=backend)
    (body,) = service.bodies
    said = " ".join(message["content"] for message in body["messages"])
    assert len(words(said)) <= 180
    assert said.startswith("Be kind.")
    assert said.endswith("And now?")
    assert [word for word in ("w0", "w399") if word in words(said)] == kept
    assert backend.stats().num_truncated == 1


def test_where_only_the_service_knows_the_limit_its_error_is_learned_from(service, openai, ask) -> None:
    message = "This model's maximum context length is 100 tokens. However, your messages resulted in 420 tokens."
    service.faults.append(Fault(status=400, body={"error": {"code": "context_length_exceeded", "message": message}}))
    backend = openai(truncate="middle")
    ask.run(LONG, max_tokens=10, backend=backend)
    first, second = (words(body["messages"][0]["content"]) for body in service.bodies)
    assert (len(first), 40 < len(second) < 95) == (400, True)
    assert (second[0], second[-1]) == ("w0", "w399")
    service.faults.append(Fault(status=400, body={"error": {"code": "context_length_exceeded", "message": message}}))
    with pytest.raises(ft.ContextLengthError, match="420") as caught:
        ask.run(LONG, backend=openai())
    assert (caught.value.limit, caught.value.tokens) == (100, 420)


def test_a_service_that_finds_every_cut_too_long_ends_it(service, openai, ask) -> None:
    body = {"error": {"code": "context_length_exceeded", "message": "too long"}}
    service.faults += [Fault(status=400, body=body)] * 9
    with pytest.raises(ft.ContextLengthError):
        ask.run(LONG, backend=openai(truncate="middle"))
    sizes = [len(json.dumps(body)) for body in service.bodies]
    assert len(sizes) == 4
    assert sizes == sorted(sizes, reverse=True)


def test_tokens_are_counted_by_what_was_given(model_dir) -> None:
    assert counter_of(words).count("a b c") == 3
    exact = counter_of(model_dir)
    assert exact.is_exact
    assert exact.count("Once upon a time") == 4
    assert not counter_of(None, "no-such-model").is_exact
    with pytest.raises(ft.BackendError, match="tiktoken"):
        counter_of("tiktoken", "no-such-model")
    with pytest.raises(ft.BackendError, match="is no folder"):
        counter_of("/no/such/folder")
    assert estimate("") == 0
    assert estimate("four") == 2


# Costs

PRICES = {"input": 1.0, "output": 10.0, "cached_input": 0.5}


def test_a_run_and_a_map_are_priced_as_the_service_counted(service, openai, ask) -> None:
    backend = openai(prices=PRICES)
    results = ask.using(backend=backend).map([{"question": "Hi"}, {"question": "Ho"}])
    meta = results[0].state.meta("a")
    one = ((meta.prompt_tokens - 2) * 1.0 + 2 * 0.5 + meta.completion_tokens * 10.0) / 1e6
    assert ft.explain_run(results[0]).price == pytest.approx(one)
    assert ft.explain_run(results).price == pytest.approx(2 * one)
    assert backend.stats().cost == pytest.approx(2 * one)
    assert ft.explain_run(results, prices={"input": 0, "output": 0}).price == 0
    plan = ask.using(backend=backend).explain([{"question": "Hi", "max_tokens": 4}])
    assert plan.price is not None


def test_without_prices_nothing_is_priced(openai, ask) -> None:
    backend = openai()
    assert ft.explain_run(ask.run(backend=backend)).price is None
    assert backend.stats().cost is None


def test_prices_come_from_a_table_by_the_longest_name() -> None:
    table = {"gpt-4o": {"input": 2, "output": 8}, "gpt-4o-mini": ft.Prices(1, 4)}
    assert prices_of(table, "gpt-4o-mini-2024-07-18") == {"input": 1, "output": 4}
    assert prices_of(table, "gpt-4o") == {"input": 2, "output": 8}
    assert prices_of(table, "other") is None
    with pytest.raises(ValueError, match="prices="):
        prices_of(3, "m")


def test_the_governor_starts_requests_as_the_limits_allow(service, openai, ask) -> None:
    with pytest.raises(ft.RateLimitError, match="tokens_per_minute=100"):
        ask.run(max_tokens=500, backend=openai(tokens_per_minute=100))
    assert service.seen == []
