"""Fixtures that several folders share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch: idle threads give busy cores back soon
os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton: kernels run on the CPU, see tests/kernels/triton


GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Compares text with a file of tests/golden, or writes it under --update-golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare


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


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as in a terminal: a process that was started in the background is deaf to it.

    Callbacks of the garbage collector (hypothesis has one) swallow an interrupt that comes while they run.
    """
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    gc.callbacks[:] = callbacks
