"""A producer and consumers of a pool's queue in one object, and a plain connection to its Redis."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Self

import pytest
import redis
from blocking import BlockingProducer

from shoal import Client
from shoal.broker.broker import Broker
from shoal.broker.connections import open_pool
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.queue.consumer import Answer, Consumer, Delivery
from shoal.queue.lane import LaneLimits
from shoal_workers.loop.worker import Worker

#: Seconds for which a worker counts as alive in tests. Tests announce workers once, and none takes this long.
ALIVE_S = 3_600.0

#: More steps than a worker needs for a test's jobs. Steps are counted, not seconds, because a machine may be busy.
MAX_STEPS = 100_000


class Queue(BlockingProducer):
    """A producer and any number of consumers. The workers that it announces stay alive for `ALIVE_S`."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.pool.alive_s = ALIVE_S
        self.unread = SimpleNamespace(sweep=self.consumer("sweeper").sweep_unread, load=self.unread_load)

    @classmethod
    def connect(cls, url: str, keys: Keys, result_ttl_s: int = 3_600) -> Self:
        """Return a queue with its own connections to the Redis at `url`."""
        return cls(Broker.connect(url), keys, result_ttl_s)

    def close(self) -> None:
        """Close all connections."""
        self.broker.close()

    @property
    def redis(self) -> Any:
        """Return redis-py's client, with which tests look at keys and break them."""
        return redis.Redis(connection_pool=self.broker.connection_pool)

    def ping(self) -> None:
        """Raise Unavailable if Redis does not answer."""
        self.broker.ping()

    def consumer(self, name: str = "") -> Consumer:
        """Return the consumer with this name, or with a new name."""
        return Consumer(self.broker, self.keys, name or f"worker-{secrets.token_hex(4)}", self.result_ttl_s)

    def wait_result(self, job_id: str, timeout_s: float) -> Reply | None:
        """Return the reply to a submitted job, or None if none comes within `timeout_s`."""
        reply: Reply | None
        until, pause = time.monotonic() + timeout_s, threading.Event()
        while (reply := self.read_result(job_id)) is None and time.monotonic() < until:
            pause.wait(0.02)
        return reply

    def leave(self, name: str) -> None:
        """Return all jobs of a consumer to the queue."""
        self.consumer(name).leave()

    def take(self, name: str, lanes: Sequence[str], max_texts: int, block_s: float = 0.0) -> list[Delivery]:
        """Take jobs with up to `max_texts` texts from each lane, or a suspect if all lanes are given."""
        takes_suspects = len(lanes) == len(LANES)
        return self.consumer(name).take(dict.fromkeys(lanes, max_texts), block_s, takes_suspects)

    def die(self, *names: str) -> None:
        """Let workers die, and return their jobs to the queue."""
        if names:
            self.redis.zrem(self.keys.alive, *names)
        self.may_look("reaper")
        self.consumer("reaper").reclaim(())

    def may_look(self, name: str) -> None:
        """Announce a worker, and let its next `reclaim` look for jobs of dead workers."""
        self.pool.announce(name)
        self.redis.delete(self.keys.reclaimed)

    def start(self, name: str, deliveries: Sequence[Delivery]) -> list[bool]:
        """Mark jobs that the consumer with this name holds as running."""
        return self.consumer(name).start([(delivery, delivery.job().id) for delivery in deliveries])

    def reply(self, answers: Iterable[Answer]) -> int:
        """Answer jobs."""
        return self.consumer().reply(answers)

    def answer(self, deliveries: Sequence[Delivery], **fields: Any) -> int:
        """Answer each job with these fields of a reply; return the number of jobs that were still unanswered."""
        jobs = [delivery.job() for delivery in deliveries]
        pairs = zip(deliveries, jobs, strict=True)
        return self.reply(Answer(delivery, Reply(job.id, **fields), job.reply_to) for delivery, job in pairs)


def set_limits(queue: BlockingProducer, limits: LaneLimits) -> None:
    """Set the limits of the lanes, as workers announce them."""
    queue.broker.execute("HSET", queue.keys.limits, *(part for limit in limits.to_map().items() for part in limit))


def drive(worker: Worker) -> int:
    """Step until the worker holds no job and finds none; return the number of answered jobs."""
    answered = worker.step(block_s=0)
    return answered + step_while(worker, lambda: bool(worker.scheduler.works))


def work_off(worker: Worker, queue: BlockingProducer) -> int:
    """Step until all jobs of the queue are answered; return the number of answered jobs."""
    return step_while(worker, lambda: any(queue.backlog().values()))


def step_while(worker: Worker, is_true: Callable[[], object]) -> int:
    """Step while the condition holds; return the number of answered jobs. Fail the test after `MAX_STEPS`."""
    answered = 0
    for _ in range(MAX_STEPS):
        if not is_true():
            return answered
        answered += worker.step(block_s=0)
    pytest.fail(f"still true after {MAX_STEPS:,} steps: {is_true}")


def connect(url: str) -> Any:
    """Return redis-py's client with the product's connections."""
    return redis.Redis.from_pool(open_pool(url))


def queue_of(owner: Worker | Client) -> Queue:
    """Return the queue of a worker or a client, over its connections."""
    end = owner if isinstance(owner, Client) else owner.consumer
    return Queue(end.broker, end.keys)
