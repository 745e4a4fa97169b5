"""How long a grammar makes a request wait: compiling, the first mask, and each mask on the way.

    python benchmarks/grammar.py                                  # the schemas of the tests, the built-in tokenizer
    python benchmarks/grammar.py --schemas FILE.jsonl [--limit N] # rows with `schema` and `valid`

A row of the file is one JSON object with `schema` and, in `valid`, instances whose tokens are walked. Times are of
one thread; `new_mask` is the first look at a place in an output, `cached_mask` the second.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from forktree.backend.grammar.constraints import Constraint, Schema
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import ConstraintError

DEFAULT_ROWS = Path(__file__).parent.parent / "tests/data/grammar/schemas.jsonl"


class Times(NamedTuple):
    """Seconds, by what they were spent on."""

    compile_s: list[float]
    first_mask_s: list[float]
    new_mask_s: list[float]
    cached_mask_s: list[float]
    advance_s: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=Path, default=DEFAULT_ROWS)
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--model", default="smollm2-135m")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.schemas.read_text().splitlines()]
    random.Random(0).shuffle(rows)
    vocabulary, encode = _tokenizer(options.model)
    times = Times([], [], [], [], [])
    refused = sum(not _measure(row, vocabulary, encode, times) for row in rows[: options.limit])
    print(f"{len(rows[: options.limit])} schemas, {refused} refused, vocabulary of {vocabulary.size}")
    for name, seconds in times._asdict().items():
        print(_line(name.removesuffix("_s"), seconds))


def _tokenizer(model: str) -> tuple[Vocabulary, Any]:
    from transformers import AutoTokenizer

    from forktree.backend.model.store import resolve_model
    from forktree.backend.tokenizer import vocabulary_of

    tokenizer = AutoTokenizer.from_pretrained(resolve_model(model))
    return vocabulary_of(tokenizer), lambda text: tokenizer.encode(text, add_special_tokens=False)


def _measure(row: dict[str, Any], vocabulary: Vocabulary, encode: Any, times: Times) -> bool:
    """One schema; False where it is refused."""
    start = time.perf_counter()
    try:
        constraint = Schema(row["schema"], order="any")
    except ConstraintError:
        return False
    matcher = constraint.compile(vocabulary)
    compiled = time.perf_counter()
    matcher.mask()
    times.compile_s.append(compiled - start)
    times.first_mask_s.append(time.perf_counter() - start)
    texts = (json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in row.get("valid", []))
    _walk(constraint, vocabulary, map(encode, texts), times)
    return True


def _walk(constraint: Constraint, vocabulary: Vocabulary, outputs: Iterable[list[int]], times: Times) -> None:
    for tokens in outputs:
        matcher = constraint.compile(vocabulary)
        for token in tokens:
            start = time.perf_counter()
            mask = matcher.mask()
            made = time.perf_counter()
            matcher.mask()
            again = time.perf_counter()
            if not mask[token // 32] >> (token % 32) & 1:
                break
            advancing = time.perf_counter()
            matcher.advance(token)
            times.advance_s.append(time.perf_counter() - advancing)
            times.new_mask_s.append(made - start)
            times.cached_mask_s.append(again - made)


def _line(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds) or [0.0]
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * q))] * 1000 for q in (0.5, 0.9, 0.99, 1.0)]
    p50, p90, p99, most = at
    return (
        f"{name:12} p50 {p50:9.3f} ms   p90 {p90:9.3f} ms   p99 {p99:9.3f} ms   max {most:9.3f} ms   n {len(seconds)}"
    )


if __name__ == "__main__":
    main()
