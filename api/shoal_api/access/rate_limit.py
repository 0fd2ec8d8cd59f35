"""Rate limits of API keys, counted in Redis, so that all processes of the API share one count."""

import time

from shoal.broker.broker import Broker
from shoal.contract.keys import Keys
from shoal.errors import RateLimited
from shoal_api.access.api_keys import ApiKey


class RateLimits:
    """The sliding-window counters of the keys that have a rate. Thread-safe."""

    def __init__(self, broker: Broker, keys: Keys):
        from limits import parse
        from limits.storage import RedisStorage
        from limits.strategies import SlidingWindowCounterRateLimiter

        self._broker = broker
        storage = RedisStorage("redis://", connection_pool=broker.connection_pool, key_prefix=keys.rates)
        self._limiter = SlidingWindowCounterRateLimiter(storage)
        self._parse = parse

    def count(self, key: ApiKey) -> tuple[dict[str, str], RateLimited | None]:
        """Count one request; return the headers that describe the rate, and an error if the request came too early.

        A request within the rate costs one round trip to Redis. The headers follow
        draft-ietf-httpapi-ratelimit-headers-10. Raises Unavailable without Redis.
        """
        rate = self._parse(key.rate)
        num_allowed, window_s = rate.amount, rate.get_expiry()
        headers = {"RateLimit-Policy": f'"key";q={num_allowed};w={window_s}'}
        with self._broker.translated():
            if self._limiter.hit(rate, key.name):
                return headers, None
            reset_s = self._limiter.get_window_stats(rate, key.name).reset_time
        wait_s = 1 + int(reset_s - time.time())
        words = f"the key {key.name} may be used {num_allowed:,} times in {window_s:,} s: wait {wait_s:,} s"
        return headers | {"RateLimit": f'"key";r=0;t={wait_s}'}, RateLimited(words, wait_s)
