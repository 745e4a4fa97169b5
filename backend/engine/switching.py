"""Getting the interpreter's lock back soon from a thread of the user's Python that never waits.

A step is one long native call and a few short ones. Each gives the lock up, and a thread that computes keeps it then
for as long as the *switch interval* says: Python's own 5 ms are as long as a step. While there is work the
interval is therefore short, and the engine's thread is woken to the microsecond: a wait of 0.05 ms takes twice as long
on Linux, whose timers are late by as much again unless a thread asks for better ones (its timer slack).

What it costs others: one thread of Python loses nothing, it was only asked more often; several that compute at once
change over more often. So when there has been nothing to do for a moment, the interval is what it was.
`benchmarks/busy_thread.py` measures both sides; docs/engine.md has the figures.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from contextlib import suppress

SHORT_S = 50e-6
_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_LEAST_NS = 1


class SwitchInterval:
    """The process's switch interval, short while somebody holds it so. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_holders = 0
        self._found_s = 0.0  # what it was before the first held it
        self._set_s = 0.0  # what was set; another value by now is somebody else's wish, and stays

    def shorten(self) -> None:
        """Hold it short; never makes a shorter one longer."""
        with self._lock:
            self._num_holders += 1
            if self._num_holders == 1:
                self._found_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self._found_s, SHORT_S))
                self._set_s = sys.getswitchinterval()

    def restore(self) -> None:
        """Hold it no more; the last one puts back what the first has found."""
        with self._lock:
            self._num_holders -= 1
            if self._num_holders == 0:
                self._put_back()

    def _put_back(self) -> None:
        if sys.getswitchinterval() == self._set_s:
            sys.setswitchinterval(self._found_s)

    def forget(self) -> None:
        """In a forked child, which has none of the threads that held it."""
        if self._num_holders:
            self._put_back()


@functools.cache
def switch_interval() -> SwitchInterval:
    """The process has one."""
    return SwitchInterval()


def wake_promptly() -> None:
    """Let the calling thread's timers be exact, where the system can."""
    with suppress(OSError, AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _LEAST_NS, 0, 0, 0)


def _after_fork() -> None:
    switch_interval().forget()
    switch_interval.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
