"""Rate limits of API keys, counted in Redis, so that all processes of the API count together."""

import math
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from shoal.broker.broker import Broker
from shoal.contract.keys import Keys
from shoal.errors import RateLimited
from shoal_api.access.api_keys import ApiKey

if TYPE_CHECKING:
    from limits import RateLimitItem


@dataclass(frozen=True, slots=True)
class RateUsage:
    """The use of a key's rate at the time of one request; `wait_s` is 0 if the request is within the rate."""

    key: ApiKey
    num_allowed: int
    window_s: int
    wait_s: int

    @property
    def headers(self) -> dict[str, str]:
        """The headers that tell a program the same (draft-ietf-httpapi-ratelimit-headers-10)."""
        policy = {"RateLimit-Policy": f'"key";q={self.num_allowed};w={self.window_s}'}
        return policy | {"RateLimit": f'"key";r=0;t={self.wait_s}'} if self.wait_s else policy

    def check(self) -> None:
        """Raise RateLimited if the request came too early."""
        if self.wait_s:
            rate = f"{self.key.name} may be used {self.num_allowed:,} times in {self.window_s:,} s"
            raise RateLimited(f"the key {rate}: wait {self.wait_s:,} s", self.wait_s)


class RateLimits:
    """The counters of keys that have a rate. Thread-safe.

    Each counter is a sliding window: requests of the previous window count in proportion to its overlap with this one.
    """

    def __init__(self, broker: Broker, keys: Keys):
        from limits.storage import RedisStorage
        from limits.strategies import SlidingWindowCounterRateLimiter

        self._broker = broker
        storage = RedisStorage("redis://", connection_pool=broker.connection_pool, key_prefix=keys.rates)
        self._limiter = SlidingWindowCounterRateLimiter(storage)

    def count(self, key: ApiKey) -> RateUsage:
        """Count one request, in one round trip if it is within the rate; raises Unavailable without Redis."""
        rate = _parse(key.rate)
        with self._broker.lending():
            wait_s = 0
            if not self._limiter.hit(rate, key.name):
                reset_s = self._limiter.get_window_stats(rate, key.name).reset_time
                wait_s = max(1, math.ceil(reset_s - time.time()))
        return RateUsage(key, rate.amount, rate.get_expiry(), wait_s)


@cache
def _parse(rate: str) -> "RateLimitItem":
    from limits import parse

    return parse(rate)
