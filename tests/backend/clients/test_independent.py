"""The OpenAI backend against servers that are not of this project, in processes of their own.

`make independent` names interpreters that have them (FORKTREE_LLAMA_CPP_PYTHON, FORKTREE_VLLM_PYTHON); what has none
is skipped. Both serve the built-in model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest

import forktree as ft
from forktree.backend.clients.dialects import DIALECTS
from forktree.benchmarks.peers import PEERS
from forktree.benchmarks.server import servers

pytestmark = pytest.mark.model

KINDS = {"llama-cpp-python": servers.llama_cpp("--logits_all", "true"), "vllm": servers.vllm()}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
Make = Callable[..., ft.OpenAI]


@pytest.fixture(scope="module", params=KINDS, ids=list(KINDS))
def served(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[tuple[str, servers.Serving]]:
    """A dialect and a server that speaks it."""
    kind = KINDS[request.param]
    peer = PEERS[kind.name]
    python = os.environ.get(peer.variable)
    if python is None:
        pytest.skip(f"{peer.variable} names no interpreter that has {kind.name}")
    if not peer.is_installed(python):
        pytest.skip(f"{python} does not have {kind.name}: `{peer.install}` there")
    with servers.started(kind, python) as server:
        yield request.param, server


@pytest.fixture
def make(served: tuple[str, servers.Serving]) -> Iterator[Make]:
    """A backend over the server, by options."""
    dialect, server = served
    made: list[ft.OpenAI] = []

    def one(model: str = server.model, **options: object) -> ft.OpenAI:
        url = f"{server.url}/v1/"  # the slash changes nothing
        made.append(ft.OpenAI(model, url, "none", dialect=dialect, retries=0, timeout=120, **options))
        return made[-1]

    yield one
    for backend in made:
        backend.close()


@ft.function
def capital(s, country="France", **options):
    s += ft.system("Answer in one short sentence.")
    s += ft.user(f"What is the capital of {country}?")
    s += ft.assistant(ft.gen("a", temperature=0, **options))
    return s["a"]


@ft.function
def story(s, **options):
    s += "The capital of France is" + ft.gen("a", temperature=0, **options)
    return s["a"]


def test_a_turn_is_answered(make: Make) -> None:
    state = capital.run(max_tokens=24, backend=make())
    assert "Paris" in state["a"]
    assert state.meta("a").finish_reason in ("stop", "length")


def test_a_turn_streams_the_same_text(make: Make) -> None:
    backend = make()
    whole = capital.run(max_tokens=16, backend=backend)["a"]
    streamed = list(capital.stream(max_tokens=16, backend=backend).text_iter("a"))
    assert "".join(streamed) == whole
    assert len(streamed) > 3


def test_turns_follow_each_other(make: Make) -> None:
    @ft.function
    def two(s):
        s += ft.user("What is the capital of France?")
        s += ft.assistant(ft.gen("a", temperature=0, max_tokens=24))
        s += ft.user("And of Italy?")
        s += ft.assistant(ft.gen("b", temperature=0, max_tokens=24))

    state = two.run(backend=make())
    assert state["a"]
    assert state["b"]
    assert [message["role"] for message in state.messages()] == ["user", "assistant", "user", "assistant"]


def test_plain_text_is_continued(served, make: Make) -> None:
    dialect, _ = served
    state = story.run(max_tokens=4, heal=False, backend=make())
    assert "Paris" in state["a"]
    assert state.meta("a").finish_reason == "length"
    assert state.meta("a").completion_tokens == (4 if DIALECTS[dialect].streams_usage else 0)


def test_a_stop_ends_the_answer_and_is_not_part_of_it(make: Make) -> None:
    state = capital.run(max_tokens=32, stop=["Paris"], backend=make())
    assert "Paris" not in state["a"]
    assert state.meta("a").finish_reason == "stop"


def test_log_probabilities_come_along(make: Make) -> None:
    meta = capital.run(max_tokens=4, logprobs=3, backend=make()).meta("a")
    assert len(meta.logprobs) == 4
    assert all(entry.logprob <= 0 and len(entry.top) == 3 for entry in meta.logprobs)


def test_select_scores_options_of_a_turn(make: Make) -> None:
    @ft.function
    def choose(s):
        s += ft.user("What is the capital of France? Answer with one word, Paris or London.")
        s += ft.assistant(ft.select("city", ["Paris", "London"]))

    state = choose.run(backend=make())
    assert state["city"] == "Paris"
    assert sum(state.meta("city").probabilities.values()) == pytest.approx(1)


def test_select_scores_options_of_plain_text(make: Make) -> None:
    @ft.function
    def choose(s):
        s += "The capital of France is" + ft.select("city", [" London", " Paris"])

    assert choose.run(backend=make())["city"] == " Paris"


def test_a_schema_is_kept(make: Make) -> None:
    backend = make()
    state = capital.run(schema=SCHEMA, max_tokens=60, backend=backend)
    jsonschema.validate(state["a"], SCHEMA)
    assert json.dumps(state["a"])
    assert backend.stats().num_reasked == 0


def test_choices_are_kept(make: Make) -> None:
    backend = make()
    assert capital.run(choices=["Paris", "London"], max_tokens=24, backend=backend)["a"] in ("Paris", "London")
    assert backend.stats().num_reasked == 0


def test_a_prompt_that_is_too_long_says_so(served, make: Make) -> None:
    dialect, _ = served
    if dialect == "llama-cpp-python":  # it ends the stream before it has begun, and says nothing
        with pytest.raises(ft.ServerError, match="context_limit="):
            capital.run("word " * 6000, max_tokens=8, backend=make())
        return
    with pytest.raises(ft.ContextLengthError) as caught:
        capital.run("word " * 6000, max_tokens=8, backend=make())
    assert caught.value.limit == servers.CONTEXT


def test_a_prompt_that_is_too_long_is_not_sent_where_the_limit_is_known(make: Make, model_dir: Path) -> None:
    backend = make(context_limit=servers.CONTEXT, tokenizer=model_dir)
    with pytest.raises(ft.ContextLengthError) as caught:
        capital.run("word " * 6000, max_tokens=8, backend=backend)
    assert caught.value.limit == servers.CONTEXT - 8
    assert backend.stats().num_requests == 0


def test_a_prompt_that_is_too_long_is_cut_where_that_is_wished(make: Make, model_dir: Path) -> None:
    backend = make(truncate="middle", context_limit=256, tokenizer=model_dir)
    assert capital.run("word " * 6000, max_tokens=4, backend=backend)["a"]
    assert backend.stats().num_truncated == 1


def test_an_unknown_model_is_an_error_or_the_servers_own_affair(served, make: Make) -> None:
    dialect, _ = served
    if dialect == "llama-cpp-python":  # it serves one model under any name
        assert capital.run(max_tokens=2, backend=make("no-such-model"))["a"]
        return
    with pytest.raises(ft.UnsupportedError, match="no-such-model"):
        capital.run(max_tokens=2, backend=make("no-such-model"))


def test_a_wrong_address_says_so(served) -> None:
    dialect, server = served
    with (
        ft.OpenAI(server.model, f"{server.url}/v9", "none", dialect=dialect, retries=0) as backend,
        pytest.raises(ft.BackendError, match="nothing is served"),
    ):
        capital.run(max_tokens=2, backend=backend)


def test_a_map_of_concurrent_rows_gives_what_single_runs_give(make: Make) -> None:
    backend = make()
    countries = ["France", "Italy", "Japan", "Peru"]
    rows = [{"country": country} for country in countries]
    results = capital.using(backend=backend).map([row | {"max_tokens": 8} for row in rows], concurrency=4)
    assert all(result.ok for result in results)
    single = [capital.run(country, max_tokens=8, backend=backend)["a"] for country in countries[:2]]
    assert [result.value for result in results][:2] == single


def test_leaving_a_stream_leaves_the_server_free_for_the_next(make: Make) -> None:
    backend = make()
    state = capital.stream(max_tokens=400, backend=backend)
    next(iter(state.text_iter("a")))
    state.cancel()
    assert capital.run(max_tokens=2, backend=backend)["a"]


def test_branches_go_their_own_ways(make: Make) -> None:
    @ft.function
    def both(s):
        s += ft.user("Name a city.")
        left, right = s.fork(2)
        left += ft.assistant(ft.gen("a", temperature=0, max_tokens=4))
        right += ft.assistant(ft.gen("b", temperature=0, max_tokens=4))
        return left["a"], right["b"]

    first, second = both.run(backend=make()).ret_value
    assert first == second
