"""What a schema allows, sorted by JSON type: unions of shapes, closed under intersection and complement.

A `Meaning` holds alternatives for each type. The children of arrays and objects are *goals*: conjunctions of
schemas that are looked at only when they are needed, so recursion ends of itself.

    goal      frozenset of atoms, all of which hold; the empty one is anything
    atom      ("schema", pointer, scope) · ("const", JSON text) · ("not", goal) · ("or", goals) · ("never",)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from forktree.backend.grammar.number_sets import Numbers
from forktree.backend.grammar.terms import Term
from forktree.lang.errors import ConstraintError

Atom = tuple[Any, ...]
Goal = frozenset[Atom]

ANYTHING: Goal = frozenset()
NEVER: Goal = frozenset([("never",)])
MAX_ALTERNATIVES = 3_000


class SizeError(ConstraintError):
    """What a schema combines into is too large here; in a narrower context it may not be."""


def goal_of(*atoms: Atom) -> Goal:
    return frozenset(atoms)


def joined_goals(*goals: Goal) -> Goal:
    """All of them."""
    whole: Goal = frozenset().union(*goals)
    return NEVER if ("never",) in whole else whole


def negated(goal: Goal) -> Goal:
    """The complement of a goal."""
    if goal == ANYTHING:
        return NEVER
    if goal == NEVER:
        return ANYTHING
    if len(goal) == 1:
        (atom,) = goal
        if atom[0] == "not":
            return atom[1]  # type: ignore[no-any-return]
    return goal_of(("not", goal))


@dataclass(frozen=True, slots=True)
class Strings:
    """Texts: a language of JSON bodies less the texts `excluded`, or `only` the texts that an enumeration leaves."""

    base: Term
    only: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Contains:
    """From item `start` on, between `low` and `high` items meet the goal."""

    goal: Goal
    low: int
    high: int | None
    start: int = 0


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays by place: `prefix` for the first items, `rest` for the others. `unique`: None asks nothing."""

    prefix: tuple[Goal, ...] = ()
    rest: Goal = ANYTHING
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: bool | None = None


@dataclass(frozen=True, slots=True)
class KeyRule:
    """One object schema's view of a key: its own goal, those of the patterns it matches, or the additional one."""

    named: tuple[tuple[str, Goal], ...] = ()
    patterns: tuple[tuple[str, Goal], ...] = ()
    additional: Goal = ANYTHING


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a kind (as strings they meet `names`), and a goal of their values."""

    names: Goal
    without: frozenset[str]
    not_matching: tuple[str, ...]
    matching: tuple[str, ...]
    value: Goal


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects: every rule holds for every key. `names`: goals of all keys as strings.

    `some`: a property exists with such a key and such a value, for each. `every`: all properties with such a key have
    such a value.
    """

    rules: tuple[KeyRule, ...] = ()
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    names: Goal = ANYTHING
    some: tuple[Keys, ...] = ()
    every: tuple[Keys, ...] = ()


@dataclass(frozen=True, slots=True)
class Meaning:
    """Alternatives by type; a type without any is not allowed."""

    strings: tuple[Strings, ...] = ()
    numbers: tuple[Numbers, ...] = ()
    arrays: tuple[Arrays, ...] = ()
    objects: tuple[Objects, ...] = ()
    booleans: frozenset[bool] = frozenset()
    null: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.strings or self.numbers or self.arrays or self.objects or self.booleans or self.null)


NOTHING = Meaning()


def united(meanings: Iterable[Meaning]) -> Meaning:
    """Any of them."""
    found = list(meanings)
    return Meaning(
        _capped(shape for one in found for shape in one.strings),
        _capped(shape for one in found for shape in one.numbers),
        _capped(shape for one in found for shape in one.arrays),
        _capped(shape for one in found for shape in one.objects),
        frozenset().union(*(one.booleans for one in found)),
        any(one.null for one in found),
    )


def _capped(shapes: Iterable[Any]) -> tuple[Any, ...]:
    unique = tuple(dict.fromkeys(shapes))
    if len(unique) > MAX_ALTERNATIVES:
        raise SizeError(f"the schema's combinations give more than {MAX_ALTERNATIVES} alternatives")
    return unique


def pairs(left: tuple[Any, ...], right: tuple[Any, ...]) -> Iterable[tuple[Any, Any]]:
    """All pairs, within the limit."""
    if len(left) * len(right) > 20 * MAX_ALTERNATIVES:
        raise SizeError(f"the schema's combinations give more than {20 * MAX_ALTERNATIVES} pairs")
    return product(left, right)


def both_arrays(left: Arrays, right: Arrays) -> Arrays:
    size = max(len(left.prefix), len(right.prefix))
    prefix = tuple(item_goal(left, at) | item_goal(right, at) for at in range(size))
    unique = left.unique if right.unique is None else right.unique
    if None not in (left.unique, right.unique) and left.unique != right.unique:
        return Arrays(low=1, high=0)
    return Arrays(
        prefix,
        left.rest | right.rest,
        max(left.low, right.low),
        lower_bound(left.high, right.high),
        tuple(dict.fromkeys(left.contains + right.contains)),
        unique,
    )


def item_goal(shape: Arrays, at: int) -> Goal:
    return shape.prefix[at] if at < len(shape.prefix) else shape.rest


def both_objects(left: Objects, right: Objects) -> Objects:
    return Objects(
        tuple(dict.fromkeys(left.rules + right.rules)),
        tuple(dict.fromkeys(left.required + right.required)),
        max(left.low, right.low),
        lower_bound(left.high, right.high),
        left.names | right.names,
        tuple(dict.fromkeys(left.some + right.some)),
        tuple(dict.fromkeys(left.every + right.every)),
    )


def lower_bound(left: int | None, right: int | None) -> int | None:
    bounds = [one for one in (left, right) if one is not None]
    return min(bounds, default=None)


def not_arrays(shape: Arrays) -> list[Arrays]:
    """The arrays that the shape excludes."""
    out = []
    if shape.low > 0:
        out.append(Arrays(high=shape.low - 1))
    if shape.high is not None:
        out.append(Arrays(low=shape.high + 1))
    for at, goal in enumerate(shape.prefix):
        if goal != ANYTHING:
            out.append(Arrays(prefix=(ANYTHING,) * at + (negated(goal),), low=at + 1))
    if shape.rest != ANYTHING:
        out.append(Arrays(contains=(Contains(negated(shape.rest), 1, None, len(shape.prefix)),)))
    for one in shape.contains:
        if one.low > 0:
            out.append(Arrays(contains=(replace(one, low=0, high=one.low - 1),)))
        if one.high is not None:
            out.append(Arrays(contains=(replace(one, low=one.high + 1, high=None),)))
    if shape.unique is not None:
        out.append(Arrays(unique=not shape.unique))
    return out


def not_objects(shape: Objects) -> list[Objects]:
    """The objects that the shape excludes."""
    out = [Objects(rules=(KeyRule(named=((name, NEVER),)),)) for name in shape.required]
    if shape.low > 0:
        out.append(Objects(high=shape.low - 1))
    if shape.high is not None:
        out.append(Objects(low=shape.high + 1))
    for rule in shape.rules:
        out += _broken_rule(rule)
    out += [Objects(every=(replace(one, value=negated(one.value)),)) for one in shape.some]
    out += [Objects(some=(replace(one, value=negated(one.value)),)) for one in shape.every]
    if shape.names != ANYTHING:
        out.append(Objects(some=(Keys(negated(shape.names), frozenset(), (), (), ANYTHING),)))
    return out


def _broken_rule(rule: KeyRule) -> list[Objects]:
    out = []
    for name, goal in rule.named:
        if goal != ANYTHING:
            named = KeyRule(named=((name, negated(goal)),))
            out.append(Objects(rules=(named,), required=(name,)))
    for pattern, goal in rule.patterns:
        if goal != ANYTHING:
            out.append(Objects(some=(Keys(ANYTHING, frozenset(), (), (pattern,), negated(goal)),)))
    if rule.additional != ANYTHING:
        names = frozenset(name for name, _ in rule.named)
        patterns = tuple(pattern for pattern, _ in rule.patterns)
        out.append(Objects(some=(Keys(ANYTHING, names, patterns, (), negated(rule.additional)),)))
    return out
