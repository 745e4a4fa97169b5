"""What the commands share about programs: finding one in a file, and its arguments."""

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
from forktree.lang.errors import ForktreeError, LanguageError
from forktree.lang.keywords import did_you_mean
from forktree.runtime.ported import SAMPLING_KEYWORDS


class UsageError(LanguageError):
    """The command line is wrong, not what it names: exit code 2."""


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
        UsageError: the file is not there, or holds no such program, or several and none was named.
    """
    file, _, name = target.partition(":") if not Path(target).exists() else (target, "", "")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"no file {file!r}")
    programs = {key: value for key, value in vars(_load(path)).items() if isinstance(value, ft.Function)}
    known = ", ".join(sorted(programs)) or "none"
    if name and name not in programs:
        raise UsageError(f"{path} has no program {name!r}; its programs: {known}{did_you_mean(name, programs)}")
    if not programs:
        raise UsageError(f"{path} has no program; a program is a function under @forktree.function")
    if not name and len(programs) > 1:
        raise UsageError(f"{path} has {len(programs)} programs ({known}); name one as {path}:FUNCTION")
    return programs[name] if name else next(iter(programs.values()))


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def check_arguments(program: ft.Function, given: dict[str, Any], form: str = "{!r}") -> None:
    """Refuse what a run could not take. A program's run also takes `seed` and sampling keywords.

    `form` is how the message asks for an argument that is missing.

    Raises LanguageError: the program lacks an argument, has no such parameter, or an option of the run is wrong.
    """
    own = list(inspect.signature(program.fn).parameters.values())[program.num_leading :]
    names = [p.name for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    known = f"its parameters: {', '.join(names) or 'none'}"
    takes_any = any(p.kind is p.VAR_KEYWORD for p in own)
    for name in given:
        if name not in names and not takes_any and name not in SAMPLING_KEYWORDS:
            raise LanguageError(f"{program.name} has no parameter {name!r}; {known}{did_you_mean(name, names)}")
    for p in own:
        if p.name in names and p.default is p.empty and p.name not in given and p.name not in program.bound:
            raise LanguageError(f"{program.name} needs {form.format(p.name)}; {known}")
        if p.kind is p.POSITIONAL_ONLY and p.name in given:
            raise LanguageError(f"{program.name} takes {p.name!r} by position only, and a command gives it by name")
    try:
        program.arguments_of(given)
    except (ForktreeError, TypeError, ValueError) as error:
        raise LanguageError(str(error)) from error


def parse_arguments(program: ft.Function, texts: list[str]) -> dict[str, Any]:
    """NAME=VALUE, VALUE read as JSON where it is JSON and the parameter is not annotated `str`.

    Raises UsageError: it is not NAME=VALUE, or a name is given twice.
    """
    parameters = inspect.signature(program.fn).parameters
    given: dict[str, Any] = {}
    for text in texts:
        name, value = _parse_argument(parameters, text)
        if name in given:
            raise UsageError(f"--arg {name} is given twice")
        given[name] = value
    return given


def whole_arguments(program: ft.Function, texts: list[str]) -> dict[str, Any]:
    """The arguments of one run. Raises UsageError: they do not fit the program."""
    given = parse_arguments(program, texts)
    try:
        check_arguments(program, given, "--arg {}=VALUE")
    except LanguageError as error:
        raise UsageError(str(error)) from error
    return given


def _parse_argument(parameters: Any, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--arg takes NAME=VALUE, not {text!r}")
    if name in parameters and parameters[name].annotation in (str, "str"):
        return name, value
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
