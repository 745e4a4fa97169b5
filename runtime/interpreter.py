"""Carrying out one step of a branch: `apply` for what needs no waiting, `carry_out` for everything."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from forktree.lang import ir
from forktree.lang.errors import BackendError, ForktreeError, IncompleteError, UnsupportedError
from forktree.runtime import protocol
from forktree.runtime.choices import choose
from forktree.runtime.data import follow, show
from forktree.runtime.record import Answered, Meta, meta_of
from forktree.runtime.speculation import Part, group_of, split
from forktree.runtime.values import Value, note_line

if TYPE_CHECKING:
    from forktree.runtime.cursor import Cursor, TipStep
    from forktree.runtime.run import Run


def apply(cursor: Cursor, node: ir.Node) -> None:
    """A step that needs no waiting and sets no value."""
    match node:
        case ir.Text():
            cursor.push(protocol.Text(node.text, node.markup), node.text)
        case ir.RoleBegin():
            cursor.push(protocol.RoleBegin(node.role))
        case ir.RoleEnd():
            cursor.push(protocol.RoleEnd(node.role))
        case ir.Image():
            cursor.push(protocol.Image(node.data, node.media_type))
        case ir.ScopeBegin():
            cursor.scopes.append((node.name, cursor.tip))
        case _:
            raise AssertionError(f"{type(node).__name__} is not a step of its own")


async def carry_out(cursor: Cursor, node: ir.Node | TipStep, value: Value | None) -> None:
    """One step; `value` is the one that it sets, or for a reference the one that it reads."""
    match node:
        case ir.Text() | ir.RoleBegin() | ir.RoleEnd() | ir.Image() | ir.ScopeBegin():
            apply(cursor, node)
        case ir.Gen():
            assert value is not None
            await _generate(cursor, node, value)
        case ir.Select():
            assert value is not None
            await _select(cursor, node, value)
        case ir.Variable():
            assert value is not None
            await value.wait()
            text = show(follow(value.get(), node.path), node)
            cursor.push(protocol.Text(text), text)
        case ir.ScopeEnd():
            assert value is not None
            _, start = cursor.scopes.pop()
            value.set(_text_between(start, cursor.tip), Meta())
        case ir.Join():
            assert value is not None
            await _append_branches(cursor, node, value)
        case ir.Argument() | ir.Assign() | ir.Fork() | ir.Call():
            raise AssertionError(f"{type(node).__name__} never reaches the queue")
        case _:
            assert value is not None
            value.set(cursor.marked_tip() if node.mark else cursor.tip)


def _text_between(start: protocol.Branch | None, end: protocol.Branch | None) -> str:
    parts: list[str] = []
    while end is not start and end is not None:
        if isinstance(end.segment, protocol.Text | protocol.Generated):
            parts.append(end.segment.text)
        end = end.parent
    return "".join(reversed(parts))


async def _append_branches(cursor: Cursor, node: ir.Join, tips: Value) -> None:
    """The branches' own segments, in order, behind what the trunk has."""
    await tips.wait()
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


# Generation


async def _generate(cursor: Cursor, node: ir.Gen, value: Value) -> None:
    run = cursor.run
    sampling = node.sampling if run.sampling is None else node.sampling.over(run.sampling)
    request = protocol.GenerateRequest(
        branch=cursor.tip,
        sampling=sampling,
        constraint=None if node.output is None else node.output.spec,
        on_budget=node.on_budget,
        heal=node.heal,
        name=node.name,
    )
    try:
        if run.speculation is not None and await _speculate(cursor, node, value, request):
            return
        check_generation(run.backend, request)
        if (sampling.n or 1) == 1:
            completion = await _stream_one(cursor, request, value)
            cursor.tip = protocol.Branch(cursor.tip, completion.segment)
            _set_value(value, node, completion, run)
        else:
            completions = await _stream_many(cursor, request, value)
            cursor.tip = protocol.Branch(cursor.tip, completions[0].segment)
            _set_list(value, node, completions, run)
    except Exception as error:
        _raise_explained(error, run, node)


async def _stream_one(cursor: Cursor, request: protocol.GenerateRequest, value: Value) -> protocol.Completion:
    assert value.feed is not None
    completion: protocol.Completion | None = None
    async for event in cursor.run.backend.stream(request):
        if isinstance(event, protocol.Delta):
            value.feed.push(event.text)
            cursor.feed.push(event.text)
        else:
            completion = event
    if completion is None:
        raise BackendError(f"{cursor.run.backend.name} ended the answer without a completion")
    _note_answer(cursor, request, completion.usage)
    return completion


async def _stream_many(cursor: Cursor, request: protocol.GenerateRequest, value: Value) -> list[protocol.Completion]:
    """`n` samples at once. The first continues the branch, so its text is what readers of the stream see."""
    samples = [_sample_request(request, index) for index in range(request.sampling.n or 1)]
    tasks = [asyncio.ensure_future(_stream_one(cursor, samples[0], value))]
    tasks += [asyncio.ensure_future(_collect(cursor, sample)) for sample in samples[1:]]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _sample_request(request: protocol.GenerateRequest, index: int) -> protocol.GenerateRequest:
    return protocol.GenerateRequest(
        branch=request.branch,
        sampling=request.sampling,
        constraint=request.constraint,
        on_budget=request.on_budget,
        heal=request.heal,
        sample_index=index,
        name=request.name,
    )


async def _collect(cursor: Cursor, request: protocol.GenerateRequest) -> protocol.Completion:
    completion = await _ask_once(cursor.run.backend, request)
    _note_answer(cursor, request, completion.usage)
    return completion


async def _ask_once(backend: protocol.Backend, request: protocol.GenerateRequest) -> protocol.Completion:
    """The whole answer. The stream is read to its end: one that is left before was given up."""
    completion: protocol.Completion | None = None
    async for event in backend.stream(request):
        if isinstance(event, protocol.Completion):
            completion = event
    if completion is None:
        raise BackendError(f"{backend.name} ended the answer without a completion")
    return completion


def _note_answer(
    cursor: Cursor, request: protocol.GenerateRequest | protocol.ScoreRequest, usage: protocol.Usage
) -> None:
    run = cursor.run
    run.recorder.answers.append(Answered(run.backend, request, usage))


def _set_value(value: Value, node: ir.Gen, completion: protocol.Completion, run: Run) -> None:
    meta = meta_of(completion)
    if node.output is None:
        value.set(completion.segment.text, meta)
    else:
        value.set_lazily(partial(_read, node, completion, run.name), meta)


def _set_list(value: Value, node: ir.Gen, completions: list[protocol.Completion], run: Run) -> None:
    metas = tuple(meta_of(completion) for completion in completions)
    value.set_lazily(
        lambda: [_read(node, completion, run.name) for completion in completions], meta_of(completions[0], metas)
    )


def _read(node: ir.Gen, completion: protocol.Completion, program: str) -> Any:
    """The typed value of one output, in the reader's thread."""
    text = completion.segment.text
    if node.output is None:
        return text
    if not completion.is_complete:
        raise IncompleteError(
            f"{_label(node, program)} was cut ({completion.finish_reason}) before its constraint was satisfied: "
            f"{text[-80:]!r}; raise max_tokens",
            text=text,
        )
    return node.output.value_of(text)


# Speculation


async def _speculate(cursor: Cursor, node: ir.Gen, value: Value, request: protocol.GenerateRequest) -> bool:
    """Ask for this generation and those queued behind it in one call; False when this one needs its own."""
    run = cursor.run
    assert run.speculation is not None
    if cursor.num_plain:
        cursor.num_plain -= 1
        return False
    group = group_of(node, (step for step, _ in cursor.upcoming()), run.sampling, run.speculation)
    if group is None:
        return False
    together = replace(request, sampling=group.sampling)
    check_generation(run.backend, together)
    completion = await _ask_once(run.backend, together)
    parts = split(completion.segment.text, completion.finish_reason == "stop" and completion.stop is None, group)
    saved = completion.usage.prompt_tokens * max(0, len(parts) - 1)
    run.recorder.answers.append(Answered(run.backend, together, completion.usage, saved))
    cursor.num_plain = len(group.stops) - len(parts)
    if not parts:
        cursor.num_plain -= 1  # this one
        return False
    first, *others = parts
    _settle(cursor, value, first, meta_of(completion))
    for part in others:
        step, settled = cursor.take_next()
        while not isinstance(step, ir.Gen):
            assert isinstance(step, ir.Text)
            apply(cursor, step)
            step, settled = cursor.take_next()
        assert settled is not None
        _settle(cursor, settled, part, Meta(saved_tokens=completion.usage.prompt_tokens))
    return True


def _settle(cursor: Cursor, value: Value, part: Part, meta: Meta) -> None:
    """One generation of several that one answer held."""
    cursor.push(protocol.Generated(part.text), part.text)
    assert value.feed is not None
    value.feed.push(part.text)
    value.set(part.text, replace(meta, text=part.text, finish_reason="stop", is_complete=True, stop=part.stop))


# Selection


async def _select(cursor: Cursor, node: ir.Select, value: Value) -> None:
    run = cursor.run
    request = protocol.ScoreRequest(
        branch=cursor.tip,
        options=tuple(dict.fromkeys(node.options)),
        unconditional=node.method == "unconditional_likelihood_normalized",
        name=node.name,
    )
    try:
        _check_selection(run.backend, request)
        result = await run.backend.score(request)
        _note_answer(cursor, request, result.usage)
        winner, meta = choose(node.options, result, node.method)
    except Exception as error:
        _raise_explained(error, run, node)
    text = node.options[winner]
    if text:
        cursor.push(protocol.Text(text), text)
    assert value.feed is not None
    value.feed.push(text)
    value.set(text, meta)


# What a backend can do, and what it did wrong


def check_generation(backend: protocol.Backend, request: protocol.GenerateRequest) -> None:
    """Raise UnsupportedError for what the backend has declared that it cannot do."""
    can = backend.capabilities
    constraint = request.constraint
    if constraint is not None and type(constraint).__name__ not in can.constraints:
        raise UnsupportedError(
            f"{backend.name} cannot enforce a {type(constraint).__name__}; it can: {sorted(can.constraints) or 'none'}"
        )
    if request.sampling.logprobs is not None and not can.logprobs:
        raise UnsupportedError(f"{backend.name} returns no log-probabilities; drop logprobs=")
    _check_images(backend, request.branch)


def _check_selection(backend: protocol.Backend, request: protocol.ScoreRequest) -> None:
    if not backend.capabilities.score:
        raise UnsupportedError(f"{backend.name} cannot score options, so it has no select; use gen(choices=...)")
    _check_images(backend, request.branch)


def _check_images(backend: protocol.Backend, branch: protocol.Branch | None) -> None:
    if backend.capabilities.images:
        return
    while branch is not None:
        if isinstance(branch.segment, protocol.Image):
            raise UnsupportedError(f"{backend.name} cannot see: drop image(), or use a backend with images")
        branch = branch.parent


def _raise_explained(error: Exception, run: Run, node: ir.Gen | ir.Select) -> NoReturn:
    """Raise forktree's own errors as themselves and anything else as a fault of the backend, with the line."""
    label = _label(node, run.name)
    if isinstance(error, ForktreeError):
        note_line(error, label)
        raise error
    fault = BackendError(f"{run.backend.name} failed: {type(error).__name__}: {error}")
    note_line(fault, label)
    raise fault from error


def _label(node: ir.Gen | ir.Select, program: str) -> str:
    """What failed, for messages: built only then."""
    return f"{type(node).__name__.lower()}({node.name!r}) of {program}{ir.at(node.source)}"
