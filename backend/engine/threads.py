"""How many threads compute a step: all, or fewer while somebody else wants a core.

A thread of the user's program that counts, or any other program, takes a core. A team of as many threads as cores then
fights for it: whoever computes is interrupted, the others wait for what that one holds, and the interpreter's lock may
be with a thread that our own have pushed aside. One thread fewer computes less and waits for nobody: measured on two
cores beside one busy thread, one thread of the engine makes 1.3 to 1.7 times the tokens of two.

Who is alone is told by the clock of the engine's own thread: undisturbed it computes all the time of a pass; disturbed
it waits. So nothing is tried, and nothing lost, on a machine that is free. Where it waits, a few passes with fewer
threads are timed against the last ones, each by what a pass over so many rows costs (`costs.py`), and the faster is
kept; now and then, and ever more seldom while that is in vain, the neighbour on either side is tried again.

Results do not depend on it: the kernels give the same bits with any number of threads.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

_TRIAL = 4  # passes of a trial
_SMOOTH = 0.1  # weight of the last pass in what is known of those before
_SLOWEST, _LEAST_SHARE = 4.0, 0.3  # what one pass can say at most: anything may have happened in it
_IS_DISTURBED = 0.75  # computing for a smaller share of a pass than this
_GAIN = 0.95  # a trial's pace must be below so much of the other's
_FIRST_PAUSE = 8  # passes between two trials, doubled by each in vain
_LAST_PAUSE = 128


@runtime_checkable
class Threaded(Protocol):
    """A runner whose number of threads may change between two passes."""

    @property
    def num_threads(self) -> int:
        """The most, and what it begins with."""
        ...

    def use_threads(self, count: int) -> None: ...


def sizes_of(most: int) -> tuple[int, ...]:
    """What is tried: all, all but one, half; each at least one."""
    return tuple(sorted({most, max(1, most - 1), max(1, most // 2)}, reverse=True))


class ThreadChoice:
    """Learns from passes how many threads the next should have. The engine's thread owns it."""

    def __init__(self, most: int) -> None:
        self._sizes = sizes_of(most)
        self._at = 0
        self._trial: int | None = None  # the index on trial
        self._found: list[float] = []  # paces of the trial so far
        self._pace: float | None = None  # of the size in use: seconds by what they should be
        self._share = 1.0  # of a pass, that the engine's thread computed
        self._num_since = 0
        self._pause = _FIRST_PAUSE

    @property
    def size(self) -> int:
        return self._sizes[self._at if self._trial is None else self._trial]

    def note(self, pace: float, share: float) -> None:
        """A pass took `pace` times what one over so many rows costs, and its thread computed for `share` of it."""
        pace, share = min(pace, _SLOWEST), max(share, _LEAST_SHARE)
        if self._trial is not None:
            self._found.append(pace)
            if len(self._found) == _TRIAL:
                self._judge()
            return
        self._pace = pace if self._pace is None else self._pace + _SMOOTH * (pace - self._pace)
        self._share += _SMOOTH * (share - self._share)
        self._num_since += 1
        if self._num_since >= self._pause:
            self._start_trial()

    def _start_trial(self) -> None:
        fewer = self._at + 1
        if self._share < _IS_DISTURBED and fewer < len(self._sizes):
            self._trial = fewer
        elif self._at > 0:
            self._trial = self._at - 1
        self._found = []

    def _judge(self) -> None:
        """Keep what was tried if it is faster; the median, for one pass may have met anything."""
        assert self._trial is not None
        assert self._pace is not None
        pace = sorted(self._found)[_TRIAL // 2]
        if pace < _GAIN * self._pace:
            self._at, self._pace, self._pause = self._trial, pace, _FIRST_PAUSE
        else:
            self._pause = min(2 * self._pause, _LAST_PAUSE)
        self._trial, self._num_since, self._share = None, 0, 1.0
