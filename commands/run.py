"""`forktree run`: run the program of a file, once or over rows."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import forktree as ft
from forktree.commands.console import add_command, add_model_options, local_model
from forktree.lang.errors import LanguageError

EXAMPLE = """\
  forktree run qa.py --arg question="Who wrote Emma?"
  forktree run qa.py:answer --rows questions.jsonl > answers.jsonl
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "run", "run the program of a file, once or over rows", EXAMPLE.rstrip())
    parser.add_argument("program", metavar="FILE[:FUNCTION]", help="a Python file that defines @forktree.function")
    parser.add_argument(
        "--arg",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument of the program; VALUE is JSON where it reads as JSON, else text; may be repeated",
    )
    parser.add_argument("--rows", type=Path, metavar="FILE.jsonl", help="one JSON object of arguments a line")
    parser.add_argument("--concurrency", type=int, help="most rows at once")
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    program = load_program(arguments.program)
    given = parse_arguments(arguments.arg)
    if arguments.rows is None:
        with local_model(arguments):
            return _run_once(program, given)
    rows = [given | row for row in read_rows(arguments.rows)]
    with local_model(arguments):
        return _run_rows(program, rows, arguments.concurrency)


def _run_once(program: ft.Function, given: dict[str, Any]) -> int:
    state = program.run(**given)
    print(state.text())
    print(_json({"variables": state.variables(), "value": state.ret_value}), file=sys.stderr)
    return 0


def _run_rows(program: ft.Function, rows: list[dict[str, Any]], concurrency: int | None) -> int:
    num_failed = 0
    for result in program.imap(rows, concurrency=concurrency, progress=sys.stderr.isatty()):
        if result.ok:
            print(_json({"index": result.index, "variables": result.state.variables(), "value": result.value}))
        else:
            num_failed += 1
            print(_json({"index": result.index, "error": f"{type(result.error).__name__}: {result.error}"}))
    if num_failed:
        print(f"{num_failed} of {len(rows)} rows failed", file=sys.stderr)
    return 1 if num_failed else 0


def load_program(target: str) -> ft.Function:
    """The program that FILE[:FUNCTION] names.

    Raises:
        LanguageError: the file is not there, or holds no such program, or several and none was named.
    """
    file, _, name = target.partition(":") if not Path(target).exists() else (target, "", "")
    path = Path(file)
    if not path.is_file():
        raise LanguageError(f"no file {file!r}")
    programs = {key: value for key, value in vars(_load(path)).items() if isinstance(value, ft.Function)}
    known = ", ".join(sorted(programs)) or "none"
    if name and name not in programs:
        raise LanguageError(f"{path} has no program {name!r}; its programs: {known}")
    if not name and len(programs) != 1:
        raise LanguageError(f"{path} has {len(programs)} programs ({known}); name one as {path}:FUNCTION")
    return programs[name] if name else next(iter(programs.values()))


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise LanguageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def parse_arguments(texts: list[str]) -> dict[str, Any]:
    """NAME=VALUE, VALUE read as JSON where it is JSON. Raises LanguageError: it is not NAME=VALUE."""
    return dict(map(_parse_argument, texts))


def _parse_argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise LanguageError(f"--arg takes NAME=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file. Raises LanguageError: it cannot be read, or a line is no object."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise LanguageError(f"--rows {path}: {error.strerror}") from error
    return [_read_row(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _read_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise LanguageError(f"{path}:{number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise LanguageError(f"{path}:{number} must be an object of arguments, not {type(row).__name__}")
    return row


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON has no form for: models as objects, the rest as text."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)
