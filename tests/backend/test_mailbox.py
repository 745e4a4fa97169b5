from __future__ import annotations

import asyncio
import threading

from forktree.backend.engine.messages import Emitted
from forktree.backend.mailbox import Courier, Mailbox


def event(text: str) -> Emitted:
    return Emitted(text, ())


async def test_a_burst_for_many_mailboxes_wakes_the_loop_once(monkeypatch):
    loop = asyncio.get_running_loop()
    calls = []
    wake = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: calls.append(wake(*args)))
    courier, boxes = Courier(loop), [Mailbox() for _ in range(8)]
    for index, box in enumerate(boxes):
        courier.send(box, index, event("a"))
        courier.send(box, index, event("b"))
    for index, box in enumerate(boxes):
        assert await box.take() == [(index, event("a")), (index, event("b"))]
    assert len(calls) == 1


async def test_events_from_another_thread_arrive_whole_and_in_order():
    courier, box = Courier(asyncio.get_running_loop()), Mailbox()
    sender = threading.Thread(target=lambda: [courier.send(box, i, event(str(i))) for i in range(2000)])
    sender.start()
    seen: list[int] = []
    while len(seen) < 2000:
        seen += [index for index, _ in await box.take()]
    sender.join()
    assert seen == list(range(2000))


def test_a_closed_loop_loses_events_quietly():
    loop = asyncio.new_event_loop()
    courier = Courier(loop)
    loop.close()
    courier.send(Mailbox(), 0, event("a"))
