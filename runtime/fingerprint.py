"""A program's checksums: what a journal compares, so that results of an older program do not pass for new.

From the program's body on, everything that its code refers to is followed: globals, closed-over names, defaults,
attributes of modules, functions, classes and programs of the user's own files, and the data in them, by value
(`value_digest`). Library code ends the walk and counts by its version. Comments and layout do not count, nor what
the code itself writes into while it runs (a counter, a cache, a list of results), nor values under a secret's name.

Each part has a name and a checksum, so that a refusal can say what has changed. The same file gives the same parts
whether it is run or imported, in every process of one version of Python. Nothing is called or imported.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

from forktree.runtime.code_reads import Read, imports_of, reads_of, rebound_names, writes_of
from forktree.runtime.function import Function
from forktree.runtime.mappable import Mappable
from forktree.runtime.origins import PYTHON, find_spec, library_at, library_of, name_of_module, version_of
from forktree.runtime.value_digest import ValueDigest, is_secret

Parts = Mapping[str, str]
"""From the name of each part of a program to its checksum. Equal where the program is the same."""

_MAX_PASSES = 4
_MAX_PARTS = 5_000
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_BEGINNINGS = ("__init__", "__new__", "__post_init__", "__set_name__", "__init_subclass__", "model_post_init")
_CLASS_PARTS = ("__total__", "__required_keys__", "__optional_keys__", "__call__", "__format__", "__str__", "__repr__")
_MADE_BY_DATACLASSES = ("__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__")


def fingerprint_function(program: Function, backend: Any) -> Parts:
    """The parts of a program, of what was bound to it, of its sampling, and of the backend that answers it."""
    changing: frozenset[Any] = frozenset()
    for _ in range(_MAX_PASSES):  # what code writes into is known only when all of it was seen
        walk = _Walk(program.fn.__globals__.get("__name__", ""), changing)
        walk.add_program(program, backend)
        if walk.changing <= changing:
            break
        changing |= walk.changing
    return walk.parts


def fingerprint_backend(backend: Any) -> Parts:
    """The parts of a backend alone, for programs that are data."""
    walk = _Walk("", frozenset())
    walk.add_backend(backend)
    return walk.parts


class _Walk:
    """One pass over a program. `changing` holds what code writes into: ids, (id, attribute) and (id, name) pairs."""

    def __init__(self, home: str, changing: frozenset[Any]) -> None:
        self.parts: dict[str, str] = {PYTHON: version_of(PYTHON)}
        self.changing: set[Any] = set()
        self._known_changing = changing
        self._home = name_of_module(home)
        self._todo: deque[Callable[[], None]] = deque()
        self._seen: dict[Any, str] = {}
        self._alive: list[Any] = []  # an id stays that of one object as long as the walk goes on

    # What is begun with

    def add_program(self, program: Function, backend: Any) -> None:
        """The program under its own name, and all that it leads to."""
        self._refer_function(program.fn)
        self._add("sampling", program.options.sampling, program.options.speculation)
        for name, value in program.bound.items():
            self._add(f"{name} (bound)", value)
        for receiver in program.receiver:
            self._add("self", receiver)
        self.add_backend(backend)

    def add_backend(self, backend: Any) -> None:
        """The class of a backend, and what it says of itself."""
        self._add("backend", *_identity_of(backend))
        self._finish()

    def _finish(self) -> None:
        while self._todo and len(self.parts) < _MAX_PARTS:
            self._todo.popleft()()

    def _add(self, label: str, *values: Any) -> None:
        self.parts[label] = ValueDigest(self._refer, self._is_left_out).of(*values)

    def _is_left_out(self, owner: Any, attribute: str) -> bool:
        owners = (owner, *type(owner).__mro__)
        return any((id(each), attribute) in self._known_changing for each in owners)

    # References to code

    def _refer(self, value: Any) -> str | None:
        """A name for code, whose content becomes a part of its own; None for data."""
        match value:
            case Function():
                return self._refer_program(value)
            case Mappable():
                return repr(sorted(value.fingerprint().items()))
            case FunctionType():
                return self._refer_function(value)
            case BuiltinFunctionType():
                return f"builtin {value.__qualname__}"
            case type():
                return self._refer_class(value)
            case ModuleType():
                library = self._library(value.__name__)
                return f"module {library or name_of_module(value.__name__)}"
        if library_of(type(value).__module__) == "forktree":
            if hasattr(type(value), "spec"):
                return ValueDigest(self._refer, self._is_left_out).of(value.spec)
            if callable(getattr(type(value), "stream", None)):
                return ValueDigest(self._refer, self._is_left_out).of(*_identity_of(value))
        return None

    def _refer_program(self, program: Function) -> str:
        options = program.options
        given = (program.bound, program.receiver, options.sampling, options.speculation, options.backend)
        return f"{self._refer_function(program.fn)} with {ValueDigest(self._refer, self._is_left_out).of(*given)}"

    def _refer_function(self, fn: Any) -> str:
        module = fn.__globals__.get("__name__", "")
        is_first = not self._seen
        library = None if is_first else self._library(module)
        if library is not None:
            return f"{library} {module}.{fn.__qualname__}"
        return self._once(fn, self._label(module, f"{fn.__qualname__}()"), lambda label: self._add_function(label, fn))

    def _refer_class(self, cls: type) -> str:
        library = self._library(cls.__module__)
        if library is not None:
            return f"{library} {cls.__module__}.{cls.__qualname__}"
        label = self._label(cls.__module__, f"class {cls.__qualname__}")
        return self._once(cls, label, lambda label: self._add_class(label, cls))

    def _library(self, module: str) -> str | None:
        library = library_of(module)
        if library is not None and library != PYTHON:
            self.parts.setdefault(library, version_of(library))
        return library

    def _label(self, module: str, name: str) -> str:
        module = name_of_module(module)
        return name if module == self._home else f"{module}: {name}"

    def _once(self, item: Any, label: str, work: Callable[[str], None], key: Any = None) -> str:
        """The label of an item; its work is put in the queue when it is met for the first time."""
        key = id(item) if key is None else key
        if key not in self._seen:
            taken = set(self._seen.values())
            number = next(n for n in range(1, len(taken) + 2) if _numbered(label, n) not in taken)
            self._seen[key] = label = _numbered(label, number)
            self._alive.append(item)
            self._todo.append(lambda: work(label))
        return self._seen[key]

    # Functions

    def _add_function(self, label: str, fn: FunctionType, owner: type | None = None) -> None:
        self._add(label, fn.__code__, fn.__defaults__, fn.__kwdefaults__, _annotations(fn))
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        rebound = rebound_names(fn.__code__)
        for read in [*reads_of(fn.__code__), *_reads_of_annotations(fn)]:
            if read.name not in rebound:
                self._read(fn, cells, read)
        self._follow_imports(fn.__code__, str(fn.__globals__.get("__package__") or ""))
        self._note_writes(fn, cells, owner)

    def _read(self, fn: FunctionType, cells: Mapping[str, CellType], read: Read) -> None:
        if read.name in cells:
            with suppress(ValueError):  # not bound yet
                value = cells[read.name].cell_contents
                if isinstance(value, ModuleType):
                    self._read_module(value, read.attributes)
                else:
                    label = self._label(fn.__globals__.get("__name__", ""), f"{read.name} of {fn.__qualname__}")
                    self._add_named(value, label, id(cells[read.name]), read.name)
        else:
            self._read_global(fn.__globals__, read.name, read.attributes)

    def _read_global(self, namespace: Mapping[str, Any], name: str, attributes: tuple[str, ...]) -> None:
        if name not in namespace or _is_dunder(name):
            return
        value = namespace[name]
        if isinstance(value, ModuleType):
            self._read_module(value, attributes)
        else:
            key = (id(namespace), name)
            self._add_named(value, self._label(str(namespace.get("__name__", "")), name), key, name)

    def _read_module(self, module: ModuleType, attributes: tuple[str, ...]) -> None:
        if self._library(module.__name__) is None and attributes:
            self._read_global(vars(module), attributes[0], attributes[1:])

    def _add_named(self, value: Any, label: str, key: Any, name: str) -> None:
        if key in self._known_changing or id(value) in self._known_changing or is_secret(name):
            value = type(value)
        self._once(value, label, lambda label: self._add(label, value), key)

    def _note_writes(self, fn: FunctionType, cells: Mapping[str, CellType], owner: type | None) -> None:
        self.changing |= {(id(fn.__globals__), name) for name in rebound_names(fn.__code__) if name not in cells}
        receiver = fn.__code__.co_varnames[:1]
        for name, attribute in writes_of(fn.__code__):
            if owner is not None and (name,) == receiver:
                if attribute is not None and fn.__name__ not in _BEGINNINGS:
                    self.changing.add((id(owner), attribute))
            elif name not in fn.__code__.co_varnames:
                self._note_write(_resolved(fn, cells, name), attribute)

    def _note_write(self, value: Any, attribute: str | None) -> None:
        if attribute is None:
            if not isinstance(value, ModuleType | type | FunctionType | type(None)):
                self.changing.add(id(value))
        elif isinstance(value, ModuleType):
            self.changing |= {(id(vars(value)), attribute)}
        else:
            self.changing.add((id(value), attribute))

    # Modules that a body imports

    def _follow_imports(self, code: CodeType, package: str) -> None:
        for module, level, names in imports_of(code):
            base = ".".join(package.split(".")[: 1 - level or None]) if level else ""
            name = ".".join(part for part in (base, module) if part)
            for each in (name, *(f"{name}.{inner}" for inner in names)):
                self._add_file(each)

    def _add_file(self, module: str) -> None:
        """The file of a module that may not be imported yet; its whole code counts, and what it imports."""
        top = module.partition(".")[0]
        if not module or top == "forktree" or top in sys.stdlib_module_names:
            return
        spec = find_spec(module)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return
        library = library_at(top, spec.origin)
        if library is not None:
            self.parts.setdefault(library, version_of(library))
            return
        package = module if spec.submodule_search_locations else module.rpartition(".")[0]
        file = Path(spec.origin)
        self._once(file, f"file {module}", lambda label: self._add_code_of(label, file, package), ("file", module))

    def _add_code_of(self, label: str, file: Path, package: str) -> None:
        try:
            code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError) as error:
            self._add(label, type(error).__name__)
        else:
            self._add(label, code)
            self._follow_imports(code, package)

    # Classes

    def _add_class(self, label: str, cls: type) -> None:
        values: list[Any] = [cls.__bases__, _annotations(cls)]
        self._add_annotated(cls)
        if issubclass(cls, enum.Enum):
            values.append({name: member.value for name, member in cls.__members__.items()})
        if dataclasses.is_dataclass(cls):
            values += [(item.name, item.default, item.default_factory) for item in dataclasses.fields(cls)]
        if "model_json_schema" in dir(cls):
            values += _pydantic_parts(cls)
        for name, value in cls.__dict__.items():
            if not self._is_part_of_class(cls, name, value):
                continue
            for fn in _functions_of(value):
                self._add_method(cls, fn)
            values += [name, value]
        self._add(label, *values)

    def _is_part_of_class(self, cls: type, name: str, value: Any) -> bool:
        if (id(cls), name) in self._known_changing or is_secret(name):
            return False
        if name.startswith(("__pydantic", "_abc_", "__abstract", "model_fields", "model_computed")):
            return False
        if issubclass(cls, enum.Enum) and (name in cls.__members__ or (name.startswith("_") and not callable(value))):
            return False
        if dataclasses.is_dataclass(cls) and name in _MADE_BY_DATACLASSES and isinstance(value, FunctionType):
            return value.__code__.co_filename != "<string>"
        return not _is_dunder(name) or isinstance(value, FunctionType) or name in _CLASS_PARTS

    def _add_method(self, cls: type, fn: FunctionType) -> None:
        module = str(fn.__globals__.get("__name__", ""))
        if library_of(module) is None:
            name = self._label(module, f"{fn.__qualname__}()")
            self._once(fn, name, lambda label: self._add_function(label, fn, cls))

    def _add_annotated(self, cls: type) -> None:
        """Classes that annotations name as text, where annotations are not evaluated."""
        namespace = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
        for text in _annotations(cls).values():
            for name in _IDENTIFIER.findall(text) if isinstance(text, str) else ():
                self._read_global(namespace, name, ())


def _identity_of(backend: Any) -> tuple[Any, ...]:
    """The class of a backend, and what it says that decides its answers; its name where it says nothing."""
    told = backend.identity if hasattr(type(backend), "identity") else getattr(backend, "name", None)
    return type(backend) if backend is not None else None, told


def _pydantic_parts(cls: Any) -> list[Any]:
    """The JSON schema, and what it leaves out: how each field is checked and made."""
    parts: list[Any] = []
    with suppress(Exception):  # a model that has no schema, or is not whole yet
        parts.append(cls.model_json_schema())
    fields = getattr(cls, "model_fields", {})
    return [
        *parts,
        *((name, each.annotation, each.default, each.default_factory, each.metadata) for name, each in fields.items()),
    ]


def _functions_of(value: Any) -> Iterable[FunctionType]:
    inner = value
    if isinstance(value, staticmethod | classmethod):
        inner = value.__func__
    elif isinstance(value, property):
        return [each for each in (value.fget, value.fset, value.fdel) if isinstance(each, FunctionType)]
    elif isinstance(value, Function):
        inner = value.fn
    return [inner] if isinstance(inner, FunctionType) else []


def _annotations(item: Any) -> dict[str, Any]:
    try:
        return dict(inspect.get_annotations(item))
    except Exception:  # evaluated late, and naming what is not there
        return {}


def _reads_of_annotations(fn: FunctionType) -> list[Read]:
    texts = [text for text in _annotations(fn).values() if isinstance(text, str)]
    return [Read(name, ()) for text in texts for name in _IDENTIFIER.findall(text)]


def _resolved(fn: FunctionType, cells: Mapping[str, CellType], name: str) -> Any:
    if name in cells:
        try:
            return cells[name].cell_contents
        except ValueError:
            return None
    return fn.__globals__.get(name)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _numbered(label: str, number: int) -> str:
    return label if number == 1 else f"{label} #{number}"
