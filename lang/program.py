"""`Program`: what a program does, as data.

A program is a list of operations in program order, each a node on a branch. Branch 0 is the trunk; `Fork` and
`Call` introduce further branches, so the list is a tree of branches that never lost the order between them:
a branch may read what a sibling made earlier.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from forktree.lang import ir
from forktree.lang.printer import print_program
from forktree.lang.sampling import Sampling
from forktree.lang.serial import program_from_json, program_to_json


class Op(NamedTuple):
    """One step: `node` on `branch`."""

    branch: int
    node: ir.Node


TRUNK = 0


@dataclass(frozen=True, slots=True)
class Speculation:
    """Generations in a row are asked for in one call, on backends without token ids.

    `max_tokens`: most tokens of one call; None is the budgets of its generations together.
    """

    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A recorded or traced program.

    Attributes:
        parameters: names of the arguments that it still needs; empty for a recorded run.
        returns: what the body returned: plain data, with nodes where the value is known only after a run.
        sampling: what its generations use where they say nothing.
        speculation: how it is asked for; no part of what it does, so equality does not look at it.
    """

    name: str
    parameters: tuple[str, ...] = ()
    ops: tuple[Op, ...] = ()
    returns: object = field(default=None)
    sampling: Sampling | None = None
    speculation: Speculation | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return print_program(self)

    def format(self, *, sources: bool = False) -> str:
        """The readable form; with `sources`, each step carries the file and line that wrote it."""
        return print_program(self, sources=sources)

    def to_json(self) -> str:
        """JSON text from which `from_json` makes an equal program."""
        return program_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`. A typed value of a type that JSON cannot carry comes out as plain data.

        Raises:
            LanguageError: the text is not a program, or breaks a rule of the IR.
        """
        from forktree.lang.verify import verify

        return verify(program_from_json(text, cls))

    def ops_of(self, branch: int) -> list[ir.Node]:
        """The nodes of one branch, in order."""
        return [op.node for op in self.ops if op.branch == branch]


def merge_texts(ops: Iterable[Op]) -> tuple[Op, ...]:
    """Adjacent constant text of one branch as one node: the same tokens, fewer steps."""
    merged: list[Op] = []
    last: dict[int, int] = {}
    for op in ops:
        at = last.get(op.branch)
        before = merged[at].node if at is not None else None
        node = op.node
        if isinstance(node, ir.Text) and isinstance(before, ir.Text) and before.markup == node.markup:
            assert at is not None
            merged[at] = Op(op.branch, ir.Text(before.text + node.text, node.markup, before.source))
            continue
        last[op.branch] = len(merged)
        merged.append(op)
        for branch in _opened(node):
            last.pop(branch, None)
    return tuple(merged)


def _opened(node: ir.Node) -> tuple[int, ...]:
    match node:
        case ir.Fork(branches=branches):
            return branches
        case ir.Call(branch=branch):
            return (branch,)
    return ()
