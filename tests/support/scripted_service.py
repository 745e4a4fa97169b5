"""A service of text models that speaks real HTTP on a port of its own: OpenAI's, Anthropic's and SGLang's routes.

Answers come from a function of the request's body, or follow the prompt; faults are taken from a list, one a request.
A token is a word with the blanks before it. As a program (`python scripted_service.py PORT`) it is a server to kill.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import forktree as ft
from forktree.backend.clients.programs import error_data
from forktree.runtime.journal import store_state
from forktree.runtime.programs import run_behind
from forktree.runtime.stored import restore, restore_branch

TOKEN = re.compile(r"\s*\S+|\s+")


@dataclass
class Fault:
    """What happens in the place of an answer, or in the middle of one.

    kind: "status", "reset" (before any byte), "break" (in the middle of the stream), "silence", "malformed", "unended",
    "event" (an error inside the stream).
    """

    kind: str = "status"
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    body: Any


class Service:
    """The service's script, and what it was asked.

    answer: from the body to text, or to a dict of further fields: "text", "calls", "finish", "reasoning".
    """

    def __init__(self, answer: Callable[[dict[str, Any]], Any] | None = None, *, key: str | None = None) -> None:
        self.answer = answer or default_answer
        self.key = key
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.num_left = 0
        self.runs_on: Any = None  # a backend for whole programs
        self.url = ""

    @property
    def bodies(self) -> list[Any]:
        return [each.body for each in self.seen]

    def app(self) -> Starlette:
        routes = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._text,
            "/v1/messages": self._messages,
            "/generate": self._generate,
            "/flush_cache": self._flush,
            "/v1/programs": self._programs,
        }
        posts = [Route(path, self._guarded(handler), methods=["POST"]) for path, handler in routes.items()]
        return Starlette(routes=[*posts, Route("/v1/models", self._guarded(self._models), methods=["GET"])])

    def _guarded(self, handler):
        async def endpoint(request: Request) -> Response:
            raw = await request.body()
            body = json.loads(raw) if raw else {}
            self.seen.append(Seen(request.url.path, dict(request.headers), body))
            given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
            if self.key is not None and given != self.key:
                return JSONResponse({"error": {"message": "no such key", "code": "invalid_api_key"}}, 401)
            fault = self.faults.pop(0) if self.faults else None
            if fault is None or fault.kind in ("break", "unended", "event"):
                answer = handler(body, fault)
                return await answer if asyncio.iscoroutine(answer) else answer
            if fault.kind == "status":
                content = (
                    fault.body
                    if isinstance(fault.body, str)
                    else json.dumps(fault.body or {"error": {"message": "broken"}})
                )
                return Response(content, fault.status, {"content-type": "application/json", **fault.headers})
            if fault.kind == "malformed":
                return Response('{"choices": [', 200, {"content-type": "application/json"})
            if fault.kind == "silence":
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                self.num_left += 1
                return Response()
            raise ConnectionResetError("scripted")  # uvicorn closes the connection

        return endpoint

    def _said(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.answer(body)
        said = {"text": answer} if isinstance(answer, str) else dict(answer)
        text, finish = said.get("text") or "", "stop"
        stops = body.get("stop") or body.get("stop_sequences") or body.get("sampling_params", {}).get("stop") or []
        stops = [] if said.get("keeps_stops") else stops
        for stop in [stops] if isinstance(stops, str) else stops:
            if stop in text:
                text, said["stop"] = text[: text.index(stop)], stop
        tokens = TOKEN.findall(text)
        most = next((body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name)), None)
        most = most or body.get("sampling_params", {}).get("max_new_tokens")
        if most is not None and len(tokens) > most:
            tokens, finish = tokens[:most], "length"
        return {"finish": finish, **said, "tokens": tokens, "text": "".join(tokens)}

    # OpenAI

    def _chat(self, body: dict[str, Any], fault: Fault | None) -> Response:
        said = self._said(body)
        usage = usage_of(json.dumps([body["messages"], body.get("tools")]), said)
        finish = "tool_calls" if said.get("calls") and said["finish"] == "stop" else said["finish"]
        calls = [
            {
                "index": i,
                "id": f"c{i}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for i, (name, arguments) in enumerate(said.get("calls", ()))
        ]
        logprobs = (
            {"content": [chat_logprob(token, body) for token in said["tokens"]]} if body.get("logprobs") else None
        )
        if not body.get("stream"):
            message = {"role": "assistant", "content": said["text"] or None, **({"tool_calls": calls} if calls else {})}
            if "reasoning" in said:
                message["reasoning_content"] = said["reasoning"]
            choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": logprobs}
            return JSONResponse({"choices": [choice], "usage": usage, "model": body["model"]})
        deltas: list[Any] = [{"role": "assistant", "content": ""}]
        if "reasoning" in said:
            deltas.append({"reasoning_content": said["reasoning"]})
        deltas += [{"content": token} for token in said["tokens"]]
        events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        if logprobs is not None:
            for event, entry in zip(events[-len(said["tokens"]) :], logprobs["content"], strict=True):
                event["choices"][0]["logprobs"] = {"content": [entry]}
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append({"choices": [], "usage": usage})
        return streamed([json.dumps(event) for event in events], fault, done=True)

    def _text(self, body: dict[str, Any], fault: Fault | None) -> Response:
        prompt = body["prompt"]
        if body.get("echo") and body.get("max_tokens") == 0:
            return JSONResponse(
                {
                    "choices": [{"index": 0, "text": prompt, "logprobs": echoed(prompt)}],
                    "usage": usage_of(prompt, {"tokens": []}),
                }
            )
        said = self._said(body)
        usage = usage_of(prompt, said)
        logprobs = None
        if body.get("logprobs") is not None:
            tops = [{token: -0.5, "other": -1.5} for token in said["tokens"]]
            logprobs = {"tokens": said["tokens"], "token_logprobs": [-0.5] * len(tops), "top_logprobs": tops}
        if not body.get("stream"):
            choice = {"index": 0, "text": said["text"], "finish_reason": said["finish"], "logprobs": logprobs}
            return JSONResponse({"choices": [choice], "usage": usage})
        events = [{"choices": [{"index": 0, "text": token, "finish_reason": None}]} for token in said["tokens"]]
        events.append({"choices": [{"index": 0, "text": "", "finish_reason": said["finish"], "logprobs": logprobs}]})
        events.append({"choices": [], "usage": usage})
        return streamed([json.dumps(event) for event in events], fault, done=True)

    # Anthropic

    def _messages(self, body: dict[str, Any], fault: Fault | None) -> Response:
        problem = messages_problem(body)
        if problem:
            return JSONResponse({"type": "error", "error": {"type": "invalid_request_error", "message": problem}}, 400)
        said = self._said(body)
        counted = usage_of(json.dumps([body.get("system"), body["messages"], body.get("tools")]), said)
        usage = {
            "input_tokens": counted["prompt_tokens"] - 3,
            "cache_read_input_tokens": 3,
            "output_tokens": counted["completion_tokens"],
        }
        blocks: list[Any] = [{"type": "thinking", "thinking": said["reasoning"]}] if "reasoning" in said else []
        blocks += [{"type": "text", "text": said["text"]}] if said["text"] else []
        blocks += [
            {"type": "tool_use", "id": "t", "name": name, "input": value} for name, value in said.get("calls", ())
        ]
        reason = {"stop": "stop_sequence" if said.get("stop") else "end_turn", "length": "max_tokens"}.get(
            said["finish"], said["finish"]
        )
        reason = "tool_use" if said.get("calls") and reason == "end_turn" else reason
        if not body.get("stream"):
            whole = {"content": blocks, "stop_reason": reason, "stop_sequence": said.get("stop"), "usage": usage}
            return JSONResponse({"type": "message", **whole})
        events: list[Any] = [
            {"type": "message_start", "message": {"usage": {**usage, "output_tokens": 1}}},
            {"type": "ping"},
        ]
        events.append({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        events += [
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}}
            for t in said["tokens"]
        ]
        events.append({"type": "content_block_stop", "index": 0})
        delta = {"stop_reason": reason, "stop_sequence": said.get("stop")}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": usage["output_tokens"]}})
        events.append({"type": "message_stop"})
        return streamed([json.dumps(event) for event in events], fault, named=True)

    # SGLang

    def _generate(self, body: dict[str, Any], fault: Fault | None) -> Response:
        text, start = body["text"], body.get("logprob_start_len", 0)
        if body["sampling_params"].get("max_new_tokens") == 0:
            about: dict[str, Any] = {"prompt_tokens": len(TOKEN.findall(text)) + 1, "finish_reason": {"type": "length"}}
            if body.get("return_logprob"):
                scored = [[None, 0, ""], *([word_logprob(t), len(t), t] for t in TOKEN.findall(text))]
                about["input_token_logprobs"] = [[None, *scored[start][1:]], *scored[start + 1 :]] if start else scored
            return JSONResponse({"text": "", "meta_info": about})
        said = self._said(body)
        counted = usage_of(text, said)
        finish = {"type": said["finish"], **({"matched": said["stop"]} if said.get("stop") else {})}
        about = {**counted, "cached_tokens": 0, "finish_reason": finish}
        if not body.get("stream"):
            return JSONResponse({"text": said["text"], "meta_info": about})
        sofar = ["".join(said["tokens"][: i + 1]) for i in range(len(said["tokens"]))] or [""]
        events = [{"text": text, "meta_info": {**about, "finish_reason": None}} for text in sofar]
        events.append({"text": sofar[-1], "meta_info": about})
        return streamed([json.dumps(event) for event in events], fault, done=True)

    async def _programs(self, body: dict[str, Any], fault: Fault | None) -> Response:
        if self.runs_on is None:
            return JSONResponse({"detail": "Not Found"}, 404)
        program = ft.Program.from_json(json.dumps(body["program"]))
        sampling = ft.Sampling(**body["sampling"]) if body.get("sampling") else None
        branch = restore_branch(json.dumps(body.get("branch", [])))
        events = [await self._row(program, branch, row, index, sampling) for index, row in enumerate(body["rows"])]
        lines = [f"event: row\ndata: {json.dumps(event)}\n\n" for event in events]
        lines.append(f"event: end\ndata: {json.dumps({'num_rows': len(lines)})}\n\n")
        return Response("".join(lines), media_type="text/event-stream")

    async def _row(self, program: ft.Program, branch: Any, row: Any, index: int, sampling: Any) -> dict[str, Any]:
        arguments = restore(json.dumps(row))
        try:
            state = await run_behind(program, branch, backend=self.runs_on, sampling=sampling, arguments=arguments)
        except Exception as error:
            return {"index": index, "ok": False, "error": error_data(error)}
        value, variables, branch = store_state(state, state.ret_value)
        usage = {"prompt_tokens": 5, "cached_tokens": 1, "completion_tokens": 2}
        return {"index": index, "ok": True, "value": value, "variables": variables, "branch": branch, "usage": usage}

    def _models(self, body: Any, fault: Fault | None) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def _flush(self, body: Any, fault: Fault | None) -> Response:
        return Response("Cache flushed.")


def default_answer(body: dict[str, Any]) -> Any:
    """A legal answer to what is asked for, the same for the same body."""
    tools = body.get("tools")
    if tools and body.get("tool_choice") not in ("none", {"type": "none"}):
        body_of = tools[0].get("function", tools[0])
        return {"calls": [(body_of["name"], instance_of(body_of.get("parameters") or body_of.get("input_schema")))]}
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema":
        return json.dumps(instance_of(form["json_schema"]["schema"]))
    schema = body.get("sampling_params", {}).get("json_schema")
    if schema:
        return json.dumps(instance_of(json.loads(schema)))
    native = body.get("structured_outputs") or body
    options = native.get("choice") or native.get("choices")
    return options[0] if options else " some words to read"


def instance_of(schema: dict[str, Any]) -> Any:
    """A simple instance of a simple schema."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: instance_of(inner) for name, inner in schema.get("properties", {}).items()}
        case "array":
            return [instance_of(schema["items"])]
    return {"integer": 7, "number": 1.5, "boolean": True}.get(schema.get("type", ""), "text")


def messages_problem(body: dict[str, Any]) -> str:
    """What Anthropic's interface refuses."""
    roles = [message["role"] for message in body["messages"]]
    if any(one == two for one, two in itertools.pairwise(roles)) or not set(roles) <= {"user", "assistant"}:
        return f"roles must alternate between user and assistant, not {roles}"
    for message in body["messages"]:
        for block in message["content"]:
            if block["type"] == "text" and not block["text"].strip():
                return "text content blocks must contain non-whitespace text"
    last = body["messages"][-1]
    if last["role"] == "assistant" and last["content"][-1].get("text", "x")[-1:].isspace():
        return "final assistant content cannot end with trailing whitespace"
    return "" if "max_tokens" in body else "max_tokens: Field required"


def word_logprob(token: str) -> float:
    return -0.1 * len(token)


def echoed(text: str) -> dict[str, Any]:
    """A prompt's tokens, behind one for the beginning."""
    tokens = TOKEN.findall(text)
    offsets = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
    return {
        "tokens": ["<s>", *tokens],
        "token_logprobs": [None, *map(word_logprob, tokens)],
        "text_offset": [0, *offsets],
    }


def chat_logprob(token: str, body: dict[str, Any]) -> dict[str, Any]:
    top = [{"token": text, "logprob": logprob, "bytes": list(text.encode())} for text, logprob in TOP][
        : body.get("top_logprobs", 0)
    ]
    return {"token": token, "logprob": -0.25, "bytes": list(token.encode()), "top_logprobs": top}


TOP = (("yes", -0.25), (" Yes", -2.0), ("no", -1.5), ("maybe", -3.0))


def usage_of(prompt: str, said: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": len(TOKEN.findall(prompt)) + 3,
        "completion_tokens": len(said["tokens"]) + 2 * len(said.get("calls", ())),
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def streamed(events: list[str], fault: Fault | None, *, done: bool = False, named: bool = False) -> Response:
    async def body() -> AsyncIterator[bytes]:
        middle = len(events) // 2
        for index, data in enumerate(events):
            if fault is not None and index == middle:
                if fault.kind == "break":
                    raise ConnectionResetError("scripted")
                if fault.kind == "event":
                    yield f"data: {json.dumps({'type': 'error', 'error': fault.body})}\n\n".encode()
                return
            kind = f"event: {json.loads(data)['type']}\n" if named else ""
            yield f"{kind}data: {data}\n\n".encode()
            await asyncio.sleep(0)
        if done:
            yield b"data: [DONE]\n\n"

    return StreamingResponse(body(), media_type="text/event-stream")


@contextmanager
def serving(service: Service) -> Iterator[Service]:
    """The service on a free port of this machine, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    service.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(_config(service))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def _config(service: Service, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        service.app(),
        log_level="critical",
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
        access_log=False,
        **options,
    )


if __name__ == "__main__":
    uvicorn.Server(_config(Service(), host="127.0.0.1", port=int(sys.argv[1]))).run()
