"""`OpenAI`: models behind OpenAI's interface, at OpenAI or at any service that speaks it."""

from __future__ import annotations

import os
from typing import Any, Literal, Unpack

from forktree.backend.clients.account import Account
from forktree.backend.clients.base import NetworkBackend, headers_of
from forktree.backend.clients.dialects import Dialect, dialect_of
from forktree.backend.clients.faults import Place
from forktree.backend.clients.openai_wire import ChatWire, TextWire
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

Api = Literal["auto", "chat", "completions"]
_CONTINUING = ("instruct", "davinci-002", "babbage-002")


class OpenAI(NetworkBackend):
    """A model at OpenAI, or at any service that speaks its interface.

    Args:
        model: as the service names it.
        base_url: of another service, with or without a slash at its end: Gemini's, DeepSeek's, a vLLM, SGLang,
            llama.cpp or Ollama server's. Not given, it is OPENAI_BASE_URL, or OpenAI's own.
        api_key: not given, it comes from the service's usual environment variables (OPENAI_API_KEY …).
        dialect: which service it is, where the address does not tell: "vllm", "sglang", "llama.cpp", "ollama",
            "gemini", "deepseek", "forktree", "openai", or "compatible" for any other.
        api: the route: "chat" takes turns, "completions" continues plain text; "auto" is what the program writes.
        options: see `clients.options.Options`.
    Raises:
        AuthenticationError: the service needs a key, and there is none.
        UnsupportedError: an unknown dialect.
        TypeError, ValueError: an option that is unknown or out of range.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        dialect: str | None = None,
        api: Api = "auto",
        **options: Unpack[Options],
    ) -> None:
        written = f"OpenAI({model!r})"
        if not isinstance(model, str) or not model:
            raise BackendError(f"OpenAI takes the model's name as the service has it, not {model!r}")
        if api not in ("auto", "chat", "completions"):
            raise ValueError(f'api= is "auto", "chat" or "completions", not {api!r}')
        given = checked_options("OpenAI", options)
        base_url = base_url or (os.environ.get("OPENAI_BASE_URL") if dialect in (None, "openai") else None)
        spoken = dialect_of(dialect, base_url)
        url = checked_url(base_url or spoken.base_url or _missing_address(written, spoken), written)
        key = found_key(spoken, api_key, written)
        prices = prices_of(given.get("prices"), model)
        account = Account(prices)
        settings = settings_of(model, spoken, given)
        place = Place(spoken, url, model)
        transport = transport_of(place, headers_of(key), given, account)
        super().__init__(written, settings, transport, account, prices, lambda told: wire_of(told, spoken, api, model))


def wire_of(told: Conversation, dialect: Dialect, api: Api, model: str) -> Wire:
    """The route for a conversation. Raises UnsupportedError: there is none for plain text."""
    if api == "completions":
        return TextWire(dialect)
    if told.plain is None:
        return ChatWire(dialect)
    continues = dialect.completions or any(part in model for part in _CONTINUING)
    if api == "chat" or not continues:
        raise UnsupportedError(
            f"{dialect.service} answers turns, and the program writes plain text ({told.plain[:40]!r}); write "
            'user(...) and assistant(gen(...)), or make the backend with text_outside_turns="user"'
        )
    return TextWire(dialect)


def _missing_address(written: str, dialect: Dialect) -> Any:
    raise BackendError(f"{written}: a {dialect.service} server has no one address; give base_url='http://HOST:PORT/v1'")
