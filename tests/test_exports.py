"""The public surface is what `__all__` says, everything in it resolves, and nothing else leaks."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import forktree as ft


def test_all_is_sorted_and_without_doubles() -> None:
    """Constants, then classes, then functions."""

    def place(name: str) -> tuple[bool, bool, str]:
        return not name.isupper(), not name[0].isupper(), name

    assert sorted(set(ft.__all__), key=place) == list(ft.__all__)


@pytest.mark.parametrize("name", ft.__all__)
def test_an_exported_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(ft, name)
    assert isinstance(value, str) or inspect.getdoc(value)


def test_dir_shows_exactly_the_public_names() -> None:
    assert {name for name in dir(ft) if not name.startswith("_")} == set(ft.__all__)


def test_the_reference_documents_every_exported_name() -> None:
    reference = (Path(ft.__file__).parent / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in ft.__all__ if not re.search(rf"\b{name}\b", reference)] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'gne'"):
        _ = ft.gne  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["video", "Engine", "Runtime"])
def test_a_name_of_sglangs_that_has_no_place_here_says_what_does(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no {name}; use "):
        getattr(ft, name)
