"""Without what speaks HTTP, a backend names the extra that brings it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["OpenAI", "Anthropic", "Remote", "RuntimeEndpoint"])
def test_a_missing_extra_is_named(name: str) -> None:
    code = f"""
import sys
sys.modules["httpx"] = None
import forktree as ft
try:
    ft.{name}
except ft.UnsupportedError as error:
    print(error)
ft.Fake(["the others work"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert 'pip install "forktree[openai]"' in done.stdout
