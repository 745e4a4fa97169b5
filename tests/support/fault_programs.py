"""Processes that tests run out of disk, or kill: `python fault_programs.py NAME ARGUMENT...`.

What is patched here is patched in the test's own process: nothing of the package knows of it.
"""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import os
import resource
import signal
import sys
import threading
from pathlib import Path

from engine_fakes import Driver, FakeRunner

import forktree as ft
from forktree.backend.engine.loop import Engine
from forktree.backend.engine.messages import Emitted, EngineRequest
from forktree.backend.fake import Fake

LONG = [1, 2] * 12
ROWS = [{"i": number} for number in range(12)]
_HANGS = 8


class MovingRunner(FakeRunner):
    """Its pages are lists of (token, position), and can be kept in a lower tier."""

    def read_page(self, page: int) -> bytes:
        return repr(self.slots[page * self.page_size : (page + 1) * self.page_size]).encode()

    def write_page(self, page: int, data: bytes) -> None:
        self.slots[page * self.page_size : (page + 1) * self.page_size] = ast.literal_eval(data.decode())


def over_a_folder(folder: str) -> Driver:
    """An engine with a pool of sixteen pages of two tokens, and a disk tier below."""
    return Driver(MovingRunner(num_pages=16, page_size=2), fixed_rows=1e9, cache_dir=folder, fingerprint="fake")


def ask(one: Driver, ids: list[int]) -> tuple[list[int], int]:
    """What a request generates, and how much of its prompt was cached."""
    listener = one.submit(ids, max_tokens=3)
    one.drain()
    return list(listener.finished.ids), listener.finished.num_cached


@ft.function
def program(s, i):
    s += f"row {i} " + ft.gen("x")
    return s["x"]


def limit_files(num_bytes: int) -> None:
    """No file grows beyond this, as on a full disk; -1 lifts it."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if num_bytes < 0 else num_bytes, hard))


def full_disk() -> None:
    """Journal, recording and tier on a disk that is full, then on one with room again; reports as JSON."""
    print(json.dumps({"journal": full_journal(), "replay": full_recording(), "tier": full_tier()}))


def full_journal() -> dict[str, object]:
    bound = program.using(backend=Fake(lambda request: request.prompt.strip() + "." * 3000))
    report: dict[str, object] = {}
    limit_files(100_000)
    try:
        bound.map(ROWS, journal="rows.db", concurrency=1)
    except ft.JournalError as error:
        report = {"message": str(error), "finished": [result.index for result in error.results]}
    finally:
        limit_files(-1)
    again = bound.map(ROWS, journal="rows.db")
    report["again"] = [(result.index, result.replayed, result.value[:5]) for result in again]
    return report


def full_recording() -> dict[str, object]:
    report: dict[str, object] = {}
    with ft.Replay("run.jsonl", Fake(lambda request: request.prompt + "." * 3000)) as recording:
        bound = program.using(backend=recording)
        first = bound.run(0)["x"]
        limit_files(Path("run.jsonl").stat().st_size + 1000)
        try:
            bound.run(1)
        except ft.BackendError as error:
            report["message"] = str(error)
        finally:
            limit_files(-1)
        third = bound.run(2)["x"]
    replay = ft.Replay("run.jsonl")
    report["replayed"] = [program.using(backend=replay).run(i)["x"] == x for i, x in ((0, first), (2, third))]
    return report


def full_tier() -> dict[str, object]:
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("forktree.cache").addHandler(handler)
    one = over_a_folder("tier")
    limit_files(60)
    try:
        before = ask(one, LONG)
        ask(one, [3] * 28)  # moves the first one down
        after = ask(one, LONG)
        one.core.close()
    finally:
        limit_files(-1)
    files = [path.name for path in Path("tier").rglob("*") if path.suffix in (".kv", ".tmp")]
    return {"same": before[0] == after[0], "files": files, "warnings": warnings[:1]}


def killed_map(folder: str, way: str) -> None:
    """Rows of a map with a journal, each told when it is seen; in the way "hang" the last ones never end."""

    async def script(request) -> str:
        with open(f"{folder}/calls.txt", "a") as calls:
            calls.write(request.prompt + "\n")
        if os.environ["WAY"] == "hang" and int(request.prompt.split()[1]) >= _HANGS:
            await asyncio.Event().wait()
        return request.prompt

    os.environ["WAY"] = way
    bound = program.using(backend=Fake(script))
    for result in bound.imap(ROWS, journal=f"{folder}/rows.db", concurrency=6):
        print(result.index, result.replayed, flush=True)


def killed_stream() -> None:
    """A request that goes on for long; Ctrl-C closes the engine, and what its waiter was told is printed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started this in the background
    engine = Engine(FakeRunner(num_pages=4000))
    told = threading.Event()
    last: list[object] = []

    def listen(event) -> None:
        if isinstance(event, Emitted):
            print("token", flush=True)
        else:
            last.append(event)
            told.set()

    engine.submit(EngineRequest(ids=(1, 2), max_tokens=15_000, on_event=listen))
    try:
        told.wait()
    except KeyboardInterrupt:
        engine.close()
        print(f"told: {last[0].error}", flush=True)  # type: ignore[attr-defined]


def killed_write(folder: str, number: str, name: str) -> None:
    """The process gets a signal when a page has been written and not yet renamed to its place."""
    replace, left = os.replace, [int(number)]

    def replace_or_die(source, target) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.Signals[name])
            threading.Event().wait()
        replace(source, target)

    os.replace = replace_or_die
    one = over_a_folder(folder)
    ask(one, LONG)
    one.core.close()


if __name__ == "__main__":
    {each.__name__: each for each in (full_disk, killed_map, killed_stream, killed_write)}[sys.argv[1]](*sys.argv[2:])
