"""Warm equals cold, and alone equals in a batch: tokens and log-probabilities, bit for bit.

The real scheduler, cache, kernels and sampler run a two-layer random Llama. Every output is compared with what
the same request gives alone in a fresh engine, whatever the page size, the step's size, the pool's size (small
ones evict and preempt), the order of arrival, what was cached before, and what was cancelled beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import write_tiny_model

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.core import EngineCore
from forktree.backend.engine.messages import EngineRequest, Event, Failed, Finished, SamplerParams
from forktree.backend.model.runner import ModelRunner, load_runner
from forktree.lang.errors import RunCancelledError

VOCAB = 131
POOL_TOKENS = 512  # of the roomy pools; the tight ones hold 160
GREEDY = SamplerParams(num_logprobs=0)
SEEDED = SamplerParams(temperature=0.9, top_p=0.95, seed=42, num_logprobs=0)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    ids: tuple[int, ...]
    max_tokens: int
    params: SamplerParams = GREEDY
    score_from: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What must not depend on anything but the request."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    prompt_logprobs: tuple[float, ...]


RunnerOf = Callable[[int, int], ModelRunner]


@pytest.fixture(scope="module")
def runner_of(tmp_path_factory: pytest.TempPathFactory) -> RunnerOf:
    """A runner for a page size and a number of pool tokens; each is loaded once, its pool keeps stale data."""
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    loaded: dict[tuple[int, int], ModelRunner] = {}

    def get(page_size: int, kv_tokens: int) -> ModelRunner:
        key = (page_size, kv_tokens)
        if key not in loaded:
            loaded[key] = load_runner(folder, kv_tokens=kv_tokens, page_size=page_size, vocab_size=VOCAB)
        return loaded[key]

    return get


class Session:
    """An engine core, driven by hand, whose invariants are checked after every step."""

    def __init__(self, runner: ModelRunner, config: EngineConfig) -> None:
        self.core = EngineCore(runner, config)
        self.events: dict[int, Event] = {}
        self._next = 0

    def submit(self, ask: Ask) -> int:
        id_, self._next = self._next, self._next + 1

        def listen(event: Event) -> None:
            if isinstance(event, Finished | Failed):
                assert id_ not in self.events
                self.events[id_] = event

        request = EngineRequest(
            ids=ask.ids,
            on_event=listen,
            max_tokens=ask.max_tokens,
            params=ask.params,
            score_from=ask.score_from,
        )
        self.core.add(self.core.make_sequence(id_, request))
        return id_

    def run(self) -> None:
        for _ in range(5000):
            if not self.core.step():
                return
            self.core.check()
        raise AssertionError("the engine does not come to an end")

    def answer(self, id_: int) -> Answer:
        event = self.events[id_]
        assert isinstance(event, Finished), event
        return Answer(event.ids, tuple(t.logprob for t in event.tokens), event.prompt_logprobs)


class Oracle:
    """What each request gives alone in a fresh engine with room and whole prompts in one step."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._known: dict[Ask, Answer] = {}

    def __call__(self, ask: Ask) -> Answer:
        if ask not in self._known:
            session = Session(self._runner, EngineConfig())
            id_ = session.submit(ask)
            session.run()
            self._known[ask] = session.answer(id_)
        return self._known[ask]


@pytest.fixture(scope="module")
def oracle(runner_of: RunnerOf) -> Oracle:
    return Oracle(runner_of(16, POOL_TOKENS))


TRUNK = tuple((7 * i * i + 3 * i + 5) % (VOCAB - 3) + 3 for i in range(300))


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    """A piece of the trunk, maybe a turn away from it, and how to go on."""
    shared = draw(st.integers(1, 110))
    tail = tuple(draw(st.lists(st.integers(3, 20), max_size=12)))
    ids = TRUNK[:shared] + tail
    params = draw(st.sampled_from([GREEDY, SEEDED]))
    score_from = draw(st.one_of(st.none(), st.integers(1, len(ids)))) if len(ids) > 1 else None
    return Ask(ids, draw(st.integers(0, 12)), params, score_from)


@given(
    waves=st.lists(st.lists(asks(), min_size=1, max_size=5), min_size=1, max_size=3),
    page_size=st.sampled_from([1, 4, 16]),
    step_tokens=st.sampled_from([8, 33, 512]),
    kv_tokens=st.sampled_from([160, POOL_TOKENS]),
    cancelled=st.sets(st.integers(0, 14), max_size=3),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_answer_depends_on_its_request_alone(
    runner_of: RunnerOf,
    oracle: Oracle,
    waves: list[list[Ask]],
    page_size: int,
    step_tokens: int,
    kv_tokens: int,
    cancelled: set[int],
) -> None:
    config = EngineConfig(max_running=8, max_step_tokens=step_tokens)
    session = Session(runner_of(page_size, kv_tokens), config)
    asked: dict[int, Ask] = {}
    for wave in waves:
        for ask in wave:
            asked[session.submit(ask)] = ask
        session.core.step()
        for id_ in cancelled & set(asked):
            session.core.cancel(id_)
        if wave is waves[-1]:
            session.run()
    for id_, ask in asked.items():
        event = session.events[id_]
        if isinstance(event, Failed):
            assert id_ in cancelled
            assert isinstance(event.error, RunCancelledError)
        else:
            assert session.answer(id_) == oracle(ask)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_every_length_around_a_page_is_the_same_cold_warm_and_extended(
    runner_of: RunnerOf, oracle: Oracle, page_size: int
) -> None:
    """Including the exact repeat, of which only the last token is left to compute."""
    session = Session(runner_of(page_size, POOL_TOKENS), EngineConfig())
    for length in (1, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 127, 128, 129):
        ask = Ask(TRUNK[:length], 6, score_from=1 if length > 1 else None)
        for _ in range(2):
            id_ = session.submit(ask)
            session.run()
            assert session.answer(id_) == oracle(ask)


def test_a_next_turn_over_generated_tokens_is_the_same_as_from_scratch(runner_of: RunnerOf, oracle: Oracle) -> None:
    """Keys and values that decoding wrote equal those that a prefill would write."""
    session = Session(runner_of(4, POOL_TOKENS), EngineConfig())
    history = TRUNK[:9]
    for turn in range(6):
        id_ = session.submit(Ask(history, 7))
        session.run()
        answer = session.answer(id_)
        assert answer == oracle(Ask(history, 7))
        history += answer.ids + TRUNK[20 + turn : 25 + turn]


def test_a_burst_computes_each_distinct_token_once(runner_of: RunnerOf) -> None:
    """64 few-shot requests at once on a cold cache: a shared head, four subjects, a question each."""
    session = Session(runner_of(16, 4096), EngineConfig(max_step_tokens=128))
    prompts = []
    for i in range(64):
        subject = tuple((31 * (i % 4) + 5 * k) % 100 + 10 for k in range(40))
        question = (*((17 * i + 11 * k) % 110 + 10 for k in range(12)), i % 100 + 10)
        prompts.append(TRUNK[:200] + subject + question)
    for prompt in prompts:
        session.submit(Ask(prompt, 2))
    session.run()
    distinct = {prompt[: n + 1] for prompt in prompts for n in range(len(prompt))}
    assert session.core.stats().prefill_tokens <= 1.02 * len(distinct)
