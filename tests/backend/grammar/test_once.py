"""The memo behind constraints: each value once, no error kept, no more bytes than allowed."""

from __future__ import annotations

import threading

import pytest

from forktree.backend.grammar.once import OnceCache


def test_a_value_is_made_once_however_many_threads_ask() -> None:
    made: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def make(key: str) -> str:
        begun.set()
        go.wait(30)
        made.append(key)
        return key.upper()

    cache: OnceCache[str, str] = OnceCache(make, max_bytes=100, size_of=len)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(cache.get("a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    begun.wait(30)
    go.set()
    for thread in threads:
        thread.join()
    assert made == ["a"]
    assert found == ["A"] * 8


def test_what_was_used_longest_ago_goes_when_the_bytes_are_too_many() -> None:
    made: list[str] = []

    def make(key: str) -> str:
        made.append(key)
        return key

    cache: OnceCache[str, str] = OnceCache(make, max_bytes=4, size_of=lambda _: 2)
    for key in ("a", "b", "a", "c", "a", "b"):
        cache.get(key)
    assert made == ["a", "b", "c", "b"]
    assert len(cache) == 2


def test_values_that_grow_are_weighed_again_and_the_last_one_stays() -> None:
    cache: OnceCache[str, bytearray] = OnceCache(lambda key: bytearray(key.encode()), max_bytes=10, size_of=len)
    grown = cache.get("a")
    kept = cache.get("b")
    grown += b"x" * 100
    for _ in range(32):
        assert cache.get("b") is kept
    assert len(cache) == 1
    kept += b"x" * 100
    for _ in range(32):
        assert cache.get("b") is kept


def test_a_request_weighs_a_few_values_however_many_are_kept() -> None:
    num_weighed = 0

    def weigh(_: int) -> int:
        nonlocal num_weighed
        num_weighed += 1
        return 1

    cache: OnceCache[int, int] = OnceCache(lambda key: key, max_bytes=2_000, size_of=weigh)
    for key in range(1_000):
        cache.get(key)
    assert len(cache) == 1_000
    assert num_weighed < 12 * 1_000


def test_an_error_is_raised_and_not_kept() -> None:
    answers = iter([ValueError("once"), "fine"])

    def make(key: str) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cache: OnceCache[str, str] = OnceCache(make, max_bytes=10, size_of=len)
    with pytest.raises(ValueError, match="once"):
        cache.get("a")
    assert cache.get("a") == "fine"
    assert len(cache) == 1


def test_another_bound_holds_from_the_next_request_on() -> None:
    cache: OnceCache[str, str] = OnceCache(str, max_bytes=100, size_of=lambda value: 10)
    for key in "abcdefgh":
        cache.get(key)
    cache.bound(25)
    cache.get("i")
    assert len(cache) <= 3
