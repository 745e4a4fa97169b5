"""Sets of Unicode code points as sorted, disjoint, half-open ranges.

A `CodeSet` is a tuple of `(low, high)` pairs. Surrogates are never members of a set that reaches an automaton:
a text has none, so `normalised` drops them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache

CodeSet = tuple[tuple[int, int], ...]

MAX_CODE = 0x110000
NOTHING: CodeSet = ()
ANY: CodeSet = ((0, 0xD800), (0xE000, MAX_CODE))
ASCII_DIGITS: CodeSet = ((0x30, 0x3A),)
ASCII_WORD: CodeSet = ((0x30, 0x3A), (0x41, 0x5B), (0x5F, 0x60), (0x61, 0x7B))
ASCII_SPACE: CodeSet = ((0x09, 0x0E), (0x20, 0x21))
# ECMA-262 WhiteSpace and LineTerminator
ECMA_SPACE: CodeSet = (
    (0x09, 0x0E),
    (0x20, 0x21),
    (0xA0, 0xA1),
    (0x1680, 0x1681),
    (0x2000, 0x200B),
    (0x2028, 0x202A),
    (0x202F, 0x2030),
    (0x205F, 0x2060),
    (0x3000, 0x3001),
    (0xFEFF, 0xFF00),
)


def normalised(ranges: Iterable[tuple[int, int]]) -> CodeSet:
    """Sorted and merged, without surrogates."""
    merged: list[list[int]] = []
    for low, high in sorted(ranges):
        if high <= low:
            continue
        if merged and low <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    whole = tuple((low, high) for low, high in merged)
    return intersect(whole, ANY)


def intersect(left: CodeSet, right: CodeSet) -> CodeSet:
    out = []
    i = j = 0
    while i < len(left) and j < len(right):
        low = max(left[i][0], right[j][0])
        high = min(left[i][1], right[j][1])
        if low < high:
            out.append((low, high))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def union(*sets: CodeSet) -> CodeSet:
    return normalised(pair for codes in sets for pair in codes)


def complement(codes: CodeSet) -> CodeSet:
    """Every code point that is no surrogate and no member."""
    out = []
    start = 0
    for low, high in codes:
        out.append((start, low))
        start = high
    out.append((start, MAX_CODE))
    return intersect(tuple(pair for pair in out if pair[0] < pair[1]), ANY)


def difference(left: CodeSet, right: CodeSet) -> CodeSet:
    return intersect(left, complement(right))


def contains(codes: CodeSet, code: int) -> bool:
    at = bisect_right(codes, (code, MAX_CODE)) - 1
    return at >= 0 and codes[at][0] <= code < codes[at][1]


def window(codes: CodeSet, low: int, high: int) -> CodeSet:
    """The members in [low, high), counted from `low`."""
    if not codes or codes[0][0] >= high or codes[-1][1] <= low:
        return ()
    start = max(0, bisect_right(codes, (low, MAX_CODE)) - 1)
    out = []
    for first, last in codes[start:]:
        if first >= high:
            break
        if last > low:
            out.append((max(first, low) - low, min(last, high) - low))
    return tuple(out)


@lru_cache(maxsize=16)
def unicode_class(letter: str) -> CodeSet:
    """What Python's `re` means by \\d, \\w or \\s on text; asked of `re` itself, once."""
    everything = "".join(map(chr, range(MAX_CODE)))
    pattern = re.compile(rf"\{letter}+")
    return normalised(match.span() for match in pattern.finditer(everything))


@lru_cache(maxsize=1)
def _case_variants() -> dict[int, tuple[int, ...]]:
    """For every code point that case folding moves: all that `re.IGNORECASE` takes for the same character."""
    groups: dict[int, set[int]] = {}
    for code in range(0x1F000):  # no cased letter lies above
        char = chr(code)
        forms = {code, *(ord(form) for form in (char.lower(), char.upper(), char.casefold()) if len(form) == 1)}
        if len(forms) > 1:
            merged = set(forms)
            for form in forms:
                merged |= groups.get(form, set())
            for form in merged:
                groups[form] = merged
    return {code: tuple(sorted(group)) for code, group in groups.items()}


def ignoring_case(codes: CodeSet, *, ascii_only: bool = False) -> CodeSet:
    """Every code point that equals a member when case is ignored, as Python's `re` does it."""
    if ascii_only:
        lower = window(codes, 0x61, 0x7B)
        upper = window(codes, 0x41, 0x5B)
        return union(codes, _shifted(lower, 0x41), _shifted(upper, 0x61))
    extra = []
    for code, group in _case_variants().items():
        if contains(codes, code):
            extra += [(form, form + 1) for form in group]
    return normalised([*codes, *extra])


def _shifted(codes: CodeSet, by: int) -> CodeSet:
    return tuple((low + by, high + by) for low, high in codes)
