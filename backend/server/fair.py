"""Whose turn it is: the engine is kept full, and behind it each tenant has a queue of its own.

The engine serves by age. Were all requests in it, a tenant with a thousand would be served before one that comes with
its first. So no more are let in than the engine can well use, and places that become free go to the tenants in turn.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from dataclasses import dataclass

from forktree.backend.server.limits import too_many

_RETRY_S = 1.0


@dataclass(slots=True, order=True)
class _Waiter:
    """Ordered by urgency, then by age."""

    priority: int
    number: int
    num_places: int
    admitted: asyncio.Future[None]


class Gate:
    """Places in the engine. The server's loop owns it.

    Args:
        num_places: sequences in the engine at a time; a request of more takes them all.
        max_waiting: requests that may wait; more are refused.
    """

    def __init__(self, num_places: int, max_waiting: int) -> None:
        self._num_places = num_places
        self._max_waiting = max_waiting
        self._num_free = num_places
        self._queues: OrderedDict[str, list[_Waiter]] = OrderedDict()  # in turn: the first is next
        self._numbers = itertools.count()

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    async def enter(self, tenant: str, count: int, *, priority: int = 0) -> int:
        """Wait for places; how many were taken, for `leave`. Of one tenant's, a lower priority goes first.

        Raises:
            ApiError: 429, too many wait already.
        """
        count = min(count, self._num_places)
        if not self._queues and count <= self._num_free:
            self._num_free -= count
            return count
        if self.num_waiting >= self._max_waiting:
            raise too_many(f"{self._max_waiting} requests are waiting already", _RETRY_S)
        waiter = _Waiter(priority, next(self._numbers), count, asyncio.get_running_loop().create_future())
        heapq.heappush(self._queues.setdefault(tenant, []), waiter)
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            self._withdraw(tenant, waiter)
            raise
        return count

    def leave(self, count: int) -> None:
        """Give places back."""
        self._num_free += count
        self._admit()

    def _admit(self) -> None:
        """Whoever is next waits until there is room for all of it, so that a large request is not passed for ever."""
        while self._queues:
            tenant, queue = next(iter(self._queues.items()))
            if queue[0].num_places > self._num_free:
                return
            waiter = heapq.heappop(queue)
            self._queues.move_to_end(tenant)
            if not queue:
                del self._queues[tenant]
            self._num_free -= waiter.num_places
            waiter.admitted.set_result(None)

    def _withdraw(self, tenant: str, waiter: _Waiter) -> None:
        if waiter.admitted.done() and not waiter.admitted.cancelled():
            self.leave(waiter.num_places)  # it was let in, and nobody took notice
            return
        queue = self._queues[tenant]
        queue.remove(waiter)
        heapq.heapify(queue)
        if not queue:
            del self._queues[tenant]
        self._admit()
