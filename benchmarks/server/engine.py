"""The engine alone on the same load, in a process of its own: what a server adds is measured against it.

`python -m forktree.benchmarks.server.engine` reads lines of three numbers (clients, requests, the first conversation's
number) and answers each with a line of JSON. Prompts are ids before the clock runs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice

from forktree.backend.local import Local
from forktree.backend.local_generation import Ask, End
from forktree.backend.server.conversation import conversation_ids
from forktree.backend.server.schemas.chat import ChatRequest
from forktree.backend.server.served import HiddenSpellings
from forktree.benchmarks.server import chats
from forktree.benchmarks.server.client import Driven, Timing
from forktree.benchmarks.server.servers import MODEL
from forktree.lang.sampling import Sampling


async def drive(local: Local, prompts: list[tuple[int, ...]], num_new: int, num_clients: int) -> Driven:
    """As `client.drive`, without a server."""
    waiting: Iterator[tuple[int, ...]] = iter(prompts)
    sampling = Sampling(max_tokens=num_new, temperature=0.0, ignore_eos=True)
    timings: list[Timing] = []

    async def one() -> None:
        for ids in waiting:
            timings.append(await _ask(local, ids, sampling))

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(num_clients)))
    return Driven(timings, time.perf_counter() - begun)


async def _ask(local: Local, ids: tuple[int, ...], sampling: Sampling) -> Timing:
    begun, first = time.perf_counter(), None
    (generation,) = await local.open([Ask(ids=ids, sampling=sampling)])
    async for piece in generation.pieces():
        first = first or time.perf_counter()
        if isinstance(piece, End):
            usage = piece.completion.usage
    assert first is not None
    whole = time.perf_counter() - begun
    return Timing(first - begun, whole, usage.completion_tokens, usage.prompt_tokens, usage.cached_tokens)


def main() -> None:
    load = chats.chat()
    with Local(MODEL).load() as local:
        hidden = HiddenSpellings(local.tokenizer)

        def prompt_of(body: dict[str, object]) -> tuple[int, ...]:
            asked = ChatRequest.model_validate({"model": MODEL, **body})
            return conversation_ids(asked.messages, (), local.tokenizer, hidden)

        print("ready", flush=True)
        for line in sys.stdin:
            num_clients, num_requests, begin = map(int, line.split())
            prompts = [prompt_of(body) for body in islice(load.bodies(begin), num_requests)]
            driven = asyncio.run(drive(local, prompts, load.num_new_tokens, num_clients))
            print(json.dumps(asdict(driven)), flush=True)


if __name__ == "__main__":
    main()
