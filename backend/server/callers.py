"""Who asks: the tenant behind a key, what its cache may be shared with, and the connection it waits on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from starlette.types import Receive

from forktree.backend.server.notes import Notes


@dataclass(frozen=True, slots=True)
class Caller:
    """
    Attributes:
        tenant: a name that says nothing of the key; "" where the server has no keys.
        request_id: of this request.
        notes: where to write what becomes of the request; None: nobody reads it.
        receive: tells when its client goes away; None: nobody watches.
    """

    tenant: str = ""
    request_id: str = ""
    receive: Receive | None = None
    notes: Notes | None = None


def tenant_of(key: str) -> str:
    """The same for the same key, on every server."""
    return hashlib.sha256(b"forktree tenant\0" + key.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def namespace_of(tenant: str, salt: str | None, *, is_shared: bool) -> str:
    """Where its prompts are cached. Nobody outside can find out, by time or by counts, what is in it.

    Args:
        salt: of one request, so that a tenant keeps its own users apart.
        is_shared: tenants share what they have no salt for.
    """
    if salt is None:
        return "" if is_shared else tenant
    return hashlib.sha256(f"{'' if is_shared else tenant}\0{salt}".encode("utf-8", "surrogatepass")).hexdigest()
