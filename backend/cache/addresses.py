"""What a page of keys and values is called: a digest of the namespace and of every token up to its end.

Keys and values of a page depend on nothing else (docs/architecture.md, exactness), so equal addresses are equal bytes.
"""

from __future__ import annotations

import hashlib
from array import array

ADDRESS_BYTES = 16


def page_addresses(namespace: str, ids: list[int], num_tokens: int, page_size: int) -> list[bytes]:
    """Addresses of the pages that the first `num_tokens` tokens fill, each made of the one before it."""
    address = _digest(b"namespace", namespace.encode("utf-8", "surrogatepass"))
    addresses = []
    for start in range(0, num_tokens // page_size * page_size, page_size):
        address = _digest(address, array("q", ids[start : start + page_size]).tobytes())
        addresses.append(address)
    return addresses


def _digest(before: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(before + data, digest_size=ADDRESS_BYTES).digest()
