"""The time that jobs of a killed worker wait until another one has them, or has answered them."""

import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import redis

from chaos_run.deployment import Deployment
from shoal.broker.broker import Broker
from shoal.errors import ShoalError
from shoal.queue.consumer import GROUP
from shoal.queue.pool import Pool

#: Time between two looks.
LOOK_EVERY_S = 0.05


@dataclass(slots=True)
class Kill:
    """A worker that was killed: when, the most jobs that it held since, and when it held none any more."""

    pid: int
    is_alone: bool
    at_s: float
    num_jobs: int = 0
    recovered_s: float | None = None


class Recovery:
    """A thread that watches the jobs of killed workers."""

    def __init__(self, deployment: Deployment):
        self._kills: list[Kill] = []
        self._redis: Any = deployment.connect()
        self._lanes = f"{deployment.settings.keys.root}:lane:*"
        self._pool = Pool(Broker(self._redis.connection_pool), deployment.settings.keys)
        self._ids: dict[int, str] = {}
        self._stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.start = self._thread.start

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()
        self._redis.close()

    def note(self, pid: int, is_alone: bool) -> None:
        """Note that a worker was killed now."""
        self._kills.append(Kill(pid, is_alone, time.monotonic()))

    def seconds(self, is_alone: bool) -> list[float]:
        """Return the times of workers that were killed while they held jobs; only of those killed alone if so."""
        kills = [kill for kill in self._kills if kill.is_alone >= is_alone and kill.num_jobs]
        return sorted(kill.recovered_s - kill.at_s for kill in kills if kill.recovered_s is not None)

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            with suppress(redis.RedisError, ShoalError):  # Redis is away
                for kill in list(self._kills):
                    if kill.recovered_s is None and (worker := self._ids.get(kill.pid)):
                        num_jobs = self._num_pending(worker)
                        kill.num_jobs = max(kill.num_jobs, num_jobs)
                        kill.recovered_s = None if num_jobs else time.monotonic()
                self._ids |= {about["pid"]: worker for worker, about in self._pool.workers().items()}

    def _num_pending(self, worker: str) -> int:
        """Return the number of jobs that are pending for the worker in any lane."""
        lanes = list(self._redis.scan_iter(self._lanes, _type="stream"))
        consumers = [each for lane in lanes for each in self._redis.xinfo_consumers(lane, GROUP)]
        return sum(int(each["pending"]) for each in consumers if each["name"].decode() == worker)
