"""Engine events on their way to an asyncio loop: one wake-up of the loop for a burst, however many it is for."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from forktree.backend.engine.messages import Event


class Mailbox:
    """The events of some requests, in order. The loop's thread owns it."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Event]] = []
        self._ready = asyncio.Event()

    async def take(self) -> list[tuple[int, Event]]:
        """All (index, event) that have arrived; waits for at least one."""
        await self._ready.wait()
        self._ready.clear()
        events, self._events = self._events, []
        return events

    def put(self, index: int, event: Event) -> None:
        self._events.append((index, event))
        self._ready.set()


class Courier:
    """Carries events from the engine's thread to the mailboxes of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bag: deque[tuple[Mailbox, int, Event]] = deque()
        self._is_called = False  # a delivery is due that will find everything in the bag

    def send(self, mailbox: Mailbox, index: int, event: Event) -> None:
        """Call from any thread. After the loop has closed nobody listens, and the event is dropped."""
        self._bag.append((mailbox, index, event))
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False  # before the bag is emptied: what comes later calls again
        while self._bag:
            mailbox, index, event = self._bag.popleft()
            mailbox.put(index, event)
