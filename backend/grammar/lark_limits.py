"""How long a grammar's terminals are once they are written out, asked before lark writes them out.

lark puts the tree of a terminal in the place of its name and walks every copy: `A1: A A`, `A2: A1 A1`, … would take
it for ever after thirty lines. So the text is scanned first, as tokens only.
"""

from __future__ import annotations

import re

from forktree.lang.errors import ConstraintError

MAX_WRITTEN = 20_000
_TOKEN = re.compile(
    r'"(?:\\"|\\\\|[^"\n])*"'
    r"|/(?!/)(?:\\/|\\\\|[^/\n])*/"
    r"|(?://|#)[^\n]*"
    r"|^[ \t]*(?:%\w+[ \t]+)?(?P<terminal>_?[A-Z][_A-Z0-9]*)(?:\.-?\d+)?[ \t]*:"
    r"|^[ \t]*(?:%\w+[ \t]+)?[!?]*(?P<rule>_?[a-z]\w*)[^:\n\"/]*:"
    r"|^[ \t]*(?P<statement>%\w+)"
    r"|(?P<use>_?[A-Z][_A-Z0-9]*)",
    re.MULTILINE,
)


def check_terminals(text: str) -> None:
    """
    Raises:
        ConstraintError: a terminal is more than `MAX_WRITTEN` literals and names long, or contains itself.
    """
    parts = _parts(text)
    sizes: dict[str, int] = {}
    for name in parts:
        _measure(name, parts, sizes)


def _parts(text: str) -> dict[str, list[str]]:
    """The names and literals ("") in the definition of each terminal."""
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    for token in _TOKEN.finditer(text):
        if token["terminal"]:
            current = parts.setdefault(token["terminal"], [])
        elif token["rule"] or token["statement"]:
            current = []
        else:
            current.append(token["use"] or "")
    return parts


def _measure(start: str, parts: dict[str, list[str]], sizes: dict[str, int]) -> None:
    """Depth first without recursion; `open_names` is the path."""
    path, open_names = [start], {start}
    while path:
        name = path[-1]
        missing = next((one for one in parts[name] if one in parts and one not in sizes), None)
        if name in sizes or missing is None:
            sizes[name] = sum(sizes.get(one, 1) for one in parts[name])
            if sizes[name] > MAX_WRITTEN:
                raise ConstraintError(
                    f"written out, it has more than {MAX_WRITTEN} parts: use rules instead of terminals",
                    pointer=f"terminal {name}",
                )
            open_names.discard(path.pop())
        elif missing in open_names:
            raise ConstraintError("a terminal cannot contain itself: make it a rule", pointer=f"terminal {missing}")
        else:
            path.append(missing)
            open_names.add(missing)
