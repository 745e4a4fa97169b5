"""Whose code a module is: the user's own, or that of Python or an installed distribution, at a version."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

PYTHON = "Python"
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def library_of(module: str | None) -> str | None:
    """ "Python" or the top-level package's name for library code; None for the user's own."""
    if module is None or module == "__main__":
        return None
    top = module.partition(".")[0]
    if top == "forktree":  # also where it is installed from a checkout
        return top
    file = _file_of(sys.modules.get(module))
    if file is None:
        return PYTHON if top in sys.stdlib_module_names else None
    return library_at(top, file)


@functools.lru_cache(maxsize=4096)
def library_at(top: str, file: str) -> str | None:
    """As `library_of`, of a file that holds a part of the package `top`."""
    path = Path(file)
    if not _INSTALLED.isdisjoint(path.parts):
        return top
    homes = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return PYTHON if file.startswith("<") or any(path.is_relative_to(home) for home in homes) else None


def version_of(library: str) -> str:
    """Of Python, major and minor; of a package, its version, or "" where it tells none."""
    if library == PYTHON:
        return f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    told = vars(sys.modules[library]).get("__version__") if library in sys.modules else None
    return told if isinstance(told, str) else _installed_version(library)


@functools.lru_cache(maxsize=256)
def _installed_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""


def name_of_module(module: str) -> str:
    """A name that is the same whether the file is run or imported."""
    if module != "__main__":
        return module
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = _file_of(main)
    return module if file is None else Path(file).stem


def find_spec(module: str) -> ModuleSpec | None:
    """Where a module would be imported from; unlike importlib's own, this imports no parent."""
    path, spec = None, None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        try:
            spec = PathFinder.find_spec(".".join(parts[:end]), path)
        except (ImportError, KeyError, ValueError):
            return None
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and end < len(parts):
            return None
    return spec


def _file_of(module: ModuleType | None) -> str | None:
    file = vars(module).get("__file__") if module is not None else None
    return file if isinstance(file, str) else None
