"""One engine in a process of its own: schemas come in on stdin, facts go out on stdout, a line of JSON each.

    {"event": "ready", "seconds": …, "rss_mb": …}              once
    {"event": "refused", "reason": …}                          a schema that the engine will not compile
    {"event": "first_mask", "seconds": …}                      … or its first mask, compiling included
    {"event": "walked", "over": […], "under": […], …}          … and then what became of its instances

The parent kills the process when an answer takes too long; a crash is an end of the stream. Seconds are CPU seconds of
this process, so that what else the machine does is not counted.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any, TextIO

from forktree.benchmarks.grammar_engines import ENGINES, Engine, RefusalError, Walk

MAX_MORE_BYTES = 6 << 30  # of address space, above what the engine needs to start
NUM_TIMED_TOKENS = 300


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what engines print must not reach the parent
    name, model = sys.argv[1:]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    start = time.process_time()
    engine = ENGINES[name](tokenizer)
    _compile_first(engine)
    _say(out, event="ready", seconds=time.process_time() - start, rss_mb=_rss_mb())
    _limit_memory()
    for line in sys.stdin:
        _measure(engine, tokenizer, json.loads(line), out)


def _measure(engine: Engine, tokenizer: Any, row: dict[str, Any], out: TextIO) -> None:
    start, where = time.process_time(), ""
    try:
        walk = engine.compile(row["schema"])
        walk.mask()
        _say(out, event="first_mask", seconds=time.process_time() - start, rss_mb=_rss_mb())
        where = "behind its first mask: "
        _say(out, event="walked", **_walked(walk, tokenizer, row), rss_mb=_rss_mb())
    except RefusalError as error:
        _say(out, event="refused", reason=f"{where}{error}"[:500], rss_mb=_rss_mb())


def _walked(walk: Walk, tokenizer: Any, row: dict[str, Any]) -> dict[str, Any]:
    """What became of a schema's instances, and how long masks took along the valid ones."""

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    valid = [[encode(text) for text in forms] for forms in row["valid"]]
    new, cached = _mask_times(walk, [tokens for forms in valid for tokens in forms[-1:]])
    over = [n for n, forms in enumerate(valid) if not any(_accepts(walk, tokens) for tokens in forms)]
    under = [
        n for n, forms in enumerate(row["invalid"]) if any(_accepts(walk, tokens) for tokens in map(encode, forms))
    ]
    return {"over": over, "under": under, "new_mask_s": new, "cached_mask_s": cached}


def _mask_times(walk: Walk, outputs: list[list[int]]) -> tuple[list[float], list[float]]:
    """Seconds of each mask as a first request meets it, and as a second request does."""
    new: list[float] = []
    cached: list[float] = []
    for tokens in outputs:
        for times in (new, cached):
            walk.rewind()
            for token in tokens[:NUM_TIMED_TOKENS]:
                start = time.process_time()
                walk.mask()
                times.append(time.process_time() - start)
                if not walk.take(token):
                    break
    return new, cached


def _accepts(walk: Walk, tokens: list[int]) -> bool:
    walk.rewind()
    return all(map(walk.take, tokens)) and walk.can_end()


def _compile_first(engine: Engine) -> None:
    """What an engine builds at its first schema (tables, imports) is start-up."""
    walk = engine.compile({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    walk.mask()


def _limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MAX_MORE_BYTES, resource.RLIM_INFINITY))


def _rss_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def _say(out: TextIO, **facts: Any) -> None:
    out.write(json.dumps(facts) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
