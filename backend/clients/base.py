"""What the network backends have in common: one client, one scorer, and what they say of themselves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Self

from forktree.backend.clients.account import Account, ClientStats
from forktree.backend.clients.asks import supported_kinds
from forktree.backend.clients.client import Client, Settings, WireOf
from forktree.backend.clients.http import Transport
from forktree.backend.clients.scoring import Scorer
from forktree.lang.errors import UnsupportedError
from forktree.runtime import protocol


class NetworkBackend:
    """A backend whose model is somewhere else. Made by its subclasses; a context manager that closes its connections.

    A service has no token ids for programs: state is text there, sent whole with each request.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        transport: Transport,
        account: Account,
        prices: Mapping[str, float] | None,
        wire_of: WireOf,
    ) -> None:
        dialect = settings.dialect
        self._name = name
        self._transport = transport
        self._account = account
        self._prices = prices
        self._wire_of = wire_of
        self._identity = _identity_of(type(self).__name__, settings, transport)
        self._adopt(settings)
        self._capabilities = protocol.Capabilities(
            constraints=supported_kinds(dialect),
            score=dialect.scoring is not None,
            images=dialect.images,
            logprobs=dialect.logprobs,
        )

    def _adopt(self, settings: Settings) -> None:
        """Speak in this way from now on."""
        self._settings = settings
        self._client = Client(settings, self._transport, self._account, self._wire_of)
        self._scorer = Scorer(settings, self._transport, self._account, self._client)

    async def _learn_model(self, path: str) -> None:
        """The one model that the server has, where the user named none."""
        if self._settings.model:
            return
        listed = await self._transport.get(path)
        try:
            self._adopt(replace(self._settings, model=listed["data"][0]["id"]))
        except (KeyError, IndexError, TypeError) as error:
            raise self._transport.unreadable(listed) from error

    def __repr__(self) -> str:
        return self._name

    @property
    def name(self) -> str:
        return self._name

    @property
    def identity(self) -> object:
        """See `protocol.Identified`: the service, its model and what is sent with each request; never the key."""
        return self._identity

    @property
    def capabilities(self) -> protocol.Capabilities:
        return self._capabilities

    @property
    def prices(self) -> Mapping[str, float] | None:
        """See `protocol.Priced`."""
        return self._prices

    def stats(self) -> ClientStats:
        """What was asked for so far, and what it cost."""
        return self._account.stats()

    async def context_limit(self) -> int | None:
        """The limit that was given; None where only the service knows it."""
        return self._settings.context_limit

    async def stream(self, request: protocol.GenerateRequest) -> AsyncIterator[protocol.Delta | protocol.Completion]:
        """Free text as it comes; a constrained answer when it was found legal."""
        async with contextlib.aclosing(self._client.stream(request)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    async def score(self, request: protocol.ScoreRequest) -> protocol.ScoreResult:
        """See `clients.scoring` for what a service can tell."""
        return await self._scorer.score(request)

    async def prefill(self, branch: protocol.Branch) -> None:
        """Nothing: a service computes a prompt when it is asked."""

    async def tokens(self, branch: protocol.Branch | None) -> tuple[int, ...]:
        """Raises UnsupportedError: a service takes text."""
        raise UnsupportedError(f"{self.name} has no token ids: its state is text")

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def headers_of(key: str | None) -> dict[str, str]:
    """The header of a key as most services take it."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _identity_of(kind: str, settings: Settings, transport: Transport) -> object:
    extra = sorted(settings.extra.items(), key=str)
    spoken = (settings.dialect.name, settings.model, settings.loose, settings.begun, settings.truncate)
    return (kind, transport.place.url, *spoken, repr(extra))
