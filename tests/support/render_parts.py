"""What tests of rendering build branches from, and how they look at ids."""

from __future__ import annotations

from toy_tokenizers import byte_level, sentencepiece

from forktree.backend.tokenizer import Tokenizer
from forktree.runtime.protocol import Branch, RoleBegin, RoleEnd, Segment

WORDS = [
    ("Ġ", "A"),
    ("ĠA", "d"),
    ("ĠAd", "a"),
    ("N", "a"),
    ("Na", "m"),
    ("Nam", "e"),
    ("A", "d"),
    ("Ad", "a"),
    ("d", "a"),
]


def branch_of(*segments: Segment, on: Branch | None = None) -> Branch | None:
    for segment in segments:
        on = Branch(on, segment)
    return on


def chat(role: str, *contents: Segment) -> list[Segment]:
    return [RoleBegin(role), *contents, RoleEnd(role)]


def pieces_of(tokenizer: Tokenizer, ids: tuple[int, ...]) -> list[str]:
    return [tokenizer.token_bytes[id].decode("utf-8", "replace") for id in ids]


def toy_tokenizer() -> Tokenizer:
    """Bytes and a few merges, with one added token."""
    return Tokenizer(byte_level(WORDS, added=["</think>"]))


def piece_tokenizer() -> Tokenizer:
    """Of SentencePiece's kind: a text begins with an artificial blank."""
    return Tokenizer(sentencepiece(["▁The", "▁cat", "▁", "▁sat", ".", "s", "▁cats", "The", "cat", "n"]))
