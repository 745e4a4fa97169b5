"""httpx, or the name of the extra that brings it."""

from __future__ import annotations

from forktree.lang.errors import UnsupportedError

try:
    import httpx
except ImportError as error:
    raise UnsupportedError(
        'backends over a network need httpx: pip install "forktree[openai]" or "forktree[anthropic]"; without it there '
        "are Local, Fake and Replay"
    ) from error

__all__ = ["httpx"]
