"""A forward pass that fails ends the request that cannot be computed, and changes no bit of any other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from engine_fakes import Driver, FakeRunner, ListMatcher, run_alone
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.engine.continuations import merge_runs
from forktree.backend.engine.messages import EngineRequest, ForwardBatch, SamplerParams
from forktree.lang.errors import EngineError

POISON = 9
EOS = 11


class SmallMemory(FakeRunner):
    """Has memory for so many rows of one pass. One that is too large writes some of its rows before it fails."""

    most_rows = 10_000
    error: Callable[[], Exception] = staticmethod(lambda: MemoryError("no room for the hidden states"))
    num_failed = 0

    def is_too_much(self, batch: ForwardBatch) -> bool:
        return len(batch.ids) > self.most_rows

    def forward(self, batch: ForwardBatch):
        if not self.is_too_much(batch):
            return super().forward(batch)
        self.num_failed += 1
        for row in range(0, len(batch.ids), 2):
            table, place = batch.page_tables[batch.seq_of_row[row]], batch.places.get(row, batch.positions[row])
            self.slots[self._slot(table, place)] = (-7, -7)  # half-done
        raise self.error()


class Poisoned(SmallMemory):
    """Cannot compute a row of one token."""

    def is_too_much(self, batch: ForwardBatch) -> bool:
        return POISON in batch.ids


def out_of_cuda_memory() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def out_of_cpu_memory() -> Exception:
    try:
        torch.empty(1 << 60, dtype=torch.uint8)
    except RuntimeError as error:
        return error
    raise AssertionError("there is an exbibyte")


@pytest.mark.parametrize("error", [MemoryError, out_of_cuda_memory, out_of_cpu_memory])
def test_a_batch_without_memory_is_split_and_every_request_finishes_as_it_would_alone(error, caplog) -> None:
    runner = SmallMemory()
    runner.most_rows, runner.error = 3, error
    one = Driver(runner)
    prompts = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 8], [6], [7, 1]]
    listeners = [one.submit(ids, max_tokens=6) for ids in prompts]
    one.drain()
    one.check_idle()
    assert runner.num_failed
    for ids, listener in zip(prompts, listeners, strict=True):
        assert listener.finished.ids == run_alone(ids, max_tokens=6).ids
    assert "trying smaller ones" in caplog.text


@pytest.mark.parametrize("error", [MemoryError, out_of_cuda_memory, out_of_cpu_memory])
def test_one_row_without_memory_fails_its_request_with_what_would_help(error, caplog) -> None:
    runner = SmallMemory()
    runner.most_rows, runner.error = 0, error
    one = Driver(runner)
    listener = one.submit([1, 2, 3], max_tokens=6)
    one.drain()
    one.check_idle()
    assert "too little memory" in str(listener.error)
    assert "kv_tokens" in str(listener.error)
    assert type(listener.error.__cause__) is type(error())
    runner.most_rows = 99
    again = one.submit([1, 2, 3], max_tokens=6)
    one.drain()
    assert again.finished == run_alone([1, 2, 3], max_tokens=6)  # nothing of the failed pass was trusted


def test_a_row_that_the_model_cannot_compute_ends_its_request_alone(caplog) -> None:
    runner = Poisoned()
    runner.error = lambda: ValueError("a bug in a layer")
    one = Driver(runner)
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, POISON, 4], [6], [7, 1]]
    good, bad, *others = [one.submit(ids, max_tokens=4, stop_token_ids=frozenset([POISON])) for ids in prompts]
    one.drain()
    one.check_idle()
    assert isinstance(bad.error, EngineError)
    assert str(bad.error) == "the model's forward pass failed: ValueError: a bug in a layer"
    assert isinstance(bad.error.__cause__, ValueError)
    for ids, listener in zip([prompts[0], *prompts[2:]], [good, *others], strict=True):
        assert listener.finished.ids == run_alone(ids, max_tokens=4, stop_token_ids=frozenset([POISON])).ids


def test_what_copies_from_a_page_that_could_not_be_made_fails_with_it(caplog) -> None:
    class BrokenCopy(FakeRunner):
        num_left = 1

        def copy_page(self, source: int, target: int, num_tokens: int) -> None:
            self.num_left -= 1
            if self.num_left == 0:
                raise RuntimeError("copy failed")
            super().copy_page(source, target, num_tokens)

    one = Driver(BrokenCopy())
    one.submit([1, 2, 3], max_tokens=1)
    one.drain()
    prompts = [[1, 2, 3, 5], [1, 2, 3, 6], [4, 4]]
    listeners = [one.submit(ids, max_tokens=3) for ids in prompts]
    one.drain()
    one.check_idle()
    failed = [listener for listener in listeners if not hasattr(listener.events[-1], "ids")]
    assert 1 <= len(failed) <= 2
    for ids, listener in zip(prompts, listeners, strict=True):
        if listener not in failed:
            assert listener.finished.ids == run_alone(ids, max_tokens=3).ids


def test_a_request_that_is_cancelled_while_its_step_is_split_is_not_computed(caplog) -> None:
    runner = SmallMemory()
    one = Driver(runner)
    second_id = 99

    def listen(event) -> None:
        one.core.cancel(second_id)

    one.core.add(one.core.make_sequence(7, EngineRequest(ids=(1, 2), max_tokens=1, on_event=listen)))
    second = one.submit([3, 4], max_tokens=5)
    second_id = 0
    runner.most_rows = 2
    one.drain()
    one.check_idle()
    assert "cancelled" in str(second.error)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_fails_for_a_while_changes_no_result(data: st.DataObject) -> None:
    """Passes fail by chance until they are of one row; prompts, drafts, scores, continuations and constraints."""
    draw = data.draw
    chance = draw(st.randoms(use_true_random=False))

    class Failing(SmallMemory):
        def is_too_much(self, batch: ForwardBatch) -> bool:
            return len(batch.ids) > 1 and chance.random() < 0.5

    one = Driver(
        Failing(num_pages=draw(st.integers(14, 30)), page_size=draw(st.sampled_from([1, 4]))),
        max_running=draw(st.integers(1, 4)),
        max_step_tokens=draw(st.integers(4, 20)),
        fixed_rows=8.0,
    )
    expected = []
    for _ in range(draw(st.integers(1, 5))):
        ids = draw(st.lists(st.integers(1, 3), min_size=1, max_size=7))
        kind = draw(st.sampled_from(["plain", "constrained", "scored", "continued"]))
        fields = {"max_tokens": draw(st.integers(0, 5)), "params": SamplerParams(temperature=1.0, seed=3)}
        if kind == "continued":
            trie, _ = merge_runs([[1, 2, 3], [1, 4], [5]])
            fields = {"continuations": trie}
        elif kind == "scored":
            fields |= {"score_from": draw(st.integers(1, len(ids)))}

        def own(kind=kind) -> dict[str, object]:
            return {"matcher": ListMatcher([(1, 2, 3), (1, 5)], EOS)} if kind == "constrained" else {}

        expected.append((one.submit(ids, **fields, **own()), run_alone(ids, **fields, **own())))
        for _ in range(draw(st.integers(0, 2))):
            one.step()
    one.drain()
    one.check_idle()
    for listener, right in expected:
        done = listener.finished
        assert (done.ids, done.reason, done.text) == (right.ids, right.reason, right.text)
        assert done.prompt_logprobs == right.prompt_logprobs
        assert done.continuation_logprobs == right.continuation_logprobs
