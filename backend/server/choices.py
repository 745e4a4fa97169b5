"""Several generations that answer one request: taken together, read as they come, cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from forktree.backend.local_generation import Ask, AskError, End, Piece
from forktree.backend.server.errors import ApiError, api_error
from forktree.backend.server.flights import Watched
from forktree.backend.server.served import Served
from forktree.runtime.protocol import Completion, Usage

Param = Callable[[int], str | None]
_DONE = object()


async def opened(
    served: Served, asks: Sequence[Ask], param: Param, *, priority: int = 0, salt: str | None = None
) -> list[Watched]:
    """Wait for the caller's turn, then have the engine take all, or none.

    Args:
        param: the field that says the prompt of one of them.
        priority: of the caller's own requests, a lower one goes first.
        salt: cached prompts are shared only with requests of the same.
    Raises:
        ApiError: one of them cannot run, or too many wait.
        ClientDisconnect: nobody waits for it any more.
    """
    flight = await served.admit(len(asks), priority=priority)
    try:
        return flight.board(await served.engine(salt).open(asks), (ask.sample_index for ask in asks))
    except AskError as error:
        flight.abandon()
        raise _refusal(error, asks, param) from error
    except BaseException:
        flight.abandon()
        raise


def _refusal(error: AskError, asks: Sequence[Ask], param: Param) -> ApiError:
    refusal = api_error(error, param=param(error.index))
    if len({ask.ids for ask in asks}) > 1 and refusal.param:
        message = f"{refusal.param}: {refusal.message}"
        refusal = ApiError(refusal.status, message, param=refusal.param, code=refusal.code)
    return refusal


async def merged(generations: Sequence[Watched]) -> AsyncGenerator[tuple[int, Piece | End], None]:
    """What comes of all of them, each with its index. Leaving early cancels what is left; so does a fault."""
    if len(generations) == 1:  # nearly all requests: no task and no queue between the engine and the answer
        with closing_all(generations):
            async with aclosing(generations[0].pieces()) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    yield 0, piece
        return
    queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(index, one, queue)) for index, one in enumerate(generations)]
    num_live = len(tasks)
    try:
        while num_live:
            index, what = await queue.get()
            if isinstance(what, BaseException):
                raise what
            if what is _DONE:
                num_live -= 1
            else:
                yield index, what
    finally:
        for task in tasks:
            task.cancel()
        with closing_all(generations):
            await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(index: int, generation: Watched, queue: asyncio.Queue[tuple[int, Any]]) -> None:
    try:
        async with aclosing(generation.pieces()) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                queue.put_nowait((index, piece))
    except Exception as error:
        queue.put_nowait((index, error))
    else:
        queue.put_nowait((index, _DONE))


@contextmanager
def closing_all(generations: Iterable[Watched]):  # type: ignore[no-untyped-def]
    """Whatever happens inside, what still runs is cancelled behind it."""
    try:
        yield
    finally:
        for generation in generations:
            generation.close()


def usage_of(completions: Sequence[Completion], num_samples: int) -> dict[str, Any]:
    """Usage of prompts with `num_samples` samples each, in order: a prompt is counted once."""
    prompts = [completions[at : at + num_samples] for at in range(0, len(completions), num_samples)]
    total = Usage(
        prompt_tokens=sum(samples[0].usage.prompt_tokens for samples in prompts),
        cached_tokens=sum(min(one.usage.cached_tokens for one in samples) for samples in prompts),
        completion_tokens=sum(one.usage.completion_tokens for one in completions),
    )
    return {
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "total_tokens": total.prompt_tokens + total.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": total.cached_tokens},
    }
