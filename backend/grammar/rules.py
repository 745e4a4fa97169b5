"""Context-free rules as plain syntax, and which of them produce the empty text, a longer one, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from forktree.backend.grammar.terms import Term


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A terminal.

    Attributes:
        term: its texts, with what may follow a token of it.
        is_solid: one of them is not empty.
    """

    term: Term
    is_solid: bool


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One output of another rule."""

    rule: str


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """`low` to `high` times, None is without end."""

    body: Expression
    low: int
    high: int | None


Expression = Leaf | Use | Sequence | Choice | Repetition
Rules = Mapping[str, Expression]


class Produces(NamedTuple):
    """What a rule or a part of one can produce: the empty text, and a text that is not empty."""

    empty: bool
    solid: bool

    @property
    def anything(self) -> bool:
        return self.empty or self.solid


NOTHING = Produces(False, False)


def used_rules(expression: Expression) -> Iterator[str]:
    """The rules that an expression names, each as often as it does."""
    pending = [expression]
    while pending:
        match pending.pop():
            case Use(rule):
                yield rule
            case Sequence(parts) | Choice(parts):
                pending.extend(parts)
            case Repetition(body):
                pending.append(body)


def productions(rules: Rules) -> dict[str, Produces]:
    """What each rule produces: the least fixed point, by a worklist over the users of each rule."""
    users: dict[str, set[str]] = {name: set() for name in rules}
    for name, expression in rules.items():
        for used in used_rules(expression):
            users[used].add(name)
    known = dict.fromkeys(rules, NOTHING)
    pending: dict[str, None] = dict.fromkeys(reversed(list(rules)))
    while pending:
        name, _ = pending.popitem()
        found = produced(rules[name], known)
        if found != known[name]:
            known[name] = found
            pending.update(dict.fromkeys(users[name]))
    return known


def produced(expression: Expression, known: Mapping[str, Produces]) -> Produces:
    """What an expression produces, given what the rules do."""
    match expression:
        case Leaf(term, is_solid):
            return Produces(term.nullable, is_solid)
        case Use(rule):
            return known[rule]
        case Sequence(parts):
            found = [produced(part, known) for part in parts]
            return Produces(
                all(one.empty for one in found),
                all(one.anything for one in found) and any(one.solid for one in found),
            )
        case Choice(options):
            found = [produced(option, known) for option in options]
            return Produces(any(one.empty for one in found), any(one.solid for one in found))
        case Repetition(body, low, high):
            one = produced(body, known)
            return Produces(low == 0 or one.empty, high != 0 and one.solid)
    assert_never(expression)
