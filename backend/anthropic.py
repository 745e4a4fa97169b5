"""`Anthropic`: Anthropic's models, or any service that speaks its messages interface."""

from __future__ import annotations

import os
from typing import Unpack

from forktree.backend.clients.account import Account
from forktree.backend.clients.anthropic_wire import MessagesWire
from forktree.backend.clients.base import NetworkBackend
from forktree.backend.clients.dialects import ANTHROPIC
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
from forktree.backend.clients.turns import Conversation
from forktree.backend.clients.wire import Wire
from forktree.lang.errors import BackendError, UnsupportedError

VERSION = "2023-06-01"
"""Of the interface, which the service wants to be told."""


class Anthropic(NetworkBackend):
    """A model at Anthropic.

    Args:
        model: as the service names it.
        api_key: not given, it comes from ANTHROPIC_API_KEY.
        base_url: of another service that speaks the same interface; not given, it is ANTHROPIC_BASE_URL, or
            Anthropic's own.
        options: see `clients.options.Options`.
    Raises:
        AuthenticationError: there is no key.
        TypeError, ValueError: an option that is unknown or out of range.
    """

    def __init__(
        self, model: str, api_key: str | None = None, *, base_url: str | None = None, **options: Unpack[Options]
    ) -> None:
        written = f"Anthropic({model!r})"
        if not isinstance(model, str) or not model:
            raise BackendError(f"Anthropic takes the model's name as the service has it, not {model!r}")
        given = checked_options("Anthropic", options)
        base_url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or ANTHROPIC.base_url
        url = checked_url(base_url, written).removesuffix("/v1")
        key = found_key(ANTHROPIC, api_key, written)
        assert key is not None
        prices = prices_of(given.get("prices"), model)
        account = Account(prices)
        place = Place(ANTHROPIC, url, model)
        headers = {"x-api-key": key, "anthropic-version": VERSION}
        transport = transport_of(place, headers, given, account)
        super().__init__(written, settings_of(model, ANTHROPIC, given), transport, account, prices, _wire_of)


def _wire_of(told: Conversation) -> Wire:
    if told.plain is not None:
        raise UnsupportedError(
            f"Anthropic answers turns, and the program writes plain text ({told.plain[:40]!r}); write user(...) and "
            'assistant(gen(...)), or make the backend with text_outside_turns="user"'
        )
    return MessagesWire(ANTHROPIC)
