"""The order in which a map starts its rows: those that begin alike one after another, so that the cache still
holds what they share.

It is a depth-first walk over the tree of the batch. A traced program tells how each prompt begins; of a Python body,
which is not run to find out, only the arguments are known: rows with equal values stand together, those of the value
that repeats the most text first. Rows that share nothing keep their places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

Path = tuple[Hashable, ...]


def depth_first(paths: Sequence[Path]) -> list[int]:
    """Indices in the order of a depth-first walk over the tree of the paths; children as they first appear."""
    tree: dict[Hashable, Any] = {}
    ends: dict[int, list[int]] = {}
    for index, path in enumerate(paths):
        node = tree
        for step in path:
            node = node.setdefault(step, {})
        ends.setdefault(id(node), []).append(index)
    order: list[int] = []
    todo = [tree]
    while todo:
        node = todo.pop()
        order += ends.get(id(node), ())
        todo += reversed(node.values())
    return order


def paths_by_values(rows: Sequence[Mapping[str, Any] | tuple[Any, ...]]) -> list[Path]:
    """Of each row the values that others have too, the one that repeats the most text first."""
    named = [_named(row) for row in rows]
    counts = Counter((name, key) for row in named for name, value in row.items() if (key := _key(value)) is not None)
    repeated: Counter[Hashable] = Counter()
    for (name, key), count in counts.items():
        repeated[name] += (count - 1) * len(str(key))
    names = [name for name, weight in repeated.most_common() if weight]
    return [tuple((name, _key(row[name])) for name in names if name in row) for row in named]


def _named(row: Mapping[str, Any] | tuple[Any, ...]) -> dict[Hashable, Any]:
    if isinstance(row, Mapping):
        return dict(row.items())
    return dict(enumerate(row)) if isinstance(row, tuple) else {}  # what is no row is refused when it starts


def _key(value: object) -> Hashable:
    """What tells equal values; None for those that are not plain."""
    return value if isinstance(value, str | bytes | int | float) else None
