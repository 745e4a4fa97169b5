"""Limits, queues and turns, with a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from forktree.backend.local import Local
from forktree.backend.server.app import build
from forktree.backend.server.errors import ApiError
from forktree.backend.server.fair import Gate
from forktree.backend.server.limits import Limits
from forktree.backend.server.settings import Settings


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def taken(limits: Limits, tenant: str) -> bool:
    try:
        limits.take(tenant)
    except ApiError as error:
        assert error.status == 429
        assert int(error.headers["Retry-After"]) >= 1
        return False
    return True


def test_a_bucket_lets_a_burst_in_and_then_its_rate() -> None:
    clock = Clock()
    limits = Limits(60, None, clock)
    assert [taken(limits, "a") for _ in range(12)] == [True] * 10 + [False] * 2
    clock.now += 2
    assert [taken(limits, "a") for _ in range(3)] == [True, True, False]


def test_one_tenants_limit_is_not_anothers() -> None:
    limits = Limits(6, None, Clock())
    assert [taken(limits, tenant) for tenant in "aab"] == [True, False, True]


def test_the_limit_of_all_holds_for_all_and_a_refusal_is_not_counted() -> None:
    clock = Clock()
    limits = Limits(None, 6, clock)
    assert [taken(limits, tenant) for tenant in "ab"] == [True, False]
    clock.now += 10
    assert [taken(limits, tenant) for tenant in "ba"] == [True, False]


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["requests_per_minute", "total_requests_per_minute", "timeout_s"])
def test_a_limit_that_is_none_is_refused(name: str, bad: float) -> None:
    with pytest.raises(ValueError, match=name):
        Settings(model_names=("m",), **{name: bad})


async def entered(gate: Gate, order: list[str], tenant: str, count: int = 1, priority: int = 0) -> None:
    taken = await gate.enter(tenant, count, priority=priority)
    order.append(tenant)
    gate.leave(taken)


async def test_a_tenant_with_many_requests_does_not_keep_another_waiting() -> None:
    gate, order = Gate(1, 1000), []
    held = await gate.enter("greedy", 1)
    tasks = [asyncio.create_task(entered(gate, order, "greedy")) for _ in range(50)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(entered(gate, order, "modest")))
    await asyncio.sleep(0)
    gate.leave(held)
    await asyncio.gather(*tasks)
    assert order.index("modest") <= 1
    assert len(order) == 51


async def test_of_one_tenants_requests_the_most_urgent_goes_first() -> None:
    gate, order = Gate(1, 10), []
    held = await gate.enter("a", 1)

    async def run(name: str, priority: int) -> None:
        taken = await gate.enter("a", 1, priority=priority)
        order.append(name)
        gate.leave(taken)

    tasks = [asyncio.create_task(run(name, priority)) for name, priority in (("low", 5), ("mid", 0), ("high", -2))]
    await asyncio.sleep(0)
    gate.leave(held)
    await asyncio.gather(*tasks)
    assert order == ["high", "mid", "low"]


async def test_a_large_request_is_not_passed_for_ever_by_small_ones() -> None:
    gate, order = Gate(4, 10), []
    held = [await gate.enter("s", 1) for _ in range(2)]
    large = asyncio.create_task(entered(gate, order, "large", count=9))
    await asyncio.sleep(0)
    small = asyncio.create_task(entered(gate, order, "small"))
    await asyncio.sleep(0)
    assert order == []
    for one in held:
        gate.leave(one)
    await asyncio.gather(large, small)
    assert order == ["large", "small"]


async def test_who_stops_waiting_leaves_no_place_behind() -> None:
    gate = Gate(1, 10)
    held = await gate.enter("a", 1)
    waiting = [asyncio.create_task(gate.enter(tenant, 1)) for tenant in "ab"]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    gate.leave(held)
    assert await waiting[1] == 1
    gate.leave(1)
    assert gate.num_waiting == 0
    assert await gate.enter("c", 1) == 1


async def test_no_more_wait_than_may() -> None:
    gate = Gate(1, 1)
    await gate.enter("a", 1)
    waiting = asyncio.create_task(gate.enter("a", 1))
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="waiting already") as refused:
        await gate.enter("b", 1)
    assert refused.value.status == 429
    waiting.cancel()


@contextmanager
def served(local: Local, **settings: object) -> Iterator[httpx.Client]:
    from starlette.testclient import TestClient

    with TestClient(build(local, Settings(model_names=("wild",), **settings))) as client:  # type: ignore[arg-type]
        yield client


CHAT = {"model": "wild", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


def test_the_server_says_when_to_come_again(wild_local: Local) -> None:
    with served(wild_local, requests_per_minute=6.0) as client:
        first, second = (client.post("/v1/chat/completions", json=CHAT) for _ in range(2))
    assert first.status_code == 200
    assert second.status_code == 429
    assert 1 <= int(second.headers["retry-after"]) <= 10
    assert second.json()["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_is_ended(wild_local: Local, stream: bool) -> None:
    with served(wild_local, timeout_s=0.05) as client:
        body = {**CHAT, "max_tokens": 400, "ignore_eos": True, "stream": stream, "n": 4}
        response = client.post("/v1/chat/completions", json=body)
    if stream:
        assert "not complete within 0.05 s" in response.text
        assert response.text.endswith("data: [DONE]\n\n")
    else:
        assert response.status_code == 504
    from real_parts import assert_idle, let_cancelled_work_end

    let_cancelled_work_end(wild_local)
    assert_idle(wild_local)


def test_keys_do_not_see_what_others_have_cached(wild_local: Local) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "Two tigers took tea together. " * 6}]}
    keys = frozenset(["one", "two"])

    def cached(client: httpx.Client, key: str, **more: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        answer = client.post("/v1/chat/completions", json={**body, **more}, headers=headers).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    with served(wild_local, api_keys=keys) as client:
        first = cached(client, "one")
        assert cached(client, "one") > first
        assert cached(client, "two") == first
        assert cached(client, "one", cache_salt="x") == first
        assert cached(client, "one", cache_salt="x") > first
        assert cached(client, "two", cache_salt="x") == first
    with served(wild_local, api_keys=keys, shares_cache=True) as client:
        cached(client, "one")
        assert cached(client, "two") > first
