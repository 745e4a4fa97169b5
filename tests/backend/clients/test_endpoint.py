"""SGLang's native route: its names for parameters, its streams that repeat themselves, its scores."""

from __future__ import annotations

import pytest
from scripted_service import Fault

import forktree as ft


@pytest.fixture
def endpoint(service, opened) -> ft.RuntimeEndpoint:
    return opened(ft.RuntimeEndpoint(service.url + "/"))


@ft.function
def plain(s, **options):
    s += "Once" + ft.gen("a", **options)


def test_plain_text_goes_to_generate_under_its_own_names(service, endpoint) -> None:
    state = plain.run(max_tokens=3, min_tokens=1, stop="read", top_k=5, seed=2, stop_regex="x+", backend=endpoint)
    assert state.text() == "Once some words to"
    assert state.meta("a").finish_reason == "length"
    assert [body for body in service.bodies if body] == [
        {
            "text": "Once",
            "sampling_params": {
                "top_k": 5,
                "sampling_seed": 2,
                "min_new_tokens": 1,
                "stop_regex": "x+",
                "max_new_tokens": 3,
                "stop": ["read"],
            },
            "stream": True,
        }
    ]


def test_a_stream_that_repeats_itself_is_read_as_deltas(endpoint) -> None:
    assert list(plain.stream(backend=endpoint).text_iter("a")) == [" some", " words", " to", " read"]
    assert plain.run(stop="to", backend=endpoint).meta("a").stop == "to"


def test_constraints_are_sent_in_its_own_fields(service, endpoint) -> None:
    service.answer = lambda body: "7" if "regex" in body["sampling_params"] else '{"answer": "x"}'
    assert plain.run(dtype=int, backend=endpoint)["a"] == 7
    assert plain.run(choices=["x", "y"], backend=endpoint)["a"] == "x"
    first, second = (body["sampling_params"] for body in service.bodies if body)
    assert "regex" in first
    assert '"enum": ["x", "y"]' in second["json_schema"]


def test_turns_go_to_the_chat_route(service, endpoint, ask) -> None:
    ask.run(backend=endpoint)
    assert [seen.path for seen in service.seen] == ["/v1/models", "/v1/chat/completions"]
    assert service.bodies[1]["model"] == "scripted"


def test_options_are_scored_by_their_own_tokens(service, endpoint) -> None:
    @ft.function
    def choose(s, method):
        s += "It is" + ft.select("x", [" red", " dark blue"], method=method)

    state = choose.run("token_length_normalized", backend=endpoint)
    logprobs = {option.text: option.token_logprobs for option in state.meta("x").options}
    assert logprobs == {" red": pytest.approx((-0.4,)), " dark blue": pytest.approx((-0.5, -0.5))}
    assert state["x"] == " red"
    assert all(body["sampling_params"]["max_new_tokens"] == 0 for body in service.bodies)
    assert choose.run("unconditional_likelihood_normalized", backend=endpoint)["x"] == " red"


def test_an_aborted_request_is_an_error(service, endpoint) -> None:
    service.answer = lambda body: {"text": "", "finish": "abort"}
    with pytest.raises(ft.BackendError, match="will not answer"):
        plain.run(backend=endpoint)


def test_the_servers_cache_is_flushed(service, endpoint) -> None:
    ft.flush_cache(endpoint)
    assert service.seen[-1].path == "/flush_cache"
    service.faults.append(Fault(status=500))
    with pytest.raises(ft.ServerError, match="500"):
        endpoint.flush_cache()


def test_counters_are_the_clients_own(endpoint) -> None:
    plain.run(max_tokens=2, backend=endpoint)
    assert ft.get_server_info(endpoint).completion_tokens == 2


def test_arguments_of_sglangs_that_have_no_meaning_here_are_refused() -> None:
    with pytest.raises(ft.UnsupportedError, match="takes no chat_template_name="):
        ft.RuntimeEndpoint("http://localhost:30000", chat_template_name="llama")
