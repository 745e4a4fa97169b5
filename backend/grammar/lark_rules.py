"""lark's rule trees as expressions: templates written out, literals made terms, ignored terminals put after tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forktree.backend.grammar.lark_terminals import Terminals, counts_of
from forktree.backend.grammar.lark_text import LarkGrammar
from forktree.backend.grammar.rules import Choice, Expression, Leaf, Repetition, Sequence, Use
from forktree.backend.grammar.terms import Term
from forktree.lang.errors import ConstraintError

MAX_RULES = 3_000
Arguments = Mapping[str, Any]


class LarkRules:
    """The rules in reach of a start rule, each template once for each of its uses.

    Args:
        token: a terminal's term to the leaf that stands for one token of it.
    Raises:
        ConstraintError: a rule cannot be honoured; `.pointer` names it.
    """

    def __init__(self, grammar: LarkGrammar, terminals: Terminals, token: Callable[[Term], Leaf]) -> None:
        self._grammar = grammar
        self._terminals = terminals
        self._token = token
        self._leaves: dict[Term, Leaf] = {}
        self._pending: list[tuple[str, Any, Arguments]] = []
        self._expressions: dict[str, Expression] = {}
        self._known: set[str] = set()
        self._where = ""

    def from_start(self, start: str) -> dict[str, Expression]:
        if start not in self._grammar.rules:
            names = ", ".join(sorted(self._grammar.rules)[:8]) or "none"
            raise ConstraintError(f"the grammar has no rule {start!r}; it has: {names}", pointer=f"rule {start}")
        self._use(start, ())
        while self._pending:
            name, tree, arguments = self._pending.pop()
            self._where = f"rule {name}"
            self._expressions[name] = self._of(tree, arguments)
        return self._expressions

    def _use(self, name: str, values: tuple[Any, ...]) -> Use:
        """A rule, or a template with these values; queued when it is new."""
        parameters, tree = self._grammar.rules[name]
        if len(parameters) != len(values):
            raise ConstraintError(
                f"the template {name} takes {len(parameters)} arguments, not {len(values)}", pointer=self._where
            )
        full = f"{name}{{{','.join(map(_key, values))}}}" if values else name
        if full not in self._known:
            if len(self._known) >= MAX_RULES or len(full) > 2000:
                raise ConstraintError(
                    f"more than {MAX_RULES} rules, or templates that never end", pointer=f"rule {name}"
                )
            self._known.add(full)
            self._pending.append((full, tree, dict(zip(parameters, values, strict=True))))
        return Use(full)

    def _of(self, tree: Any, arguments: Arguments) -> Expression:
        children = tree.children
        match tree.data:
            case "expansions":
                return Choice(tuple(self._of(child, arguments) for child in children))
            case "expansion":
                return Sequence(tuple(self._of(child, arguments) for child in children))
            case "alias":
                return self._of(children[0], arguments)
            case "maybe":
                return Repetition(self._of(children[0], arguments), 0, 1)
            case "expr":
                return Repetition(self._of(children[0], arguments), *counts_of(children[1:], self._where))
            case "value":
                return self._value(_bound(children[0], arguments), arguments)
        raise ConstraintError(f"{tree.data} is not supported in a rule", pointer=self._where)

    def _value(self, value: Any, arguments: Arguments) -> Expression:
        if not hasattr(value, "data"):
            return self._leaf(self._terminals.named(value.name)) if value.is_term else self._use(value.name, ())
        if value.data == "template_usage":
            name, *given = value.children
            if name.name in arguments:
                raise ConstraintError(f"the template parameter {name.name} is used as a template", pointer=self._where)
            return self._use(name.name, tuple(_bound(one, arguments) for one in given))
        return self._leaf(self._terminals.literal(value, self._where))

    def _leaf(self, term: Term) -> Leaf:
        if term not in self._leaves:
            self._leaves[term] = self._token(term)
        return self._leaves[term]


def _bound(value: Any, arguments: Arguments) -> Any:
    """The value with the template's parameters replaced."""
    if getattr(value, "data", None) == "value":
        return _bound(value.children[0], arguments)
    if getattr(value, "data", None) == "template_usage" and arguments:
        from lark import Tree

        name, *given = value.children
        return Tree("template_usage", [name, *(_bound(one, arguments) for one in given)])
    return arguments.get(value.name, value) if hasattr(value, "name") else value


def _key(value: Any) -> str:
    if hasattr(value, "name"):
        return str(value.name)
    if value.data == "template_usage":
        name, *given = value.children
        return f"{name.name}{{{','.join(map(_key, given))}}}"
    return "..".join(str(child) for child in value.children)
