"""Pinning prompts in the engine, from any thread and from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

from forktree.backend.engine.loop import Engine
from forktree.backend.engine.messages import EngineRequest, Event, Failed
from forktree.runtime.protocol import Pin

Listener = Callable[[Event], None]


def owned(make: Callable[[Listener], EngineRequest], owner: int | None, listener: Listener) -> EngineRequest:
    """A request that tells the run which asks for it."""
    return replace(make(listener), owner=owner)


def pin_ids(engine: Engine, ids: tuple[int, ...], namespace: str) -> Pin:
    """Compute and pin; waits for it. Raises as `Engine.submit`, and what the engine failed with."""
    events: SimpleQueue[Event] = SimpleQueue()
    id = engine.submit(EngineRequest(ids=ids, on_event=events.put, namespace=namespace, is_pin=True))
    try:
        event = events.get()
    except BaseException:  # an interrupt
        engine.unpin(id)
        raise
    return _pin_of(engine, id, ids, event)


async def pin_ids_on_loop(engine: Engine, ids: tuple[int, ...], namespace: str) -> Pin:
    """The same, awaited; whoever stops waiting pins nothing."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Event] = loop.create_future()

    def settle(event: Event) -> None:
        if not done.done():
            done.set_result(event)

    def listen(event: Event) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, event)

    id = engine.submit(EngineRequest(ids=ids, on_event=listen, namespace=namespace, is_pin=True))
    try:
        event = await done
    except BaseException:
        engine.unpin(id)
        raise
    return _pin_of(engine, id, ids, event)


def _pin_of(engine: Engine, id: int, ids: tuple[int, ...], event: Event) -> Pin:
    if isinstance(event, Failed):
        raise event.error
    return Pin(len(ids) // engine.page_size * engine.page_size, partial(engine.unpin, id))
