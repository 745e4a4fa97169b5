"""A limit on the work of a grammar, counted in steps, so that what is too much is the same on every machine.

A step is a term made or two arcs compared: some 13 microseconds, and at most a kilobyte. Compilation has one
allowance; later each mask and each token has one of its own. Long work pauses now and then for other threads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from forktree.lang.errors import ConstraintError

COMPILE_STEPS = 200_000  # some 3 s
MASK_STEPS = 80_000
_UNLIMITED = 1 << 62
_SLICE = 2_000  # steps between two pauses
_PAUSE_S = 20e-6  # a real sleep: without one, a thread that waits for the interpreter gets it 5 ms later


class Work:
    """The steps that are left; one an arena, used by one thread at a time."""

    __slots__ = ("_is_limited", "_left", "_limit", "_next_pause")

    def __init__(self) -> None:
        self._is_limited = False
        self._limit = self._left = _UNLIMITED
        self._next_pause = -1

    def spend(self, steps: int = 1) -> None:
        """
        Raises:
            ConstraintError: more than the limit.
        """
        self._left -= steps
        if self._left < self._next_pause:
            self._pause()

    @contextmanager
    def limited(self, steps: int) -> Iterator[None]:
        """An allowance for what is done inside; inside another one, that one holds."""
        if self._is_limited:
            yield
            return
        self._is_limited, self._limit, self._left = True, steps, steps
        self._next_pause = max(steps - _SLICE, 0)
        try:
            yield
        finally:
            self._is_limited, self._left, self._next_pause = False, _UNLIMITED, -1

    def _pause(self) -> None:
        if self._left < 0:
            raise ConstraintError(
                f"this constraint explodes: it takes more than {self._limit} steps of work here; use "
                "fewer alternatives that overlap, lower counts, or split it"
            )
        self._next_pause = max(self._left - _SLICE, 0)
        time.sleep(_PAUSE_S)
