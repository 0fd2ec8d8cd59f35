"""The host of several models on one machine: each model runs while its jobs come, within a budget of memory."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from threading import Event
from typing import Any

import click

from shoal.broker.broker import Broker
from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import LANES
from shoal.errors import BadSetting, NotReady, ShoalError, Unavailable
from shoal.queue.pool import Pool
from shoal.settings import Settings
from shoal.supervisor.process import Service
from shoal_workers.process.heartbeat import Heartbeat

log = logging.getLogger(__name__)

#: Interval at which the host looks for jobs of sleeping models, in seconds.
LOOK_EVERY_S = 0.1

#: Interval at which the host reads the heartbeats of its ready workers, in seconds.
READ_EVERY_S = 1.0

#: Time that a busy model keeps its memory, in seconds, before another model with jobs may take its place.
TURN_S = 5.0

#: Time for which a model starts alone, in seconds. If it needs longer, because a download hangs for example, the next
#: model starts too.
MAX_START_ALONE_S = 300.0

#: Pause before a worker that ended by itself is started again, in seconds. The pause doubles each time.
RESTART_AFTER_S, MAX_RESTART_AFTER_S = 1.0, 60.0

#: The fields of a heartbeat that describe the worker's work, not its model.
_MEASURED = ("counters", "waits", "batches", "rounds", "recent", "written_at", "memory_bytes")


def run_host(settings: Settings, models: Sequence[str], budget_bytes: int, idle_s: float) -> None:
    """Host models, each written as `POOL=MODEL`, until SIGTERM or SIGINT. Raises BadSetting, NotReady."""
    stopping = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with closing(Broker.connect(settings.redis_address)) as broker:
        hosted = [HostedModel(broker, each) for each in settings_of_models(settings, models)]
        names = ", ".join(model.name for model in hosted)
        ModelHost(hosted, budget_bytes, idle_s).run(stopping, lambda: click.echo(f"ready for the pools {names}"))


def settings_of_models(settings: Settings, models: Sequence[str]) -> list[Settings]:
    """Return the settings of each model's worker. A model is written as `POOL=MODEL`. Raises BadSetting.

    The indexes of `settings` belong to the pool of `settings`; each other pool has a folder of indexes of its own.
    """
    settings = replace(settings, redis_url=settings.redis_address, model_aliases="", workers=1)
    found: dict[str, Settings] = {}
    for text in models:
        pool, equals, model = text.partition("=")
        if not (pool and equals and model) or pool in found:
            raise BadSetting(f"{excerpt(text)} is not POOL=MODEL with a pool of its own, such as e5=./models/e5")
        found[pool] = replace(settings, pool=pool, model=model)
        if pool != settings.pool:
            found[pool] = replace(found[pool], indexes="", index_home=str(settings.home_folder / "pools" / pool))
    return list(found.values())


class HostedModel:
    """One model: its pool, and the worker that runs while the model is needed.

    `state` is "asleep", "starting", "ready" or "stopping". While no worker is ready, the host announces what the last
    worker served, so that the API knows the model's name, prompts and indexes.
    """

    def __init__(self, broker: Broker, settings: Settings):
        self.name = settings.pool
        self.state = "asleep"
        self.num_jobs = 0
        self.memory_bytes = 0
        self.is_known = False
        self.used_at = self.ready_at = self.restart_at = self.started_at = time.monotonic()
        command = [sys.executable, "-m", "shoal", "worker"]
        self._worker = Service(f"the worker of {self.name}", command, settings.to_environment())
        self._pool = Pool(broker, settings.keys)
        self._pause_s = RESTART_AFTER_S
        self._is_refused = False
        self._read_at = 0.0
        self._num_answered = 0
        self._served: dict[str, Any] = {}
        self._asleep: Heartbeat | None = None

    def start(self) -> None:
        """Start the worker. If the system cannot start a process, the host tries again later."""
        self.started_at = time.monotonic()
        try:
            self._worker.start()
            self.state = "starting"
        except OSError as error:
            log.error("%s cannot be started, and is tried again: %s", self._worker.name, error)
            self.restart_at = self.started_at + self._pause_s

    def send_to_sleep(self) -> None:
        """Ask the worker to stop. It first answers the jobs that it has taken; all other jobs stay in Redis."""
        self._announce_sleep()
        self.ask_to_stop()
        self.state = "stopping"

    def ask_to_stop(self) -> None:
        """Ask the worker to stop, if it runs."""
        if self._worker.process:
            self._worker.process.terminate()

    def stop(self) -> None:
        """Stop the worker and the announcement that the model is asleep, and wait until both have ended."""
        self._worker.stop()
        self._end_sleep()

    def look(self, now: float) -> None:
        """Record the state of the worker, and the number of unanswered jobs of the pool. Raises NotReady.

        If Redis does not answer, or refuses a key of this pool that another program wrote, the other models go on.
        """
        try:
            self._look(now)
            self._is_refused = False
        except Unavailable as error:
            level = logging.DEBUG if self._is_refused else logging.WARNING
            log.log(level, "the pool %s: %s; trying until it does", self.name, error)
            self._is_refused = True
            self.num_jobs, self.used_at = 0, now  # unknown, so the model neither starts nor goes to sleep

    def _look(self, now: float) -> None:
        if self.state != "asleep" and self._worker.exit_code() is not None:
            self._note_end(now)
        elif self.state == "starting" or (self.state == "ready" and now - self._read_at >= READ_EVERY_S):
            self._read_heartbeat(now)
        keys = self._pool.keys
        pushed = [("LLEN", keys.lane(lane)) for lane in LANES]
        self.num_jobs = sum(self._pool.broker.pipeline(*pushed, *(("ZCARD", keys.of_lane(n, "jobs")) for n in LANES)))
        if self.num_jobs:
            self.used_at = now

    def _note_end(self, now: float) -> None:
        if self.state != "stopping":
            reason = f"{self._worker.name} ended with exit code {self._worker.exit_code()}: {self._worker.last_error()}"
            if not self.is_known:
                raise NotReady(reason)
            log.warning("%s; it is not started again for %g s", reason, self._pause_s)
            self.restart_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, MAX_RESTART_AFTER_S)
            self._announce_sleep()
        self.state = "asleep"

    def _read_heartbeat(self, now: float) -> None:
        assert self._worker.process
        self._read_at = now
        for about in self._pool.own_ready([self._worker.process.pid]).values():
            self._served = about
            self.memory_bytes = max(self.memory_bytes, about.get("memory_bytes") or 0)
            num_answered = about.get("counters", {}).get("jobs", 0)
            if self.state == "starting":
                self._end_sleep()
                self.state, self.is_known, self.used_at, self.ready_at = "ready", True, now, now
                self._pause_s = RESTART_AFTER_S
            elif num_answered != self._num_answered:
                self.used_at = now
            self._num_answered = num_answered

    def _announce_sleep(self) -> None:
        if self._asleep is None:
            about = {name: value for name, value in self._served.items() if name not in _MEASURED}
            about |= {"state": "asleep", "pid": os.getpid(), "texts_per_s": 0.0}
            self._asleep = Heartbeat(self._pool, f"{about['host']}-{os.getpid()}-asleep", lambda: about).start()

    def _end_sleep(self) -> None:
        if self._asleep is not None:
            self._asleep.close()
            self._asleep = None


class ModelHost:
    """Runs models while their jobs come. `idle_s` after its last job, a model is sent to sleep.

    A model with jobs starts when the budget has room. If the budget has no room, the models that were not used for the
    longest time are sent to sleep: idle ones at once, busy ones after their turn of `TURN_S`.
    """

    def __init__(self, models: Sequence[HostedModel], budget_bytes: int, idle_s: float):
        self.models = models
        self.budget_bytes = budget_bytes
        self.idle_s = idle_s

    def run(self, stopping: Event, when_known: Callable[[], object]) -> None:
        """Run each model once, call `when_known`, and serve until `stopping` is set. Raises NotReady, BadSetting."""
        are_known = False
        try:
            while not stopping.wait(LOOK_EVERY_S):
                self.step(time.monotonic())
                if not are_known and (are_known := all(model.is_known for model in self.models)):
                    when_known()
        finally:
            for model in self.models:
                model.ask_to_stop()  # so that all stop at the same time
            for model in self.models:
                with suppress(ShoalError):
                    model.stop()

    def step(self, now: float) -> None:
        """Look at all models, then start and stop them as their jobs and the budget require."""
        for model in self.models:
            was_known = model.is_known
            model.look(now)
            if not was_known and model.memory_bytes > self.budget_bytes:
                raise BadSetting(
                    f"the model of the pool {model.name} takes {model.memory_bytes / 2**30:.2f} GB, and all models may "
                    f"take {self.budget_bytes / 2**30:.2f} GB: raise --memory-gb, or leave the model out"
                )
        for model in self.models:
            if model.state == "ready" and now - model.used_at >= self.idle_s:
                model.send_to_sleep()
        if any(model.state == "starting" and now - model.started_at < MAX_START_ALONE_S for model in self.models):
            return  # one model at a time, because a model's memory is known only once it is ready
        wanted = self._next_wanted(now)
        running = [model for model in self.models if model.state != "asleep"]
        if wanted and self._have_room([*running, wanted]):
            wanted.start()
        elif wanted or not self._have_room(running):
            self._send_one_to_sleep(now)

    def _next_wanted(self, now: float) -> HostedModel | None:
        """Return the next model to start: the least recently started of sleeping models that have jobs or never ran."""
        asleep = [model for model in self.models if model.state == "asleep" and model.restart_at <= now]
        wanted = [model for model in asleep if model.num_jobs or not model.is_known]
        return min(wanted, key=lambda model: model.ready_at, default=None)

    def _have_room(self, models: Sequence[HostedModel]) -> bool:
        """Return True if the models fit in the budget. A single model always fits, even if it has grown."""
        return len(models) == 1 or sum(model.memory_bytes for model in models) <= self.budget_bytes

    def _send_one_to_sleep(self, now: float) -> None:
        if any(model.state == "stopping" for model in self.models):
            return  # the memory of that model will be free soon
        ready = [model for model in self.models if model.state == "ready"]
        over = not self._have_room(ready)
        may_stop = [model for model in ready if over or not model.num_jobs or now - model.ready_at >= TURN_S]
        if may_stop:
            min(may_stop, key=lambda model: (model.num_jobs > 0, model.used_at)).send_to_sleep()
