"""Prompts from below the KV pool: what a long prefix costs from each tier, and conversations that do not fit the pool.

python -m forktree.benchmarks.tiers [--tokens 4000] [--turns 3]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

from forktree.backend.local import Local
from forktree.lang.sampling import Sampling

_ONE = Sampling(max_tokens=1)
_TURN = Sampling(max_tokens=16, ignore_eos=True)


def seconds(local: Local, prompt: list[int]) -> float:
    """To the first token."""
    start = time.perf_counter()
    local.generate([prompt], _ONE)
    return time.perf_counter() - start


def prompt_of(number: int, num_tokens: int) -> list[int]:
    return [1 + (number * 1009 + 7 * place) % 4001 for place in range(num_tokens)]


def measure_prefix(num_tokens: int) -> dict[str, float]:
    """Time to the first token behind one prefix, by where it comes from."""
    prompt, found = prompt_of(0, num_tokens), {}
    pool = num_tokens + 512
    with tempfile.TemporaryDirectory() as folder:
        with Local(kv_tokens=pool, cache_dir=folder) as local:
            seconds(local, prompt_of(1, 64))  # loads the model
            found["computed"] = seconds(local, prompt)
            found["pool"] = seconds(local, prompt)
        with Local(kv_tokens=pool, cache_dir=folder) as local:
            local.generate([[5, 6, 7]], _ONE)
            found["disk, after a restart"] = seconds(local, prompt)
        with Local(kv_tokens=pool, host_bytes=2 << 30) as local:
            seconds(local, prompt)
            seconds(local, prompt_of(2, num_tokens))  # pushes it out
            found["host memory"] = seconds(local, prompt)
    return found


def measure_talks(num_talks: int, num_turns: int, num_tokens: int, **options: Any) -> float:
    """Seconds for conversations that take turns, each turn behind all that was said before."""
    with Local(**options) as local:
        talks = [prompt_of(number, num_tokens) for number in range(num_talks)]
        local.generate(talks, _ONE)
        start = time.perf_counter()
        for turn in range(num_turns):
            for number, talk in enumerate(talks):
                talk += prompt_of(100 + turn + number, 16)
                talk += local.generate([talk], _TURN)[0].tokens
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4000, help="of the prefix")
    parser.add_argument("--turns", type=int, default=3, help="of each conversation")
    arguments = parser.parse_args()
    for name, taken in measure_prefix(arguments.tokens).items():
        print(f"{arguments.tokens} tokens, {name:<24} {taken:8.3f} s to the first token", flush=True)
    size, count = 512, 8  # with 32 tokens a turn, four times the small pool
    small, large = count * (size + 32 * arguments.turns) // 4, count * (size + 32 * arguments.turns) + 512
    cases = {
        "small pool": {"kv_tokens": small},
        "small pool with host memory": {"kv_tokens": small, "host_bytes": 2 << 30},
        "a pool that holds all": {"kv_tokens": large},
    }
    for name, options in cases.items():
        taken = measure_talks(count, arguments.turns, size, **options)
        print(f"{count} conversations, {name:<28} {count * arguments.turns / taken:6.2f} turns a second", flush=True)


if __name__ == "__main__":
    main()
