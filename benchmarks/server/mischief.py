"""What clients do to a server: ask properly, leave in the middle, abort, send nonsense, send too much.

Each deed is a function from a target and a generator of chance to nothing; it raises `Wrong` where the server's answer
is not one that it may give. A deed has a connection of its own, so that it can break it off anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_WORDS = ("harbour", "opened", "bridge", "before", "snow", "nobody", "village", "counted", "boats", "noon")
_TIMEOUT_S = 300.0
_PAUSE_S = 0.3


class Wrong(Exception):
    """An answer that the server must not give."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server under attack.

    Attributes:
        url: without a path.
        model: what it calls its model.
        context: tokens of a prompt and its answer.
        num_long: words of a long prompt that fits.
    """

    url: str
    model: str
    context: int
    num_long: int

    def body(self, chance: random.Random, **changes: Any) -> dict[str, Any]:
        """A small request for the chat route."""
        question = " ".join(chance.choices(_WORDS, k=chance.randint(3, 30)))
        messages = [{"role": "system", "content": "Be brief. " * 12}, {"role": "user", "content": question}]
        return {"model": self.model, "messages": messages, "max_tokens": chance.randint(1, 24), **changes}


class Line:
    """One connection, for one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(
        self, method: str, path: str, body: bytes = b"", *, headers: Mapping[str, str] | None = None
    ) -> None:
        """The whole request; `headers` come last and may contradict the body."""
        told = {"Host": "x", "Connection": "close", "Content-Type": "application/json", "Content-Length": len(body)}
        head = "".join(f"{name}: {value}\r\n" for name, value in {**told, **(headers or {})}.items())
        await self.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def status(self) -> int:
        """Of the answer; its headers are read past."""
        first = await self._reader.readline()
        while await self._reader.readline() not in (b"\r\n", b""):
            pass
        if not first.startswith(b"HTTP/1.1 "):
            raise Wrong(f"no status came, but {first[:80]!r}")
        return int(first.split()[1])

    async def some(self) -> bytes:
        return await self._reader.read(4096)

    async def rest(self) -> bytes:
        return await self._reader.read()

    def drop(self) -> None:
        """Break it off."""
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def line(target: Target) -> AsyncIterator[Line]:
    parts = urlsplit(target.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    opened = Line(reader, writer)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            yield opened
    finally:
        opened.drop()


async def ask(target: Target, path: str, body: Any, *, expected: tuple[int, ...] = (200,)) -> bytes:
    """The body of a whole answer. Raises Wrong: its status is not expected."""
    try:
        async with line(target) as opened:
            await opened.send("POST", path, json.dumps(body).encode())
            return await _answer(opened, expected, path)
    except TimeoutError:
        raise Wrong(f"{path} was not answered within {_TIMEOUT_S:g} s: {json.dumps(body)[:300]}") from None


async def look(target: Target, path: str) -> bytes:
    async with line(target) as opened:
        await opened.send("GET", path)
        return await _answer(opened, (200,), path)


async def _answer(opened: Line, expected: tuple[int, ...], what: str) -> bytes:
    status = await opened.status()
    rest = await opened.rest()
    if status not in expected:
        raise Wrong(f"{what} was answered {status}, not {expected}: {rest[:300]!r}")
    return rest


# --- proper requests ---------------------------------------------------------------------------------------


async def stream(target: Target, chance: random.Random) -> None:
    async with line(target) as opened:
        await opened.send("POST", "/v1/chat/completions", json.dumps(target.body(chance, stream=True)).encode())
        data = await _answer(opened, (200,), "a stream")
    if b"data: [DONE]" not in data or b'"error"' in data or b'"finish_reason":null' not in data:
        raise Wrong(f"a stream ended with {data[-300:]!r}")


_FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"n": 3, "temperature": 1.0, "seed": 5},
    {"regex": "[ab]{1,4}"},
    {"choices": ["yes", "no", "perhaps"]},
    {"logprobs": True, "top_logprobs": 2},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [1, "two", None]}}}},
)


async def whole(target: Target, chance: random.Random) -> None:
    form = chance.choice(_FORMS)
    answer = json.loads(await ask(target, "/v1/chat/completions", target.body(chance, **form)))
    if len(answer["choices"]) != form.get("n", 1):
        raise Wrong(f"{len(answer['choices'])} choices for {form}")


async def other_routes(target: Target, chance: random.Random) -> None:
    text = " ".join(chance.choices(_WORDS, k=9))
    messages = [{"role": "user", "content": text}]
    path, body = chance.choice(
        [
            ("/v1/completions", {"prompt": [text, text[:20]], "max_tokens": 6, "echo": True, "logprobs": 1}),
            ("/v1/score", {"prompt": text, "options": [" a", " b and c"]}),
            ("/v1/responses", {"input": text, "max_output_tokens": 16}),
            ("/v1/messages", {"messages": messages, "max_tokens": 8}),
            ("/tokenize", {"prompt": text}),
        ]
    )
    await ask(target, path, {"model": target.model, **body})


async def long_prompt(target: Target, chance: random.Random) -> None:
    text = " ".join(chance.choices(_WORDS, k=target.num_long))
    messages = [{"role": "user", "content": text}]
    await ask(target, "/v1/chat/completions", target.body(chance, messages=messages, max_tokens=4))


async def operate(target: Target, chance: random.Random) -> None:
    path = chance.choice(["/metrics", "/health", "/ready", "/v1/models", "/openapi.json"])
    await look(target, path)
    if chance.random() < 0.2:
        await ask(target, "/flush_cache", {})


# --- those that leave --------------------------------------------------------------------------------------


async def leave_at_once(target: Target, chance: random.Random) -> None:
    async with line(target) as opened:
        body = target.body(chance, stream=chance.random() < 0.5, max_tokens=200, ignore_eos=True)
        await opened.send("POST", "/v1/chat/completions", json.dumps(body).encode())


async def leave_in_the_middle(target: Target, chance: random.Random) -> None:
    async with line(target) as opened:
        body = target.body(chance, stream=True, max_tokens=200, ignore_eos=True, n=chance.randint(1, 3))
        await opened.send("POST", "/v1/chat/completions", json.dumps(body).encode())
        for _ in range(chance.randint(1, 4)):
            await opened.some()


async def leave_before_the_answer(target: Target, chance: random.Random) -> None:
    async with line(target) as opened:
        body = target.body(chance, max_tokens=200, ignore_eos=True)
        await opened.send("POST", "/v1/chat/completions", json.dumps(body).encode())
        await asyncio.sleep(chance.random() * _PAUSE_S)


async def leave_in_the_body(target: Target, chance: random.Random) -> None:
    async with line(target) as opened:
        body = json.dumps(target.body(chance)).encode()
        length = {"Content-Length": str(len(body) + 100)}
        await opened.send("POST", "/v1/chat/completions", body, headers=length)
        await asyncio.sleep(chance.random() * _PAUSE_S)


async def stop_reading(target: Target, chance: random.Random) -> None:
    async with line(target) as opened:
        body = target.body(chance, stream=True, max_tokens=100, ignore_eos=True)
        await opened.send("POST", "/v1/chat/completions", json.dumps(body).encode())
        await opened.some()
        await asyncio.sleep(chance.random() * 2 * _PAUSE_S)


async def abort(target: Target, chance: random.Random) -> None:
    """From another connection; the stream ends, with an error where it had not ended before."""
    id = uuid.UUID(int=chance.getrandbits(128)).hex
    async with line(target) as opened:
        body = target.body(chance, stream=True, max_tokens=200, ignore_eos=True)
        headers = {"X-Request-Id": id}
        await opened.send("POST", "/v1/chat/completions", json.dumps(body).encode(), headers=headers)
        status = await opened.status()
        begun = await opened.some()
        answer = json.loads(await ask(target, "/abort", {"request_id": id}))
        data = begun + await opened.rest()
    if status != 200 or not data.rstrip().endswith(b"0") or b"data: [DONE]" not in data:
        raise Wrong(f"an aborted stream ended with {data[-300:]!r}")
    if (b'"aborted"' in data) != (answer["aborted"] == 1):
        raise Wrong(f"{answer} and the stream {data[-300:]!r} contradict each other")


# --- nonsense ----------------------------------------------------------------------------------------------


def _bad_bodies(target: Target, chance: random.Random) -> list[tuple[str, bytes, dict[str, str], tuple[int, ...]]]:
    def chat(**changes: Any) -> bytes:
        return json.dumps(target.body(chance, **changes)).encode()

    path = "/v1/chat/completions"
    return [
        (path, b"", {}, (400,)),
        (path, b"{", {}, (400,)),
        (path, b"[]", {}, (400,)),
        (path, b"\xff\xfe\x00", {}, (400,)),
        (path, b"[" * 50_000, {}, (400,)),
        (path, b'{"model": NaN}', {}, (400,)),
        (path, chat(messages=[]), {}, (400,)),
        (path, chat(messages=[{"role": "user", "content": "\ud800"}]), {}, (400,)),
        (path, chat(temperature="hot"), {}, (400,)),
        (path, chat(max_tokens=-1), {}, (400,)),
        (path, chat(tempreature=1), {}, (400,)),
        (path, chat(n=10_000), {}, (400,)),
        (path, chat(model="no-such-model"), {}, (404,)),
        (path, chat(regex="("), {}, (400,)),
        (path, chat(grammar="start: missing"), {}, (400,)),
        (path, chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": 3}}), {}, (400,)),
        (path, chat(stream=True, regex="("), {}, (400,)),
        (path, chat(), {"Content-Type": "text/plain"}, (415,)),
        (path, b"", {"Content-Length": str(1 << 30)}, (413,)),
        ("/v1/embed", b"{}", {}, (404,)),
        ("/v1/models", b"{}", {}, (405,)),
        ("/v1/score", b'{"prompt": "a", "options": []}', {}, (400,)),
        ("/v1/programs", b'{"program": {}, "rows": [{}]}', {}, (400,)),
        ("/abort", b'{"request_id": 7}', {}, (400,)),
    ]


async def bad_body(target: Target, chance: random.Random) -> None:
    path, body, headers, expected = chance.choice(_bad_bodies(target, chance))
    async with line(target) as opened:
        await opened.send("POST", path, body, headers=headers)
        data = await _answer(opened, expected, f"{path} with {body[:80]!r} {headers}")
    if not json.loads(data)["error"]["message"]:
        raise Wrong(f"an error without a message: {data[:300]!r}")


async def no_http(target: Target, chance: random.Random) -> None:
    """Bytes that are no request, or nearly one: refused, or not answered at all."""
    sent = chance.choice([b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n"])
    async with line(target) as opened:
        with contextlib.suppress(ConnectionError):
            await opened.write(sent)
            data = await opened.rest()
            if data and not data.startswith(b"HTTP/1.1 4"):
                raise Wrong(f"what is no request was answered {data[:100]!r}")


async def huge_prompt(target: Target, chance: random.Random) -> None:
    messages = [{"role": "user", "content": "word " * (target.context * chance.randint(2, 20))}]
    body = target.body(chance, messages=messages, stream=chance.random() < 0.5)
    data = await ask(target, "/v1/chat/completions", body, expected=(400,))
    if json.loads(data)["error"]["code"] != "context_length_exceeded":
        raise Wrong(f"a prompt beyond the context: {data[:300]!r}")


Deed = Callable[[Target, random.Random], Awaitable[None]]
DEEDS: Mapping[Deed, int] = {
    stream: 6,
    whole: 5,
    other_routes: 4,
    long_prompt: 1,
    operate: 2,
    leave_at_once: 3,
    leave_in_the_middle: 4,
    leave_before_the_answer: 3,
    leave_in_the_body: 2,
    stop_reading: 2,
    abort: 3,
    bad_body: 6,
    no_http: 1,
    huge_prompt: 2,
}
"""How often each is done, of all."""
