"""Python's cyclic garbage collector, put off while a constraint is compiled or a mask is made.

Terms are many small objects that live as long as their constraint and hold no cycles. Making them wakes the collector
every few hundred objects and makes it walk everything the process holds again and again: over 300 schemas a quarter of
all the time, and up to 0.3 s at once. Put off, it walks them once, afterwards; the work in between is bounded (`work`).
"""

from __future__ import annotations

import gc
import threading
from types import TracebackType


class _Pause:
    """A pause of the collector, for as long as somebody is inside. There is one collector, so there is one of these.

    Who keeps the collector off keeps it off.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if self._num_inside == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._num_inside += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0 and self._was_on:
                gc.enable()


PAUSED_COLLECTOR = _Pause()
