"""Several patterns looked for in a text at once (Aho and Corasick 1975).

A symbol is a character, or a special token's spelling between two marks, so a pattern may hold both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

Symbols = tuple[str, ...]


class Triggers:
    """A node is how much of the patterns the text ends with; node 0 is nothing."""

    def __init__(self, patterns: Sequence[Symbols]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._found: list[frozenset[int]] = [frozenset()]
        for number, pattern in enumerate(patterns):
            node = 0
            for symbol in pattern:
                node = self._child(node, symbol)
            self._found[node] |= {number}
        self._fallbacks = [0] * len(self._next)
        self._link()

    def _child(self, node: int, symbol: str) -> int:
        children = self._next[node]
        if symbol not in children:
            children[symbol] = len(self._next)
            self._next.append({})
            self._found.append(frozenset())
        return children[symbol]

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for symbol, child in self._next[node].items():
                self._fallbacks[child] = self.after(self._fallbacks[node], symbol)
                self._found[child] |= self._found[self._fallbacks[child]]
                queue.append(child)

    def found(self, node: int) -> frozenset[int]:
        """The patterns that end here."""
        return self._found[node]

    def symbols(self, node: int) -> Iterable[str]:
        """The symbols that lead on from here; any other character leads to 0."""
        seen: dict[str, None] = dict.fromkeys(self._next[0])
        while node:
            seen.update(dict.fromkeys(self._next[node]))
            node = self._fallbacks[node]
        return seen

    def after(self, node: int, symbol: str) -> int:
        """The node after one more symbol."""
        while node and symbol not in self._next[node]:
            node = self._fallbacks[node]
        return self._next[node].get(symbol, 0)
