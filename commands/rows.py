"""The rows of a JSON Lines file as arguments of a program; what does not fit is named with its file and line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import forktree as ft
from forktree.commands.programs import UsageError, check_arguments
from forktree.lang.errors import LanguageError


def add_rows_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE.jsonl",
        help="one JSON object of arguments a line; --arg gives what the rows lack, and may give nothing that they have",
    )


def read_rows(program: ft.Function, path: Path, given: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments of each row of the file, with what `--arg` gave to all of them.

    Raises:
        UsageError: the file cannot be read, or a row has an argument that `--arg` gave too.
        LanguageError: a line is no JSON object, or does not fit the program.
    """
    try:
        # Not splitlines: it also breaks at characters that a JSON string may hold, such as U+2028.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UsageError(f"--rows {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LanguageError(f"--rows {path} is not UTF-8: {error.reason} at byte {error.start}") from error
    rows = [(f"{path}:{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
    return [_complete(program, where, _read_row(where, line), given) for where, line in rows]


def _read_row(where: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise LanguageError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(row, dict):
        raise LanguageError(f"{where} must be an object of arguments, not {line.strip()[:60]}")
    return row


def _complete(program: ft.Function, where: str, row: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    for name in given:
        if name in row:
            raise UsageError(f"{where} gives {name!r}, and so does --arg; give it in one of them")
    arguments = given | row
    try:
        check_arguments(program, arguments)
    except LanguageError as error:
        raise LanguageError(f"{where}: {error}") from error
    return arguments
