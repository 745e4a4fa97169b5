"""Who may ask: one of the keys, where there are any."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from forktree.backend.server.callers import tenant_of
from forktree.backend.server.errors import ApiError


class Keys:
    """The keys of a server, as digests: a comparison takes as long for a wrong key as for a right one."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in sorted(keys)]

    def check(self, headers: Mapping[str, str]) -> str:
        """The tenant of the key, which comes as OpenAI's clients send it, or as Anthropic's do.

        Raises ApiError 401: no key, or a wrong one.
        """
        if not self._digests:
            return ""
        key = key_of(headers)
        if key is None:
            raise _refusal("no API key was given: send the header `Authorization: Bearer KEY`, or `x-api-key: KEY`")
        given = _digest(key)
        matches = [hmac.compare_digest(given, known) for known in self._digests]  # all of them, whichever it is
        if True not in matches:
            raise _refusal("the API key is not one of this server's")
        return tenant_of(key)


def key_of(headers: Mapping[str, str]) -> str | None:
    """The key that a request brings."""
    scheme, _, key = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip() or None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _refusal(message: str) -> ApiError:
    return ApiError(
        401,
        message,
        type="authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
