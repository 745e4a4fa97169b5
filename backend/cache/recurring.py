"""Prefixes that requests come back to, learned from the traffic.

Every request notes the borders of the cached prefix that it found: where texts parted before (the end of a system
prompt, of its tools, of a document). A border that many pass has a high score; scores halve every so many requests, so
that what went out of use is forgotten. Time is counted in requests: the same traffic learns the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

_MOST_PREFIXES = 256
_MOST_TOKENS = 1 << 19  # of all of them together
_HALF_LIFE = 512.0  # requests
_LEAST_SCORE = 1.5  # of a prefix that is worth bringing up: it came back at least twice of late
_MOST_STORED = 64
_VERSION = 1


class Prefix(NamedTuple):
    """The first tokens of some requests, in whole pages."""

    namespace: str
    ids: tuple[int, ...]


@dataclass(slots=True)
class _Entry:
    prefix: Prefix
    score: float
    noted: int  # when, in requests


class Recurring:
    """A bounded, ageing count of prefixes. The engine's thread owns it."""

    def __init__(self, *, most_prefixes: int = _MOST_PREFIXES, half_life: float = _HALF_LIFE) -> None:
        self._entries: dict[bytes, _Entry] = {}  # by the address of the last page
        self._most_prefixes = most_prefixes
        self._half_life = half_life
        self._clock = 0
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, namespace: str, ids: list[int], borders: Iterable[tuple[int, bytes]]) -> None:
        """A request passed these borders: (tokens up to it, address of the page that ends there)."""
        self._clock += 1
        for num_tokens, address in borders:
            self._add(address, namespace, ids, num_tokens, 1.0)

    def best(self, count: int) -> list[Prefix]:
        """The prefixes worth bringing up, at most so many, the likeliest first."""
        ranked = sorted(self._entries.values(), key=lambda entry: (-self._score(entry), entry.prefix))
        return [entry.prefix for entry in ranked[:count] if self._score(entry) >= _LEAST_SCORE]

    def to_json(self) -> str:
        """The best, for the next process."""
        kept = sorted(self._entries.values(), key=lambda entry: (-self._score(entry), entry.prefix))[:_MOST_STORED]
        rows = [[entry.prefix.namespace, round(self._score(entry), 4), entry.prefix.ids] for entry in kept]
        return json.dumps({"version": _VERSION, "prefixes": rows}, separators=(",", ":"))

    def _add(self, address: bytes, namespace: str, ids: list[int], num_tokens: int, score: float) -> None:
        entry = self._entries.get(address)
        if entry is None:
            self._make_room(num_tokens)
            prefix = Prefix(namespace, tuple(ids[:num_tokens]))
            self._entries[address] = _Entry(prefix, score, self._clock)
            self._num_tokens += num_tokens
        else:
            entry.score, entry.noted = self._score(entry) + score, self._clock

    def add_stored(self, address: bytes, prefix: Prefix, score: float) -> None:
        """One that an earlier process learned; what is known already is left as it is."""
        if address not in self._entries:
            self._add(address, prefix.namespace, list(prefix.ids), len(prefix.ids), score)

    def _score(self, entry: _Entry) -> float:
        return float(entry.score * 0.5 ** ((self._clock - entry.noted) / self._half_life))

    def _make_room(self, num_tokens: int) -> None:
        while self._entries and (
            len(self._entries) >= self._most_prefixes or self._num_tokens + num_tokens > _MOST_TOKENS
        ):
            least = min(self._entries, key=lambda address: (self._score(self._entries[address]), address))
            self._num_tokens -= len(self._entries.pop(least).prefix.ids)


def read_stored(text: str) -> list[tuple[Prefix, float]]:
    """What `to_json` wrote. Raises ValueError: it is something else; the message says what."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("version") != _VERSION or not isinstance(data.get("prefixes"), list):
        raise ValueError(f"it is not of version {_VERSION}")
    return [_read_row(row) for row in data["prefixes"][:_MOST_STORED]]


def _read_row(row: Any) -> tuple[Prefix, float]:
    match row:
        case [str(namespace), int() | float() as score, [*ids]] if ids and all(type(id) is int for id in ids):
            return Prefix(namespace, tuple(ids)), min(max(float(score), 0.0), 1e6)
    raise ValueError(f"{str(row)[:60]!r} is no prefix")
