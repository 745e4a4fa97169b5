"""A finished branch as a person reads it: each turn under its role, what the model wrote in bold on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

import forktree as ft
from forktree.runtime import protocol

if TYPE_CHECKING:
    from rich.text import Text


def show_transcript(state: ft.State, file: TextIO | None = None) -> None:
    """Write the state's turns, a blank line between them; without turns, the text alone. To stdout by default."""
    from rich.console import Console

    console = Console(file=file or sys.stdout)
    for index, (role, text) in enumerate(_turns(state)):
        if index:
            console.print()
        if role is not None:
            console.print(f"[{role}]", style="dim", markup=False, highlight=False)
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _turns(state: ft.State) -> Iterator[tuple[str | None, Text]]:
    """Each turn's role and text; text outside turns stands under no role."""
    from rich.text import Text

    role, text = None, Text()
    branch = state._branch()
    for segment in branch.segments() if branch is not None else ():
        match segment:
            case protocol.RoleBegin() | protocol.RoleEnd():
                if text or role is not None:
                    yield role, text
                role = segment.role if isinstance(segment, protocol.RoleBegin) else None
                text = Text()
            case protocol.Text():
                text.append(segment.text)
            case protocol.Generated():
                text.append(segment.text, style="bold")
            case protocol.Image():
                text.append("(image)")
            case _:
                pass
    if text or role is not None:
        yield role, text
