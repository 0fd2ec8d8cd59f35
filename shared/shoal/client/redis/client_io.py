"""The I/O of clients that reach Redis: threads do it by blocking, and an event loop awaits it."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from shoal.cache.lookup import LookupResult
from shoal.jobs import Job
from shoal.queue.producer import AsyncProducer
from shoal.replies import Reply
from shoal.settings import Settings

#: A reply on its way.
P = TypeVar("P")


class Sender(Protocol[P]):
    """The sending end of a dispatcher."""

    def call(self, lane: str, jobs: Sequence[Job], client: str = "") -> list[P]:
        """Send the client's jobs, all or none, and return their replies to come, in order."""

    def forget(self, jobs: Sequence[Job]) -> None:
        """Drop interest in the jobs' replies; jobs that are not answered yet are withdrawn."""


class ClientIO(ABC, Generic[P]):
    """The I/O of a client, which a subclass adds: that of threads does it before its coroutines return.

    `name` is the name under which the queue knows the client, and `timeout_s` how long it waits for a reply.
    """

    def __init__(self, name: str, timeout_s: float, max_reply_mb: int):
        self.name = name or secrets.token_hex(8)
        self.timeout_s = timeout_s
        self.max_reply_bytes = max_reply_mb * 2**20

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return a client of the pool that the settings name, with their limits and their `request_timeout_s`."""
        values: dict[str, Any] = {
            "redis_url": settings.redis_address,
            "key_prefix": settings.key_prefix,
            "pool": settings.pool,
            "timeout_s": settings.request_timeout_s,
            "result_ttl_s": settings.result_ttl_s,
            "max_reply_mb": settings.max_reply_mb,
        }
        return cls(**values)

    @abstractmethod
    def _sender(self) -> Sender[P]:
        """Return the end of the dispatcher that sends."""

    @abstractmethod
    async def _result(self, pending: P, timeout_s: float) -> Reply:
        """Return the reply; raise the error with which it was settled, or TimeoutError."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None:
        """Return after so many seconds."""

    @abstractmethod
    async def _now(self) -> float:
        """Return Redis's time in Unix seconds."""

    @abstractmethod
    async def _find(self, job: Job) -> LookupResult:
        """Look up the texts of a job in the cache."""

    @abstractmethod
    def _producer(self) -> AsyncProducer:
        """Return the queue's producing end."""
