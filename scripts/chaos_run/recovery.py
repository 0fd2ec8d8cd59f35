"""The time that jobs of a killed worker wait until another one has them, or has answered them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import redis

from chaos_run.deployment import NUM_WORKERS, PAUSE_S, Deployment
from shoal.broker.broker import Broker
from shoal.errors import ShoalError
from shoal.queue.pool import ALIVE_S, Pool

#: Time between two looks.
LOOK_EVERY_S = 0.05

#: The promise: others begin with the interactive jobs of a worker within this time after its death, in
#: seconds.
BEGUN_WITHIN_S = 5.0

#: How long a fault hinders workers after its end: they do not trust heartbeats, and look for jobs every second.
AFTERMATH_S = ALIVE_S + 1.0


@dataclass(slots=True)
class Wait:
    """The wait of a killed worker's jobs: the most that it held since, and when it held none any more."""

    num_jobs: int = 0
    ended_s: float | None = None

    def note(self, num_jobs: int) -> None:
        """Note how many jobs it holds now."""
        self.num_jobs = max(self.num_jobs, num_jobs)
        if self.ended_s is None and not num_jobs:
            self.ended_s = time.monotonic()


@dataclass(slots=True)
class Kill:
    """A worker that was killed, the waits of its interactive jobs and of all, and the fewest other workers meanwhile.

    Jobs of bulk wait for their share of the others' time.
    """

    pid: int
    at_s: float
    interactive: Wait = field(default_factory=Wait)
    all: Wait = field(default_factory=Wait)
    fewest_alive: int = NUM_WORKERS

    @property
    def allowed_s(self) -> float:
        """Return how long its interactive jobs may wait: each is a pass of its own, on one of the others."""
        return BEGUN_WITHIN_S + self.interactive.num_jobs * PAUSE_S / (NUM_WORKERS - 1)

    def seconds(self, wait: Wait) -> list[float]:
        """Return how long its jobs waited; nothing if it held none, or if they wait still."""
        return [wait.ended_s - self.at_s] if wait.num_jobs and wait.ended_s is not None else []


class Recovery:
    """A thread that watches the jobs of killed workers."""

    def __init__(self, deployment: Deployment):
        self._kills: list[Kill] = []
        self._hindered: list[tuple[float, float]] = []  # from when and until when faults hinder workers
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
        """Note that a worker was killed now."""
        self._kills.append(Kill(pid, time.monotonic()))

    def note_fault(self, seconds: float) -> None:
        """Note that a fault hinders workers for `seconds` from now; the kill of a worker is one, too."""
        self._hindered.append((time.monotonic(), time.monotonic() + seconds + AFTERMATH_S))

    def waits(self, is_alone: bool) -> list[float]:
        """Return the times of interactive jobs, while nothing else was broken or while something was."""
        kills = [kill for kill in self._kills if self._is_alone(kill) == is_alone]
        return sorted(seconds for kill in kills for seconds in kill.seconds(kill.interactive))

    def waits_of_all(self) -> list[float]:
        """Return the times after which killed workers held no jobs any more."""
        return sorted(seconds for kill in self._kills for seconds in kill.seconds(kill.all))

    def late(self, is_alone: bool) -> list[float]:
        """Return those times of interactive jobs that are longer than is promised."""
        kills = [kill for kill in self._kills if self._is_alone(kill) == is_alone]
        return sorted(s for kill in kills for s in kill.seconds(kill.interactive) if s > kill.allowed_s)

    def _is_alone(self, kill: Kill) -> bool:
        """Return True if nothing else hindered workers until the interactive jobs were with others."""
        until_s = time.monotonic() if kill.interactive.ended_s is None else kill.interactive.ended_s
        num_faults = sum(start <= until_s and end >= kill.at_s for start, end in self._hindered)
        return num_faults == 1 and kill.fewest_alive >= NUM_WORKERS - 1

    def _run(self) -> None:
        self._connect()
        while not self._stopped.wait(LOOK_EVERY_S):
            with suppress(redis.RedisError, ShoalError), self._reconnecting():  # Redis is away
                alive = self._pool.alive()
                for kill in list(self._kills):
                    if kill.all.ended_s is None and (worker := self._ids.get(kill.pid)):
                        self._look(kill, worker, alive)
                self._ids |= {about["pid"]: worker for worker, about in self._pool.workers().items()}

    @contextmanager
    def _reconnecting(self) -> Iterator[None]:
        """Connect to the primary anew after an error: it may be another server now."""
        try:
            yield
        except (redis.RedisError, ShoalError):
            self._redis.close()
            self._connect()
            raise

    def _connect(self) -> None:
        self._redis: Any = self._deployment.connect(answer_s=2)
        self._pool = Pool(Broker(self._redis.connection_pool), self._keys)

    def _look(self, kill: Kill, worker: str, alive: set[str]) -> None:
        if kill.interactive.ended_s is None:
            kill.fewest_alive = min(kill.fewest_alive, len(alive - {worker}))
        lanes = self._lanes_of_held(worker)
        kill.interactive.note(lanes.count("interactive"))
        kill.all.note(len(lanes))

    def _lanes_of_held(self, worker: str) -> list[str]:
        """Return the lane of each job that the worker holds or that waits, since the worker died, as a suspect."""
        held = self._redis.zrange(self._keys.held(worker), 0, -1)
        records = [self._keys.record(key.decode()) for key in (*held, *self._redis.lrange(self._keys.suspects, 0, -1))]
        found = [self._redis.hmget(record, "lane", "worker", "died") for record in records]
        return [lane.decode() for lane, *workers in found if lane and worker.encode() in workers]
