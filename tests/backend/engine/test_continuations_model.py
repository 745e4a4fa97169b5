"""One pass over a trie gives, bit for bit, what each continuation gives as a prompt of its own (tiny random Llama)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import oracle_logits, write_tiny_model

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.continuations import merge_runs
from forktree.backend.engine.core import EngineCore
from forktree.backend.engine.messages import EngineRequest, Event, Finished
from forktree.backend.model.runner import ModelRunner, load_runner

VOCAB = 131
TRUNK = [(i * 29 + 3) % VOCAB for i in range(260)]
RunnerOf = Callable[[int], ModelRunner]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def runner_of(folder) -> RunnerOf:
    made: dict[int, ModelRunner] = {}

    def get(page_size: int) -> ModelRunner:
        if page_size not in made:
            made[page_size] = load_runner(folder, page_size=page_size, kv_tokens=640, num_threads=1)
        return made[page_size]

    return get


class Session:
    def __init__(self, runner: ModelRunner, **config: int) -> None:
        self.core = EngineCore(runner, EngineConfig(**config))
        self.ends: list[list[Event]] = []

    def submit(self, ids: list[int], **fields) -> int:
        events: list[Event] = []
        request = EngineRequest(ids=tuple(ids), on_event=events.append, **fields)
        self.core.add(self.core.make_sequence(len(self.ends), request))
        self.ends.append(events)
        return len(self.ends) - 1

    def run(self) -> None:
        while self.core.step():
            self.core.check()

    def finished(self, index: int) -> Finished:
        last = self.ends[index][-1]
        assert isinstance(last, Finished), last
        return last


def one_by_one(runner: ModelRunner, prompt: list[int], runs: list[list[int]]) -> list[tuple[float, ...]]:
    """Each run scored as a prompt that ends with it, on an engine of its own."""
    scores = []
    for run in runs:
        session = Session(runner)
        session.submit([*prompt, *run], score_from=len(prompt))
        session.run()
        scores.append(session.finished(0).prompt_logprobs)
    return scores


def by_run(runs: list[list[int]], finished: Finished) -> list[tuple[float, ...]]:
    trie, ends = merge_runs(runs)
    return [tuple(finished.continuation_logprobs[node] for node in trie.path_to(end)) for end in ends]


SELECTS = st.tuples(
    st.one_of(st.integers(1, 40), st.integers(120, 130), st.integers(250, 258)),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=6),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SELECTS, min_size=1, max_size=3), st.sampled_from([1, 4, 16]), st.integers(1, 90))
def test_scores_are_those_of_one_continuation_at_a_time_cold_and_warm_alone_and_in_a_batch(
    runner_of, selects, page_size, num_tokens
):
    session = Session(runner_of(page_size), max_running=8, max_step_tokens=max(8, num_tokens))
    heard = []
    for num_prompt, runs in [*selects, *selects]:  # the second time the prompts are cached
        if len(heard) == len(selects):
            session.run()
        trie, _ = merge_runs(runs)
        heard.append((num_prompt, runs, session.submit(TRUNK[:num_prompt], continuations=trie)))
        session.submit(TRUNK[: num_prompt // 2 + 1], max_tokens=3)
        session.core.step()
    session.run()
    for num_prompt, runs, index in heard:
        assert by_run(runs, session.finished(index)) == one_by_one(runner_of(16), TRUNK[:num_prompt], runs)


def test_scores_are_those_of_transformers(folder):
    prompt, runs = TRUNK[:130], [[5, 6, 7], [5, 6, 9, 1], [11], [12, 5, 6]]
    session = Session(load_runner(folder, quantize="none", kv_tokens=320, num_threads=1), max_step_tokens=64)
    index = session.submit(prompt, continuations=merge_runs(runs)[0])
    session.run()
    for run, ours in zip(runs, by_run(runs, session.finished(index)), strict=True):
        logprobs = oracle_logits(folder, [*prompt, *run]).log_softmax(-1)
        theirs = [logprobs[len(prompt) - 1 + i, token].item() for i, token in enumerate(run)]
        assert ours == pytest.approx(theirs, abs=1e-4)
