"""Network backends are declared: making one says what works instead."""

from __future__ import annotations

import pytest

import forktree as ft


@pytest.mark.parametrize(
    "make",
    [
        lambda: ft.OpenAI("gpt-4o-mini", base_url="http://localhost:1", api_key="k"),
        lambda: ft.Anthropic("claude", api_key="k"),
        lambda: ft.Remote("http://localhost:8000"),
        lambda: ft.RuntimeEndpoint("http://localhost:30000"),
    ],
    ids=["OpenAI", "Anthropic", "Remote", "RuntimeEndpoint"],
)
def test_a_declared_backend_says_before_any_work_what_works(make) -> None:
    with pytest.raises(ft.UnsupportedError, match=r"cannot be asked yet. What works: Local\(\)"):
        make()
