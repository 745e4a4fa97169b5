"""Programs by reference: how a module's programs are pickled."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any


def global_of(fn: Callable[..., Any]) -> Any:
    """What the module's global of the function's name is now, or None."""
    try:
        return functools.reduce(getattr, fn.__qualname__.split("."), sys.modules[fn.__module__])
    except (AttributeError, KeyError):
        return None


def load_global(module: str, qualname: str) -> Any:
    """The global, its module imported. Raises ImportError or AttributeError when it is not there."""
    return functools.reduce(getattr, qualname.split("."), importlib.import_module(module))
