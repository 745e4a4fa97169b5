"""`hoist_constants`: constant text ahead of what varies, so that more rows share it.

Text that every branch of a fork begins with goes to the trunk without a word changed (`share_trunk`). An instruction
that stands behind a varying part can be shared only in another place, which changes the prompt: it moves when the
caller names it, and no other text does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from forktree.lang import ir
from forktree.lang.errors import LanguageError
from forktree.lang.passes import share_trunk
from forktree.lang.program import Op
from forktree.lang.verify import verify

if TYPE_CHECKING:
    from forktree.lang.program import Program

ProgramT = TypeVar("ProgramT", bound="Program")


def hoist_constants(program: ProgramT, move: Collection[str] = ()) -> ProgramT:
    """See the module.

    Args:
        move: texts that may change their place. One inside a run of text moves ahead of the run's first varying
            piece; one that is a whole turn moves ahead of the varying turns of its role right before it.
            None moves over a generation, a fork, or a turn of another role.
    Raises:
        LanguageError: the program has no such text behind a varying part.
    """
    if isinstance(move, str):
        raise LanguageError(f"move takes a list of texts, not one text; write [{move!r}]")
    ops = list(program.ops)
    for text in move:
        moved = _move_everywhere(ops, text)
        if moved is None:
            raise LanguageError(f"{program.name} has no constant text {text!r} behind a varying part of its turn")
        ops = moved
    return share_trunk(verify(replace(program, ops=tuple(ops))))


def _move_everywhere(ops: list[Op], text: str) -> list[Op] | None:
    """The operations with every such text moved; None when there is none to move."""
    result = None
    index = 0
    while index < len(ops):
        moved = _move_turn(ops, index, text) or _move_within(ops, index, text) if text else None
        if moved is not None:
            ops = result = moved
        index += 1
    return result


def _move_within(ops: list[Op], index: int, text: str) -> list[Op] | None:
    """The text taken out of the node at `index`, to before the first varying piece of its run."""
    branch, node = ops[index]
    if not isinstance(node, ir.Text) or text not in node.text:
        return None
    target = None
    for before in range(index - 1, -1, -1):
        if ops[before].branch != branch:
            continue
        match ops[before].node:
            case ir.Argument() | ir.Variable():
                target = before
            case ir.Text():
                pass
            case _:
                break
    if target is None:
        return None
    head, _, tail = node.text.partition(text)
    left = [Op(branch, replace(node, text=piece)) for piece in (head, tail) if piece]
    return [*ops[:target], Op(branch, replace(node, text=text)), *ops[target:index], *left, *ops[index + 1 :]]


def _move_turn(ops: list[Op], index: int, text: str) -> list[Op] | None:
    """The turn that begins at `index`, when the text is all of it, to before varying turns of its role."""
    turn = _turn_from(ops, index)
    if turn is None or not _is_constant(turn, ops):
        return None
    if "".join(node.text for at in turn if isinstance(node := ops[at].node, ir.Text)) != text:
        return None
    target = None
    start = index
    while (before := _turn_before(ops, start)) is not None and ops[before[0]].node == ops[index].node:
        start = before[0]
        if not _is_constant(before, ops):
            target = start
    if target is None:
        return None
    rest = [op for at, op in enumerate(ops) if target <= at and at not in turn]
    return [*ops[:target], *(ops[at] for at in turn), *rest]


def _turn_from(ops: list[Op], index: int) -> list[int] | None:
    """Indices of the turn that begins here and holds text only."""
    branch, node = ops[index]
    if not isinstance(node, ir.RoleBegin):
        return None
    turn = [index]
    for at in range(index + 1, len(ops)):
        if ops[at].branch != branch:
            continue
        turn.append(at)
        if isinstance(ops[at].node, ir.RoleEnd):
            return turn
        if not isinstance(ops[at].node, ir.Text | ir.Argument | ir.Variable):
            break
    return None


def _turn_before(ops: list[Op], index: int) -> list[int] | None:
    """Indices of the text-only turn that ends right before this one on the branch."""
    branch = ops[index].branch
    own = [at for at in range(index) if ops[at].branch == branch]
    if not own or not isinstance(ops[own[-1]].node, ir.RoleEnd):
        return None
    for at in reversed(own):
        if isinstance(ops[at].node, ir.RoleBegin):
            return _turn_from(ops, at)
    return None


def _is_constant(turn: list[int], ops: list[Op]) -> bool:
    return not any(isinstance(ops[at].node, ir.Argument | ir.Variable) for at in turn)
