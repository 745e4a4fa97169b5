"""Decode steps as graphs: captured once for a size, replayed for every step that fits it.

A step's size is rounded up on three ladders: its rows, the tiles of its attention plan and the partial states of
these. What depends on the step (ids, positions, slots, the plan) lies in tensors of that capacity, written before a
replay; rows of padding have no slot and no place in the plan. A size is captured when it is met first, so only what
a load needs takes memory. Steps that fit no size run as they are, to the same bits: padding changes no order of sums.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

_MOST_GRAPHS = 96


class Size(NamedTuple):
    """Rows of a step, tiles of its plan, and partial states."""

    rows: int
    tiles: int
    states: int


class Ladders(NamedTuple):
    """The sizes that are captured, ascending."""

    rows: tuple[int, ...] = (1, 2, 4, 8, *range(16, 257, 16))
    tiles: tuple[int, ...] = (64, 256, 1024, 4096)
    states: tuple[int, ...] = (64, 256, 1024, 4096, 16384)


LADDERS = Ladders()


class Capture(Protocol):
    """Makes a callable that repeats what `run` launches, on the memory that it used."""

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]: ...


class GraphLadder(Generic[T]):
    """One value for each size that was met, made by `make`; the one met longest ago goes when there are too many."""

    def __init__(self, make: Callable[[Size], T], ladders: Ladders = LADDERS, *, most: int = _MOST_GRAPHS) -> None:
        self._ladders = ladders
        self._make = make
        self._most = most
        self._made: dict[Size, T] = {}

    def __len__(self) -> int:
        return len(self._made)

    def fit(self, needed: Size) -> T | None:
        """The one for the smallest size that holds `needed`; None where it exceeds the ladders."""
        size = round_up(needed, self._ladders)
        if size is None:
            return None
        found = self._made.pop(size, None)
        if found is None:
            if len(self._made) >= self._most:
                del self._made[next(iter(self._made))]
            found = self._make(size)
        self._made[size] = found  # the last one used is the last to go
        return found


def round_up(needed: Size, ladders: Ladders = LADDERS) -> Size | None:
    """The smallest size of the ladders that holds `needed`, or None."""
    rungs = []
    for value, ladder in zip(needed, ladders, strict=True):
        at = bisect_left(ladder, value)
        if at == len(ladder):
            return None
        rungs.append(ladder[at])
    return Size(*rungs)


class CudaCapture:
    """Captures on the current device; all graphs share one pool of memory, since they never run at a time."""

    def __init__(self) -> None:
        self._pool: object | None = None

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()  # kernels are compiled and loaded outside of the capture
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        if self._pool is None:
            self._pool = graph.pool()
        return graph.replay
