"""Stops in a growing text: where it ends, and how much of it must be held back until that is known.

Among all matches the one that *ends first* wins, and of those the one that *starts first*: the text is cut at
the first moment at which a reader, going character by character, could know that it is over. Only text that
may still become part of a match is held back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from forktree.lang.errors import ConstraintError


class Match(NamedTuple):
    """A stop that was found: `text[start:end]`, as offsets into the whole text, and what stands there."""

    end: int
    start: int
    text: str


class Finder(Protocol):
    """Looks for one kind of stop in a text that is given to it piece by piece."""

    def find(self, piece: str, *, after: int) -> Match | None:
        """Take the next piece; the first match that ends behind offset `after`, or None."""
        ...

    @property
    def held_from(self) -> int:
        """Offset from which on the text so far may still become part of a match."""
        ...


class StringFinder:
    """Looks for any of some strings. Holds back the longest end of the text that begins one of them."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops))
        self._recent = ""  # the last characters, enough for any match that is still to end
        self._end = 0
        self.held_from = 0

    def find(self, piece: str, *, after: int) -> Match | None:
        base = self._end - len(self._recent)
        window = self._recent + piece
        old_end, self._end = self._end, self._end + len(piece)
        matches = [m for stop in self._stops if (m := _first_match(window, stop, base, max(after, old_end)))]
        self._recent = window[-(self._longest - 1) :] if self._longest > 1 else ""
        self.held_from = self._end - self._num_held()
        return min(matches, default=None)

    def _num_held(self) -> int:
        for length in range(len(self._recent), 0, -1):
            tail = self._recent[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


def _first_match(window: str, stop: str, base: int, after: int) -> Match | None:
    """The first occurrence of `stop` that ends behind offset `after`; `window` begins at offset `base`."""
    at = window.find(stop, max(0, after + 1 - len(stop) - base))
    return None if at < 0 else Match(base + at + len(stop), base + at, stop)


class ByteAutomaton(Protocol):
    """A deterministic automaton over bytes, its states made when first visited. Dead states are None."""

    @property
    def start(self) -> Hashable: ...

    def step(self, state: Hashable, byte: int) -> Hashable | None:
        """The state after one more byte, or None if no match can be completed any more."""
        ...

    def accepts(self, state: Hashable) -> bool: ...


class PatternFinder:
    """Looks for the first match of a pattern.

    A match may begin at every character, so the automaton runs from each at once; of runs in the same state
    only the earliest counts. What is held back begins with the earliest run that is still alive, so `\\d+\\.`
    holds a row of digits, and `.*!` all text from the start of a line.
    """

    def __init__(self, automaton: ByteAutomaton) -> None:
        self._automaton = automaton
        self._runs: dict[Hashable, int] = {}  # state → the earliest offset that reached it
        self._text = ""  # from `_base` on: what a match may still begin in
        self._base = 0
        self._end = 0

    @property
    def held_from(self) -> int:
        return min(self._runs.values(), default=self._end)

    def find(self, piece: str, *, after: int) -> Match | None:
        self._text += piece
        for char in piece:
            self._take(char)
            start = self._accepted_start() if self._end > after else None
            if start is not None:
                return Match(self._end, start, self._text[start - self._base : self._end - self._base])
        self._text = self._text[self.held_from - self._base :]
        self._base = self.held_from
        return None

    def _take(self, char: str) -> None:
        runs = dict(self._runs)
        runs.setdefault(self._automaton.start, self._end)
        for byte in char.encode("utf-8", "surrogatepass"):
            runs = self._step(runs, byte)
        self._runs = runs
        self._end += 1

    def _step(self, runs: dict[Hashable, int], byte: int) -> dict[Hashable, int]:
        after: dict[Hashable, int] = {}
        for state, start in runs.items():
            next_state = self._automaton.step(state, byte)
            if next_state is not None:
                after[next_state] = min(start, after.get(next_state, start))
        return after

    def _accepted_start(self) -> int | None:
        return min((start for state, start in self._runs.items() if self._automaton.accepts(state)), default=None)


class RegexAutomaton:
    """A pattern in Python's `re` syntax as a `ByteAutomaton`; equal patterns share their states.

    Raises ConstraintError: the pattern is not legal, or it matches the empty text and so would end any output.
    """

    def __init__(self, pattern: str) -> None:
        from forktree.backend.grammar.constraints import Regex

        self._automaton: Any = Regex(pattern).automaton
        if self.accepts(self.start):
            raise ConstraintError(
                f"the stop_regex {pattern!r} matches the empty text, so every output would end before it begins; "
                "write a pattern that needs at least one character"
            )

    @property
    def start(self) -> Hashable:
        state: Hashable = self._automaton.start
        return state

    def step(self, state: Hashable, byte: int) -> Hashable | None:
        after: Hashable | None = self._automaton.step(state, byte)
        return after

    def accepts(self, state: Any) -> bool:
        return bool(state.nullable)
