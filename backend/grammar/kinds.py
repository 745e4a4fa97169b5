"""What a term can be.

kind    args                       language
────────────────────────────────────────────────────────────────────────────
EMPTY                              nothing
EPSILON                            the empty text
ATOM    (node)                     one character (`characters`), or what is left of one
CAT     (head, tail)               head, then tail; right-nested, so the tail is the stack
ALT     (terms)                    any of them: configurations that run in parallel
AND     (terms)                    all of them
NOT     (term)                     all byte strings but its; only ever under an AND that bounds it
REPEAT  (body, low, high | None)   low to high times: one term whatever the counts are
MACHINE (machine, state)           a deterministic automaton of its own making, all of whose states are live
CAPTURE (classes, text, context)   a JSON key and its closing quote, remembered in what follows: `classes` are
                                   (rest of the key's language, tag); then Ref("key", context, tag, text)
ITEM    (term, text, context, tag) an item of an array and the comma after it, remembered likewise: then
                                   Ref("item", context, tag, text)
REF     (key, scope)               what the scope's `resolve(key)` says, asked for when first needed; never nullable
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol

KEYS = 1
ITEMS = 2


class Kind(IntEnum):
    EMPTY = 0
    EPSILON = 1
    ATOM = 2
    CAT = 3
    ALT = 4
    AND = 5
    NOT = 6
    REPEAT = 7
    REF = 8
    MACHINE = 9
    CAPTURE = 10
    ITEM = 11


class Machine(Protocol):
    """A deterministic automaton that no term describes well (remainders, suffixes …), finite or not.

    It may have `flavour(state)`: as a term's, for the language of the state; without it that is None.
    """

    def arcs(self, state: Any) -> Sequence[tuple[int, Any]]:
        """(byte mask, next state) with disjoint masks, only to states from which an end is in reach."""
        ...

    def is_final(self, state: Any) -> bool: ...


class Term:
    """One interned term; compare by identity.

    Attributes:
        nullable: the empty text is in the language.
        is_plain: no AND or NOT inside, so the language is never empty unless the kind says so.
        flavour: "raw" or "json" when the language is made of whole characters of that writing; "" is neutral;
            None is anything else.
        captures: what a walk from here may read that has to be remembered: `KEYS`, `ITEMS`, both or 0.
        arcs, is_live: memo of the automaton that owns the term.
    """

    __slots__ = ("arcs", "args", "captures", "flavour", "is_live", "is_plain", "kind", "nullable", "serial")

    def __init__(
        self, serial: int, kind: Kind, args: tuple[Any, ...], nullable: bool, is_plain: bool, flavour: str | None
    ) -> None:
        self.serial = serial
        self.kind = kind
        self.args = args
        self.nullable = nullable
        self.is_plain = is_plain
        self.flavour = flavour
        self.captures = 0
        self.arcs: tuple[tuple[int, Term], ...] | None = None
        self.is_live: bool | None = None

    def __repr__(self) -> str:
        return f"<{self.kind.name} {self.serial}>"
