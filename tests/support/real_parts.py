"""The real engine, made small: two layers of random weights behind the built-in model's tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tiny_models import write_tiny_model

from forktree.backend.local import Local
from forktree.lang.sampling import Sampling

_TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_wild_model(folder: Path, model_dir: Path, **changes: Any) -> Path:
    """A model that says anything at all, in the tokens of the model in `model_dir`.

    Its output layer is wider than the vocabulary, as many models' are: 128 ids are no token.
    """
    write_tiny_model(folder, vocab_size=49152 + 128, **changes)
    for name in _TEXT_FILES:
        shutil.copy(model_dir / name, folder / name)
    return folder


def let_cancelled_work_end(local: Local) -> None:
    """Run small requests until what was left behind has reached the engine; each is a round trip through it."""
    for _ in range(500):
        local.generate(["."], Sampling(max_tokens=1))
        stats = local.stats()
        if not stats.num_running and not stats.num_waiting:
            return
    raise AssertionError(f"cancelled work goes on: {stats}")


def assert_idle(local: Local) -> None:
    """Nothing runs or waits, no page is held, and every page is free or cached."""
    stats = local.stats()
    assert stats.num_running == stats.num_waiting == stats.kv_tokens_used == 0, stats
    assert stats.pages_free + stats.pages_cached == stats.pages_total, stats
    local.flush_cache()
    assert local.stats().pages_free == stats.pages_total, "a lock was left"
