"""Passes are timed, and a runner whose threads can be chosen is told how many."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine_fakes import FakeRunner

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.costs import MeasuredCosts
from forktree.backend.engine.loop import Engine
from forktree.backend.engine.messages import ForwardBatch
from forktree.backend.engine.passes import Passes
from forktree.backend.engine.threads import Threaded


def one_row() -> ForwardBatch:
    return ForwardBatch(ids=[1], positions=[0], seq_of_row=[0], page_tables=[[0]], logit_rows=[0])


@dataclass
class ThreadedRunner(FakeRunner):
    num_threads: int = 2
    used: list[int] = field(default_factory=list)

    def use_threads(self, count: int) -> None:
        self.used.append(count)


def test_a_pass_gives_the_runners_logits_and_is_noted():
    costs, runner = MeasuredCosts(), FakeRunner()
    before = costs.at(1)
    assert Passes(runner, costs).forward(one_row()) == FakeRunner().forward(one_row())
    assert costs.at(1) != before


def test_a_runner_with_a_choice_is_told_before_each_pass():
    runner = ThreadedRunner()
    assert isinstance(runner, Threaded)
    passes = Passes(runner, MeasuredCosts())
    passes.forward(one_row())
    passes.forward(one_row())
    assert runner.used == [2, 2]


def test_a_runner_without_a_choice_is_left_alone():
    runner = ThreadedRunner(num_threads=1)
    Passes(runner, MeasuredCosts()).forward(one_row())
    assert runner.used == []
    assert not isinstance(FakeRunner(), Threaded)


def test_an_engine_over_either_runs():
    for runner in (FakeRunner(num_pages=8), ThreadedRunner(num_pages=8)):
        engine = Engine(runner, EngineConfig())
        assert engine.max_tokens > 0
        engine.close()
