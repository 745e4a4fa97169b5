"""The real engine over a two-layer random model, once for the folder's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_parts import assert_idle, write_wild_model

from forktree.backend.local import Local


@pytest.fixture(scope="session")
def wild_dir(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Path:
    return write_wild_model(tmp_path_factory.mktemp("wild"), model_dir, max_position_embeddings=2048)


@pytest.fixture(scope="session")
def wild_model(wild_dir: Path) -> Iterator[Local]:
    with Local(wild_dir, kv_tokens=4096) as local:
        yield local.load()


@pytest.fixture
def wild(wild_model: Local) -> Iterator[Local]:
    """A cold engine; whatever a test does, it leaves no page and no lock behind."""
    wild_model.flush_cache()
    yield wild_model
    assert_idle(wild_model)
