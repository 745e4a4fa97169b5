"""A tiny random Llama, and the runners over it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, three query heads to a key head, sizes that are no multiple of a vector."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny-llama"))
