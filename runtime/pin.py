"""`pin`: what a service's requests begin with stays computed."""

from __future__ import annotations

from forktree.lang import ir
from forktree.lang.errors import LanguageError, UnsupportedError
from forktree.runtime import protocol
from forktree.runtime.defaults import checked_backend, get_defaults
from forktree.runtime.executor import get_executor
from forktree.runtime.openings import branch_of, segment_of
from forktree.runtime.values import Failure, Value


def pin(prefix: object, *, backend: protocol.Backend | None = None) -> protocol.Pin:
    """Compute what prompts begin with, and keep it in the backend's cache until `unpin` or the end of a `with` block.

    A pinned prefix is never evicted, and `flush_cache` leaves it. Whole pages are kept: of the last tokens, fewer than
    a page has, nothing is. What is pinned is room that requests which do not begin with it lack.

    Args:
        prefix: as a program appends it: text, a turn (`ft.system("…")`), tools, or a sum of them.
        backend: the default one if None.
    Raises:
        LanguageError: the prefix holds something to generate or to choose, or this is an async program.
        UnsupportedError: the backend pins nothing.
        EngineError: too little of the pool would be left. ValueError: the prefix is shorter than a page.
    """
    branch = branch_of(_segments(prefix))
    if branch is None:
        raise LanguageError("pin takes what prompts begin with, and this is empty; give the text or the turns")
    given = get_defaults().backend() if backend is None else checked_backend(backend)
    pin_branch = getattr(given, "pin_branch", None)
    if pin_branch is None:
        raise UnsupportedError(f"{given.name} pins nothing; give ft.Local(), whose cache is its own")
    executor, result = get_executor(), Value()
    if executor.is_loop_thread:
        raise LanguageError("pin would block the loop here: call it before the program runs")

    async def work() -> None:
        try:
            result.set(await pin_branch(branch))
        except BaseException as error:
            result.fail(Failure(error))

    executor.spawn(work())
    executor.wait(lambda: result.is_set, result.on_set, instead="pin before the program runs")
    pinned: protocol.Pin = result.get()
    return pinned


def _segments(prefix: object) -> list[protocol.Segment]:
    segments = []
    for node in ir.nodes_of(prefix):
        segment = segment_of(node)
        if segment is None:
            raise LanguageError(f"a pin holds what is known before anything runs, and {type(node).__name__} is not")
        segments.append(segment)
    return segments
