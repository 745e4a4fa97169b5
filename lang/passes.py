"""Programs into better programs. Each pass gives a program that keeps the rules of the IR (verify.py).

    merge_text         adjacent constant text becomes one piece: the same tokens, fewer steps
    share_trunk        turns that all branches of a fork begin with move to a trunk of their own
    drop_unread        generations that nothing reads, and no text behind them needs, are left out
    hoist_constants    named constant text moves ahead of what varies, so that rows share it (hoist.py)
    fork_independent   named generations that need not see one another become branches (independent.py)

The first two change no token of any prompt. The third changes what a finished state holds, so the caller says which
variables are wanted; the others change prompts, and only those of the text and the names that the caller gives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from forktree.lang import ir
from forktree.lang.program import Op, merge_texts
from forktree.lang.verify import references, verify

if TYPE_CHECKING:
    from forktree.lang.program import Program

ProgramT = TypeVar("ProgramT", bound="Program")


def merge_text(program: ProgramT) -> ProgramT:
    """See the module."""
    return verify(replace(program, ops=merge_texts(program.ops)))


def share_trunk(program: ProgramT) -> ProgramT:
    """See the module. The shared part of the branches goes onto one branch from which they fork in turn."""
    ops = list(program.ops)
    for fork in [op.node for op in ops if isinstance(op.node, ir.Fork) and len(op.node.branches) > 1]:
        at = next(index for index, op in enumerate(ops) if op.node is fork)
        shared = _common_beginning(ops, fork.branches)
        if not shared:
            continue
        trunk = next_branch(ops)
        parent = ops[at].branch
        rest = _without_beginning(ops[at + 1 :], fork.branches, len(shared))
        opened = [Op(parent, ir.Fork((trunk,), source=fork.source)), *(Op(trunk, node) for node in shared)]
        ops = [*ops[:at], *opened, Op(trunk, fork), *rest]
    return verify(replace(program, ops=tuple(ops)))


def next_branch(ops: Iterable[Op]) -> int:
    """The first number that no branch has."""
    return 1 + max((branch for op in ops for branch in (op.branch, *_opened(op.node))), default=0)


def _opened(node: ir.Node) -> tuple[int, ...]:
    match node:
        case ir.Fork(branches=branches):
            return branches
        case ir.Call(branch=branch):
            return (branch,)
    return ()


def _common_beginning(ops: list[Op], branches: tuple[int, ...]) -> list[ir.Node]:
    """The constant nodes with which all of these branches begin."""
    beginnings = [[op.node for op in ops if op.branch == branch] for branch in branches]
    shared: list[ir.Node] = []
    for nodes in zip(*beginnings, strict=False):
        is_constant = isinstance(nodes[0], ir.Text | ir.RoleBegin | ir.RoleEnd)
        if not is_constant or any(node != nodes[0] for node in nodes):
            break
        shared.append(nodes[0])
    # Only whole turns' edges close a run of text: cutting inside one would change its tokens.
    while shared and isinstance(shared[-1], ir.Text):
        shared.pop()
    return shared


def _without_beginning(ops: list[Op], branches: tuple[int, ...], count: int) -> list[Op]:
    left = dict.fromkeys(branches, count)
    kept = []
    for op in ops:
        if left.get(op.branch, 0):
            left[op.branch] -= 1
        else:
            kept.append(op)
    return kept


def drop_unread(program: ProgramT, keep: Collection[str] = ()) -> ProgramT:
    """See the module.

    Args:
        keep: variables that will be read from the finished state, besides what the program returns.
    """
    wanted = set(keep) | {node.name for node in references(program.returns)}
    needed: set[int] = set()  # branches whose text a later request sees
    kept: list[Op] = []
    for op in reversed(program.ops):
        node = op.node
        if isinstance(node, ir.Gen | ir.Select):
            is_read = node.name in wanted
            if not is_read and op.branch not in needed:
                continue
            needed.add(op.branch)
        elif isinstance(node, ir.Fork) and needed.intersection(node.branches):
            needed.add(op.branch)
        elif isinstance(node, ir.Join) and node.brings_text and op.branch in needed:
            needed.update(node.branches)
        elif isinstance(node, ir.ScopeEnd) and node.name in wanted:
            needed.add(op.branch)
        wanted |= {reference.name for reference in references(node)}
        kept.append(op)
    return verify(replace(program, ops=tuple(reversed(kept))))
