"""What a soak runs: programs of every kind over more text than the pool holds, the same ones again and again.

A task is a kind and a number. What a task of a number below `NUM_KEPT` gives is a function of the two, so it must be
the same whenever it is run, wherever its prefix comes from and whoever runs beside it. Higher numbers never come twice:
of what is remembered by prompt, schema or pattern nothing may stay for ever.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import forktree as ft

NUM_KEPT = 48  # texts that come again; about 48 x 230 tokens, and each kind's own behind them
_SYLLABLES = ["ka", "lo", "mi", "ren", "tu", "sa", "vel", "or", "an", "thi", "do", "pe"]

Task = Callable[[ft.Local, int], object]


def trunk_of(number: int) -> str:
    """Some 200 tokens that begin as every other trunk of its eight does."""
    rng = random.Random(number % 8)
    words = ["".join(rng.choices(_SYLLABLES, k=3)) for _ in range(20)]
    rng.seed(number)
    return " ".join([*words, f"({number})", *("".join(rng.choices(_SYLLABLES, k=2)) for _ in range(30))]) + ".\n"


@ft.function
def _says(s, number, max_tokens=12, **options):
    s += trunk_of(number) + "Then:" + ft.gen("v", max_tokens=max_tokens, **options)
    return s["v"]


@ft.function
def _picks(s, number):
    s += trunk_of(number) + "It was" + ft.select("v", [" ka", " lo and mi", " mi", " none of them"])
    return s["v"]


@ft.function
def _forks(s, number):
    s += ft.user(trunk_of(number))
    with s.fork(["First", "Second", "Third"]) as branches:
        branches += ft.gen("v", max_tokens=8, ignore_eos=True)
    return tuple(s["v"])


@ft.function
def _talks(s, number):
    for turn in range(3):
        s += ft.user(trunk_of(number) if turn == 0 else f"And {turn}?")
        s += ft.assistant(ft.gen(f"v{turn}", max_tokens=8))
    return tuple(s[f"v{turn}"] for turn in range(3))


@ft.function
def _row(s, number):
    long = " ka" * 5000 if number % 5 == 4 else ""
    s += trunk_of(number % NUM_KEPT) + long + ft.gen("v", max_tokens=4)
    return s["v"]


def _schema(number: int) -> dict[str, object]:
    name = f"k{number}"
    return {
        "type": "object",
        "properties": {name: {"enum": ["ka", "lo", "mi"]}, "n": {"type": "integer", "minimum": 0, "maximum": 999}},
        "required": [name, "n"],
        "additionalProperties": False,
    }


def _stream(local: ft.Local, number: int) -> object:
    state = _says.stream(number, seed=number, temperature=0.9, backend=local)
    pieces = list(state.text_iter("v"))
    assert "".join(pieces) == state["v"]
    return state["v"]


def _leave(local: ft.Local, number: int) -> object:
    """A stream whose reader goes away."""
    state = _says.stream(number, max_tokens=400, ignore_eos=True, backend=local)
    pieces = state.text_iter("v")
    next(pieces)
    pieces.close()
    return None


def _cancel(local: ft.Local, number: int) -> object:
    """A run whose task is cancelled."""

    async def run() -> None:
        task = asyncio.ensure_future(_says.arun(number, max_tokens=400, ignore_eos=True, backend=local))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return None


def _map(local: ft.Local, number: int) -> object:
    """Rows, one of which can never fit."""
    results = _row.using(backend=local).map([(number * 5 + i,) for i in range(5)])
    errors = [result.error for result in results if not result.ok]
    assert [type(error) for error in errors] == [ft.ContextLengthError], errors
    return tuple(result.value for result in results if result.ok)


def _refuse(local: ft.Local, number: int) -> object:
    """A constraint that cannot be honoured."""
    try:
        _says.run(number, regex=f"(ka{number}", backend=local)
    except ft.ConstraintError:
        return None
    raise AssertionError("a broken pattern was taken")


TASKS: dict[str, Task] = {
    "gen": lambda local, number: _says.run(number, backend=local).ret_value,
    "gen, sampled": lambda local, number: _says.run(number, temperature=1.0, seed=number, backend=local).ret_value,
    "select": lambda local, number: _picks.run(number, backend=local).ret_value,
    "fork and join": lambda local, number: _forks.run(number, backend=local).ret_value,
    "conversation": lambda local, number: _talks.run(number, backend=local).ret_value,
    "schema": lambda local, number: _says.run(number, 60, schema=_schema(number), backend=local).ret_value,
    "pattern": lambda local, number: _says.run(number, 40, regex=f"(ka|lo){{2,6}}-{number}", backend=local).ret_value,
    "stream": _stream,
    "stream, left": _leave,
    "run, cancelled": _cancel,
    "map, a row fails": _map,
    "refused": _refuse,
}
