"""Why a variable is not set: the message for a name that nobody bound on this branch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forktree.lang import ir
from forktree.lang.keywords import did_you_mean
from forktree.lang.program import Op

if TYPE_CHECKING:
    from forktree.runtime.cursor import Cursor


def undefined(name: str, cursor: Cursor) -> str:
    """What is wrong, what is set, and the likeliest mend: a join, another name, or an append."""
    run = cursor.run
    known = ", ".join(map(repr, cursor.names)) or "none"
    what = f"variable {name!r} is not set by {run.name} up to here; set are: {known}"
    elsewhere = _set_elsewhere(name, cursor.id, run.recorder.ops)
    near = did_you_mean(name, cursor.names)
    return what + (elsewhere or near or f"; a gen or select sets its name once it is appended: s += ft.gen({name!r})")


def _branches_with(name: str, ops: Iterable[Op]) -> list[int]:
    """Branches that set the name, in the order in which they did."""
    found = {
        op.branch: None
        for op in ops
        if isinstance(op.node, ir.Gen | ir.Select | ir.ScopeEnd | ir.Assign) and op.node.name == name
    }
    return list(found)


def _set_elsewhere(name: str, here: int, ops: Iterable[Op]) -> str:
    """Which branch sets the name, and how to have it here; nothing where none does."""
    setters = [branch for branch in _branches_with(name, ops) if branch != here]
    if not setters:
        return ""
    forks = {branch: op for op in ops if isinstance(op.node, ir.Fork) for branch in op.node.branches}
    for setter in setters:
        op = forks.get(setter)
        if op is not None and op.branch == here and isinstance(op.node, ir.Fork):
            return (
                f"; branch {op.node.branches.index(setter)} of the fork{ir.at(op.node.source)} sets it: "
                f"read branch[{name!r}] there, or bring it back with s.join(*branches)"
            )
    return (
        f"; another branch or program sets it: read it from that state, or join its fork, before {name!r} is read here"
    )
