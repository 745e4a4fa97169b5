"""Look-ahead at the beginning of a schema's pattern: `^(?!a)(?=b)c` is what `^c` and `^b` find, less what `^a` does.

Anywhere else a look-ahead is refused where the pattern is read. The split is by text and sure of itself: it needs
the leading `^`, and a rest without alternatives of its own, so that the `^` and the look-aheads hold for all of it.
"""

from __future__ import annotations

from typing import NamedTuple


class Lookahead(NamedTuple):
    """What has to match at the beginning, or must not."""

    pattern: str
    is_negative: bool


def split_lookaheads(pattern: str) -> tuple[list[Lookahead], str]:
    """The look-aheads after a leading `^`, and the pattern without them."""
    found: list[Lookahead] = []
    rest = pattern.removeprefix("^")
    while rest.startswith(("(?!", "(?=")):
        end = _closing(rest)
        if end is None:
            return [], pattern
        found.append(Lookahead(f"^(?:{rest[3:end]})", rest[2] == "!"))
        rest = rest[end + 1 :]
    is_repeated = rest[:1] in ("*", "+", "?", "{")
    if not found or not pattern.startswith("^") or is_repeated or _has_alternatives(rest):
        return [], pattern
    return found, f"^{rest}"


def _closing(text: str) -> int | None:
    """Where the bracket closes that opens the text."""
    depth = 0
    for at, char in _outside_classes(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at
    return None


def _has_alternatives(text: str) -> bool:
    depth = 0
    for _, char in _outside_classes(text):
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            return True
    return False


def _outside_classes(text: str) -> list[tuple[int, str]]:
    """The characters that are neither escaped nor in a class, with their places."""
    found = []
    is_inside = is_escaped = False
    for at, char in enumerate(text):
        if is_escaped:
            is_escaped = False
        elif char == "\\":
            is_escaped = True
        elif is_inside:
            is_inside = char != "]"
        elif char == "[":
            is_inside = True
        else:
            found.append((at, char))
    return found
