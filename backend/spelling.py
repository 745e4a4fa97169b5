"""How a tokenizer's pieces spell bytes, read from its own description. No torch.

Two families of decoder-only tokenizers exist. *Byte-level* ones write every byte as a printable character of
a fixed alphabet (GPT-2's); *SentencePiece* ones write a blank as ▁ and bytes outside their alphabet as
`<0xAB>`. A third, plain one, spells what it says; toy vocabularies are of that kind.

Some tokenizers put one blank before a text that they take for the beginning of a sequence. `PrefixRule` names
it, and `without_prefix_rule` describes the same tokenizer without it, for text that continues a sequence.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from forktree.lang.errors import ModelError

Description = dict[str, Any]
"""A tokenizer as `tokenizers` serialises it (tokenizer.json), parsed."""

_BLANK = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_HARMLESS = {"Fuse", "Sequence", "Replace", "ByteFallback", "Strip", "Metaspace", "ByteLevel"}


class Spelling(Enum):
    """How pieces write bytes."""

    BYTE_LEVEL = "byte-level"
    SENTENCEPIECE = "sentencepiece"
    PLAIN = "plain"


def spelling_of(description: Description) -> Spelling:
    """The family of a tokenizer.

    Raises ModelError: its decoder is of another kind (WordPiece, say), which cannot spell exact bytes.
    """
    decoders = list(_parts(description.get("decoder")))
    kinds = {part["type"] for part in decoders}
    if foreign := kinds - _HARMLESS:
        raise ModelError(
            f"the tokenizer's decoder is {', '.join(sorted(foreign))}, whose tokens do not spell exact bytes; "
            "use a model with a byte-level or SentencePiece tokenizer."
        )
    if "ByteLevel" in kinds or any(part["type"] == "ByteLevel" for part in _parts(description.get("pre_tokenizer"))):
        return Spelling.BYTE_LEVEL
    if kinds & {"Metaspace", "ByteFallback", "Replace"} or description["model"].get("byte_fallback"):
        return Spelling.SENTENCEPIECE
    return Spelling.PLAIN


def piece_bytes(piece: str, spelling: Spelling) -> bytes:
    """The bytes of one vocabulary entry, in the middle of a text."""
    if spelling is Spelling.BYTE_LEVEL:
        if all(char in _BYTE_OF for char in piece):
            return bytes(_BYTE_OF[char] for char in piece)
        return piece.encode()
    if spelling is Spelling.SENTENCEPIECE:
        if match := _BYTE_PIECE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace(_BLANK, " ").encode()
    return piece.encode()


def strips_first_blank(description: Description) -> bool:
    """Whether decoding takes away one blank at the very start of a sequence (the artificial one)."""
    for part in _parts(description.get("decoder")):
        if part["type"] == "Strip" and part["content"] == " " and part["start"] > 0:
            return True
        if part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never":
            return True
    return False


def has_prefix_rule(description: Description) -> bool:
    """Whether encoding puts a blank before a text."""
    return without_prefix_rule(description) != description


def without_prefix_rule(description: Description) -> Description:
    """The same tokenizer, but it puts no blank before a text."""
    bare = copy.copy(description)
    bare["normalizer"] = _without_prepend(description.get("normalizer"))
    bare["pre_tokenizer"] = copy.deepcopy(description.get("pre_tokenizer"))
    for part in _parts(bare["pre_tokenizer"]):
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
        if part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
    return bare


def _without_prepend(normalizer: Description | None) -> Description | None:
    if normalizer is None or normalizer["type"] == "Prepend":
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    parts = [_without_prepend(part) for part in normalizer["normalizers"]]
    return {**normalizer, "normalizers": [part for part in parts if part is not None]}


def _parts(component: Description | None) -> Iterator[Description]:
    """A component and, where it is a sequence, everything in it."""
    if component is None:
        return
    yield component
    for key in ("decoders", "pretokenizers", "normalizers"):
        for part in component.get(key, ()):
            yield from _parts(part)


def _byte_alphabet() -> Mapping[str, int]:
    """Character → byte of the byte-level alphabet: printable Latin-1 stands for itself, the rest follows from
    U+0100 on in order (GPT-2, Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()
