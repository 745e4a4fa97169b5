"""`Remote`: a forktree server, step by step; its whole programs go by `clients.programs`."""

from __future__ import annotations

from typing import Unpack

from forktree.backend.clients.account import Account
from forktree.backend.clients.base import NetworkBackend, headers_of
from forktree.backend.clients.dialects import FORKTREE
from forktree.backend.clients.faults import Place
from forktree.backend.clients.options import (
    Options,
    checked_options,
    checked_url,
    found_key,
    prices_of,
    settings_of,
    transport_of,
)
from forktree.backend.openai import wire_of


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
        self, url: str, api_key: str | None = None, *, model: str = "default", **options: Unpack[Options]
    ) -> None:
        written = f"Remote({url!r})"
        given = checked_options("Remote", options)
        base = checked_url(url, written)
        place = Place(FORKTREE, base if base.endswith("/v1") else f"{base}/v1", model)
        prices = prices_of(given.get("prices"), model)
        account = Account(prices)
        transport = transport_of(place, headers_of(found_key(FORKTREE, api_key, written)), given, account)
        settings = settings_of(model, FORKTREE, given)
        super().__init__(
            written, settings, transport, account, prices, lambda told: wire_of(told, FORKTREE, "auto", model)
        )
