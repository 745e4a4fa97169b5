"""What went wrong on the way, as an error of ours: what was wrong, what was seen, and what would be right."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forktree.backend.clients.dialects import Dialect
from forktree.backend.clients.extra import httpx
from forktree.backend.clients.retry import RETRIED_STATUSES, retry_after_of
from forktree.lang.errors import (
    AuthenticationError,
    BackendError,
    ContextLengthError,
    RateLimitError,
    ServerError,
    TimeoutError,
    UnsupportedError,
)


class NoRouteError(BackendError):
    """Nothing is served at this address."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where requests go, for messages; never the key itself.

    Attributes:
        url: the base URL.
        model: as the user named it; "" where the service has one.
    """

    dialect: Dialect
    url: str
    model: str = ""

    def __str__(self) -> str:
        return f"{self.dialect.service} at {self.url}"


@dataclass(frozen=True, slots=True)
class Fault:
    """An error, and whether the same request may fare better later; `cap_s`: after how long at most it is tried."""

    error: BackendError
    is_passing: bool = False
    retry_after: float | None = None
    cap_s: float | None = None


_REFUSED_S = 2.0

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (?:length|size|window)"
    r"|prompt is too long|input is too long|longer than the model's|too many tokens",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"(?:maximum context length|context length|context size|context window|limit)\D{0,40}?(\d[\d,]*)"
    r"|\d[\d,]* tokens > (\d[\d,]*)|(?:>|exceeds?)\D{0,30}(\d[\d,]*)",
    re.IGNORECASE,
)
_TOKENS = re.compile(
    r"(?:resulted in|requested|prompt (?:is|has)|too long|input \(|contains?|request \(|has)\D{0,40}?(\d[\d,]*)",
    re.IGNORECASE,
)


def fault_of_status(place: Place, status: int, headers: Mapping[str, str], body: bytes) -> Fault:
    """What an answer with an error's status means."""
    detail = _detail_of(body)
    said = f"{place} answered {status}: {detail.message}" if detail.message else f"{place} answered {status}"
    wait = retry_after_of(headers)
    if status in (401, 403):
        return Fault(_refused_key(place, said))
    if status in (400, 413, 422) and _OVERFLOW.search(f"{detail.code} {detail.message}"):
        return Fault(overflow_of(said, detail.message, detail.data))
    if status == 404 or 300 <= status < 400:
        return Fault(_not_found(place, status, detail, said))
    if status == 429:
        return _limited(said, detail, wait)
    if status >= 500 or status in RETRIED_STATUSES:
        return Fault(ServerError(said), status in RETRIED_STATUSES, wait)
    if status in (400, 422) and _is_unknown_model(detail):
        return Fault(_not_found(place, status, detail, said))
    if status == 402:
        return Fault(BackendError(f"{said}; the account has no credit"))
    return Fault(BackendError(said))


def fault_of_event(place: Place, error: Any) -> Fault:
    """What an error inside a stream means. Something has come by then, so nothing is made again."""
    detail = _detail_of(json.dumps({"error": error}).encode())
    said = f"{place} broke off: {detail.message or error}"
    if _OVERFLOW.search(f"{detail.code} {detail.message}"):
        return Fault(overflow_of(said, detail.message, detail.data))
    if "rate_limit" in detail.code:
        return Fault(RateLimitError(said))
    return Fault(ServerError(said))


def fault_of_transport(place: Place, error: Exception, timeout_s: float) -> Fault:
    """What a failed connection means."""
    if isinstance(error, httpx.ConnectTimeout):
        text = f"no connection to {place} within its connect_timeout; is the address right, and the server up?"
        return Fault(TimeoutError(text), True)
    if isinstance(error, httpx.TimeoutException):
        text = f"{place} was silent for {timeout_s:g} s; raise timeout=, or look whether the server still works"
        return Fault(TimeoutError(text))  # it may be at work, and bill what it does: not made again
    if isinstance(error, httpx.ConnectError):
        text = f"nothing answers at {place.url} ({error}); is base_url right, and the server running?"
        return Fault(ServerError(text), True, cap_s=_REFUSED_S)  # trying costs nobody anything
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return Fault(BackendError(f"base_url {place.url!r} is no address: {error}; write https://HOST/v1"))
    if isinstance(error, httpx.TransportError):
        return Fault(ServerError(f"{place} broke the connection off: {_named(error)}"), True)
    return Fault(ServerError(f"{place} sent what cannot be read: {_named(error)}"))


def overflow_of(said: str, message: str, data: Mapping[str, Any] | None = None) -> ContextLengthError:
    """The counts out of an error's fields or its text; 0 where it has none."""
    fields = data or {}
    limit = fields.get("n_ctx") or _count(_LIMIT, message)
    tokens = fields.get("n_prompt_tokens") or _count(_TOKENS, message)
    return ContextLengthError(
        f'{said}; shorten the prompt, or give truncate="middle" or "oldest"', limit=limit, tokens=tokens
    )


def _count(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    digits = next((group for group in found.groups() if group), "0") if found else "0"
    return int(digits.replace(",", ""))


def _refused_key(place: Place, said: str) -> BackendError:
    names = " or ".join(place.dialect.key_variables)
    where = f"api_key=, or {names}" if names else "api_key="
    return AuthenticationError(f"{said}; the key was refused: check {where}")


def _limited(said: str, detail: Detail, wait: float | None) -> Fault:
    if detail.code == "insufficient_quota" or detail.kind == "insufficient_quota":
        return Fault(RateLimitError(f"{said}; the account has no credit, so waiting does not help", retry_after=wait))
    return Fault(RateLimitError(said, retry_after=wait), True, wait)


def _is_unknown_model(detail: Detail) -> bool:
    text = f"{detail.code} {detail.message}".lower()
    return "model_not_found" in text or ("model" in text and ("not exist" in text or "not found" in text))


def _not_found(place: Place, status: int, detail: Detail, said: str) -> BackendError:
    if _is_unknown_model(detail) or (status == 404 and detail.kind == "not_found_error"):
        return UnsupportedError(f"{said}; the service does not serve the model {place.model!r}: check its name")
    has_version = re.search(r"/v\d", place.url)
    meant = "check base_url" if has_version else f"was {place.url}/v1 meant as base_url?"
    return NoRouteError(f"{said}; nothing is served at this address: {meant}")


@dataclass(frozen=True, slots=True)
class Detail:
    """The body of an error: OpenAI's shape, Anthropic's, or plain text."""

    message: str = ""
    code: str = ""
    kind: str = ""
    data: Mapping[str, Any] | None = None


def _detail_of(body: bytes) -> Detail:
    text = body.decode("utf-8", "replace").strip()
    try:
        data = json.loads(text)
    except ValueError:
        return Detail("" if text.startswith("<") else text[:300])
    data = data[0] if isinstance(data, list) and data else data  # Gemini's errors are lists of one
    if not isinstance(data, Mapping):
        return Detail(text[:300])
    inner = data.get("error", data)
    if not isinstance(inner, Mapping):
        return Detail(str(inner)[:600])
    message = inner.get("message") or inner.get("detail") or data.get("detail") or data.get("message") or ""
    return Detail(str(message)[:600], str(inner.get("code") or ""), str(inner.get("type") or ""), inner)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
