"""How often one may ask: a token bucket for everybody and one for each tenant."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from forktree.backend.server.errors import ApiError

_MOST_TENANTS = 10_000


class Bucket:
    """A token bucket: `per_minute` requests a minute on the long run, a burst of as many as come in `burst_s`."""

    def __init__(self, per_minute: float, now: float, *, burst_s: float = 10.0) -> None:
        self._rate = per_minute / 60
        self._capacity = max(1.0, self._rate * burst_s)
        self._level = self._capacity
        self._at = now

    def wait_s(self, now: float) -> float:
        """Seconds until there is room for one more; 0 now."""
        self._level = min(self._capacity, self._level + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (1 - self._level) / self._rate)

    def take(self) -> None:
        self._level -= 1


class Limits:
    """Limits of requests a minute; None is none. The server's loop owns it.

    Args:
        clock: seconds that never go back.
    """

    def __init__(
        self, per_tenant: float | None, overall: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_tenant = per_tenant
        self._clock = clock
        self._overall = None if overall is None else Bucket(overall, clock())
        self._tenants: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, tenant: str) -> None:
        """One more request. Raises ApiError 429, with `Retry-After`: it comes too soon, and nothing is counted."""
        now = self._clock()
        buckets = [bucket for bucket in (self._overall, self._bucket(tenant, now)) if bucket is not None]
        wait = max((bucket.wait_s(now) for bucket in buckets), default=0.0)
        if wait > 0:
            raise too_many("requests come faster than this server's limit", wait)
        for bucket in buckets:
            bucket.take()

    def _bucket(self, tenant: str, now: float) -> Bucket | None:
        if self._per_tenant is None:
            return None
        bucket = self._tenants.setdefault(tenant, Bucket(self._per_tenant, now))
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > _MOST_TENANTS:
            self._tenants.popitem(last=False)  # it has been quiet the longest, so it is full again
        return bucket


def too_many(why: str, wait_s: float) -> ApiError:
    """429; a client that waits so long may come again."""
    seconds = max(1, math.ceil(wait_s))
    return ApiError(
        429,
        f"{why}; try again in {seconds} s",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(seconds)},
    )
