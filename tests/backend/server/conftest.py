"""One server over a tiny random model with a real tokenizer, for the whole session; and OpenAI's own client for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from real_parts import write_wild_model
from servers import running
from starlette.testclient import TestClient

from forktree.backend.local import Local
from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings

NAMES = ("wild", "another/name")


@pytest.fixture(scope="session")
def wild_local(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Two layers of random weights, which say anything at all; 512 tokens of context."""
    folder = write_wild_model(tmp_path_factory.mktemp("wild-server"), model_dir)
    with Local(folder, kv_tokens=4096, page_size=16) as local:
        yield local.load()


@pytest.fixture(scope="session")
def wild_url(wild_local: Local) -> Iterator[str]:
    with running(build(wild_local, Settings(model_names=NAMES))) as url:
        yield url


@pytest.fixture(scope="session")
def client(wild_url: str) -> Iterator[openai.OpenAI]:
    """OpenAI's own client; it tries once, so that a test sees the first answer."""
    with openai.OpenAI(base_url=f"{wild_url}/v1", api_key="none", max_retries=0, timeout=60) as one:
        yield one


@pytest.fixture
def http(wild_local: Local) -> Iterator[TestClient]:
    """The same model in this process, for raw bodies."""
    with TestClient(build(wild_local, Settings(model_names=NAMES))) as one:
        yield one


@pytest.fixture(scope="session")
def smol_client(model_dir: Path) -> Iterator[openai.OpenAI]:
    """The client of a server over the built-in model."""
    with (
        Local(model_dir, kv_tokens=4096).load() as local,
        running(build(local, Settings(model_names=("smol",)))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as one,
    ):
        yield one
