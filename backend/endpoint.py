"""`RuntimeEndpoint`: an SGLang server, by its native route."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Unpack

from forktree.backend.clients.account import Account
from forktree.backend.clients.base import NetworkBackend, headers_of
from forktree.backend.clients.dialects import SGLANG
from forktree.backend.clients.extra import httpx
from forktree.backend.clients.faults import Place, fault_of_status, fault_of_transport
from forktree.backend.clients.openai_wire import ChatWire
from forktree.backend.clients.options import (
    Options,
    checked_options,
    checked_url,
    found_key,
    prices_of,
    settings_of,
    transport_of,
)
from forktree.backend.clients.sglang_wire import GenerateWire, scored_tokens, scoring_body
from forktree.backend.clients.turns import Conversation
from forktree.backend.clients.wire import Wire
from forktree.lang.errors import UnsupportedError
from forktree.runtime import protocol

_SYNC_TIMEOUT_S = 30.0


class RuntimeEndpoint(NetworkBackend):
    """An SGLang server that runs at `base_url`: plain text by its native `/generate`, turns by its chat route.

    Args:
        base_url: as `http://localhost:30000`, with or without a slash at its end.
        api_key: not given, it is SGLANG_API_KEY's, if that is set.
        verify: SGLang's argument; certificates are always verified, by the machine's own store.
        chat_template_name: SGLang's argument; turns are written by the server's own template.
        options: see `clients.options.Options`.
    Raises:
        UnsupportedError: `verify` or `chat_template_name` asks for what is not offered.
        TypeError, ValueError: an option that is unknown or out of range.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | None = None,
        chat_template_name: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        written = f"RuntimeEndpoint({base_url!r})"
        for name, value in (("verify", verify), ("chat_template_name", chat_template_name)):
            if value is not None:
                raise UnsupportedError(f"{written} takes no {name}=: the server's own is used; drop {name}={value!r}")
        given = checked_options("RuntimeEndpoint", options)
        url = checked_url(base_url, written).removesuffix("/v1")
        self._headers = headers_of(found_key(SGLANG, api_key, written))
        prices = prices_of(given.get("prices"), "")
        account = Account(prices)
        settings = settings_of("", SGLANG, given)
        transport = transport_of(Place(SGLANG, url), self._headers, given, account)
        super().__init__(written, settings, transport, account, prices, _wire_of)

    async def stream(self, request: protocol.GenerateRequest) -> AsyncIterator[protocol.Delta | protocol.Completion]:
        """Plain text by the native route, turns by the chat route, which wants the model's name."""
        await self._learn_model("v1/models")
        async with contextlib.aclosing(self._client.stream(request)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    async def score(self, request: protocol.ScoreRequest) -> protocol.ScoreResult:
        """Options behind plain text by the log-probabilities of their own tokens; in a turn by their first tokens."""
        told = self._client.told(request.branch)
        if told.plain is None:
            await self._learn_model("v1/models")
            return await super().score(request)
        prompt = told.plain
        num_tokens = await self._count(prompt) if prompt else 0
        start = max(0, num_tokens - 2)  # the prompt's last token may be another one when text follows it
        texts = [prompt, *(prompt + option for option in request.options)] if prompt else ["", *request.options]
        bare, *scored = await asyncio.gather(*(self._scored(text, start) for text in texts))
        alone: list[list[tuple[int, float | None]]] | None = None
        if request.unconditional:
            alone = list(await asyncio.gather(*(self._scored(option, 0) for option in request.options)))
        options = tuple(
            _option_score(bare, tokens, None if alone is None else alone[index]) for index, tokens in enumerate(scored)
        )
        return protocol.ScoreResult(options, protocol.Usage(num_tokens))

    async def _count(self, text: str) -> int:
        """The prompt's tokens; the server computes them, and keeps them for what follows."""
        data = await self._ask({"text": text, "sampling_params": {"max_new_tokens": 0, "temperature": 0.0}})
        return int((data.get("meta_info") or {}).get("prompt_tokens") or 0)

    async def _scored(self, text: str, start: int) -> list[tuple[int, float | None]]:
        return scored_tokens(await self._ask(scoring_body(text, start))) if text else []

    async def _ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        async with self._transport.exchange("generate", body, len(str(body["text"])) // 3) as answer:
            data = await answer.data()
        if not isinstance(data, dict):
            raise self._transport.unreadable(data)
        about = data.get("meta_info") or {}
        self._account.note_answer(protocol.Usage(about.get("prompt_tokens") or 0, about.get("cached_tokens") or 0))
        return data

    def flush_cache(self) -> None:
        """Empty the server's prefix cache."""
        self._call("POST", "flush_cache", {})

    def server_info(self) -> Any:
        """What the server tells of itself."""
        return self._call("GET", "get_server_info").json()

    def _call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        place = self._transport.place
        try:
            response = httpx.request(
                method, f"{place.url}/{path}", json=body, headers=self._headers, timeout=_SYNC_TIMEOUT_S
            )
        except httpx.HTTPError as error:
            raise fault_of_transport(place, error, _SYNC_TIMEOUT_S).error from error
        if not response.is_success:
            raise fault_of_status(place, response.status_code, response.headers, response.content).error
        return response


def _wire_of(told: Conversation) -> Wire:
    return _VersionedChat(SGLANG) if told.plain is None else GenerateWire(SGLANG)


class _VersionedChat(ChatWire):
    """The chat route, which lies below `/v1` beside the native ones."""

    path = "v1/chat/completions"


def _option_score(
    bare: list[tuple[int, float | None]],
    tokens: list[tuple[int, float | None]],
    alone: list[tuple[int, float | None]] | None,
) -> protocol.OptionScore:
    """The tokens from the first that differs from the prompt's own."""
    same = 0
    while same < min(len(bare), len(tokens)) and bare[same][0] == tokens[same][0]:
        same += 1
    known = [(token, logprob) for token, logprob in tokens[same:] if logprob is not None]
    unconditional = None if alone is None else tuple(logprob for _, logprob in alone if logprob is not None)
    ids, logprobs = tuple(token for token, _ in known), tuple(logprob for _, logprob in known)
    return protocol.OptionScore(ids, logprobs, unconditional)
