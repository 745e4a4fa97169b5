"""`Remote`: a forktree server. Traced programs go there whole; everything else step by step."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Unpack

from forktree.backend.clients.account import Account
from forktree.backend.clients.asks import supported_kinds
from forktree.backend.clients.base import NetworkBackend, headers_of
from forktree.backend.clients.dialects import FORKTREE
from forktree.backend.clients.faults import NoRouteError, Place
from forktree.backend.clients.options import (
    Options,
    checked_options,
    checked_url,
    found_key,
    prices_of,
    settings_of,
    transport_of,
)
from forktree.backend.clients.programs import program_body, run_program
from forktree.backend.clients.steps import completion_of, has_ids, program_of, scores_of, stored_branch
from forktree.backend.openai import wire_of
from forktree.lang.constraints import ALL_CONSTRAINTS
from forktree.lang.errors import UnsupportedError
from forktree.lang.sampling import Sampling
from forktree.runtime import protocol

_SIMPLE = frozenset({"RegexSpec", "ChoicesSpec", "SchemaSpec", "GrammarSpec"})
"""Kinds of constraint that the routes take as they are."""


class Remote(NetworkBackend):
    """A forktree server.

    Args:
        url: as `http://localhost:8000`, with or without `/v1` and a slash at its end.
        api_key: not given, it is FORKTREE_API_KEY's, if that is set.
        model: which of its models; not given, the one that it serves.
        options: see `clients.options.Options`.
    Raises:
        TypeError, ValueError: an option that is unknown or out of range.
    """

    def __init__(
        self, url: str, api_key: str | None = None, *, model: str | None = None, **options: Unpack[Options]
    ) -> None:
        written = f"Remote({url!r})"
        given = checked_options("Remote", options)
        base = checked_url(url, written)
        place = Place(FORKTREE, base if base.endswith("/v1") else f"{base}/v1", model or "")
        prices = prices_of(given.get("prices"), model or "")
        account = Account(prices)
        transport = transport_of(place, headers_of(found_key(FORKTREE, api_key, written)), given, account)
        settings = settings_of(model or "", FORKTREE, given)
        self._takes_programs = True
        super().__init__(
            written, settings, transport, account, prices, lambda told: wire_of(told, FORKTREE, "auto", "")
        )

    @property
    def capabilities(self) -> protocol.Capabilities:
        """The engine's there. What streams comes without its ids."""
        return protocol.Capabilities(constraints=ALL_CONSTRAINTS, score=True, logprobs=True)

    async def stream(self, request: protocol.GenerateRequest) -> AsyncIterator[protocol.Delta | protocol.Completion]:
        """A turn's free text as it comes; what the chat routes cannot say goes as a program of one step."""
        if self._takes_programs and not self._can_chat(request):
            done = await self._run_step(request)
            if done is not None:
                completion = completion_of(request, done)
                if completion.segment.text:
                    yield protocol.Delta(completion.segment.text)
                yield completion
                return
        _check_kind(request)
        await self._learn_model("models")
        async with contextlib.aclosing(self._client.stream(request)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    async def score(self, request: protocol.ScoreRequest) -> protocol.ScoreResult:
        """Options as the engine there scores them."""
        done = await self._run_step(request)
        if done is not None:
            return scores_of(request, done)
        await self._learn_model("models")
        return await super().score(request)

    async def _run_step(self, request: protocol.GenerateRequest | protocol.ScoreRequest) -> protocol.StoredRun | None:
        return await self._ask_program(
            program_body(program_of(request).to_json(), "{}", None, stored_branch(request.branch))
        )

    def _can_chat(self, request: protocol.GenerateRequest) -> bool:
        """Does the chat or completions route mean the same by it?"""
        if has_ids(request.branch):
            return False  # as text it might be cut into other tokens than those that the model made
        try:
            told = self._client.told(request.branch)
        except UnsupportedError:
            return False
        if told.tools:
            return False  # tools that may not be called are not described there
        is_said = not told.begun if told.plain is None else not request.heal
        return is_said and (request.constraint is None or type(request.constraint).__name__ in _SIMPLE)

    async def run_program(self, program: str, arguments: str, sampling: Sampling | None) -> protocol.StoredRun | None:
        """See `protocol.WholePrograms`; a server without the route is asked step by step from then on."""
        return await self._ask_program(program_body(program, arguments, sampling))

    async def _ask_program(self, asked: dict[str, Any]) -> protocol.StoredRun | None:
        if not self._takes_programs:
            return None
        body = {**asked, **self._settings.extra}
        if self._settings.model:
            body["model"] = self._settings.model
        try:
            return await run_program(self._transport, self._account, body)
        except NoRouteError:
            self._takes_programs = False
            return None


def _check_kind(request: protocol.GenerateRequest) -> None:
    """Raises UnsupportedError: the constraint needs the server's programs, and it takes none."""
    kind = type(request.constraint).__name__
    if request.constraint is not None and kind not in supported_kinds(FORKTREE):
        raise UnsupportedError(
            f"this server takes no programs, and so no {kind}; it can: {sorted(supported_kinds(FORKTREE))}"
        )
