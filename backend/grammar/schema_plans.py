"""How the keys of an object shape fall into named ones and classes, before any text is made.

Every key is one of the names that the shape's rules mention, or belongs to exactly one class: the keys that match
the same patterns. Names that only a demand for some property mentions, and classes of finitely many keys, become
names too, so a class never runs out of keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from forktree.backend.grammar.choices import any_of
from forktree.backend.grammar.schema_meaning import Interpreter
from forktree.backend.grammar.schema_shapes import ANYTHING, NEVER, Goal, Keys, Objects
from forktree.backend.grammar.terms import Term
from forktree.lang.errors import ConstraintError

MAX_CLASSES = 256
MAX_FINITE = 200
_MAX_STATES = 400


class Name(NamedTuple):
    """A key that stands for itself. `discharges`: which of the shape's demands it may meet."""

    text: str
    goal: Goal
    is_required: bool
    discharges: frozenset[int]


class KeyClass(NamedTuple):
    """Endlessly many keys that are treated alike; `language` is of their JSON bodies."""

    language: Term
    goal: Goal
    discharges: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class ObjectPlan:
    """An object shape, its keys sorted out. The first `num_ordered` names are the schema's own, in its order."""

    names: tuple[Name, ...]
    num_ordered: int
    classes: tuple[KeyClass, ...]
    low: int
    high: int | None
    some: tuple[Keys, ...]

    def goals(self) -> list[Goal]:
        """Every goal that a value of such an object may be held to."""
        found = []
        for member in (*self.names, *self.classes):
            found += [self.goal_with(member.goal, chosen) for chosen in subsets(member.discharges)]
        return [goal for goal in found if goal != NEVER]

    def goal_with(self, goal: Goal, chosen: frozenset[int]) -> Goal:
        """The goal of a value that also meets the chosen demands."""
        for at in chosen:
            goal = goal | self.some[at].value
        return NEVER if ("never",) in goal else goal


def subsets(items: frozenset[int]) -> list[frozenset[int]]:
    """All subsets, the empty one first."""
    if len(items) > 4:
        raise ConstraintError("more than 4 demands for some property meet in one key")
    found: list[frozenset[int]] = [frozenset()]
    for item in sorted(items):
        found += [one | {item} for one in found]
    return found


def plan_of(shape: Objects, interpreter: Interpreter) -> ObjectPlan:
    """The plan of an object shape."""
    return _Planner(shape, interpreter).plan()


class _Class(NamedTuple):
    language: Term
    facts: tuple[tuple[Hashable, bool], ...]


class _Planner:
    def __init__(self, shape: Objects, interpreter: Interpreter) -> None:
        self._shape = shape
        self._interpreter = interpreter

    def plan(self) -> ObjectPlan:
        shape = self._shape
        order = [name for rule in shape.rules for name, _ in rule.named]
        order += [*shape.required, *(name for keys in self._kinds() for name in sorted(keys.without))]
        names = self._names(list(dict.fromkeys(order)))
        num_ordered = len(names)
        classes = []
        for key_class in self._classes(dict.fromkeys(order)):
            is_restricted = shape.names != ANYTHING or self._splitters()
            texts = finite_texts(key_class.language, self._interpreter) if is_restricted else None
            if texts is None:
                classes.append(key_class)
            else:
                names += [Name(text, key_class.goal, False, key_class.discharges) for text in texts]
        return ObjectPlan(tuple(names), num_ordered, tuple(classes), shape.low, shape.high, shape.some)

    def _names(self, texts: list[str]) -> list[Name]:
        required, goals = frozenset(self._shape.required), self._interpreter.algebra.key_goals(self._shape, texts)
        self._interpreter.terms.work.spend(len(texts))
        found = []
        for text, goal in zip(texts, goals, strict=True):
            held = goal if self._can_be_written(text) else NEVER
            if held != NEVER or text in required:
                found.append(Name(text, held, text in required, self._met_by(text)))
        return found

    def _can_be_written(self, text: str) -> bool:
        if any("\ud800" <= char <= "\udfff" for char in text):
            return False  # half a surrogate pair
        names = self._shape.names
        return names == ANYTHING or self._interpreter.algebra.is_text_of(names, text)

    def _met_by(self, text: str) -> frozenset[int]:
        """The demands for some property that a key may meet."""
        return frozenset(at for at, keys in enumerate(self._shape.some) if self._interpreter.algebra.is_of(keys, text))

    def _kinds(self) -> tuple[Keys, ...]:
        return self._shape.some + self._shape.every

    def _classes(self, named: dict[str, None]) -> list[KeyClass]:
        """Splits all other keys by every pattern that tells them apart."""
        shape, terms = self._shape, self._interpreter.terms
        if any(rule.additional == NEVER and not rule.patterns for rule in shape.rules):
            return []
        base = [self._interpreter.algebra.any_body]
        if named:
            base.append(terms.without(any_of(terms, named, self._interpreter.algebra.escaped_char)))
        if shape.names != ANYTHING:
            base.append(self._names_language(shape.names))
        classes = [_Class(terms.both(base), ())]
        for key, language in self._splitters().items():
            classes = [part for one in classes for part in self._split(one, key, language)]
            if len(classes) > MAX_CLASSES:
                raise ConstraintError(f"the patterns for keys overlap in more than {MAX_CLASSES} ways")
        return self._joined(classes)

    def _splitters(self) -> dict[Hashable, Callable[[], Term]]:
        patterns = [pattern for rule in self._shape.rules for pattern, _ in rule.patterns]
        patterns += [pattern for keys in self._kinds() for pattern in (*keys.matching, *keys.not_matching)]
        found: dict[Hashable, Callable[[], Term]] = {}
        for pattern in dict.fromkeys(patterns):
            found[pattern] = lambda pattern=pattern: self._interpreter.pattern(pattern)  # type: ignore[misc]
        for goal in dict.fromkeys(keys.names for keys in self._kinds() if keys.names != ANYTHING):
            found[goal] = lambda goal=goal: self._names_language(goal)  # type: ignore[misc]
        return found

    def _names_language(self, goal: Goal) -> Term:
        language = self._interpreter.algebra.language
        return self._interpreter.terms.alt(map(language, self._interpreter.meaning(goal).strings))

    def _split(self, one: _Class, key: Hashable, language: Callable[[], Term]) -> list[_Class]:
        terms, is_live = self._interpreter.terms, self._interpreter.derivatives.is_live
        inside = terms.both([one.language, language()])
        outside = terms.both([one.language, terms.without(language())])
        parts = [_Class(inside, (*one.facts, (key, True))), _Class(outside, (*one.facts, (key, False)))]
        return [part for part in parts if is_live(part.language)]

    def _joined(self, classes: list[_Class]) -> list[KeyClass]:
        """Classes that are treated alike become one."""
        groups: dict[tuple[Goal, frozenset[int]], list[Term]] = {}
        for one in classes:
            facts = dict(one.facts)
            goal = self._goal(facts)
            if goal != NEVER and self._interpreter.derivatives.is_live(one.language):
                groups.setdefault((goal, self._discharges(facts)), []).append(one.language)
        alt = self._interpreter.terms.alt
        return [KeyClass(alt(languages), goal, discharges) for (goal, discharges), languages in groups.items()]

    def _goal(self, facts: dict[Hashable, bool]) -> Goal:
        atoms: Goal = frozenset()
        for rule in self._shape.rules:
            own = [goal for pattern, goal in rule.patterns if facts[pattern]]
            for goal in own or [rule.additional]:
                atoms |= goal
        for keys in self._shape.every:
            if _is_of(keys, facts):
                atoms |= keys.value
        return NEVER if ("never",) in atoms else atoms

    def _discharges(self, facts: dict[Hashable, bool]) -> frozenset[int]:
        return frozenset(at for at, keys in enumerate(self._shape.some) if _is_of(keys, facts))


def _is_of(keys: Keys, facts: dict[Hashable, bool]) -> bool:
    return (
        all(facts[pattern] for pattern in keys.matching)
        and not any(facts[pattern] for pattern in keys.not_matching)
        and (keys.names == ANYTHING or facts[keys.names])
    )


def finite_texts(body: Term, interpreter: Interpreter) -> list[str] | None:
    """All texts of a language of JSON bodies, or None where they are endless or too many to list."""
    if _has_cycle(body, interpreter):
        return None
    found: dict[str, None] = {}
    pending = [(body, b"")]
    while pending:
        state, data = pending.pop()
        if state.nullable:
            found[json.loads(b'"' + data + b'"')] = None
        for mask, target in interpreter.derivatives.arcs(state):
            if not data.endswith(b"\\"):
                pending += [(target, data + bytes([byte])) for byte in range(256) if mask >> byte & 1]
            else:  # of the escapes only the short ones: the others spell what is also written plainly
                pending += [(target, data + bytes([byte])) for byte in b'"\\bfnrt' if mask >> byte & 1]
        if len(found) > MAX_FINITE or len(pending) > 50 * MAX_FINITE:
            return None
    terms = interpreter.terms
    listed = any_of(terms, found, interpreter.algebra.escaped_char)
    is_all = not interpreter.derivatives.is_live(terms.both([body, terms.without(listed)]))
    return sorted(found) if is_all else None


def _has_cycle(start: Term, interpreter: Interpreter) -> bool:
    """Whether the automaton has a loop, or too many states to say. Depth first: the first way back ends it."""
    arcs = interpreter.derivatives.arcs
    is_open = {start: True}  # on the path from the start; False once everything below was seen
    path = [(start, iter(arcs(start)))]
    while path:
        state, left = path[-1]
        _, target = next(left, (0, None))
        if target is None:
            is_open[state] = False
            path.pop()
        elif target not in is_open:
            is_open[target] = True
            path.append((target, iter(arcs(target))))
        elif is_open[target]:
            return True
        if len(is_open) > _MAX_STATES:
            return True
    return False
