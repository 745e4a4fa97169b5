"""A grammar in lark's notation, read by lark itself: rules and terminals as its syntax trees.

Only the reading is lark's. Its expansion to BNF is not used: twenty options in a row would be a million expansions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from forktree.backend.grammar.lark_limits import check_terminals
from forktree.lang.errors import ConstraintError

MAX_GRAMMAR = 200_000
MAX_DEPTH = 60
_RELATIVE_IMPORT = re.compile(r"^[ \t]*%import(?:[ \t]|\\ *\n)+\.", re.MULTILINE)
_GBNF_RULE = re.compile(r"^\s*[A-Za-z][A-Za-z0-9_-]*\s*::=", re.MULTILINE)
_NO_FILE = "<grammar>"


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    """What lark read.

    Attributes:
        rules: name to (template parameters, tree).
        terminals: name to tree; None where it was only declared.
        ignored: names of the terminals that may stand between tokens.
    """

    rules: dict[str, tuple[tuple[str, ...], Any]]
    terminals: dict[str, Any]
    ignored: tuple[str, ...]


def read_lark(text: str) -> LarkGrammar:
    """Reads a grammar.

    Raises:
        ConstraintError: it is not one; `.pointer` is the line and column where lark knows them.
    """
    if len(text) > MAX_GRAMMAR:
        raise ConstraintError(f"the grammar has {len(text)} characters, the limit is {MAX_GRAMMAR}")
    if _RELATIVE_IMPORT.search(text):
        raise ConstraintError("a grammar cannot import files: only lark's own grammars (%import common.WS)")
    check_terminals(text)
    try:
        loaded = _loaded(text)
    except RecursionError:
        raise _too_deep() from None
    rules = {name: (tuple(params), tree) for name, params, tree, _ in loaded.rule_defs}
    terminals = {name: tree for name, (tree, _) in loaded.term_defs}
    for name, (_, tree) in rules.items():
        _check_depth(tree, f"rule {name}")
    for name, tree in terminals.items():
        if tree is not None:
            _check_depth(tree, f"terminal {name}")
    return LarkGrammar(rules, terminals, tuple(loaded.ignore))


def _loaded(text: str) -> Any:
    from lark.exceptions import LarkError, UnexpectedInput
    from lark.load_grammar import load_grammar

    try:
        return load_grammar(text, _NO_FILE, [], False)[0]  # type: ignore[no-untyped-call]
    except LarkError as error:
        if _GBNF_RULE.search(text):
            reason = 'this is GBNF ("::="), not lark\'s notation: use Grammar.from_gbnf(text)'
            raise ConstraintError(reason) from None
        at = error if isinstance(error, UnexpectedInput) else error.__context__ or error.__cause__
        place = f"line {at.line} column {at.column}" if isinstance(at, UnexpectedInput) else ""
        raise ConstraintError(f"not a lark grammar: {_first_lines(str(error))}", pointer=place) from None
    except OSError as error:
        raise ConstraintError(f"lark has no grammar {error.filename!r} to import") from None


def _first_lines(message: str) -> str:
    return " ".join(line.strip() for line in message.splitlines()[:3] if line.strip())


def _check_depth(tree: Any, where: str) -> None:
    """Trees of inlined terminals share their parts, so each is visited at its greatest depth only once in a path."""
    deepest: dict[int, int] = {}
    pending = [(tree, 1)]
    while pending:
        node, depth = pending.pop()
        if deepest.get(id(node), 0) >= depth:
            continue
        deepest[id(node)] = depth
        if depth > 4 * MAX_DEPTH:  # a group is up to four nodes of the tree
            raise _too_deep(where)
        pending.extend((child, depth + 1) for child in node.children if hasattr(child, "children"))


def _too_deep(where: str = "") -> ConstraintError:
    return ConstraintError(f"the grammar nests its groups too deep, the limit is {MAX_DEPTH}", pointer=where)
