"""Keywords that nobody knows: an error that names the one that was meant, and those that there are."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'max_tokens'?`, or nothing where none of the known is like it."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown_keyword(what: str, name: str, known: Iterable[str]) -> str:
    """The message: `what` has no parameter `name`, what it is like, and all that there are."""
    names = list(known)
    return f"{what} has no parameter {name!r}{did_you_mean(name, names)} (it takes {', '.join(names)})"


def keyword_checked(
    error: type[Exception] = TypeError, name: str | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function without `**kwargs`: an unknown keyword raises `error`, with what was meant.

    Args:
        name: what to call it; its own name where not given.
    """

    def decorate(fn: Callable[P, T]) -> Callable[P, T]:
        known = [each for each in inspect.signature(fn).parameters if each != "self"]
        what = name or f"{fn.__name__}()"

        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for key in kwargs:
                if key not in known:
                    raise error(unknown_keyword(what, key, known))
            return fn(*args, **kwargs)

        return call

    return decorate
