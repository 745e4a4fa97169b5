"""What a plan foretells is what the engine counts, wherever the text is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_parts import write_wild_model

from forktree.backend.local import Local
from forktree.lang.expressions import assistant, gen, select, system, user
from forktree.lang.sampling import Sampling
from forktree.runtime.function import function
from forktree.runtime.report import explain_run

pytestmark = pytest.mark.model

QUESTIONS = ["Who wrote Emma?", "Who wrote Ulysses?", "Who wrote Emma?", "Is it raining in Oslo today?"]
ROWS = [{"question": question} for question in QUESTIONS]


@function
def answer(s, question):
    s += system("You answer in one word, without any explanation.")
    s += user(question)
    s += assistant(gen("answer", max_tokens=2))


@function
def classify(s, question):
    s += f"Question: {question}\nIt is about"
    s += select("topic", [" books", " the weather", " book shops", "", " books"])


@function
def relative(s, question):
    s += f"Question: {question}\nIt is about"
    s += select("topic", [" books", " the weather"], method="unconditional_likelihood_normalized")


@function
def branches(s, question):
    s += f"{question} Let me think about that for a while. "
    left, right, many = s.fork(3)
    left += "First, " + gen("first", max_tokens=1)
    right += "Second, " + gen("second", max_tokens=1)
    many += "On the whole, " + gen("whole", max_tokens=1, n=3)


@pytest.fixture(scope="module")
def local(tmp_path_factory, model_dir: Path) -> Iterator[Local]:
    with Local(write_wild_model(tmp_path_factory.mktemp("wild"), model_dir), kv_tokens=2048) as made:
        yield made


@pytest.mark.parametrize("program", [answer, classify, relative, branches], ids=lambda program: program.name)
def test_the_foretold_prefill_is_what_the_engine_counts(program, local: Local) -> None:
    local.flush_cache()
    sampled = program.using(backend=local, sampling=Sampling(temperature=0.0))
    for rows in (ROWS[:2], ROWS):  # cold, then with the first two rows in the cache
        plan = sampled.explain(rows)
        assert not plan.is_bound
        before = local.stats().prefill_tokens
        results = sampled.map(rows, concurrency=1)
        assert all(result.ok for result in results)
        assert local.stats().prefill_tokens - before == plan.prefill_tokens
    assert plan.cached_tokens > 0
    assert plan.prefill_tokens < plan.requested_tokens


def test_rows_at_once_compute_what_was_foretold(local: Local) -> None:
    local.flush_cache()
    sampled = answer.using(backend=local, sampling=Sampling(temperature=0.0))
    plan = sampled.explain(ROWS)
    before = local.stats().prefill_tokens
    assert all(result.ok for result in sampled.map(ROWS))
    assert local.stats().prefill_tokens - before == plan.prefill_tokens


@pytest.mark.parametrize("program", [answer, branches], ids=lambda program: program.name)
def test_the_report_of_a_run_agrees_with_plan_and_engine(program, local: Local) -> None:
    local.flush_cache()
    sampled = program.using(backend=local, sampling=Sampling(temperature=0.0))
    plan = sampled.explain(ROWS)
    report = explain_run(sampled.map(ROWS, concurrency=1))
    assert report.num_requests == plan.num_requests
    assert (report.prompt_tokens, report.prefill_tokens) == (plan.requested_tokens, plan.prefill_tokens)
    assert report.tree == plan.tree


def test_explaining_computes_nothing(local: Local) -> None:
    before = local.stats()
    branches.explain(ROWS, backend=local)
    assert local.stats() == before


def test_a_row_that_the_engine_would_refuse_is_refused_by_the_plan(local: Local) -> None:
    rows = [{"question": "why " * n} for n in (1, 3000)]
    plan = branches.explain(rows, backend=local)
    assert {refused.row for refused in plan.refused} == {1}
    results = branches.using(backend=local).map(rows)
    assert [result.ok for result in results] == [True, False]
