"""`make load`: 64 clients that behave and misbehave for some minutes, and what that leaves behind in the server.

Fails where an answer is one that the server must not give (any 5xx is), where work goes on, pages or places stay taken,
connections or threads stay open, or memory grows on.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from forktree.benchmarks.server import servers
from forktree.benchmarks.server.mischief import DEEDS, Deed, Target, Wrong, ask, huge_prompt, look

_NUM_TOLD = 20
_NUM_PLACES = 128  # of `Settings.max_running`
_CONNECTION_LOST = (ConnectionError, asyncio.IncompleteReadError)


@dataclass(slots=True)
class Tally:
    """What was done, how many seconds the longest of each kind took, and what was wrong."""

    done: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


async def attack(target: Target, *, num_clients: int, goes_on: Callable[[int], bool], seed: int = 0) -> Tally:
    """So many clients, each one deed after another.

    Args:
        goes_on: from the number of deeds that a client has done to whether it does another.
    """
    tally = Tally()
    deeds, weights = list(DEEDS), list(DEEDS.values())

    async def client(number: int) -> None:
        chance = random.Random(f"{seed}-{number}")
        for count in itertools.count():
            if not goes_on(count):
                return
            deed = deeds[number % len(deeds)] if count == 0 else chance.choices(deeds, weights)[0]
            await _carry_out(deed, target, chance, tally)

    await asyncio.gather(*(client(number) for number in range(num_clients)))
    return tally


async def _carry_out(deed: Deed, target: Target, chance: random.Random, tally: Tally) -> None:
    name, begun = deed.__name__, time.monotonic()
    try:
        await deed(target, chance)
    except (Wrong, TimeoutError, *_CONNECTION_LOST) as error:
        tally.wrong.append(f"{name}: {type(error).__name__}: {error}")
    tally.done[name] += 1
    tally.longest_s[name] = max(tally.longest_s.get(name, 0.0), time.monotonic() - begun)


# --- what is left ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gauges:
    """What `/metrics` says: of the engine's work and its pages."""

    num_running: float
    num_waiting: float
    num_at_gate: float
    usage: float
    num_cached: float

    @property
    def is_idle(self) -> bool:
        return self.num_running == self.num_waiting == self.num_at_gate == 0


async def gauges(target: Target) -> Gauges:
    text = (await look(target, "/metrics")).decode()

    def value(name: str) -> float:
        found = re.search(rf"^forktree:{name}\{{.*?\}} (\S+)$", text, re.MULTILINE)
        if found is None:
            raise Wrong(f"/metrics has no {name}")
        return float(found.group(1))

    names = ("num_requests_running", "num_requests_waiting", "num_requests_at_gate")
    return Gauges(*map(value, names), value("kv_cache_usage_ratio"), value("kv_cache_pages_cached"))


async def leftovers(target: Target, *, num_places: int) -> list[str]:
    """What the clients left behind, in words; empty where nothing.

    Args:
        num_places: sequences that the server lets in at a time: all must be free for a request of so many.
    """
    seen = await gauges(target)
    for _ in range(600):
        if seen.is_idle:
            break
        await asyncio.sleep(0.05)
        seen = await gauges(target)
    if not seen.is_idle:
        return [f"work goes on: {seen}"]
    found = []
    many = {"model": target.model, "prompt": "a", "max_tokens": 1, "n": num_places, "temperature": 1.0}
    answer = json.loads(await ask(target, "/v1/completions", many))
    if len(answer["choices"]) != num_places:
        found.append(f"{len(answer['choices'])} of {num_places} samples")
    await ask(target, "/flush_cache", {})
    seen = await gauges(target)
    if seen.usage or seen.num_cached:
        found.append(f"pages stay taken: {seen}")
    return found


# --- a server's process ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at one time: seconds since the start, MB of memory, threads, open files."""

    at_s: float
    rss_mb: float
    num_threads: int
    num_files: int


def sample(pid: int, begun: float) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()

    def number(name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
        assert found is not None
        return int(found.group(1))

    num_files = len(os.listdir(f"/proc/{pid}/fd"))
    return Sample(time.monotonic() - begun, number("VmRSS") / 1024, number("Threads"), num_files)


def slope(samples: list[Sample]) -> float:
    """MB a minute, by least squares."""
    mean_t = sum(each.at_s for each in samples) / len(samples)
    mean_m = sum(each.rss_mb for each in samples) / len(samples)
    spread = sum((each.at_s - mean_t) ** 2 for each in samples)
    return 60 * sum((each.at_s - mean_t) * (each.rss_mb - mean_m) for each in samples) / (spread or 1.0)


async def _sampled(pid: int, begun: float, samples: list[Sample], every_s: float) -> None:
    while True:
        samples.append(sample(pid, begun))
        await asyncio.sleep(every_s)


async def _under_attack(
    server: servers.Serving, target: Target, args: argparse.Namespace
) -> tuple[Tally, list[Sample]]:
    begun, samples = time.monotonic(), list[Sample]()
    until = begun + 60 * args.minutes
    watching = asyncio.create_task(_sampled(server.pid, begun, samples, 1.0))
    try:
        goes_on = lambda count: time.monotonic() < until  # noqa: E731
        tally = await attack(target, num_clients=args.clients, goes_on=goes_on, seed=args.seed)
    finally:
        watching.cancel()
    return tally, samples


async def _warm(target: Target, num_clients: int) -> None:
    """What first requests bring in, and memory that is taken once: every page, each thread's for its longest prompt."""
    await leftovers(target, num_places=_NUM_PLACES)
    whole = {"model": target.model, "prompt": "word " * (target.context - 300), "max_tokens": 1}
    await ask(target, "/v1/completions", whole)
    chances = [random.Random(number) for number in range(num_clients)]
    await asyncio.gather(*(huge_prompt(target, chance) for chance in chances))
    await attack(target, num_clients=num_clients, goes_on=lambda count: count < 1)


def _report(tally: Tally, samples: list[Sample], after: Sample, left: list[str], args: argparse.Namespace) -> list[str]:
    """Prints what happened; returns what is wrong."""
    settled = samples[len(samples) // 3 :]
    growth = slope(settled)
    print(f"{sum(tally.done.values())} deeds of {args.clients} clients in {samples[-1].at_s:.0f} s\n")
    print("| deed | times | longest, s |\n|---|---|---|")
    for deed in DEEDS:
        name = deed.__name__
        print(f"| {name.replace('_', ' ')} | {tally.done[name]} | {tally.longest_s.get(name, 0.0):.1f} |")
    print("\n| | first | a third in | last | afterwards |\n|---|---|---|---|---|")
    for title, attribute in (("memory, MB", "rss_mb"), ("threads", "num_threads"), ("open files", "num_files")):
        cells = (f"{getattr(each, attribute):.0f}" for each in (samples[0], settled[0], samples[-1], after))
        print(f"| {title} | {' | '.join(cells)} |")
    print(f"\nmemory after the first third: {growth:+.1f} MB a minute")
    wrong = [*tally.wrong, *left]
    if growth > args.growth:
        wrong.append(f"memory grows by {growth:.1f} MB a minute, more than {args.growth:g}")
    if after.num_files > samples[0].num_files + 2:
        wrong.append(f"{after.num_files} files are open, {samples[0].num_files} were before")
    if after.num_threads > max(each.num_threads for each in settled):
        wrong.append(f"{after.num_threads} threads afterwards")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="64 clients that behave and misbehave against one forktree server.")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--growth", type=float, default=8.0, help="most MB a minute after the first third")
    parser.add_argument("--model", default=servers.MODEL)
    parser.add_argument("--kv-tokens", type=int, default=8192)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is ended
    with servers.started(servers.forktree("--kv-tokens", str(args.kv_tokens), model=args.model)) as server:
        target = Target(server.url, server.model, args.kv_tokens, num_long=600)
        asyncio.run(_warm(target, args.clients))
        tally, samples = asyncio.run(_under_attack(server, target, args))
        left = asyncio.run(leftovers(target, num_places=_NUM_PLACES))
        wrong = _report(tally, samples, sample(server.pid, 0.0), left, args)
    print("\nwrong: " + ("nothing" if not wrong else f"{len(wrong)} answers and leftovers"))
    print("\n".join(wrong[:_NUM_TOLD]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
