"""Connections to a real Redis that break as planned: before Redis gets a command, or after Redis has run it."""

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from shoal.broker.broker import Broker
from shoal.broker.connections import ConnectionPool


class Plan:
    """The round trip at which the connection breaks, and whether it breaks `before` or `after` Redis runs the command.

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
        """Break no more round trips."""
        self.when, self.num_round_trips, self.error = "", 0, redis.ConnectionError

    def reach(self, when: str) -> None:
        """Raise the error if the plan names this round trip."""
        if when == "before":
            self.num_round_trips += 1
            self.left -= 1
        if self.when == when and self.left <= 0:
            self.when = ""
            raise self.error(f"broken {when} the command")


def connect(url: str, plan: Plan) -> Broker:
    """Return a broker whose connections break as planned."""

    class Breaking(redis.Connection):
        def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            plan.reach("before")
            super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            response = super().read_response(*args, **kwargs)
            plan.reach("after")
            return response

    pool = ConnectionPool.from_url(url, connection_class=Breaking, protocol=2, retry=Retry(NoBackoff(), 0))
    return Broker(pool)
