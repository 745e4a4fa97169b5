"""Whether the header of a GGUF file fits the file, looked at before anything is allocated by it.

Counts and lengths of a damaged or hostile header may be anything up to 2**64: a reader that believes them loops for
years, or asks for all memory. Here every length is held against the bytes that are left, so the walk ends after at most
as many steps as the file has bytes. (Layout: github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3.)

    magic (4)   version (4)   number of tensors (8)   number of fields (8)   fields   tensors   padding   data
    field       key (text)   type (4)   value          text    length (8)   bytes
    array       type (4)   number (8)   values         tensor  name (text)   number of dimensions (4)
                                                               dimensions (8 each)   type (4)   offset (8)
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from forktree.lang.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_TEXT, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes, by the type of a value
_MAX_DIMENSIONS = 4
_MAX_DEPTH = 4  # of arrays in arrays
_ALIGNMENT = "general.alignment"


def check_header(path: Path) -> None:
    """
    Raises:
        ModelError: the file is no GGUF file of a known version, or a length in its header exceeds the file.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Walk(path, data).check()
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelError(f"{path} is not a readable GGUF file ({error})") from error


class _Walk:
    """A position in the header that only goes forwards."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0
        self._order = "<"
        self._alignment = 32

    def check(self) -> None:
        if self._take(4) != _MAGIC:
            raise self._fault("it does not begin with GGUF")
        version = struct.unpack("<I", self._take(4))[0]
        if version & 0xFFFF == 0:  # the other byte order
            self._order, version = ">", version >> 24
        if version not in _VERSIONS:
            raise self._fault(f"its version is {version}, and versions 2 and 3 are read")
        num_tensors, num_fields = self._number("Q"), self._number("Q")
        for _ in range(num_fields):
            self._field()
        ends = [self._tensor() for _ in range(num_tensors)]
        start = -(-self._at // self._alignment) * self._alignment
        if ends and start + max(ends) > len(self._data):
            raise self._fault("a tensor ends behind the file's end")

    def _field(self) -> None:
        key, kind = self._text(), self._number("I")
        at = self._at
        self._value(kind, 0)
        if key == _ALIGNMENT.encode() and kind == 4:
            self._alignment = struct.unpack_from(f"{self._order}I", self._data, at)[0]
            if not 1 <= self._alignment <= 1 << 20:
                raise self._fault(f"its alignment is {self._alignment}")

    def _value(self, kind: int, depth: int) -> None:
        if kind == _TEXT:
            self._text()
        elif kind == _ARRAY and depth < _MAX_DEPTH:
            inner, count = self._number("I"), self._number("Q")
            if inner in _SIZES:
                self._skip(count * _SIZES[inner])
                return
            if count * 8 > self._left:  # a text takes at least its length
                raise self._fault(f"an array of {count} is announced at {self._at}, and {self._left} bytes are left")
            for _ in range(count):
                self._value(inner, depth + 1)
        elif kind in _SIZES:
            self._skip(_SIZES[kind])
        else:
            raise self._fault(f"a value has the type {kind}")

    def _tensor(self) -> int:
        """The end of its data, counted from where data begins."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        self._text()
        num_dimensions = self._number("I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._fault(f"a tensor has {num_dimensions} dimensions")
        count = 1
        for _ in range(num_dimensions):
            count *= self._number("Q")
        kind, offset = self._number("I"), self._number("Q")
        if kind not in GGMLQuantizationType._value2member_map_:
            raise self._fault(f"a tensor has the type {kind}")
        per_block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        if count == 0 or count % per_block:
            raise self._fault(f"a tensor has {count} elements in blocks of {per_block}")
        return offset + count // per_block * size

    @property
    def _left(self) -> int:
        return len(self._data) - self._at

    def _text(self) -> bytes:
        return self._take(self._number("Q"))

    def _number(self, form: str) -> int:
        return int(struct.unpack(f"{self._order}{form}", self._take(struct.calcsize(form)))[0])

    def _take(self, size: int) -> bytes:
        at = self._at
        self._skip(size)
        return self._data[at : at + size]

    def _skip(self, size: int) -> None:
        if size > self._left:
            raise self._fault(f"{size} bytes are announced at {self._at}, and {self._left} are left")
        self._at += size

    def _fault(self, what: str) -> ModelError:
        return ModelError(f"{self._path} is not a readable GGUF file ({what}). It may be cut short: download it again.")
