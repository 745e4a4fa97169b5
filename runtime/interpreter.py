"""Carrying out one step of a branch: `carry_out_now` for what needs no waiting, `carry_out` for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forktree.lang import ir
from forktree.runtime import protocol
from forktree.runtime.choices import choose
from forktree.runtime.data import follow, show
from forktree.runtime.generation import check_selection, generate, generate_at_hand, note_answer, raise_explained
from forktree.runtime.openings import segment_of
from forktree.runtime.record import Meta
from forktree.runtime.values import Value

if TYPE_CHECKING:
    from forktree.runtime.cursor import Cursor, TipStep


def apply(cursor: Cursor, node: ir.Node) -> None:
    """A step that needs no waiting and sets no value."""
    match node:
        case ir.ScopeBegin():
            cursor.scopes.append((node.name, cursor.tip))
        case _:
            segment = segment_of(node)
            assert segment is not None, f"{type(node).__name__} is not a step of its own"
            cursor.push(segment, node.text if isinstance(node, ir.Text) else "")


def carry_out_now(cursor: Cursor, node: ir.Node | TipStep, value: Value | None) -> bool:
    """One step, if nothing has to be waited for; False when it has, and nothing was done.

    `value` is the one that the step sets, or for a reference the one that it reads.
    """
    match node:
        case ir.Gen():
            assert value is not None
            return generate_at_hand(cursor, node, value)
        case ir.Text() | ir.RoleBegin() | ir.RoleEnd() | ir.Image() | ir.Tools() | ir.ScopeBegin():
            apply(cursor, node)
        case ir.Select():
            return False
        case ir.Variable():
            assert value is not None
            if not value.is_set:
                return False
            text = show(follow(value.get(), node.path), node)
            cursor.push(protocol.Text(text), text)
        case ir.ScopeEnd():
            assert value is not None
            _, start = cursor.scopes.pop()
            value.set(_text_between(start, cursor.tip), Meta())
        case ir.Join():
            assert value is not None
            if not value.is_set:
                return False
            _append_branches(cursor, value)
        case ir.Argument() | ir.Assign() | ir.Fork() | ir.Call():
            raise AssertionError(f"{type(node).__name__} never reaches the queue")
        case _:
            assert value is not None
            value.set(cursor.marked_tip() if node.mark else cursor.tip)
    return True


async def carry_out(cursor: Cursor, node: ir.Node | TipStep, value: Value | None) -> None:
    """One step that has to wait; `value` as in `carry_out_now`."""
    assert value is not None
    match node:
        case ir.Gen():
            await generate(cursor, node, value)
        case ir.Select():
            await _select(cursor, node, value)
        case _:
            await value.wait()
            carry_out_now(cursor, node, value)


def _text_between(start: protocol.Branch | None, end: protocol.Branch | None) -> str:
    parts: list[str] = []
    while end is not start and end is not None:
        if isinstance(end.segment, protocol.Text | protocol.Generated):
            parts.append(end.segment.text)
        end = end.parent
    return "".join(reversed(parts))


def _append_branches(cursor: Cursor, tips: Value) -> None:
    """The branches' own segments, in order, behind what the trunk has."""
    start = cursor.marked_tip()
    for tip in tips.get():
        nodes = [] if tip is None else tip.path()
        own = _after_fork(nodes, start)
        for branch in own:
            segment = branch.segment
            if not isinstance(segment, protocol.ForkMark):
                shown = segment.text if isinstance(segment, protocol.Text | protocol.Generated) else ""
                cursor.push(segment, shown)


def _after_fork(nodes: list[protocol.Branch], trunk: protocol.Branch | None) -> list[protocol.Branch]:
    """The nodes of a branch behind the last one that it shares with its trunk."""
    shared = set(map(id, trunk.path())) if trunk is not None else set()
    return [node for node in nodes if id(node) not in shared]


async def _select(cursor: Cursor, node: ir.Select, value: Value) -> None:
    run = cursor.run
    request = protocol.ScoreRequest(
        branch=cursor.tip,
        options=tuple(dict.fromkeys(node.options)),
        unconditional=node.method == "unconditional_likelihood_normalized",
        name=node.name,
        owner=run.number,
    )
    try:
        check_selection(run.backend, request)
        result = await run.backend.score(request)
        note_answer(run, request, result.usage)
        winner, meta = choose(node.options, result, node.method)
    except Exception as error:
        raise_explained(error, run, node)
    text = node.options[winner]
    if text:
        cursor.push(protocol.Text(text), text)
    assert value.feed is not None
    value.feed.push(text)
    value.set(text, meta)
