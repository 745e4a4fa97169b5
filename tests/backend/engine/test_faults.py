"""A fault ends what it belongs to and nothing else; every page is accounted for after it."""

from __future__ import annotations

import asyncio

import pytest
from engine_fakes import Driver, FakeRunner, LetterSink, Listener, ListMatcher, run_alone

from forktree.backend.engine.messages import EngineRequest
from forktree.lang.errors import ConstraintError, EngineError, RunCancelledError

GOOD = {"max_tokens": 12}
ALONE = run_alone([1, 2, 3], **GOOD)
EOS = 11


def beside_a_good_one(runner: FakeRunner | None = None, **fields) -> tuple[Driver, Listener, Listener]:
    """Run a bad request between steps of a good one; returns both listeners."""
    one = Driver(runner or FakeRunner())
    good = one.submit([1, 2, 3], **GOOD)
    one.step()
    bad = one.submit([1, 2, 5], **({"max_tokens": 6} | fields))
    one.drain()
    one.check_idle()
    assert good.finished.ids == ALONE.ids
    return one, good, bad


class Broken(ListMatcher):
    """Fails in the method named."""

    def __init__(self, method: str, error: Exception) -> None:
        super().__init__([(1, 2, 3)], EOS)
        setattr(self, method, self._fail)
        self.error = error

    def _fail(self, *args):
        raise self.error


@pytest.mark.parametrize("method", ["mask", "advance", "is_complete", "must_end", "is_free"])
def test_a_broken_constraint_fails_its_own_request(method):
    cause = RuntimeError("a bug in a grammar")
    _, _, bad = beside_a_good_one(matcher=Broken(method, cause))
    assert isinstance(bad.error, EngineError)
    assert bad.error.__cause__ is cause
    assert "a bug in a grammar" in str(bad.error)


def test_an_error_of_ours_comes_out_as_itself():
    cause = ConstraintError("too many states", pointer="/a")
    _, _, bad = beside_a_good_one(matcher=Broken("mask", cause))
    assert bad.error is cause


class BrokenSink(LetterSink):
    def feed(self, token):
        raise ValueError("no such letter")


def test_a_broken_sink_fails_its_own_request():
    _, _, bad = beside_a_good_one(sink=BrokenSink("x" * 12))
    assert isinstance(bad.error.__cause__, ValueError)


@pytest.mark.parametrize("error", [KeyError("a bug in a listener"), asyncio.CancelledError(), SystemExit(3)])
def test_a_listener_that_raises_stops_nobody(caplog, error):
    def listen(event):
        raise error

    one = Driver(FakeRunner())
    good = one.submit([1, 2, 3], **GOOD)
    request = EngineRequest(ids=(1, 2, 5), max_tokens=3, on_event=listen)
    one.core.add(one.core.make_sequence(99, request))
    one.drain()
    one.check_idle()
    assert good.finished.ids == ALONE.ids
    assert "the listener of request 99 failed" in caplog.text


class Flaky(FakeRunner):
    """Fails in one verb while `fails` says so."""

    fails = staticmethod(lambda verb, argument: False)

    def forward(self, batch):
        if self.fails("forward", batch):
            raise RuntimeError("out of memory")
        return super().forward(batch)

    def sample(self, logits, rows):
        if self.fails("sample", rows):
            raise RuntimeError("logits are NaN")
        return super().sample(logits, rows)

    def gather_logprobs(self, logits, rows, tokens):
        if self.fails("gather", tokens):
            raise RuntimeError("no log-probability")
        return super().gather_logprobs(logits, rows, tokens)

    def copy_page(self, source, target, num_tokens):
        if self.fails("copy", source):
            raise RuntimeError("copy failed")
        super().copy_page(source, target, num_tokens)


def test_a_model_that_computes_nothing_fails_each_request_of_its_step_and_the_engine_serves_on(caplog):
    runner = Flaky()
    one = Driver(runner, max_step_tokens=8, max_running=8)
    first, second = one.submit([1, 2, 3], max_tokens=5), one.submit([4, 5, 6], max_tokens=5)
    waiting = one.submit([7, 8, 9], max_tokens=5)
    runner.fails = lambda verb, batch: verb == "forward"
    one.step()
    runner.fails = lambda verb, batch: False
    one.drain()
    one.check_idle()
    for listener in (first, second):
        assert isinstance(listener.error, EngineError)
        assert "out of memory" in str(listener.error)
        assert isinstance(listener.error.__cause__, RuntimeError)
    assert first.error is not second.error
    assert waiting.is_done
    again = one.submit([1, 2, 3], **GOOD)
    one.drain()
    assert again.finished.ids == ALONE.ids
    assert again.finished.num_cached == 0  # nothing of a failed step is trusted


def test_what_was_computed_before_a_failed_step_stays_cached(caplog):
    runner = Flaky()
    one = Driver(runner, max_step_tokens=4, max_running=4)
    one.submit([1, 2, 3, 4, 5, 6], max_tokens=1)
    one.step()
    runner.fails = lambda verb, batch: verb == "forward"
    one.step()
    runner.fails = lambda verb, batch: False
    again = one.submit([1, 2, 3, 4, 5, 6], max_tokens=1)
    one.drain()
    assert again.finished.num_cached == 4


def test_a_failed_page_copy_fails_its_own_request_and_its_page_is_not_trusted(caplog):
    runner = Flaky()
    one = Driver(runner)
    neighbour = one.submit([1, 2, 3], max_tokens=2)
    one.step()
    runner.fails = lambda verb, source: verb == "copy"
    listener = one.submit([1, 2, 9], max_tokens=1)
    one.step()
    runner.fails = lambda verb, source: False
    assert neighbour.finished.ids == run_alone([1, 2, 3], max_tokens=2).ids
    assert "copy failed" in str(listener.error)
    again = one.submit([1, 2, 9], max_tokens=3)
    one.drain()
    assert again.finished.ids == run_alone([1, 2, 9], max_tokens=3).ids
    one.check_idle()


def test_a_row_that_cannot_be_sampled_fails_alone():
    runner = Flaky()
    runner.fails = lambda verb, rows: verb == "sample" and any(row.prompt_ids == (1, 2, 5) for _, row in rows)
    _, _, bad = beside_a_good_one(runner)
    assert "sampling failed: RuntimeError: logits are NaN" in str(bad.error)


def test_a_score_that_fails_fails_alone():
    runner = Flaky()
    runner.fails = lambda verb, tokens: verb == "gather"
    _, _, bad = beside_a_good_one(runner, score_from=1)
    assert len(bad.events) == 1
    assert "log-probabilities could not be computed" in str(bad.error)


@pytest.mark.parametrize("num_steps", range(6))
def test_a_cancelled_request_gives_its_pages_back_and_its_work_to_the_cache(num_steps):
    one = Driver(FakeRunner(), max_step_tokens=4, max_running=4)
    listener = one.submit([1, 2, 3, 4, 5, 6, 7], max_tokens=8)
    for _ in range(num_steps):
        one.step()
    one.core.cancel(0)
    one.core.cancel(0)  # harmless
    one.core.cancel(12345)
    assert isinstance(listener.error, RunCancelledError)
    one.check_idle()
    assert one.core.stats().pages_cached == [0, 1, 2, 2, 3, 3][num_steps]


def test_a_cancelled_leader_hands_over_to_the_next():
    one = Driver(FakeRunner(), max_step_tokens=4, max_running=4)
    one.submit([1, 2, 3, 4, 5, 6, 7, 8], max_tokens=1)
    one.step()
    follower = one.submit([1, 2, 3, 4, 5, 6, 7, 9], max_tokens=1)
    one.step()
    one.core.cancel(0)
    one.drain()
    assert follower.finished.num_cached >= 4
    one.check_idle()


def test_cancelling_from_a_listener_is_safe():
    one = Driver(FakeRunner())
    events = []

    def listen(event):
        events.append(event)
        if len(events) == 2:
            one.core.cancel(7)

    one.core.add(one.core.make_sequence(7, EngineRequest(ids=(1, 2), max_tokens=9, on_event=listen)))
    other = one.submit([1, 2, 3], **GOOD)
    one.drain()
    one.check_idle()
    assert len(events) == 3
    assert other.finished.ids == ALONE.ids
