"""`Remote`: a forktree server. Traced programs go there whole; everything else step by step."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Unpack

from forktree.backend.clients.account import Account
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
from forktree.backend.openai import wire_of
from forktree.lang.sampling import Sampling
from forktree.runtime import protocol


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

    async def stream(self, request: protocol.GenerateRequest) -> AsyncIterator[protocol.Delta | protocol.Completion]:
        """Step by step, where a program is not sent whole."""
        await self._learn_model()
        async with contextlib.aclosing(self._client.stream(request)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    async def score(self, request: protocol.ScoreRequest) -> protocol.ScoreResult:
        """Options behind plain text; behind turns they are scored where the whole program runs."""
        await self._learn_model()
        return await super().score(request)

    async def run_program(self, program: str, arguments: str, sampling: Sampling | None) -> protocol.StoredRun | None:
        """See `protocol.WholePrograms`; a server without the route is asked step by step from then on."""
        if not self._takes_programs:
            return None
        body = {**program_body(program, arguments, sampling), **self._settings.extra}
        if self._settings.model:
            body["model"] = self._settings.model
        try:
            return await run_program(self._transport, self._account, body)
        except NoRouteError:
            self._takes_programs = False
            return None

    async def _learn_model(self) -> None:
        """The server's model, where the user named none."""
        if self._settings.model:
            return
        listed = await self._transport.get("models")
        try:
            self._adopt(replace(self._settings, model=listed["data"][0]["id"]))
        except (KeyError, IndexError, TypeError) as error:
            raise self._transport.unreadable(listed) from error
