"""`forktree show`: run a program, then look inside: its IR, the engine's steps, the tree that is cached."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import forktree as ft
from forktree.commands.console import add_command, add_model_options, local_model, stdout_console
from forktree.commands.programs import add_program_options, load_program, whole_arguments
from forktree.runtime.plan import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.tree import Tree

    from forktree.backend.engine.inspect import CachedNode, StepRecord

_MAX_TEXT = 60
_BAR_WIDTH = 40


def add_parser(commands: Any) -> None:
    example = '  forktree show qa.py:answer --arg question="Who wrote Emma?"'
    parser = add_command(commands, "show", "run a program and show its IR, the engine's steps and the cache", example)
    add_program_options(parser)
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    program = load_program(arguments.program)
    given = whole_arguments(program, arguments.arg)
    console = stdout_console()
    with local_model(arguments) as local:
        state = program.run(**given)
        console.rule("program")
        console.print(str(state.program), markup=False, highlight=False)
        console.rule("steps")
        console.print(steps_table(local.timeline()))
        console.rule("cache")
        for namespace, nodes in local.cached_tree().items():
            console.print(cache_tree(local, namespace, nodes))
    return 0


def steps_table(steps: tuple[StepRecord, ...]) -> RenderableType:
    """One line a step: a bar of its time, what it computed, who ran and who waited."""
    from rich.table import Table

    table = Table("step", "ms", "", "sequences", "prefill", "drawn", "running", "waiting", box=None)
    longest = max((step.seconds for step in steps), default=1.0)
    for step in steps:
        bar = "█" * max(1, round(_BAR_WIDTH * step.seconds / longest))
        counts = (step.num_sequences, step.prefill_tokens, step.decode_tokens, step.num_running, step.num_waiting)
        table.add_row(str(step.index), f"{1000 * step.seconds:.1f}", f"[cyan]{bar}[/cyan]", *map(str, counts))
    return table


def cache_tree(local: ft.Local, namespace: str, nodes: tuple[CachedNode, ...]) -> Tree:
    """The radix tree with each run's text."""
    from rich.tree import Tree

    root = Tree(f"namespace {namespace!r}" if namespace else "programs")
    todo = [(root, node) for node in reversed(nodes)]
    while todo:
        place, node = todo.pop()
        branch = place.add(_label(local, node))
        todo += [(branch, child) for child in reversed(node.children)]
    return root


def _label(local: ft.Local, node: CachedNode) -> Any:
    from rich.text import Text

    shown = repr(local.detokenize(node.tokens))[1:-1]
    if len(shown) > _MAX_TEXT:
        shown = f"{shown[: _MAX_TEXT // 2]} … {shown[-_MAX_TEXT // 2 :]}"
    return Text.assemble((f"{counted(len(node.tokens), 'token')}, {counted(node.num_pages, 'page')}  ", "dim"), shown)
