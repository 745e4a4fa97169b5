"""A traced program that its backend runs whole: one round trip in the place of one a generation.

    here                                     there
    ──────────────────────────────────────────────────────────────────────────────
    program and arguments, as JSON     →     runs it beside the engine
    value, variables and trunk         ←     as a journal keeps a finished row

What comes back is plain data; values of types that JSON does not carry get them here again, from the program.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from forktree.lang import ir
from forktree.lang.errors import IncompleteError, RunCancelledError
from forktree.lang.program import Program
from forktree.lang.types import Output
from forktree.runtime import protocol
from forktree.runtime.journal import restored_names
from forktree.runtime.record import Answered
from forktree.runtime.run import Run
from forktree.runtime.stored import restore, restore_branch, store
from forktree.runtime.values import Value

if TYPE_CHECKING:
    from forktree.runtime.cursor import Cursor


def runner_of(backend: protocol.Backend) -> protocol.WholePrograms | None:
    """The backend, where it runs whole programs."""
    return cast(protocol.WholePrograms, backend) if hasattr(backend, "run_program") else None


def begin_whole(
    runner: protocol.WholePrograms,
    program: Program,
    run: Run,
    trunk: Cursor,
    arguments: Mapping[str, Any],
    play: Callable[[], None],
) -> None:
    """Have the program run there; returns at once.

    Args:
        play: runs it step by step, where the other side turns out to take no programs.
    Raises:
        LanguageError: an argument that cannot be sent.
    """
    sent = store(dict(arguments))
    run.executor.spawn(_carry(runner, program, sent, run, trunk, play))


async def _carry(
    runner: protocol.WholePrograms,
    program: Program,
    arguments: str,
    run: Run,
    trunk: Cursor,
    play: Callable[[], None],
) -> None:
    run.body_task = asyncio.current_task()
    try:
        run.check_open()
        answer = await runner.run_program(program.to_json(), arguments, run.sampling)
        if answer is None:
            play()
            return
        _finish(program, run, trunk, answer)
    except asyncio.CancelledError:
        run.fail_body(run.cancelled_by or RunCancelledError(f"the run of {run.name} was cancelled"))
    except BaseException as error:
        run.fail_body(error)


def _finish(program: Program, run: Run, trunk: Cursor, answer: protocol.StoredRun) -> None:
    """The state as if it had run here."""
    trunk.names.update(_typed(program, restored_names(answer.variables)))
    trunk.tip = restore_branch(answer.branch)
    if trunk.tip is not None:
        trunk.feed.push(trunk.tip.text())
    request = protocol.GenerateRequest(branch=trunk.tip, name=program.name)
    run.recorder.answers.append(Answered(run.backend, request, answer.usage))
    run.finish_body(_returned(program.returns, trunk.names, restore(answer.value)))


def _typed(program: Program, names: dict[str, Value]) -> dict[str, Value]:
    """The names, with the types of the generations that made them."""
    outputs: dict[str, list[ir.Gen]] = {}
    for op in program.ops:
        if isinstance(op.node, ir.Gen) and op.node.name is not None:
            outputs.setdefault(op.node.name, []).append(op.node)
    return {name: _retyped(value, outputs.get(name, [])) for name, value in names.items()}


def _retyped(value: Value, gens: list[ir.Gen]) -> Value:
    output = gens[0].output if gens else None
    if output is None or output.parse is None or any(gen.output != output for gen in gens):
        return value
    is_list = len(gens) > 1 or (gens[0].sampling.n or 1) > 1
    typed = Value()

    def read() -> Any:
        plain = value.get()
        if is_list and isinstance(plain, list):
            return [_parsed(output, item) for item in plain]
        return _parsed(output, plain)

    assert value.meta is not None
    typed.set_lazily(read, value.meta)
    return typed


def _parsed(output: Output, plain: Any) -> Any:
    return output.value_of(json.dumps(plain, ensure_ascii=False) if output.kind == "json" else plain)


def _returned(data: Any, names: Mapping[str, Value], plain: Any) -> Any:
    """What the body returned: with the typed value where it returned a variable of the trunk, else as it came."""
    match data:
        case ir.Variable(name=name, path=(), conversion="", format_spec="") if name in names:
            try:
                return names[name].get()
            except IncompleteError:
                return plain
        case tuple() | list() if isinstance(plain, type(data)) and len(plain) == len(data):
            return type(data)(_returned(one, names, two) for one, two in zip(data, plain, strict=True))
        case dict() if isinstance(plain, dict) and plain.keys() == data.keys():
            return {key: _returned(data[key], names, plain[key]) for key in data}
    return plain
