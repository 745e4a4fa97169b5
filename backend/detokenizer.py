"""Tokens to text, incrementally and byte-exact. No torch."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextDecoder:
    """Tokens to text, incrementally: never half a character, and the joined pieces equal the whole.

    Args:
        token_bytes: [vocab] what each token adds.
        strips_blank: take one blank away at the very start.
        num_skip_bytes: drop this many bytes first (they are known: the prefix that a healed output repeats).
    """

    __slots__ = ("_bytes", "_num_skip", "_strips", "_utf8", "num_chars")

    def __init__(self, token_bytes: Sequence[bytes], *, strips_blank: bool = False, num_skip_bytes: int = 0) -> None:
        self._bytes = token_bytes
        self._strips = strips_blank
        self._num_skip = num_skip_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.num_chars = 0

    @property
    def has_partial_character(self) -> bool:
        """Some bytes of a character have come, but not all."""
        return bool(self._utf8.getstate()[0])

    @property
    def is_skipping(self) -> bool:
        """Bytes of the known prefix are still to come."""
        return self._num_skip > 0

    def feed(self, token: int) -> str:
        """The characters that are whole now.

        Raises ValueError: the vocabulary has no such id.
        """
        if not 0 <= token < len(self._bytes):
            raise ValueError(f"token id {token} is outside the vocabulary of {len(self._bytes)}")
        spelt = self._bytes[token]
        if self._num_skip:
            skipped = min(self._num_skip, len(spelt))
            self._num_skip -= skipped
            spelt = spelt[skipped:]
        elif self._strips and spelt:
            self._strips = False
            spelt = spelt.removeprefix(b" ")
        return self._count(self._utf8.decode(spelt))

    def flush(self) -> str:
        """The output ended: U+FFFD for a character that was cut, else nothing."""
        return self._count(self._utf8.decode(b"", final=True))

    def _count(self, text: str) -> str:
        self.num_chars += len(text)
        return text
