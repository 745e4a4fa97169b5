"""SGLang's ways of running: `run_batch`, `set_default_backend`, and `run`'s sampling keywords."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from forktree.lang.errors import UnsupportedError
from forktree.lang.sampling import Sampling
from forktree.runtime.defaults import checked_backend, get_defaults, use
from forktree.runtime.map import MapOptions, Result, Row, iterate_map
from forktree.runtime.protocol import Backend
from forktree.runtime.state import State

if TYPE_CHECKING:
    from forktree.runtime.function import Function

DEFAULT_MAX_TOKENS = 128
"""What SGLang gives a generation that names no budget."""

_RENAMED = MappingProxyType({"max_new_tokens": "max_tokens", "top_logprobs_num": "logprobs"})
_DROPPED = frozenset({"return_text_in_logprobs", "use_thread"})  # always so here
SAMPLING_KEYWORDS = frozenset({item.name for item in fields(Sampling)} | set(_RENAMED) | {"return_logprob"} | _DROPPED)


def is_ported(fn: Callable[..., Any]) -> bool:
    """Does the function's module import forktree as `sgl`? Its generations then have SGLang's budget."""
    return getattr(fn.__globals__.get("sgl"), "__name__", None) == "forktree"


def sampling_of(keywords: Mapping[str, Any]) -> Sampling:
    """SGLang's sampling keywords as `Sampling`."""
    given = {_RENAMED.get(key, key): value for key, value in keywords.items() if key not in _DROPPED}
    if given.pop("return_logprob", None) and given.get("logprobs") is None:
        given["logprobs"] = 0
    return Sampling(**given)


def taken_sampling(arguments: dict[str, Any], own: Container[str]) -> Sampling | None:
    """Sampling keywords among a call's arguments, which are taken out; None where there are none.

    `own`: the program's parameters, which come first.
    """
    given = [key for key in arguments if key in SAMPLING_KEYWORDS and key not in own]
    return sampling_of({key: arguments.pop(key) for key in given}) if given else None


def set_default_backend(backend: Backend | None) -> None:
    """SGLang's name for `use`."""
    use(backend)


def flush_cache(backend: Backend | None = None) -> bool:
    """Empty the backend's prefix cache. Raises UnsupportedError when it has none."""
    flush = getattr(_backend(backend), "flush_cache", None)
    if flush is None:
        raise UnsupportedError("this backend has no cache to flush")
    flush()
    return True


def get_server_info(backend: Backend | None = None) -> Any:
    """The backend's counters. Raises UnsupportedError when it has none."""
    stats = getattr(_backend(backend), "stats", None)
    if stats is None:
        raise UnsupportedError("this backend has no counters")
    return stats()


def _backend(given: Backend | None) -> Backend:
    return get_defaults().backend() if given is None else checked_backend(given)


def run_batch(
    program: Function,
    rows: Iterable[Row],
    num_threads: int | Literal["auto"],
    progress_bar: bool,
    generator_style: bool,
) -> list[State] | Iterator[State]:
    """Finished states in order; a failed row's state raises its error when it is read."""
    limit = None if num_threads == "auto" else num_threads
    results = iterate_map(program, rows, MapOptions(limit, progress_bar))
    states = (_state_of(program, result) for result in results)
    return states if generator_style else list(states)


def _state_of(program: Function, result: Result) -> State:
    if result.error is None:
        assert result.state is not None
        return result.state
    cursor = program.failed_run(result.error).cursors[0] if result.state is None else result.state._cursor
    return State(cursor, is_outside=True)
