"""One scripted service a module, on a real port; each test begins with a clean script."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_service import Service, default_answer, serving

import forktree as ft


@pytest.fixture(scope="module")
def _served() -> Iterator[Service]:
    with serving(Service()) as service:
        yield service


@pytest.fixture
def service(_served: Service) -> Service:
    _served.answer, _served.key, _served.num_left = default_answer, None, 0
    _served.runs_on = None
    _served.faults.clear()
    _served.seen.clear()
    return _served


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """Backends that are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture
def openai(service: Service, opened) -> Callable[..., ft.OpenAI]:
    """From a dialect and options to a backend over the service."""

    def make(dialect: str = "openai", model: str = "m", **options: Any) -> ft.OpenAI:
        return opened(ft.OpenAI(model, base_url=f"{service.url}/v1", api_key="k", dialect=dialect, **options))

    return make


@pytest.fixture
def anthropic(service: Service, opened) -> Callable[..., ft.Anthropic]:
    def make(**options: Any) -> ft.Anthropic:
        return opened(ft.Anthropic("claude", api_key="k", base_url=service.url, **options))

    return make


@ft.function
def ask(s, question="Hi", before="", **options):
    """One answer in one turn, with whatever the generation takes."""
    s += ft.user(question)
    s += ft.assistant(before + ft.gen("a", **options))
    return s["a"]


@pytest.fixture(name="ask")
def _ask() -> ft.Function:
    return ask
