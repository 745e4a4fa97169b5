"""Backends over a network, declared: they have their names and arguments, and cannot answer yet.

Each is refused when it is made, so that a program finds out before it has done any work.
"""

from __future__ import annotations

from typing import Any, NoReturn

from forktree.lang.errors import UnsupportedError


class OpenAI:
    """Models behind OpenAI's interface, or any service that speaks it (`base_url`). Not built yet."""

    def __init__(self, model: str, base_url: str | None = None, api_key: str | None = None, **options: Any) -> None:
        _refuse(f"OpenAI({model!r})", "a service that speaks OpenAI's interface")


class Anthropic:
    """Anthropic's models. Not built yet."""

    def __init__(self, model: str, api_key: str | None = None, **options: Any) -> None:
        _refuse(f"Anthropic({model!r})", "Anthropic's service")


class Remote:
    """A forktree server: whole programs in one round trip. Not built yet."""

    def __init__(self, url: str, **options: Any) -> None:
        _refuse(f"Remote({url!r})", "a forktree server")


class RuntimeEndpoint:
    """SGLang's name for a server that is running: `Remote`. Not built yet."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | None = None,
        chat_template_name: str | None = None,
    ) -> None:
        _refuse(f"RuntimeEndpoint({base_url!r})", "a server")


def _refuse(written: str, what: str) -> NoReturn:
    raise UnsupportedError(
        f"{written}: {what} cannot be asked yet. What works: Local(), the engine in this process, with a model's "
        "folder, GGUF file or hub id; Replay(path) for recorded answers; Fake(script) for tests; or a backend of your "
        "own that has the verbs of forktree.runtime.protocol.Backend"
    )
