"""The engine's fake of plain ints, with pages that move to lower tiers."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from engine_fakes import FakeRunner


class MovingRunner(FakeRunner):
    """Its pages are lists of (token, position)."""

    def read_page(self, page: int) -> bytes:
        return repr(self.slots[page * self.page_size : (page + 1) * self.page_size]).encode()

    def write_page(self, page: int, data: bytes) -> None:
        self.slots[page * self.page_size : (page + 1) * self.page_size] = ast.literal_eval(bytes(data).decode())


def disk(folder: Path) -> dict[str, Any]:
    """The configuration of a disk tier."""
    return {"cache_dir": str(folder), "fingerprint": "fake"}
