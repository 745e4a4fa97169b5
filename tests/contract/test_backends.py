"""What every backend promises, over every backend.

A backend takes part by a factory in `FACTORIES`: it makes a fresh one that answers with any text at all. `local`
is the real engine over a two-layer random model with the real tokenizer. The played ones answer from recordings of
the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_service import Service, serving
from servers import running
from tiny_models import write_tiny_model

from forktree.backend.anthropic import Anthropic
from forktree.backend.endpoint import RuntimeEndpoint
from forktree.backend.fake import Fake
from forktree.backend.local import Local
from forktree.backend.openai import OpenAI
from forktree.backend.remote import Remote
from forktree.backend.replay import Replay
from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings
from forktree.lang.constraints import ChoicesSpec
from forktree.lang.errors import UnsupportedError
from forktree.lang.expressions import gen
from forktree.lang.sampling import Sampling
from forktree.runtime import protocol
from forktree.runtime.function import function


def answer(request: protocol.GenerateRequest | protocol.ScoreRequest) -> str:
    if isinstance(request, protocol.ScoreRequest):
        return request.options[0]
    return "yes" if request.name == "choice" else "some words to read"


def make_fake(folder: Path) -> protocol.Backend:
    return Fake(answer)


def make_recording(folder: Path) -> protocol.Backend:
    return Replay(folder / "run.jsonl", Fake(answer))


def make_local(folder: Path) -> protocol.Backend:
    from forktree.backend.model.store import resolve_model

    source = resolve_model("smollm2-135m")
    write_tiny_model(folder, vocab_size=49152)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, folder / name)
    return Local(folder, kv_tokens=1024)


class Unclosed:
    """A backend that outlives the recordings of it."""

    def __init__(self, backend: protocol.Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def close(self) -> None:
        """The backend goes on."""


class Played:
    """Each answer is recorded from a backend, and given from the record."""

    def __init__(self, folder: Path, backend: protocol.Backend) -> None:
        self._paths = (folder / f"{number}.jsonl" for number in itertools.count())
        self._backend = backend
        path = next(self._paths)
        Replay(path, Unclosed(backend)).close()
        self._first = Replay(path)

    @property
    def name(self) -> str:
        return self._first.name

    @property
    def capabilities(self) -> protocol.Capabilities:
        return self._first.capabilities

    async def stream(self, request: protocol.GenerateRequest) -> AsyncIterator[protocol.Delta | protocol.Completion]:
        path = next(self._paths)
        with Replay(path, Unclosed(self._backend)) as recording:
            async for _ in recording.stream(request):
                pass
        async for event in Replay(path).stream(request):
            yield event

    async def score(self, request: protocol.ScoreRequest) -> protocol.ScoreResult:
        path = next(self._paths)
        with Replay(path, Unclosed(self._backend)) as recording:
            await recording.score(request)
        return await Replay(path).score(request)

    async def prefill(self, branch: protocol.Branch) -> None:
        await self._first.prefill(branch)

    async def tokens(self, branch: protocol.Branch | None) -> tuple[int, ...]:
        path = next(self._paths)
        with Replay(path, Unclosed(self._backend)) as recording:
            await recording.tokens(branch)
        return await Replay(path).tokens(branch)

    def close(self) -> None:
        self._first.close()
        self._backend.close()


def make_played_fake(folder: Path) -> protocol.Backend:
    return Played(folder, Fake(answer))


def make_played_local(folder: Path) -> protocol.Backend:
    return Played(folder, make_local(folder))


class OverHttp:
    """A backend and the scripted service that it asks; closing it ends both."""

    def __init__(self, make: Callable[[str], protocol.Backend]) -> None:
        self._stack = contextlib.ExitStack()
        self._backend = make(self._stack.enter_context(serving(Service())).url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def close(self) -> None:
        self._backend.close()
        self._stack.close()


def over_http(make: Callable[[str], Any]) -> Callable[[Path], Any]:
    return lambda folder: OverHttp(make)


class Served:
    """A backend and the real server that it asks, over the tiny model; closing it ends both."""

    def __init__(self, local: Any, make: Callable[[str], protocol.Backend]) -> None:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(local)
        url = self._stack.enter_context(running(build(local, Settings(model_names=("tiny",)))))
        self._backend = make(url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def close(self) -> None:
        self._backend.close()
        self._stack.close()


def make_served_remote(folder: Path) -> Any:
    return Served(make_local(folder), lambda url: Remote(url))


FACTORIES: dict[str, Callable[[Path], protocol.Backend]] = {
    "anthropic": over_http(lambda url: Anthropic("m", api_key="k", base_url=url, text_outside_turns="user")),
    "chat": over_http(lambda url: OpenAI("m", f"{url}/v1", "k", dialect="openai", text_outside_turns="user")),
    "endpoint": over_http(lambda url: RuntimeEndpoint(url)),
    "fake": make_fake,
    "local": make_local,
    "played fake": make_played_fake,
    "played local": make_played_local,
    "recording": make_recording,
    "remote": over_http(lambda url: Remote(url)),
    "served remote": make_served_remote,
    "vllm": over_http(lambda url: OpenAI("m", f"{url}/v1", dialect="vllm")),
}


@pytest.fixture(scope="module", params=sorted(FACTORIES))
def backend(request, tmp_path_factory):
    made = FACTORIES[request.param](tmp_path_factory.mktemp("backend"))
    yield made
    made.close()


def chain(*segments: protocol.Segment) -> protocol.Branch | None:
    branch = None
    for segment in segments:
        branch = protocol.Branch(branch, segment)
    return branch


PROMPT = (protocol.Text("Once upon a time"),)


async def generate(backend, branch, **options) -> tuple[list[str], protocol.Completion]:
    sampling = Sampling(max_tokens=4, temperature=0.0)
    request = protocol.GenerateRequest(branch=branch, **{"sampling": sampling, **options})
    events = [event async for event in backend.stream(request)]
    completions = [event for event in events if isinstance(event, protocol.Completion)]
    assert events[-1:] == completions
    return [event.text for event in events[:-1]], completions[0]


def test_it_has_a_name_and_says_what_it_can_do(backend) -> None:
    assert backend.name
    assert isinstance(backend.capabilities, protocol.Capabilities)


async def test_a_stream_is_deltas_and_then_one_completion_whose_text_they_join_to(backend) -> None:
    deltas, completion = await generate(backend, chain(*PROMPT))
    assert "".join(deltas) == completion.segment.text
    assert all(deltas)
    assert completion.finish_reason in ("stop", "length")


async def test_max_tokens_bounds_the_completion(backend) -> None:
    _, completion = await generate(backend, chain(*PROMPT), sampling=Sampling(max_tokens=2, temperature=0.0))
    assert completion.usage.completion_tokens <= 2
    assert completion.usage.prompt_tokens > 0


async def test_ids_are_given_where_they_are_promised(backend) -> None:
    _, completion = await generate(backend, chain(*PROMPT))
    assert completion.segment.ids or not backend.capabilities.tokens


async def test_a_continued_branch_begins_with_the_ids_that_it_had(backend) -> None:
    if not backend.capabilities.tokens:
        pytest.skip("no token ids")
    branch = chain(*PROMPT)
    _, completion = await generate(backend, branch)
    generated = protocol.Branch(branch, completion.segment)
    before = await backend.tokens(generated)
    after = await backend.tokens(protocol.Branch(generated, protocol.Text(" and then")))
    assert after[: len(before)] == before
    assert before[-len(completion.segment.ids) :] == completion.segment.ids


async def test_forks_share_the_trunk_s_ids(backend) -> None:
    """All but the last, which a branch's first text may heal."""
    if not backend.capabilities.tokens:
        pytest.skip("no token ids")
    trunk = chain(*PROMPT, protocol.ForkMark())
    ids = await backend.tokens(trunk)
    for text in (" a", "b", "…"):
        branch = await backend.tokens(protocol.Branch(trunk, protocol.Text(text)))
        assert branch[: len(ids) - 1] == ids[:-1]


async def test_greedy_answers_are_the_same_twice(backend) -> None:
    first, second = [await generate(backend, chain(*PROMPT)) for _ in range(2)]
    assert first[1].segment == second[1].segment


async def test_many_requests_at_once_are_each_answered(backend) -> None:
    branches = [chain(protocol.Text(f"Question {i}:")) for i in range(8)]
    results = await asyncio.gather(*(generate(backend, branch) for branch in branches))
    assert len(results) == 8


async def test_leaving_a_stream_early_is_harmless(backend) -> None:
    stream = backend.stream(protocol.GenerateRequest(branch=chain(*PROMPT), sampling=Sampling(max_tokens=4)))
    await anext(stream)
    await stream.aclose()
    await generate(backend, chain(*PROMPT))


async def test_a_cancelled_task_ends_its_stream(backend) -> None:
    task = asyncio.ensure_future(generate(backend, chain(*PROMPT)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])  # ended, one way or the other
    await generate(backend, chain(*PROMPT))


async def test_a_constraint_that_it_can_enforce_is_kept(backend) -> None:
    if "ChoicesSpec" not in backend.capabilities.constraints:
        pytest.skip("no constraints")
    _, completion = await generate(
        backend,
        chain(*PROMPT),
        constraint=ChoicesSpec(("yes", "no")),
        name="choice",
        sampling=Sampling(max_tokens=16),
    )
    assert completion.is_complete
    assert completion.segment.text in ("yes", "no")


async def test_scores_come_in_the_order_of_the_options(backend) -> None:
    if not backend.capabilities.score:
        pytest.skip("no scores")
    options = (" there", " purple", " there was")
    request = protocol.ScoreRequest(branch=chain(*PROMPT), options=options, unconditional=True)
    try:
        result = await backend.score(request)
    except UnsupportedError as error:
        pytest.skip(f"not these: {error}")
    assert len(result.options) == 3
    for score in result.options:
        assert len(score.ids) == len(score.logprobs) > 0
        assert all(logprob <= 0 for logprob in score.logprobs)
        assert score.unconditional_logprobs


async def test_prefill_is_a_hint_that_changes_nothing(backend) -> None:
    branch = chain(*PROMPT)
    await backend.prefill(branch)
    await generate(backend, branch)


async def test_a_conversation_may_begin_with_tools(backend) -> None:
    definitions = '[{"type":"function","function":{"name":"look","description":"Looks.","parameters":{}}}]'
    turn = (
        protocol.RoleBegin("user"),
        protocol.Text("Hello"),
        protocol.RoleEnd("user"),
        protocol.RoleBegin("assistant"),
    )
    told = chain(protocol.Tools(definitions), *turn)
    _, completion = await generate(backend, told)
    assert completion.usage.prompt_tokens > (await generate(backend, chain(*turn)))[1].usage.prompt_tokens


async def test_what_is_at_hand_is_what_the_stream_would_give(backend) -> None:
    """A backend that has no such verb, or nothing at hand, keeps the promise too."""
    request = protocol.GenerateRequest(branch=chain(*PROMPT), sampling=Sampling(max_tokens=4, temperature=0.0))
    at_hand = getattr(backend, "answer_at_hand", None)
    events = None if at_hand is None else at_hand(request)
    assert events is None or events == [event async for event in backend.stream(request)]


def test_programs_run_on_it(backend) -> None:
    """A branch, a value read in between, a choice where it can score, and a nested fork."""

    @function
    def program(s):
        s += "Once upon a time" + gen("a", max_tokens=3)
        left, right = s.fork(2)
        left += f" and {s['a']}" + gen("b", max_tokens=3)
        inner = right.fork(2)
        inner += gen("c", max_tokens=2)
        inner.join()
        s.join(left, right)
        return s["a"], s["b"], s["c"]

    seeded = program.using(backend=backend, sampling=Sampling(temperature=0.7), seed=3)
    try:
        seeded.run()
    except UnsupportedError as error:
        assert "takes no seed" in str(error)
        seeded = program.using(backend=backend, sampling=Sampling(temperature=0.7))
    first, again, traced = seeded.run(), seeded.run(), seeded.trace().run(backend=backend)
    assert first.ret_value == again.ret_value
    if hasattr(backend, "run_program"):  # whole, it keeps the ids that the model made; its steps are text
        assert seeded.trace().run(backend=backend).ret_value == traced.ret_value
        return
    assert first.ret_value == traced.ret_value
    assert first.text() == traced.text()


@pytest.mark.parametrize("name", sorted(FACTORIES))
def test_closing_twice_is_harmless(name, tmp_path) -> None:
    backend = FACTORIES[name](tmp_path)
    backend.close()
    backend.close()
