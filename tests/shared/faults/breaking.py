"""Connections to a real Redis that break as planned: before a command is sent, or after Redis has run it."""

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


class Plan:
    """The round trip at which the next connection breaks: `before` it is sent or `after` Redis has run it.

    The broken round trip raises `error`.
    """

    error: type[BaseException] = redis.ConnectionError

    def __init__(self) -> None:
        self.when = ""
        self.left = 0
        self.num_round_trips = 0

    def breaks(self, when: str, at: int) -> None:
        """Break the `at`-th round trip from now."""
        self.when, self.left = when, at

    def clear(self) -> None:
        """Break no further round trip."""
        self.when, self.num_round_trips, self.error = "", 0, redis.ConnectionError

    def reach(self, when: str) -> None:
        """Raise ConnectionError if the plan says so."""
        if when == "before":
            self.num_round_trips += 1
            self.left -= 1
        if self.when == when and self.left <= 0:
            self.when = ""
            raise self.error(f"broken {when} the command")


def connect(url: str, plan: Plan) -> redis.Redis:
    """Return a client whose connections break as planned."""

    class Breaking(redis.Connection):
        def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            plan.reach("before")
            super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            response = super().read_response(*args, **kwargs)
            plan.reach("after")
            return response

    pool = redis.ConnectionPool.from_url(url, connection_class=Breaking, protocol=2, retry=Retry(NoBackoff(), 0))
    return redis.Redis.from_pool(pool)
