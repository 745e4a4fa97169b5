"""Generations that follow one another and never look at one another, as branches that run together.

    independent_generations    the groups of neighbours whose own text names no other's value
    fork_independent           those that the caller names become branches of one fork

On one branch a later generation sees the text of an earlier one, whether it needs it or not. As branches they do
not, so only the caller can allow it. What follows the group sees the text of all, as before.

To a branch belongs what stands between its generation and the one before. The first has none before: its whole turn
goes with it where each has a turn of its own, and elsewhere the piece of text right before it, from its last line on
("\\nColour: " of "About apples.\\nColour: ").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from forktree.lang import ir
from forktree.lang.errors import LanguageError
from forktree.lang.passes import next_branch
from forktree.lang.program import Op
from forktree.lang.verify import references, verify

if TYPE_CHECKING:
    from forktree.lang.program import Program

ProgramT = TypeVar("ProgramT", bound="Program")


def independent_generations(program: Program) -> tuple[tuple[str, ...], ...]:
    """Names of neighbours that `fork_independent` can make branches of, group by group."""
    groups: list[tuple[str, ...]] = []
    ops = list(program.ops)
    for branch in dict.fromkeys(op.branch for op in ops):
        group: tuple[str, ...] = ()
        for name in _names(ops, branch):
            if group and _is_possible(ops, (*group, name)):
                group = (*group, name)
                continue
            groups.append(group)
            group = (name,)
        groups.append(group)
    return tuple(group for group in groups if len(group) > 1)


def fork_independent(program: ProgramT, *groups: Sequence[str]) -> ProgramT:
    """See the module.

    Args:
        groups: each the names of generations or selects that need not see one another, in program order.
    Raises:
        LanguageError: a group is not on one branch in a row, or one of it reads another.
    """
    ops = list(program.ops)
    for names in groups:
        if isinstance(names, str) or len(names) < 2:
            raise LanguageError(f"a group is at least two names of generations, not {names!r}")
        ops = _with_last_line_apart(ops, _find(ops, names[0]))
        parts = _split(ops, names)
        first = next_branch(ops)
        children = tuple(range(first, first + len(parts)))
        branch = ops[parts[0].start].branch
        forked = [Op(branch, ir.Fork(children))]
        for child, part in zip(children, parts, strict=True):
            forked += [Op(child, _moved(op.node, branch, child, part)) for op in ops[part.start : part.stop]]
        forked.append(Op(branch, ir.Join(children, "values_and_text")))
        ops = [*ops[: parts[0].start], *forked, *ops[parts[-1].stop :]]
    return verify(replace(program, ops=tuple(ops)))


@dataclass(frozen=True, slots=True)
class _Part:
    """Operations [start, stop) that become one branch, and the names that they set."""

    start: int
    stop: int
    names: frozenset[str]


def _moved(node: ir.Node, branch: int, child: int, part: _Part) -> ir.Node:
    """A reference to what the part itself sets reads it from the new branch."""
    if isinstance(node, ir.Variable) and node.branch == branch and node.name in part.names:
        return replace(node, branch=child)
    return node


def _names(ops: list[Op], branch: int) -> Iterator[str]:
    for op in ops:
        if op.branch == branch and isinstance(op.node, ir.Gen | ir.Select) and op.node.name is not None:
            yield op.node.name


def _is_possible(ops: list[Op], names: Sequence[str]) -> bool:
    try:
        _split(ops, names)
    except LanguageError:
        return False
    return True


def _split(ops: list[Op], names: Sequence[str]) -> list[_Part]:
    """One part for each name: from the end of the part before to its generation, or to the end of its turn."""
    ends = [_find(ops, name) for name in names]
    branch = ops[ends[0]].branch
    if ends != sorted(ends) or any(ops[end].branch != branch for end in ends):
        raise LanguageError(f"{', '.join(names)} do not follow one another on one branch")
    between = ops[ends[0] : ends[1]]
    in_turns = any(isinstance(op.node, ir.RoleEnd) for op in between)
    start = _turn_start(ops, ends[0]) if in_turns else _text_start(ops, ends[0])
    parts = []
    for end in ends:
        stop = _turn_stop(ops, end) if in_turns else end + 1
        parts.append(_part(ops, start, stop, branch))
        start = stop
    _check_apart(ops, parts)
    return parts


def _find(ops: list[Op], name: str) -> int:
    found = [at for at, op in enumerate(ops) if isinstance(op.node, ir.Gen | ir.Select) and op.node.name == name]
    if len(found) != 1:
        raise LanguageError(f"the program has {len(found)} generations named {name!r}; a group names each exactly")
    return found[0]


def _with_last_line_apart(ops: list[Op], index: int) -> list[Op]:
    """The piece of text right before a generation as two, its last line the second."""
    start = _text_start(ops, index)
    node = ops[start].node
    if start == index or not isinstance(node, ir.Text):
        return ops
    at = node.text.rstrip("\n").rfind("\n")
    if at <= 0:
        return ops
    halves = [Op(ops[start].branch, replace(node, text=text)) for text in (node.text[:at], node.text[at:])]
    return [*ops[:start], *halves, *ops[index:]]


def _text_start(ops: list[Op], index: int) -> int:
    """Index of the piece of text right before this step, or of the step itself."""
    branch, _ = ops[index]
    has_text = index > 0 and ops[index - 1].branch == branch and isinstance(ops[index - 1].node, ir.Text)
    return index - 1 if has_text else index


def _turn_start(ops: list[Op], index: int) -> int:
    while not isinstance(ops[index].node, ir.RoleBegin):
        if index == 0 or isinstance(ops[index].node, ir.RoleEnd):
            raise LanguageError(f"the turn around it begins elsewhere{ir.at(ops[index].node.source)}")
        index -= 1
    return index


def _turn_stop(ops: list[Op], index: int) -> int:
    for at in range(index, len(ops)):
        if isinstance(ops[at].node, ir.RoleEnd):
            return at + 1
    raise LanguageError(f"the turn around it never ends{ir.at(ops[index].node.source)}")


_MOVABLE = ir.Text | ir.Argument | ir.Variable | ir.Gen | ir.Select | ir.RoleBegin | ir.RoleEnd | ir.Image


def _part(ops: list[Op], start: int, stop: int, branch: int) -> _Part:
    names = set()
    is_open = False
    for op in ops[start:stop]:
        node = op.node
        if op.branch != branch or not isinstance(node, _MOVABLE):
            what = type(node).__name__.lower()
            raise LanguageError(f"a {what} stands between the generations of the group{ir.at(node.source)}")
        if isinstance(node, ir.RoleBegin | ir.RoleEnd):
            is_open = isinstance(node, ir.RoleBegin)
        if isinstance(node, ir.Gen | ir.Select) and node.name is not None:
            names.add(node.name)
    if is_open or start >= stop:
        raise LanguageError(f"the generations of the group do not each stand in a turn of their own{_at(ops, start)}")
    return _Part(start, stop, frozenset(names))


def _check_apart(ops: list[Op], parts: list[_Part]) -> None:
    for part in parts:
        others = frozenset[str]().union(*(other.names for other in parts if other is not part))
        if part.names & others:
            raise LanguageError(f"{sorted(part.names & others)[0]!r} is set twice in the group{_at(ops, part.start)}")
        for op in ops[part.start : part.stop]:
            for reference in references(op.node):
                if isinstance(reference, ir.Variable) and reference.name in others:
                    raise LanguageError(
                        f"{', '.join(sorted(part.names))} reads {reference.name!r}, so it cannot go on without it"
                        f"{ir.at(reference.source)}"
                    )


def _at(ops: list[Op], index: int) -> str:
    return ir.at(ops[index].node.source)
