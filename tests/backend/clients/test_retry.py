"""How long a failed request waits before it is made again."""

from __future__ import annotations

import pytest

from forktree.backend.clients.retry import Retry, retry_after_of


def test_waits_double_up_to_the_cap_with_jitter_of_half() -> None:
    retry = Retry(attempts=9, base_s=1.0, cap_s=5.0)
    assert [retry.delay(n, None, lambda: 0.0) for n in range(4)] == [0.5, 1.0, 2.0, 2.5]
    assert [retry.delay(n, None, lambda: 1.0) for n in range(4)] == [1.0, 2.0, 4.0, 5.0]


def test_a_wait_that_was_asked_for_is_never_cut_short() -> None:
    assert Retry().delay(0, 7.0, lambda: 0.0) == 7.0
    assert Retry().delay(0, 7.0, lambda: 1.0) == pytest.approx(7.7)


def test_it_gives_up_after_its_attempts_or_beyond_its_patience() -> None:
    assert Retry(attempts=2).delay(2, None) is None
    assert Retry(patience_s=60).delay(0, 61.0) is None


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_the_wait_is_read_as_seconds_milliseconds_or_a_date(headers, wait) -> None:
    assert retry_after_of(headers, now=lambda: 40.0) == wait
