"""The clients against a forktree server: a real engine over a tiny random model, which says anything at all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_parts import write_wild_model
from servers import running

import forktree as ft
from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wild_model(tmp_path_factory.mktemp("wild"), model_dir)


@pytest.fixture(scope="module")
def local(model: Path) -> Iterator[ft.Local]:
    with ft.Local(model, kv_tokens=4096).load() as made:
        yield made


@pytest.fixture(scope="module")
def url(local: ft.Local) -> Iterator[str]:
    with running(build(local, Settings(model_names=("wild",)))) as at:
        yield at


@dataclass
class Fact:
    name: str
    year: int


@ft.function
def chat(s, **options):
    s += ft.system("Be short.")
    s += ft.user("Hello")
    s += ft.assistant(ft.gen("a", temperature=0, **options))


def backends(url: str) -> list[ft.OpenAI | ft.Anthropic | ft.Remote]:
    return [
        ft.Remote(url),
        ft.OpenAI("wild", f"{url}/v1", dialect="forktree"),
        ft.OpenAI("wild", f"{url}/v1", "k", dialect="openai"),
        ft.Anthropic("wild", "k", base_url=url),
    ]


def test_turns_mean_there_what_they_mean_here(url: str, local: ft.Local) -> None:
    here = chat.run(max_tokens=8, backend=local)
    for backend in backends(url):
        with backend:
            there = chat.run(max_tokens=8, backend=backend)
            assert there["a"] == here["a"], backend.name
            assert there.meta("a").prompt_tokens == here.meta("a").prompt_tokens
            assert there.meta("a").finish_reason == here.meta("a").finish_reason


@pytest.mark.parametrize(
    "options",
    [
        {"choices": ["yes", "no"]},
        {"dtype": int, "max_tokens": 8, "on_budget": "close"},
        {"regex": "[ab]{3}"},
        {"schema": {"enum": [1, 2]}},
        {"grammar": 'start: "x" | "yz"'},
    ],
    ids=lambda options: next(iter(options)),
)
def test_constraints_are_kept_there(options, url: str) -> None:
    with ft.Remote(url) as remote:
        state = chat.run(backend=remote, **options)
        assert state["a"] is not None
        assert remote.stats().num_reasked == 0


def test_plain_text_and_its_options_mean_there_what_they_mean_here(url: str, local: ft.Local) -> None:
    @ft.function
    def plain(s):
        s += "Once upon a time" + ft.gen("a", max_tokens=4, temperature=0, heal=False)

    @ft.function
    def choose(s):
        s += "Once upon a time." + ft.select("x", ["\nA", "\nB", "\nC and D"])

    with ft.Remote(url) as remote:
        assert plain.run(backend=remote)["a"] == plain.run(backend=local)["a"]
        here, there = choose.run(backend=local), choose.run(backend=remote)
        assert there["x"] == here["x"]
        assert there.meta("x").option_logprobs == pytest.approx(here.meta("x").option_logprobs, abs=1e-3)


def test_sglang_s_native_route_scores_as_the_engine_does(url: str, local: ft.Local) -> None:
    @ft.function
    def choose(s, method):
        s += "Once upon a time." + ft.select("x", ["\nA", "\nB", "\nC and D"], method=method)

    with ft.RuntimeEndpoint(url) as endpoint:
        for method in ("token_length_normalized", "unconditional_likelihood_normalized"):
            here, there = choose.run(method, backend=local), choose.run(method, backend=endpoint)
            assert there["x"] == here["x"]
            assert there.meta("x").option_logprobs == pytest.approx(here.meta("x").option_logprobs, abs=1e-3)
        assert chat.run(max_tokens=4, backend=endpoint)["a"] == chat.run(max_tokens=4, backend=local)["a"]
        endpoint.flush_cache()


def test_errors_come_through_as_what_they_are(url: str) -> None:
    with (
        ft.OpenAI("tame", f"{url}/v1", dialect="forktree") as backend,
        pytest.raises(ft.UnsupportedError, match="'tame'"),
    ):
        chat.run(max_tokens=2, backend=backend)
    with ft.Remote(url) as remote, pytest.raises(ft.ContextLengthError):
        long.run(backend=remote)
    with (
        ft.OpenAI("wild", f"{url}/v2", dialect="forktree") as lost,
        pytest.raises(ft.BackendError, match="nothing is served"),
    ):
        chat.run(max_tokens=2, backend=lost)


@ft.function
def whole(s, question):
    s += ft.user(question)
    s += ft.assistant("It is " + ft.gen("fact", schema=Fact, max_tokens=40, on_budget="close", temperature=0))
    left, right = s.fork(2)
    left += ft.user("Left?") + ft.assistant(ft.gen("a", max_tokens=3, temperature=0))
    right += ft.user("Right?") + ft.assistant("It is" + ft.select("b", [" x", " y and z"]))
    s.join(left, right)
    return s["fact"], s["b"]


def test_a_whole_program_gives_there_what_it_gives_here(url: str, local: ft.Local) -> None:
    traced = whole.trace()
    here = traced.run(question="Who?", backend=local)
    with ft.Remote(url) as remote:
        there = traced.run(question="Who?", backend=remote)
        assert remote.stats().num_requests == 1
        assert there.ret_value == here.ret_value
        assert isinstance(there["fact"], Fact)
        assert there.text() == here.text()
        assert there.meta("b").probabilities == pytest.approx(here.meta("b").probabilities, abs=1e-6)
        with pytest.raises(ft.ContextLengthError) as caught:
            traced.run(question="word " * 3000, backend=remote)
        assert caught.value.limit == 512


def test_a_function_that_is_not_traced_means_there_what_it_means_here(url: str, local: ft.Local) -> None:
    """Begun turns, healing, options behind turns, tools and reasoning go as programs of one step."""

    def look(city: str) -> str:
        """Looks."""
        return city

    @ft.function
    def body(s):
        kind, call, told = s.fork(3)
        kind += ft.user("And?") + ft.assistant("It is for" + ft.select("kind", [" food", " fuel"]))
        asked = ft.gen("call", tools=[look], max_tokens=40, on_budget="close", temperature=0)
        call += ft.user("Call.") + ft.assistant(asked)
        told += "A story: " + ft.gen("told", max_tokens=3, temperature=0, logprobs=1)
        return kind["kind"], call["call"].name, told["told"], kind.meta("kind").probabilities, told.meta("told")

    here = body.run(backend=local).ret_value
    with ft.Remote(url) as remote:
        there = body.run(backend=remote).ret_value
    assert there[:3] == here[:3]
    assert there[3] == pytest.approx(here[3], abs=1e-4)
    assert [entry.token for entry in there[4].logprobs] == [entry.token for entry in here[4].logprobs]


def test_what_the_model_made_goes_back_as_the_tokens_that_it_made(url: str, local: ft.Local) -> None:
    """Random tokens: as text they would nearly always be cut otherwise."""

    @ft.function
    def body(s):
        s += ft.user("Hi")
        s += ft.assistant(
            "It is" + ft.gen("a", max_tokens=12, temperature=1.0, seed=0) + ", and" + ft.gen("b", max_tokens=4)
        )
        s += ft.user("And?")
        s += ft.assistant(ft.gen("c", max_tokens=4, temperature=0))
        return [(s[name], s.meta(name).prompt_tokens) for name in ("a", "b", "c")]

    here = body.run(backend=local, temperature=0).ret_value
    with ft.Remote(url) as remote:
        there = body.run(backend=remote, temperature=0)
    assert there.ret_value == here
    assert there.meta("c").cached_tokens >= there.meta("b").prompt_tokens


@ft.function
def long(s):
    s += ft.user("word " * 3000)
    s += ft.assistant(ft.gen("a", max_tokens=2))


@ft.function
def answered(s, question):
    s += ft.user(question)
    s += ft.assistant(ft.gen("a", max_tokens=4, temperature=0))
    return s["a"]


class Killable:
    """`forktree serve` in a process of its own, always on the same port."""

    def __init__(self, model: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self._command = [sys.executable, "-m", "forktree", "serve", str(model), "--port", str(self.port)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


def test_a_map_outlives_the_kill_of_its_server(model: Path, tmp_path: Path) -> None:
    server = Killable(model)
    server.start()
    rows = [{"question": f"Question {number}"} for number in range(12)]
    try:
        with ft.Remote(f"http://127.0.0.1:{server.port}", retries=30) as remote:
            program, journal = answered.using(backend=remote), tmp_path / "rows.db"
            first = []
            for result in program.imap(rows, concurrency=2, journal=journal):
                first.append(result)
                if result.index == 4:
                    server.kill()
                    server.start()
            broken = [result for result in first if not result.ok]  # what streamed when the server died
            assert len(broken) <= 2
            assert all(isinstance(result.error, ft.ServerError) for result in broken)
            assert remote.stats().num_retries > 0
            again = program.map(rows, journal=journal)
            assert all(result.ok for result in again)
            assert sum(result.replayed for result in again) == len(rows) - len(broken)
    finally:
        server.kill()
