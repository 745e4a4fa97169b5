"""Literal pieces of a document, by its suffix array (Manber and Myers 1993), walked as an automaton.

A place is the set of suffixes that begin with what was read: an interval of the array and a depth in it. Where one
suffix is left, only its position counts, so pieces that were begun differently soon share their states. The array is
four bytes a character and sorted in milliseconds; nothing else is built before it is walked. On top of a place a
state keeps the bytes of a character that is not yet whole. Without bounds on the length every state can end.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from forktree.backend.grammar.characters import Writing
from forktree.backend.grammar.codepoints import CodeSet, contains
from forktree.backend.grammar.terms import Kind, Term, Terms
from forktree.lang.constraints import Unit
from forktree.lang.errors import ConstraintError

MAX_DOCUMENT = 2_000_000


class Place(NamedTuple):
    """Suffixes [low, high) of the array, `depth` characters into each; with `high` -1 the one position `low`."""

    low: int
    high: int
    depth: int


class PieceState(NamedTuple):
    """A place, the bytes of a character that is not whole, and how many characters are still to come at least and at
    most (None: no bound)."""

    place: Place
    partial: bytes = b""
    least: int = 0
    most: int | None = None


@dataclass(slots=True, eq=False)
class SuffixIndex:
    """All pieces of one text, the empty one among them, character by character.

    Args:
        unit: "character" takes every piece, "word" those that begin and end with whole words, which are what blanks
            separate.
    Raises:
        ConstraintError: the text is longer than `MAX_DOCUMENT` characters, or holds a lone surrogate.
    Attributes:
        suffixes: where each suffix that may begin a piece begins, in order of the suffixes.
        ends: [len(text) + 1] the first position from each on at which a piece may end; beyond the text where none is.
    """

    text: str
    unit: Unit = "character"
    suffixes: array[int] = field(init=False)
    ends: array[int] = field(init=False)
    _branches: dict[Place, list[tuple[str, Place]]] = field(init=False, default_factory=dict)
    _live: dict[tuple[Place, int, int | None], bool] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.text) > MAX_DOCUMENT:
            raise ConstraintError(f"the document has {len(self.text)} characters, the limit is {MAX_DOCUMENT}")
        if any("\ud800" <= char <= "\udfff" for char in self.text):
            raise ConstraintError("the document holds a lone surrogate, which no text can have")
        self.suffixes = _suffix_array(self.text)
        self.ends = array("i", range(len(self.text) + 1))
        if self.unit == "word":
            begins, self.ends = _word_borders(self.text)
            self.suffixes = array("i", (at for at in self.suffixes if at in begins))

    @property
    def start(self) -> Place:
        return Place(0, len(self.suffixes), 0)

    def branches(self, place: Place) -> list[tuple[str, Place]]:
        """The characters that may follow, and where each leads."""
        if place.high < 0:
            at = place.low
            return [(self.text[at], Place(at + 1, -1, 0))] if at < len(self.text) else []
        found = self._branches.get(place)
        if found is None:
            found = self._branches[place] = list(self._groups(place))
        return found

    def can_end(self, place: Place, least: int, most: int | None) -> bool:
        """Whether a piece that has come here may end after `least` to `most` more characters; None is no bound."""
        if place.high < 0:
            return self._can_end_from(place.low, least, most)
        key = (place, least, most)
        found = self._live.get(key)
        if found is None:
            low, high, depth = place
            found = not (depth or least)  # the empty piece
            found = found or any(self._can_end_from(at + depth, least, most) for at in self.suffixes[low:high])
            self._live[key] = found
        return found

    def _can_end_from(self, at: int, least: int, most: int | None) -> bool:
        if at + least > len(self.text):
            return False
        end = self.ends[at + least]
        return end <= len(self.text) if most is None else end <= min(at + most, len(self.text))

    def _groups(self, place: Place) -> Iterator[tuple[str, Place]]:
        """Suffixes of an interval are sorted, so those that go on with one character stand together."""
        text, suffixes = self.text, self.suffixes
        low, high, depth = place
        if low < high and suffixes[low] + depth == len(text):
            low += 1  # the shortest comes first, and ends here
        while low < high:
            char = text[suffixes[low] + depth]
            end = bisect_right(suffixes, char, low, high, key=lambda at: text[at + depth])
            is_one = end == low + 1
            yield char, Place(suffixes[low] + depth + 1, -1, 0) if is_one else Place(low, end, depth + 1)
            low = end


@dataclass(slots=True, eq=False)
class SuffixMachine:
    """The pieces of a text as bytes.

    Args:
        writing: "raw" is UTF-8; "json" is the body of a JSON string, in every spelling that JSON has.
        is_canonical: only as JSON writers write it: ASCII in its shortest form, anything else as itself or escaped.
        canonical: for "json", the machine that is.
    """

    index: SuffixIndex
    writing: Writing = "raw"
    is_canonical: bool = False
    canonical: SuffixMachine | None = field(default=None, repr=False)
    written: Any = field(default=None, repr=False)  # memo of `piece_walk`; it lives as long as whoever walks this

    def start(self, least: int = 0, most: int | None = None) -> PieceState:
        """The beginning of a piece of `least` to `most` characters; see `is_live`."""
        return PieceState(self.index.start, b"", least, most)

    def is_live(self, state: PieceState) -> bool:
        """Whether some piece goes through this state; every state that an arc leads to is."""
        return self.index.can_end(state.place, state.least, state.most)

    def flavour(self, state: PieceState) -> Writing | None:
        """How the characters that follow are written; None amid one."""
        return None if state.partial else self.writing

    def is_final(self, state: PieceState) -> bool:
        return not state.partial and not state.least and self.index.can_end(state.place, 0, 0)

    def arcs(self, state: PieceState) -> list[tuple[int, PieceState]]:
        place, partial, least, most = state
        if most == 0:
            return []
        rest = None if most is None else most - 1
        depth = len(partial)
        masks: dict[PieceState, int] = {}
        for char, after in self.index.branches(place):
            whole = PieceState(after, b"", max(least - 1, 0), rest)
            if not self.is_live(whole):
                continue
            for spelling in spellings(char, self.writing, self.is_canonical):
                if len(spelling) > depth and spelling.startswith(partial):
                    is_whole = len(spelling) == depth + 1
                    target = whole if is_whole else PieceState(place, spelling[: depth + 1], least, most)
                    masks[target] = masks.get(target, 0) | _byte_mask(spelling, depth)
        return [(mask, target) for target, mask in masks.items()]


@lru_cache(maxsize=16)
def raw_pieces(text: str, unit: Unit = "character") -> SuffixMachine:
    """The pieces of a text as they are. Raises ConstraintError as `SuffixIndex`."""
    return SuffixMachine(SuffixIndex(text, unit))


def spelled_stretches(text: str, codes: CodeSet) -> list[str]:
    """The stretches of a text between the words that hold a character outside `codes`."""
    stretches: list[tuple[int, int]] = []
    is_open = False
    for word in re.finditer(r"\S+", text):
        if not all(contains(codes, ord(char)) for char in set(word.group())):
            is_open = False
        elif is_open and all(contains(codes, ord(char)) for char in set(text[stretches[-1][1] : word.start()])):
            stretches[-1] = (stretches[-1][0], word.end())
        else:
            stretches.append(word.span())
            is_open = True
    return [text[start:end] for start, end in stretches]


@lru_cache(maxsize=16)
def json_pieces(text: str, unit: Unit = "character") -> SuffixMachine:
    """The pieces of a text as bodies of JSON strings, closed under respelling; `canonical` is as they are written."""
    index = SuffixIndex(text, unit)
    return SuffixMachine(index, "json", canonical=SuffixMachine(index, "json", is_canonical=True))


def written_pieces(terms: Terms, term: Term) -> Term:
    """A language of JSON bodies with the pieces in it as JSON writers write them, for the same texts."""
    match term.kind:
        case Kind.MACHINE:
            machine, state = term.args
            is_pieces = isinstance(machine, SuffixMachine) and machine.canonical is not None
            return terms.machine(machine.canonical, state) if is_pieces else term
        case Kind.AND:
            return terms.both([written_pieces(terms, one) for one in term.args])
        case Kind.ALT:
            return terms.alt([written_pieces(terms, one) for one in term.args])
    return term


_ESCAPES = {
    '"': b'\\"',
    "\\": b"\\\\",
    "/": b"\\/",
    "\b": b"\\b",
    "\f": b"\\f",
    "\n": b"\\n",
    "\r": b"\\r",
    "\t": b"\\t",
}


@lru_cache(maxsize=4096)
def spellings(char: str, writing: Writing, is_canonical: bool) -> tuple[bytes, ...]:
    """How a character may be written, the likeliest first; hexadecimal digits in lower case."""
    data = char.encode()
    is_plain = char >= " " and char not in '"\\'
    if writing == "raw" or (is_canonical and is_plain and char < "\x80"):
        return (data,)
    units = char.encode("utf-16-be")
    escape = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)).encode()
    found = [*([data] if is_plain else ()), *([_ESCAPES[char]] if char in _ESCAPES else ()), escape]
    return tuple(found[:1] if is_canonical and char < "\x80" else found)


def _byte_mask(spelling: bytes, at: int) -> int:
    """The byte at a place of a spelling; a hexadecimal digit in either case."""
    byte = spelling[at]
    is_digit = at >= 2 and spelling[:2] == b"\\u" and at % 6 >= 2
    return 1 << byte | (1 << ord(chr(byte).upper()) if is_digit else 0)


def _word_borders(text: str) -> tuple[set[int], array[int]]:
    """Where words begin, and for every position the first from there on at which one ends."""
    size = len(text)
    blank = [True, *map(str.isspace, text), True]  # blank[i] is the character before position i
    begins = {at for at in range(size) if blank[at] and not blank[at + 1]}
    ends = array("i", bytes(4 * (size + 1)))
    end = size + 1
    for at in range(size, -1, -1):
        if blank[at + 1] and not blank[at]:
            end = at
        ends[at] = end
    return begins, ends


def _suffix_array(text: str) -> array[int]:
    """Where each suffix begins, in order of the suffixes: prefix doubling, a sort a round."""
    import numpy as np

    size = len(text)
    ranks = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).astype(np.int64) + 1
    reach = 1
    order = np.argsort(ranks, kind="stable")
    while size:
        ordered = ranks[order]
        numbers = np.cumsum(np.concatenate([[1], ordered[1:] != ordered[:-1]]))
        if numbers[-1] == size:
            break
        firsts = np.empty(size, dtype=np.int64)
        firsts[order] = numbers
        seconds = np.zeros(size, dtype=np.int64)
        seconds[: size - reach] = firsts[reach:]
        ranks = firsts * (size + 1) + seconds
        order = np.argsort(ranks, kind="stable")
        reach *= 2
    return array("i", order.astype(np.int32).tobytes())
