"""A header's lengths are held against the file before anybody believes them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from forktree.backend.model.gguf_header import check_header
from forktree.lang.errors import ModelError


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "a.gguf"
    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(16)
    writer.add_token_list(["<end>", "a"])
    writer.add_token_types([3, 1])
    writer.add_tensor("a.weight", np.ones((2, 3), np.float32))
    writer.add_tensor("b.weight", np.ones(5, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refused(path: Path, data: bytes, why: str) -> None:
    path.write_bytes(data)
    with pytest.raises(ModelError, match=why):
        check_header(path)


def test_a_sound_file_passes_and_no_beginning_of_it_does(sound: Path) -> None:
    check_header(sound)
    data = sound.read_bytes()
    end = data.rindex(np.ones(5, np.float16).tobytes()) + 10  # the padding behind the last tensor is nobody's
    for size in range(0, end, 7):
        refused(sound, data[:size], "not a readable GGUF file")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (struct.pack("<IQQ", 1, 0, 0), "version is 1"),
        (struct.pack("<IQQ", 3, 0, 1 << 60), "0 are left"),
        (struct.pack("<IQQ", 3, 1 << 60, 0), "0 are left"),
        (struct.pack("<IQQQ", 3, 0, 1, 1 << 62), "are announced"),
        (struct.pack("<IQQQIIQ", 3, 0, 1, 0, 9, 8, 1 << 60), "array of"),
        (struct.pack("<IQQQIIQ", 3, 0, 1, 0, 9, 5, 1 << 62), "are announced"),
        (struct.pack("<IQQQI", 3, 0, 1, 0, 99), "type 99"),
        (struct.pack("<IQQQI", 3, 1, 0, 0, 9), "9 dimensions"),
        (struct.pack("<IQQQIQIQ", 3, 1, 0, 0, 1, 1 << 40, 0, 0), "behind the file's end"),
        (struct.pack("<IQQQIQIQ", 3, 1, 0, 0, 1, 5, 2, 0), "5 elements in blocks of 32"),
        (struct.pack("<IQQQIQIQ", 3, 1, 0, 0, 1, 5, 77, 0), "type 77"),
    ],
)
def test_what_cannot_be_is_named(body: bytes, why: str, tmp_path: Path) -> None:
    refused(tmp_path / "a.gguf", b"GGUF" + body, why)


def test_arrays_are_not_followed_for_ever(tmp_path: Path) -> None:
    nested = struct.pack("<IQ", 9, 1) * 10_000
    refused(tmp_path / "a.gguf", b"GGUF" + struct.pack("<IQQQI", 3, 0, 1, 0, 9) + nested, "type 9")


def test_the_other_byte_order_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + struct.pack(">IQQQII", 3, 0, 1, 0, 4, 7))
    check_header(tmp_path / "a.gguf")
