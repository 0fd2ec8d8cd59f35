"""The time until another worker has the jobs of a killed worker, or has answered them."""

import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import redis

from chaos_run.deployment import NUM_WORKERS, PAUSE_S, Deployment
from shoal.broker.broker import Broker
from shoal.broker.connections import ConnectionPool
from shoal.errors import ShoalError
from shoal.queue.pool import ALIVE_S, Pool

#: Seconds between two looks, and the promised time until other workers begin with a dead worker's interactive jobs, in
#: seconds.
LOOK_EVERY_S, BEGUN_WITHIN_S = 0.05, 5.0

#: Seconds for which a fault still hinders workers: they do not trust heartbeats, and look for jobs every second.
AFTERMATH_S = ALIVE_S + 1.0


@dataclass(slots=True)
class Kill:
    """A killed worker, the largest number of interactive jobs that it still held, and the time when it held none."""

    pid: int
    at_s: float
    num_jobs: int = 0
    ended_s: float | None = None
    fewest_alive: int = NUM_WORKERS

    @property
    def is_late(self) -> bool:
        """True if its jobs waited for too long. Each job needs its own pass on one of the other workers."""
        return self.waited_s > BEGUN_WITHIN_S + self.num_jobs * PAUSE_S / (NUM_WORKERS - 1)

    @property
    def waited_s(self) -> float:
        """The seconds that its jobs waited; 0 if it held none, or if they still wait."""
        return self.ended_s - self.at_s if self.num_jobs and self.ended_s is not None else 0.0


class Recovery:
    """A thread that watches the jobs of killed workers."""

    def __init__(self, deployment: Deployment):
        self._kills: list[Kill] = []
        self._hindered: list[tuple[float, float]] = []  # beginning and end of the times when faults hinder workers
        self._deployment = deployment
        self._keys = deployment.settings.keys
        self._ids: dict[int, str] = {}
        self._stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.start = self._thread.start

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()
        self._redis.close()

    def note_kill(self, pid: int) -> None:
        """Record the kill of a worker now."""
        self._kills.append(Kill(pid, time.monotonic()))

    def note_fault(self, seconds: float) -> None:
        """Record that a fault, such as the kill of a worker, hinders workers for `seconds` from now."""
        self._hindered.append((time.monotonic(), time.monotonic() + seconds + AFTERMATH_S))

    def kills(self, is_alone: bool) -> list[Kill]:
        """Return the kills of workers that held jobs, with no other fault if `is_alone`, else with other faults."""
        found = []
        for kill in self._kills:
            until_s = kill.at_s + kill.waited_s
            num_faults = sum(start <= until_s and end >= kill.at_s for start, end in self._hindered)
            if kill.waited_s and (num_faults == 1 and kill.fewest_alive >= NUM_WORKERS - 1) == is_alone:
                found.append(kill)
        return found

    def _run(self) -> None:
        self._connect()
        while not self._stopped.wait(LOOK_EVERY_S):
            try:
                alive = self._pool.alive()
                for kill in list(self._kills):
                    if kill.ended_s is None and (worker := self._ids.get(kill.pid)):
                        self._look(kill, worker, alive)
                self._ids |= {about["pid"]: worker for worker, about in self._pool.workers().items()}
            except (redis.RedisError, ShoalError):  # Redis is away; the primary may be another server when it is back
                self._redis.close()
                with suppress(redis.RedisError):
                    self._connect()

    def _connect(self) -> None:
        self._redis: Any = self._deployment.connect(answer_s=2)
        self._pool = Pool(Broker(ConnectionPool(**self._redis.get_connection_kwargs())), self._keys)

    def _look(self, kill: Kill, worker: str, alive: set[str]) -> None:
        """Count the interactive jobs that the dead worker still holds, or that wait as suspects since its death."""
        kill.fewest_alive = min(kill.fewest_alive, len(alive - {worker}))
        held = self._redis.zrange(self._keys.held(worker), 0, -1)
        records = [self._keys.record(key.decode()) for key in (*held, *self._redis.lrange(self._keys.suspects, 0, -1))]
        found = [self._redis.hmget(record, "lane", "worker", "died") for record in records]
        num_jobs = sum(lane == b"interactive" and worker.encode() in workers for lane, *workers in found)
        kill.num_jobs = max(kill.num_jobs, num_jobs)
        if not num_jobs:
            kill.ended_s = time.monotonic()
