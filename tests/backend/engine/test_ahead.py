"""A pass launched before the last tokens are read changes nothing but when things happen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine_fakes import Driver, FakeRunner, LetterSink, ListMatcher, run_alone
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.engine.messages import ForwardBatch, SampleRow, SamplerParams, TokenInfo
from forktree.lang.errors import RunCancelledError


class Pending:
    """Draws of a device: nobody knows them before `outcomes`, but the next pass may use them."""

    def __init__(self, outcomes: list[TokenInfo | Exception], log: list[str]) -> None:
        self._outcomes, self._log = outcomes, log

    def outcomes(self) -> list[TokenInfo | Exception]:
        self._log.append("read")
        return self._outcomes


class OverlappedRunner(FakeRunner):
    """Takes −1 − i for the i-th token of the last draws; logs the order of what it is asked for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log: list[str] = []
        self.last: list[TokenInfo | Exception] = []
        self.broken: set[int] = set()

    def forward(self, batch: ForwardBatch) -> list[tuple[int, ...]]:
        self.log.append("ahead" if min(batch.ids, default=0) < 0 else "forward")
        known = [self._known(token) for token in batch.ids]
        return super().forward(ForwardBatch(known, *(getattr(batch, name) for name in _OTHERS)))

    def _known(self, token: int) -> int:
        if token >= 0:
            return token
        drawn = self.last[-1 - token]
        return 0 if isinstance(drawn, Exception) else drawn.token

    def begin_sample(self, logits: Any, rows: Sequence[tuple[int, SampleRow]]) -> Pending:
        self.last = [self._one(logits, row) for row in rows]
        self.log.append("draw")
        return Pending(self.last, self.log)

    def _one(self, logits: Any, row: tuple[int, SampleRow]) -> TokenInfo | Exception:
        if row[1].params.seed in self.broken:
            return ValueError("this row is broken")
        return self.sample(logits, [row])[0]


_OTHERS = ("positions", "seq_of_row", "page_tables", "logit_rows", "trees", "places")


def _driver(runner: OverlappedRunner | None = None, **config: Any) -> Driver:
    return Driver(runner or OverlappedRunner(), max_draft=0, **config)


def test_the_next_pass_is_launched_before_tokens_are_read() -> None:
    one = _driver()
    listener = one.submit([1, 2, 3], max_tokens=4)
    one.drain()
    assert one.runner.log == ["forward", "draw", *(["ahead", "read", "draw"] * 3), "read"]
    assert listener.finished.ids == run_alone([1, 2, 3], max_tokens=4).ids
    one.check_idle()


def test_a_sequence_that_waits_is_not_passed_over() -> None:
    one = _driver(max_running=1)
    listeners = [one.submit([1, 2, index], max_tokens=3) for index in range(3)]
    one.drain()
    assert [each.finished.ids for each in listeners] == [
        run_alone([1, 2, index], max_tokens=3).ids for index in range(3)
    ]
    one.check_idle()


def test_what_was_launched_for_an_output_that_ended_is_dropped() -> None:
    first = run_alone([1, 2, 3], max_tokens=9)
    one = _driver()
    stopped = one.submit([1, 2, 3], max_tokens=9, stop_token_ids=frozenset({first.ids[2]}))
    other = one.submit([4, 5], max_tokens=9)
    one.drain()
    assert stopped.finished.reason == "stop"
    assert stopped.finished.ids == first.ids[: first.ids.index(first.ids[2])]
    assert other.finished.ids == run_alone([4, 5], max_tokens=9).ids
    one.check_idle()


def test_a_cancelled_request_leaves_its_flight() -> None:
    one = _driver()
    gone, stays = one.submit([1, 2, 3], max_tokens=8), one.submit([4, 5], max_tokens=8)
    one.step()
    one.step()
    one.core.cancel(0)
    one.drain()
    assert isinstance(gone.error, RunCancelledError)
    assert stays.finished.ids == run_alone([4, 5], max_tokens=8).ids
    again = one.submit([1, 2, 3], max_tokens=8)
    one.drain()
    assert again.finished.ids == run_alone([1, 2, 3], max_tokens=8).ids
    one.check_idle()


def test_a_broken_row_ends_its_own_request_alone() -> None:
    runner = OverlappedRunner()
    one = _driver(runner)
    params = SamplerParams(seed=5)
    broken, sound = one.submit([1, 2], max_tokens=5, params=params), one.submit([4, 5], max_tokens=5)
    one.step()
    runner.broken.add(5)
    one.drain()
    assert "this row is broken" in str(broken.error)
    assert sound.finished.ids == run_alone([4, 5], max_tokens=5).ids
    one.check_idle()


def test_tokens_that_cannot_be_read_behind_a_launched_pass_are_not_drawn_from_its_logits(caplog) -> None:
    class Unreadable(Pending):
        def outcomes(self) -> list[TokenInfo | Exception]:
            raise MemoryError("no room to read tokens")

    class Runner(OverlappedRunner):
        is_broken = False

        def begin_sample(self, logits: Any, rows: Sequence[tuple[int, SampleRow]]) -> Pending:
            made = super().begin_sample(logits, rows)
            return Unreadable(self.last, self.log) if self.is_broken else made

    one = _driver(Runner())
    listeners = [one.submit(ids, max_tokens=9) for ids in ([1, 2], [4, 5])]
    one.step()
    one.runner.is_broken = True
    one.step()
    one.runner.is_broken = False
    assert all("no room to read tokens" in str(each.error) for each in listeners)
    again = one.submit([1, 2], max_tokens=9)
    one.drain()
    assert again.finished.ids == run_alone([1, 2], max_tokens=9).ids
    one.check_idle()


def test_with_drafts_nothing_is_launched_ahead() -> None:
    runner = OverlappedRunner()
    one = Driver(runner, max_draft=4)
    one.submit([1, 2, 3], max_tokens=4)
    one.drain()
    assert set(runner.log) == {"forward"}


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_load_gives_what_it_gives_without(data: st.DataObject) -> None:
    draw = data.draw
    one = _driver(
        OverlappedRunner(num_pages=draw(st.integers(8, 30)), page_size=draw(st.sampled_from([1, 4]))),
        max_running=draw(st.integers(1, 4)),
        max_step_tokens=draw(st.integers(4, 20)),
    )
    expected = []
    for _ in range(draw(st.integers(1, 6))):
        ids = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
        fields: dict[str, Any] = {
            "max_tokens": draw(st.integers(0, 4)),
            "params": SamplerParams(temperature=draw(st.sampled_from([0.0, 1.0])), seed=draw(st.integers(0, 9))),
            "stop_token_ids": frozenset(draw(st.sets(st.integers(4, 11), max_size=2))),
        }
        options = draw(st.none() | st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=3))
        words = [chr(97 + token) for token in range(12)]

        def parts(options=options, words=words) -> dict[str, Any]:
            return {
                "matcher": None if options is None else ListMatcher(options, 11),
                "sink": LetterSink(words, ("ab",)),
            }

        listener = one.submit(ids, **fields, **parts())
        expected.append((listener, run_alone(ids, **fields, **parts())))
        for _ in range(draw(st.integers(0, 3))):
            one.step()
    one.drain()
    for listener, right in expected:
        assert (listener.finished.ids, listener.finished.reason) == (right.ids, right.reason)
    one.check_idle()
