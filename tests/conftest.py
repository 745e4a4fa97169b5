"""Fixtures that several folders share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch: idle threads give busy cores back soon


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The built-in model's folder, fetched on first use."""
    from forktree.backend.model.store import resolve_model

    return resolve_model("smollm2-135m")


@pytest.fixture(scope="session")
def smol_tokenizer(model_dir: Path):
    """The built-in model's tokenizer, as transformers makes it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)
