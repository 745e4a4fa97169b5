"""What the commands share about programs: finding one in a file, its arguments, its rows."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import forktree as ft
from forktree.lang.errors import LanguageError


def add_program_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="FILE[:FUNCTION]", help="a Python file that defines @forktree.function")
    parser.add_argument(
        "--arg",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument of the program; VALUE is JSON where it reads as JSON, else text (a parameter annotated "
        "`str` always gets text); may be repeated",
    )


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


def check_arguments(program: ft.Function, given: dict[str, Any]) -> None:
    """Raises LanguageError: the program lacks an argument, or has no such parameter."""
    signature = inspect.signature(program.fn)
    own = list(signature.parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in own):
        return
    known = ", ".join(p.name for p in own) or "none"
    for name in given:
        if name not in signature.parameters:
            raise LanguageError(f"{program.name} has no parameter {name!r}; its parameters: {known}")
    for p in own:
        if p.default is p.empty and p.kind is not p.VAR_POSITIONAL and p.name not in given:
            raise LanguageError(f"{program.name} needs --arg {p.name}=VALUE; its parameters: {known}")


def parse_arguments(program: ft.Function, texts: list[str]) -> dict[str, Any]:
    """NAME=VALUE, VALUE read as JSON where it is JSON and the parameter is not annotated `str`.

    Raises LanguageError: it is not NAME=VALUE.
    """
    parameters = inspect.signature(program.fn).parameters
    return dict(_parse_argument(parameters, text) for text in texts)


def _parse_argument(parameters: Any, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise LanguageError(f"--arg takes NAME=VALUE, not {text!r}")
    if name in parameters and parameters[name].annotation in (str, "str"):
        return name, value
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
