"""New masks are made beside the forward pass; what is wrong with one is told where it is asked for."""

from __future__ import annotations

import threading

from engine_fakes import Driver, FakeRunner, ListMatcher

EOS = 11
END = frozenset({EOS})
PATIENCE_S = 30.0


class NewMatcher(ListMatcher):
    """Every mask is new; says when one was made, and on which thread."""

    def __init__(self, made: threading.Event) -> None:
        super().__init__([(1, 2), (2, 1)], EOS)
        self.made = made
        self.threads: list[str] = []

    def has_mask(self) -> bool:
        return False

    def mask(self) -> list[int]:
        self.threads.append(threading.current_thread().name)
        self.made.set()
        return super().mask()


class BrokenMatcher(NewMatcher):
    def mask(self) -> list[int]:
        super().mask()
        raise RuntimeError("boom")


class WaitingRunner(FakeRunner):
    """A forward pass that ends no sooner than a mask was made: nothing would ever end if it were made after."""

    made: threading.Event

    def forward(self, batch):
        assert self.made.wait(PATIENCE_S), "the mask was not made while the model computed"
        self.made.clear()
        return super().forward(batch)


def waiting() -> tuple[Driver, threading.Event]:
    runner = WaitingRunner()
    runner.made = threading.Event()
    return Driver(runner), runner.made


def test_a_new_mask_is_made_while_the_model_computes():
    one, made = waiting()
    matcher = NewMatcher(made)
    listener = one.submit([0, 1], max_tokens=4, stop_token_ids=END, matcher=matcher)
    one.drain()
    assert listener.finished.is_complete
    assert any(name.startswith("forktree-masks") for name in matcher.threads)
    one.core.close()


def test_a_mask_that_was_made_before_needs_no_thread():
    names = {thread.name for thread in threading.enumerate()}
    one = Driver(FakeRunner())
    one.submit([0, 1], max_tokens=4, stop_token_ids=END, matcher=ListMatcher([(1, 2)], EOS))
    one.drain()
    started = {thread.name for thread in threading.enumerate()} - names
    assert not any(name.startswith("forktree-masks") for name in started)


def test_a_mask_that_fails_fails_its_own_request():
    one, made = waiting()
    bad = one.submit([0, 1], max_tokens=4, stop_token_ids=END, matcher=BrokenMatcher(made))
    good = one.submit([0, 2], max_tokens=4, stop_token_ids=END, matcher=NewMatcher(made))
    one.drain()
    assert str(bad.error) == "the constraint failed: RuntimeError: boom"
    assert good.finished.is_complete
    one.core.close()
