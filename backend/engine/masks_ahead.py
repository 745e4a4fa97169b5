"""Masks are made while the model computes.

What may be drawn at the end of a step is known when it begins: it depends on the tokens so far. A mask that a
constraint has made before costs microseconds and needs no thread; one for a state that nobody has visited takes up
to milliseconds. Those are made on a thread of their own while the forward pass runs, which is one call without the
interpreter's lock, or several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from forktree.backend.engine.messages import TokenMatcher


class MasksAhead:
    """One thread, started by the first mask that is new. The engine's thread owns it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forktree-masks")

    @contextmanager
    def making(self, matchers: Iterable[TokenMatcher | None]) -> Iterator[None]:
        """What is done inside runs beside the making of new masks; they are made when it ends.

        Nobody else may use the matchers meanwhile.
        """
        new = [matcher for matcher in matchers if matcher is not None and not matcher.has_mask()]
        if not new:
            yield
            return
        work = self._thread.submit(_make, new)
        try:
            yield
        finally:
            work.result()

    def close(self) -> None:
        self._thread.shutdown(wait=False)


def _make(matchers: list[TokenMatcher]) -> None:
    for matcher in matchers:
        with suppress(Exception):  # it is raised again, and told of, when the engine asks for this mask
            matcher.mask()
