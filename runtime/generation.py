"""Carrying out a generation: the request, its answer as events, and the value that comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from forktree.lang import ir
from forktree.lang.errors import BackendError, ConstraintError, ForktreeError, IncompleteError, UnsupportedError
from forktree.runtime import protocol
from forktree.runtime.record import Answered, Meta, meta_of
from forktree.runtime.speculation import Part, group_of, split
from forktree.runtime.values import Value, note_line

if TYPE_CHECKING:
    from forktree.runtime.cursor import Cursor
    from forktree.runtime.run import Run

Event = protocol.Delta | protocol.Completion


def generate_at_hand(cursor: Cursor, node: ir.Gen, value: Value) -> bool:
    """The whole generation, if the backend has its answer at hand; False when it has to be asked."""
    run = cursor.run
    if run.at_hand is None or run.speculation is not None:
        return False
    request = _request_of(cursor, node)
    if (request.sampling.n or 1) != 1:
        return False
    try:
        check_generation(run.backend, request)
        events = run.at_hand(request)
        if events is None:
            return False
        _finish(cursor, node, value, request, _take(cursor, value, events))
    except Exception as error:
        raise_explained(error, run, node)
    return True


async def generate(cursor: Cursor, node: ir.Gen, value: Value) -> None:
    """Ask the backend; the value is there at the end, its text as it comes."""
    run = cursor.run
    request = _request_of(cursor, node)
    try:
        if run.speculation is not None and await _speculate(cursor, node, value, request):
            return
        check_generation(run.backend, request)
        if (request.sampling.n or 1) == 1:
            _finish(cursor, node, value, request, await _stream(cursor, value, request))
        else:
            await _generate_many(cursor, node, value, request)
    except Exception as error:
        raise_explained(error, run, node)


def _request_of(cursor: Cursor, node: ir.Gen) -> protocol.GenerateRequest:
    return protocol.GenerateRequest(
        branch=cursor.tip,
        sampling=node.sampling if cursor.sampling is None else node.sampling.over(cursor.sampling),
        constraint=None if node.output is None else node.output.spec,
        on_budget=node.on_budget,
        heal=node.heal,
        name=node.name,
        owner=cursor.run.number,
    )


def _finish(
    cursor: Cursor,
    node: ir.Gen,
    value: Value,
    request: protocol.GenerateRequest,
    completion: protocol.Completion | None,
) -> None:
    """The answer's segment goes onto the branch, and its value is there."""
    completion = _whole(completion, cursor.run.backend)
    note_answer(cursor.run, request, completion.usage)
    cursor.tip = protocol.Branch(cursor.tip, completion.segment)
    meta = meta_of(completion)
    if node.output is None:
        value.set(completion.segment.text, meta)
    else:
        value.set_lazily(partial(_read, node, completion, cursor.run.name), meta)


def _whole(completion: protocol.Completion | None, backend: protocol.Backend) -> protocol.Completion:
    if completion is None:
        raise BackendError(f"{backend.name} ended the answer without a completion")
    return completion


def note_answer(run: Run, request: protocol.GenerateRequest | protocol.ScoreRequest, usage: protocol.Usage) -> None:
    """What the backend counted, for reports."""
    run.recorder.answers.append(Answered(run.backend, request, usage))


# Events: deltas go to whoever reads the stream, the completion comes last.


def _take(cursor: Cursor, value: Value, events: Iterable[Event]) -> protocol.Completion | None:
    completion: protocol.Completion | None = None
    for event in events:
        completion = _show(cursor, value, event)
    return completion


async def _stream(cursor: Cursor, value: Value, request: protocol.GenerateRequest) -> protocol.Completion | None:
    completion: protocol.Completion | None = None
    async for event in cursor.run.backend.stream(request):
        completion = _show(cursor, value, event)
    return completion


def _show(cursor: Cursor, value: Value, event: Event) -> protocol.Completion | None:
    if isinstance(event, protocol.Completion):
        return event
    assert value.feed is not None
    value.feed.push(event.text)
    cursor.feed.push(event.text)
    return None


async def _ask_once(run: Run, request: protocol.GenerateRequest) -> protocol.Completion:
    """The whole answer. The stream is read to its end: one that is left before was given up."""
    completion: protocol.Completion | None = None
    async for event in run.backend.stream(request):
        if isinstance(event, protocol.Completion):
            completion = event
    return _whole(completion, run.backend)


# Several samples


async def _generate_many(cursor: Cursor, node: ir.Gen, value: Value, request: protocol.GenerateRequest) -> None:
    """`n` samples at once. The first continues the branch, so its text is what readers of the stream see."""
    run = cursor.run
    samples = [replace(request, sample_index=index) for index in range(request.sampling.n or 1)]
    tasks = [asyncio.ensure_future(_stream(cursor, value, samples[0]))]
    tasks += [asyncio.ensure_future(_ask_once(run, sample)) for sample in samples[1:]]
    try:
        completions = [_whole(each, run.backend) for each in await asyncio.gather(*tasks)]
    finally:
        for task in tasks:
            task.cancel()
    for sample, completion in zip(samples, completions, strict=True):
        note_answer(run, sample, completion.usage)
    cursor.tip = protocol.Branch(cursor.tip, completions[0].segment)
    metas = tuple(map(meta_of, completions))
    value.set_lazily(
        lambda: [_read(node, completion, run.name) for completion in completions], meta_of(completions[0], metas)
    )


# Values


def _read(node: ir.Gen, completion: protocol.Completion, program: str) -> Any:
    """The typed value of one output, in the reader's thread."""
    text = completion.segment.text
    if node.output is None:
        return text
    if not completion.is_complete:
        raise IncompleteError(
            f"{label_of(node, program)} was cut ({completion.finish_reason}) before its constraint was satisfied: "
            f"{text[-80:]!r}; raise max_tokens",
            text=text,
        )
    return node.output.value_of(text if completion.value is None else completion.value)


# Speculation


async def _speculate(cursor: Cursor, node: ir.Gen, value: Value, request: protocol.GenerateRequest) -> bool:
    """Ask for this generation and those queued behind it in one call; False when this one needs its own."""
    run = cursor.run
    assert run.speculation is not None
    if cursor.num_plain:
        cursor.num_plain -= 1
        return False
    group = group_of(node, (step for step, _ in cursor.upcoming()), cursor.sampling, run.speculation)
    if group is None:
        return False
    together = replace(request, sampling=group.sampling)
    check_generation(run.backend, together)
    completion = await _ask_once(run, together)
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
            cursor.push(protocol.Text(step.text, step.markup), step.text)
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


def check_selection(backend: protocol.Backend, request: protocol.ScoreRequest) -> None:
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


def raise_explained(error: Exception, run: Run, node: ir.Gen | ir.Select) -> NoReturn:
    """Raise forktree's own errors and a script's as themselves, the rest as the backend's fault, with the line."""
    label = label_of(node, run.name)
    if isinstance(error, ConstraintError) and label not in str(error):
        error.args = (f"{error}; in {label}",)  # made far from the program's line, and read without its notes
        raise error
    if isinstance(error, ForktreeError) or _is_users_own(run.backend, error):
        note_line(error, label)
        raise error
    fault = BackendError(f"{run.backend.name} failed: {type(error).__name__}: {error}")
    note_line(fault, label)
    raise fault from error


def _is_users_own(backend: protocol.Backend, error: Exception) -> bool:
    is_own = getattr(backend, "is_users_own", None)
    return is_own is not None and bool(is_own(error))


def label_of(node: ir.Gen | ir.Select, program: str) -> str:
    """What failed, for messages: built only then."""
    return f"{type(node).__name__.lower()}({node.name!r}) of {program}{ir.at(node.source)}"
