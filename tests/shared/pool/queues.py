"""Both ends of a pool's queue in one object, and a plain connection to its Redis."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import pytest
import redis
from blocking import BlockingProducer, Unread

from shoal import Client
from shoal.broker.broker import Broker
from shoal.broker.connections import open_pool
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.queue.consumer import Answer, Consumer, Delivery
from shoal.queue.lane import LaneLimits
from shoal_workers.loop.worker import Worker

#: Time for which a worker is alive that a test announces, once as a rule: longer than any test takes.
ALIVE_S = 3_600.0

#: More steps than a worker makes for the jobs of a test. Steps are counted, as a busy machine takes long for each.
MAX_STEPS = 100_000


class Queue(BlockingProducer):
    """A producer that is any number of consumers as well, and that announces workers for as long as a test takes."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.pool.alive_s = ALIVE_S
        self.unread = Unread(self)

    @classmethod
    def connect(cls, url: str, keys: Keys, result_ttl_s: int = 3_600) -> Self:
        """Return a queue with connections of its own to the Redis at `url`."""
        return cls(Broker.connect(url), keys, result_ttl_s)

    def close(self) -> None:
        """Close all connections."""
        self.broker.close()

    def ping(self) -> None:
        """Raise Unavailable if Redis does not answer."""
        self.broker.ping()

    @property
    def redis(self) -> Any:
        """Return redis-py's client, for looking at keys and for breaking things."""
        return redis.Redis(connection_pool=self.broker.connection_pool)

    def consumer(self, name: str = "") -> Consumer:
        """Return the consumer of that name, or of a new one."""
        return Consumer(self.broker, self.keys, name or f"worker-{secrets.token_hex(4)}", self.result_ttl_s)

    def wait_result(self, job_id: str, timeout_s: float) -> Reply | None:
        """Return the reply to a submitted job, looking for it until the time is over; None if it takes longer."""
        until, pause = time.monotonic() + timeout_s, threading.Event()
        while (reply := self.read_result(job_id)) is None and time.monotonic() < until:
            pause.wait(0.02)
        return reply

    def leave(self, name: str) -> None:
        """Let the jobs of a consumer wait again."""
        self.consumer(name).leave()

    def take(self, name: str, lanes: Sequence[str], max_texts: int, block_s: float = 0.0) -> list[Delivery]:
        """Take up to so many texts of each of the lanes, or of all lanes a suspect."""
        takes_suspects = len(lanes) == len(LANES)
        return self.consumer(name).take(dict.fromkeys(lanes, max_texts), block_s, takes_suspects)

    def die(self, *names: str) -> None:
        """Let the jobs of workers wait again that die with them."""
        if names:
            self.redis.zrem(self.keys.alive, *names)
        self.may_look("reaper")
        self.consumer("reaper").reclaim(())

    def may_look(self, name: str) -> None:
        """Let a worker live, and look for jobs of dead workers the next time it reclaims jobs."""
        self.pool.announce(name)
        self.redis.delete(self.keys.reclaimed)

    def start(self, name: str, deliveries: Sequence[Delivery]) -> list[bool]:
        """Mark the jobs that the consumer of that name has taken as running."""
        return self.consumer(name).start([(delivery, delivery.job().id) for delivery in deliveries])

    def reply(self, answers: Iterable[Answer]) -> int:
        """Answer jobs."""
        return self.consumer().reply(answers)

    def answer(self, deliveries: Sequence[Delivery], **fields: Any) -> int:
        """Answer the jobs, each with these fields of a reply; return how many were still unanswered."""
        jobs = [delivery.job() for delivery in deliveries]
        pairs = zip(deliveries, jobs, strict=True)
        return self.reply(Answer(delivery, Reply(job.id, **fields), job.reply_to) for delivery, job in pairs)


def set_limits(queue: BlockingProducer, limits: LaneLimits) -> None:
    """Set the limits of the lanes, as workers announce them."""
    queue.broker.execute("HSET", queue.keys.limits, *(part for limit in limits.to_map().items() for part in limit))


def drive(worker: Worker) -> int:
    """Step until the worker holds no job and finds none; return how many jobs were answered."""
    answered = worker.step(block_s=0)
    return answered + step_while(worker, lambda: bool(worker.scheduler.works))


def work_off(worker: Worker, queue: BlockingProducer) -> int:
    """Step until no job of the queue is unanswered; return how many jobs were answered."""
    return step_while(worker, lambda: any(queue.backlog().values()))


def step_while(worker: Worker, is_true: Callable[[], object]) -> int:
    """Step while the condition holds; return how many jobs were answered. Fail the test if it holds too long."""
    answered = 0
    for _ in range(MAX_STEPS):
        if not is_true():
            return answered
        answered += worker.step(block_s=0)
    pytest.fail(f"still true after {MAX_STEPS:,} steps: {is_true}")


def connect(url: str) -> Any:
    """Return redis-py's client on connections such as the product makes them."""
    return redis.Redis.from_pool(open_pool(url))


def queue_of(owner: Worker | Client) -> Queue:
    """Return both ends of the queue that a worker or a client uses, over its connections."""
    end = owner if isinstance(owner, Client) else owner.consumer
    return Queue(end.broker, end.keys)
