"""How long the jobs of a killed worker wait until another one has them, or has answered them."""

import time
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Event, Thread
from typing import Any

import redis

from chaos_run.stack import Supervisor
from shoal.errors import ShoalError
from shoal.queue.pool import Pool
from shoal.queue.queue import GROUP

#: How often it is looked.
LOOK_EVERY_S = 0.05


@dataclass(slots=True)
class Kill:
    """A worker that was killed while it held jobs: when, and how long until it held none."""

    pid: int
    is_alone: bool
    at_s: float
    recovered_s: float | None = None
    num_jobs: int = 0


class Recovery:
    """Watches, from a thread of its own, what becomes of the jobs of killed workers."""

    def __init__(self, stack: Supervisor):
        self.kills: list[Kill] = []
        self._redis: Any = stack.connect()
        self._keys = stack.settings.keys
        self._ids: dict[int, str] = {}
        self._new: Queue[Kill] = Queue()
        self._stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Starts to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it."""
        self._stopped.set()
        self._thread.join()
        self._redis.close()

    def note(self, pid: int, is_alone: bool) -> None:
        """A worker was killed now."""
        self._new.put(Kill(pid, is_alone, time.monotonic()))

    def seconds(self, is_alone: bool) -> list[float]:
        """The times of those that were killed while they held jobs, in order; only those killed `is_alone` if so."""
        kills = [kill for kill in self.kills if kill.recovered_s is not None and kill.is_alone >= is_alone]
        return sorted(kill.recovered_s - kill.at_s for kill in kills if kill.recovered_s is not None and kill.num_jobs)

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            try:
                while True:
                    self.kills.append(self._new.get_nowait())
            except Empty:
                pass
            try:
                self._look()
            except (redis.RedisError, ShoalError):
                continue  # Redis is away; it is looked again

    def _look(self) -> None:
        for kill in self.kills:
            if kill.recovered_s is None and (worker := self._ids.get(kill.pid)):
                num_jobs = self._num_pending(worker)
                kill.num_jobs = max(kill.num_jobs, num_jobs)
                if not num_jobs:
                    kill.recovered_s = time.monotonic()
        for worker, about in Pool(self._redis, self._keys).workers().items():
            self._ids[about["pid"]] = worker

    def _num_pending(self, worker: str) -> int:
        """Jobs that are pending for the worker in any lane."""
        lanes = [key for key in self._redis.scan_iter(f"{self._keys.root}:lane:*")]
        return sum(
            int(consumer["pending"])
            for lane in lanes
            for consumer in self._redis.xinfo_consumers(lane, GROUP)
            if consumer["name"].decode() == worker
        )
