"""Several generations that answer one request: taken together, read as they come, cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from forktree.backend.local import Local
from forktree.backend.local_generation import Ask, AskError, End, Generation, Piece
from forktree.backend.server.errors import ApiError, api_error
from forktree.runtime.protocol import Completion, Usage

Param = Callable[[int], str | None]
_DONE = object()


async def opened(backend: Local, asks: Sequence[Ask], param: Param) -> list[Generation]:
    """Have the engine take all, or none. `param` is the field that says the prompt of one of them.

    Raises:
        ApiError: one of them cannot run.
    """
    try:
        return await backend.open(asks)
    except AskError as error:
        refusal = api_error(error, param=param(error.index))
        if len({ask.ids for ask in asks}) > 1 and refusal.param:
            refusal = ApiError(
                refusal.status, f"{refusal.param}: {refusal.message}", param=refusal.param, code=refusal.code
            )
        raise refusal from error


async def merged(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Piece | End], None]:
    """What comes of all of them, each with its index. Leaving early cancels what is left; so does a fault."""
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


async def _pump(index: int, generation: Generation, queue: asyncio.Queue[tuple[int, Any]]) -> None:
    try:
        async with aclosing(generation.pieces()) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                queue.put_nowait((index, piece))
    except Exception as error:
        queue.put_nowait((index, error))
    else:
        queue.put_nowait((index, _DONE))


@contextmanager
def closing_all(generations: Iterable[Generation]):  # type: ignore[no-untyped-def]
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
