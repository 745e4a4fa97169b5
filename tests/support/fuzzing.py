"""What a parser of untrusted input is fed: sound inputs with edits, and nonsense; and how it is watched meanwhile."""

from __future__ import annotations

import copy
import json
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from forktree.lang.errors import ForktreeError

LIMIT_S = 20.0  # of the processor's time for one input; what is counted in steps ends long before
_SILENCE_S = 10 * LIMIT_S  # for one that waits and computes nothing


class Hang(BaseException):
    """An input took longer than `LIMIT_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser.

    Attributes:
        seeds: sound inputs.
        take: feeds one; returns for what it takes, and raises nothing but `refusals` for what it does not.
        is_json: edits are made of values as well as of bytes.
        words: pieces of the parser's own language, put in anywhere.
    """

    name: str
    seeds: tuple[bytes, ...]
    take: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...] = (ForktreeError,)
    is_json: bool = False
    words: tuple[bytes, ...] = ()

    def inputs(self) -> st.SearchStrategy[bytes]:
        kinds = [edited(self.seeds, self.words), edited(self.seeds, self.words), st.binary(max_size=200)]
        if self.is_json:
            kinds += [edited_json(self.seeds), edited_json(self.seeds), edited_json(self.seeds)]
        return st.one_of(kinds)

    def accepts(self, data: bytes) -> bool:
        """Whether the input was taken; whatever else than a refusal it raises comes out, and so does a hang."""
        with within(LIMIT_S):
            try:
                self.take(data)
            except self.refusals:
                return False
        return True


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises Hang in the main thread when so much processor time is over."""

    def stop(*_: Any) -> None:
        raise Hang(f"an input took longer than {seconds:g} s")

    timers = [(signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, _SILENCE_S)]
    before = [(number, signal.signal(number, stop)) for number, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)
        for number, handler in before:
            signal.signal(number, handler)


# --- bytes ------------------------------------------------------------------------------------------------------

_EDITS = ["flip", "flip", "cut", "end", "double", "splice", "length", "length", "put", "word"]
_LENGTHS = [struct.pack("<Q", 1 << 63), struct.pack("<Q", (1 << 62) + 1), struct.pack("<I", 0xFFFFFFFF)]
_LENGTHS += [struct.pack("<Q", 1 << 32), struct.pack("<I", 1 << 20), b"\0" * 8, b"99999999999999999999"]
_NONSENSE = [b"\0", b"\xff", b"\xff\xfe", b"\xed\xa0\x80", b'"', b"\\", b"[" * 3000, b"(" * 3000, b'{"a":' * 3000]


@st.composite
def edited(draw: Any, seeds: tuple[bytes, ...], words: tuple[bytes, ...] = ()) -> bytes:
    """A seed with a few edits: bits flipped, cut, doubled, parts of another seed, huge lengths, deep nesting."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(1, 16))
        match draw(
            st.sampled_from(["flip", "flip", "cut", "end", "double", "splice", "length", "length", "put", "word"])
        ):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at : at + size]
            case "end":
                del data[at:]
            case "double":
                data[at:at] = data[at : at + 4 * size]
            case "splice":
                other = draw(st.sampled_from(seeds))
                start = draw(st.integers(0, len(other)))
                data[at : at + size] = other[start : start + 4 * size]
            case "length":
                length = draw(st.sampled_from(_LENGTHS))
                data[at : at + len(length)] = length
            case "put":
                data[at:at] = draw(st.sampled_from(_NONSENSE))
            case "word" if words:
                data[at:at] = draw(st.sampled_from(words))
    return bytes(data)


# --- JSON -------------------------------------------------------------------------------------------------------

_ODD: list[Any] = [None, True, False, 0, -1, 1, 1.5, 1 << 31, -(1 << 63), 1 << 64, 10**400, 1e308, float("nan")]
_ODD += ["", "a", "\0", "\ud800", "é😀", "x" * 5000, "-", "null", [], {}, [[]], {"": None}, [None], {"a": {}}]
_NESTED = "[" * 2000 + "]" * 2000


@st.composite
def edited_json(draw: Any, seeds: tuple[bytes, ...]) -> bytes:
    """A seed whose values are replaced, taken out, doubled or renamed."""
    value = json.loads(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 3))):
        value = _edit(draw, value)
    text = json.dumps(value)
    return text.replace('"@nested"', _NESTED).encode()


def _edit(draw: Any, value: Any) -> Any:
    """One edit at a place that is drawn by a walk down."""
    if isinstance(value, dict | list) and value and draw(st.integers(0, 4)):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw(st.sampled_from(keys))
        match draw(st.sampled_from(["into", "into", "into", "out", "rename", "double"])):
            case "out":
                del value[key]
            case "rename" if isinstance(value, dict):
                value[draw(st.sampled_from([*map(str, keys), "$ref", "type", "x", ""]))] = value.pop(key)
            case "double" if isinstance(value, list):
                value.append(value[key])
            case _:
                value[key] = _edit(draw, value[key])
        return value
    match draw(st.integers(0, 9)):
        case 0:
            return "@nested"
        case 1:
            return [value]
        case 2:
            return {"a": value}
    return copy.deepcopy(draw(st.sampled_from(_ODD)))  # it may be edited in its turn


class Refused(Exception):
    """A status of 4xx in the shape that its route documents."""


def dumped(values: tuple[Any, ...]) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)
