"""One character of a set, as bytes: a small deterministic automaton for each way of writing it.

Two ways of writing exist. `RAW` is UTF-8. `JSON` is a character inside a JSON string: UTF-8 where that is legal,
or any escape that means it (`\\n`, `\\u000a`, surrogate pairs for what lies above U+FFFF). Overlong forms,
lone surrogates and code points above U+10FFFF have no path, so their bytes are never legal.

A node is a tuple; `arcs_of` lists `(byte mask, next node)`, masks disjoint, `None` where the character ends.
A byte mask is an int: bit b says that byte b is in it. Nodes hold what is left of the set as ranges counted from
the node's own zero, so equal remainders are equal nodes and the full set needs a dozen of them.
"""

from __future__ import annotations

from typing import Literal

from forktree.backend.grammar.codepoints import ANY, CodeSet, contains, intersect, window

Writing = Literal["raw", "json"]
Node = tuple[object, ...]
Arcs = list[tuple[int, "Node | None"]]

_ASCII_MASK = (1 << 128) - 1
_JSON_RAW_MASK = _ASCII_MASK & ~((1 << 32) - 1) & ~(1 << 0x22) & ~(1 << 0x5C)
_SHORT_ESCAPES = {0x22: '"', 0x5C: "\\", 0x2F: "/", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
_BMP = ((0, 0xD800), (0xE000, 0x10000))


def char_node(codes: CodeSet, writing: Writing) -> Node:
    """The automaton's start for one character of `codes`, which must not be empty."""
    return ("start", writing, intersect(codes, ANY))


def byte_node(mask: int) -> Node:
    """One byte of `mask`."""
    return ("byte", mask)


def text_node(data: bytes) -> Node:
    """These bytes; one node however many they are, so that a name costs nothing until it is walked."""
    return ("text", data)


def is_whole(node: Node) -> bool:
    """The node is at the beginning of a character."""
    return node[0] in ("start", "byte")


def arcs_of(node: Node) -> Arcs:
    match node:
        case ("byte", int(mask)):
            return [(mask, None)]
        case ("text", bytes(data)):
            return [(1 << data[0], ("text", data[1:]) if len(data) > 1 else None)]
        case ("start", "raw", codes):
            return _start_arcs(codes, _ASCII_MASK)  # type: ignore[arg-type]
        case ("start", "json", codes):
            escape: Node = ("escape", codes)
            return [*_start_arcs(codes, _JSON_RAW_MASK), (1 << 0x5C, escape)]  # type: ignore[arg-type]
        case ("utf8", int(more), codes):
            return _continuation_arcs(more, codes)  # type: ignore[arg-type]
        case ("escape", codes):
            return _escape_arcs(codes)  # type: ignore[arg-type]
        case ("hex", codes):
            return _first_digit_arcs(codes)  # type: ignore[arg-type]
        case ("digits", int(more), codes):
            return _digit_arcs(more, codes)  # type: ignore[arg-type]
        case ("surrogate", low, high):
            return _surrogate_arcs(low, high)  # type: ignore[arg-type]
        case ("pair", int(step), codes):
            return _pair_arcs(step, codes)  # type: ignore[arg-type]
    raise AssertionError(f"no such node: {node!r}")


def _bits(codes: CodeSet) -> int:
    mask = 0
    for low, high in codes:
        mask |= (1 << high) - (1 << low)
    return mask


def _grouped(pairs: list[tuple[int, Node | None]]) -> Arcs:
    groups: dict[Node | None, int] = {}
    for mask, node in pairs:
        groups[node] = groups.get(node, 0) | mask
    return [(mask, node) for node, mask in groups.items()]


def _start_arcs(codes: CodeSet, ascii_mask: int) -> Arcs:
    pairs: list[tuple[int, Node | None]] = []
    ascii_bits = _bits(window(codes, 0, 0x80)) & ascii_mask
    if ascii_bits:
        pairs.append((ascii_bits, None))
    for first_lead, last_lead, more, low, high in (
        (0xC2, 0xE0, 1, 0x80, 0x800),
        (0xE0, 0xF0, 2, 0x800, 0x10000),
        (0xF0, 0xF5, 3, 0x10000, 0x110000),
    ):
        legal = intersect(codes, ((low, high),))
        if not legal:
            continue
        size = 64**more
        for lead in range(first_lead, last_lead):
            base = (lead & (0x3F >> more)) * size
            part = window(legal, base, base + size)
            if part:
                pairs.append((1 << lead, ("utf8", more, part)))
    return _grouped(pairs)


def _continuation_arcs(more: int, codes: CodeSet) -> Arcs:
    if more == 1:
        return [(_bits(codes) << 0x80, None)]
    size = 64 ** (more - 1)
    pairs: list[tuple[int, Node | None]] = []
    for at in range(64):
        part = window(codes, at * size, (at + 1) * size)
        if part:
            pairs.append((1 << (0x80 + at), ("utf8", more - 1, part)))
    return _grouped(pairs)


def _escape_arcs(codes: CodeSet) -> Arcs:
    short = 0
    for code, letter in _SHORT_ESCAPES.items():
        if contains(codes, code):
            short |= 1 << ord(letter)
    arcs: Arcs = [(1 << ord("u"), ("hex", codes))]
    return [(short, None), *arcs] if short else arcs


def _digit_mask(digit: int) -> int:
    lower = f"{digit:x}"
    return 1 << ord(lower) | 1 << ord(lower.upper())


def _first_digit_arcs(codes: CodeSet) -> Arcs:
    plane = intersect(codes, _BMP)
    above = window(codes, 0x10000, 0x110000)
    pairs: list[tuple[int, Node | None]] = []
    for digit in range(16):
        part = window(plane, digit << 12, (digit + 1) << 12)
        if digit == 0xD:
            if part or above:
                pairs.append((_digit_mask(digit), ("surrogate", part, above)))
        elif part:
            pairs.append((_digit_mask(digit), ("digits", 3, part)))
    return _grouped(pairs)


def _digit_arcs(more: int, codes: CodeSet) -> Arcs:
    size = 16 ** (more - 1)
    pairs: list[tuple[int, Node | None]] = []
    for digit in range(16):
        part = window(codes, digit * size, (digit + 1) * size)
        if part:
            pairs.append((_digit_mask(digit), ("digits", more - 1, part) if more > 1 else None))
    return _grouped(pairs)


def _surrogate_arcs(plane: CodeSet, above: CodeSet) -> Arcs:
    """After `\\uD`: 0 to 7 stays in the plane, 8 to B begins a pair, C to F would be half of one."""
    pairs: list[tuple[int, Node | None]] = []
    for digit in range(8):
        part = window(plane, digit << 8, (digit + 1) << 8)
        if part:
            pairs.append((_digit_mask(digit), ("digits", 2, part)))
    for digit in range(8, 12):
        part = window(above, (digit - 8) << 18, (digit - 7) << 18)
        if part:
            pairs.append((_digit_mask(digit), ("pair", 0, part)))
    return _grouped(pairs)


# after `\uD8`: two digits, then a low surrogate whose first digit after D is C to F
_PAIR_STEPS: tuple[str | int, ...] = (14, 10, "\\", "u", "dD", 8, 4, 0)


def _pair_arcs(step: int, codes: CodeSet) -> Arcs:
    what = _PAIR_STEPS[step]
    following: Node | None = ("pair", step + 1, codes)
    if isinstance(what, str):
        mask = 0
        for char in what:
            mask |= 1 << ord(char)
        return [(mask, following)]
    first_digit, radix = (0xC, 4) if what == 8 else (0, 16)
    pairs: list[tuple[int, Node | None]] = []
    for at in range(radix):
        part = window(codes, at << what, (at + 1) << what)
        if part:
            last = step + 1 == len(_PAIR_STEPS)
            pairs.append((_digit_mask(first_digit + at), None if last else ("pair", step + 1, part)))
    return _grouped(pairs)
