"""`POST /v1/programs`: whole programs, run beside the engine; each row's outcome is sent when it is there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple

from starlette.requests import Request

from forktree.backend.clients.programs import error_data
from forktree.backend.server.endpoints import Endpoint
from forktree.backend.server.errors import ApiError
from forktree.backend.server.prompts import check_ids
from forktree.backend.server.schemas.programs import ProgramsRequest
from forktree.backend.server.served import Served
from forktree.backend.server.streams import EventStream
from forktree.backend.server.wire import Wire
from forktree.lang.errors import LanguageError
from forktree.lang.ir import Gen
from forktree.lang.sampling import Sampling
from forktree.runtime.journal import store_state
from forktree.runtime.programs import Program, run_behind
from forktree.runtime.protocol import Branch, ForkMark, Generated, RoleBegin, RoleEnd, Segment, Text, Tools, Usage
from forktree.runtime.state import State
from forktree.runtime.stored import restore

_NUM_AT_ONCE = 64  # rows of one request; the engine batches what they ask for

PROGRAMS = Wire(fault=lambda error: {"type": "error", "message": error.message}, names_events=True)


def routes() -> list[Endpoint]:
    return [
        Endpoint(
            method="POST",
            path="/v1/programs",
            answer=answer,
            summary="Run a program on rows",
            body=ProgramsRequest,
            streams=True,
            wire=PROGRAMS,
        )
    ]


class Job(NamedTuple):
    """What every row is run with; `branch`: what stands before it."""

    program: Program
    branch: Branch | None
    sampling: Sampling | None


async def answer(served: Served, request: Request, body: ProgramsRequest) -> Any:
    """See `Endpoint`."""
    served.model_of(body.model)
    program = await asyncio.to_thread(_program, body)
    branch = await asyncio.to_thread(_branch, body, served)
    sampling = _sampling(body)
    _check_samples(program, sampling, served.settings.max_choices)
    rows = [_row(program, index, row) for index, row in enumerate(body.rows)]
    watched = served.by(replace(served.caller, receive=None))  # the stream watches the client
    return EventStream(_outcomes(watched, Job(program, branch, sampling), rows), (), PROGRAMS)


def _program(body: ProgramsRequest) -> Program:
    try:
        return Program.from_json(json.dumps(body.program))
    except (LanguageError, RecursionError) as error:
        raise ApiError(400, f"program: {error}", param="program", code="invalid_program") from None


def _branch(body: ProgramsRequest, served: Served) -> Branch | None:
    """Raises ApiError 400: a segment is none, or names an id that is no token."""
    branch = None
    for index, stored in enumerate(body.branch or ()):
        param = f"branch[{index}]"
        segment = _segment(stored, param)
        if isinstance(segment, Generated):
            check_ids(param, segment.ids, served.tokenizer)
        branch = Branch(branch, segment)
    return branch


def _segment(stored: list[Any], param: str) -> Segment:
    """Each field is checked: nothing is known of who sends it."""
    match stored:
        case ["Text", str(text), bool(markup)]:
            return Text(text, markup)
        case ["RoleBegin", str(role)]:
            return RoleBegin(role)
        case ["RoleEnd", str(role)]:
            return RoleEnd(role)
        case ["ForkMark"]:
            return ForkMark()
        case ["Tools", str(definitions)]:
            return Tools(definitions)
        case ["Generated", str(text), {"$tuple": list(ids)}, int(num_withdrawn)] if num_withdrawn >= 0 and all(
            type(id) is int for id in ids
        ):
            return Generated(text, tuple(ids), int(num_withdrawn))
    raise ApiError(400, f"{param} is no segment of a branch of text", param=param, code="invalid_value")


def _sampling(body: ProgramsRequest) -> Sampling | None:
    if body.sampling is None:
        return None
    known = {item.name for item in fields(Sampling)}
    for name in body.sampling:
        if name not in known:
            message = f"sampling has no parameter {name!r}; there are {', '.join(sorted(known))}"
            raise ApiError(400, message, param=f"sampling.{name}", code="unknown_parameter")
    try:
        return Sampling(**{name: _frozen(value) for name, value in body.sampling.items()})
    except (TypeError, ValueError) as error:
        raise ApiError(400, f"sampling: {error}", param="sampling", code="invalid_value") from None


def _check_samples(program: Program, sampling: Sampling | None, most: int) -> None:
    """Raises ApiError 400: one step asks for more samples at once than any request may."""
    of_steps = [op.node.sampling for op in program.ops if isinstance(op.node, Gen)]
    largest = max(given.n or 1 for given in (Sampling(n=1), sampling, program.sampling, *of_steps) if given is not None)
    if largest > most:
        raise ApiError(400, f"program: n is {largest}, and a step takes at most {most} samples", param="program")


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _row(program: Program, index: int, row: dict[str, Any]) -> dict[str, Any]:
    """Its arguments. Raises ApiError: they are none of the program's, or of a class that is not known here."""
    param = f"rows[{index}]"
    if row.keys() != set(program.parameters):
        needs = ", ".join(program.parameters) or "nothing"
        raise ApiError(400, f"{param} has {sorted(row)}, and the program takes {needs}", param=param)
    if _has_classes(row):
        message = f"{param} has a value of a class, which nobody can send: send plain data"
        raise ApiError(400, message, param=param, code="invalid_value")
    try:
        arguments = restore(json.dumps(row))
    except (LanguageError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ApiError(400, f"{param}: {error}", param=param, code="invalid_value") from None
    if not isinstance(arguments, dict) or arguments.keys() != row.keys():
        raise ApiError(400, f"{param} must be an object of arguments by name", param=param)
    return arguments


def _has_classes(data: Any) -> bool:
    """Nobody may choose over the network what this process instantiates."""
    if isinstance(data, list):
        return any(map(_has_classes, data))
    return isinstance(data, dict) and ("$class" in data or any(map(_has_classes, data.values())))


async def _outcomes(served: Served, job: Job, rows: list[dict[str, Any]]) -> AsyncGenerator[dict[str, Any], None]:
    """Leaving early cancels the rows that run."""
    places = asyncio.Semaphore(_NUM_AT_ONCE)

    async def run(index: int, arguments: dict[str, Any]) -> dict[str, Any]:
        async with places:
            return await _outcome(served, job, index, arguments)

    tasks = [asyncio.create_task(run(index, arguments)) for index, arguments in enumerate(rows)]
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
        yield {"type": "end", "num_rows": len(rows)}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _outcome(served: Served, job: Job, index: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """Whatever a row does, it is the row's own."""
    told: dict[str, Any] = {"type": "row", "index": index}
    try:
        state = await _run(served, job, arguments)
        value, variables, branch = store_state(state, state.ret_value)
    except Exception as error:
        return {**told, "ok": False, "error": error_data(error)}
    usage = _usage(state)
    if served.caller.notes is not None:
        served.caller.notes.add_usage(usage)
    return {
        **told,
        "ok": True,
        "value": value,
        "variables": variables,
        "branch": branch,
        "usage": asdict(usage),
    }


async def _run(served: Served, job: Job, arguments: dict[str, Any]) -> State:
    """One row, in its tenant's turn. Raises what it fails with, and what it was stopped with."""
    flight = await served.admit(1)
    try:
        engine = served.engine()
        return await flight.carry(
            run_behind(job.program, job.branch, backend=engine, sampling=job.sampling, arguments=arguments)
        )
    finally:
        flight.abandon()


def _usage(state: State) -> Usage:
    answers = state._cursor.run.recorder.answers
    names = [item.name for item in fields(Usage)]
    return Usage(**{name: sum(getattr(answered.usage, name) for answered in answers) for name in names})
