"""The runner of long jobs: a process that starts and watches RQ workers, each in a process of its own."""

import logging
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess

from rq.queue import Queue

from shoal.broker.broker import Broker
from shoal.errors import BadSetting, Overloaded, Unavailable
from shoal.long_jobs.rq_job import job_class_of
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_jobs.status import public_text
from shoal.long_jobs.submission import KINDS, LONG, QUICK, Kind, queue_name
from shoal.process.system_limits import die_with_parent
from shoal.settings import Settings
from shoal_workers.long_jobs.rq_worker import STOPS, LongJobWorker
from shoal_workers.long_jobs.runnable_job import RunnableJob, Task
from shoal_workers.long_jobs.tasks import functions

log = logging.getLogger(__name__)

#: Longest wait for the workers to end, in seconds. They kill the processes of their jobs within 1 s.
STOP_WITHIN_S = 10.0

#: Longest wait for an answer of Redis, in seconds. A started worker sets its own `connection_timeout`.
ANSWER_S = 2.0

#: Pause before a worker that ended is started again, in seconds.
RESTART_AFTER_S = 1.0

#: Exit code of a worker that cannot use Redis, and the seconds without such a failure after which the next is logged.
NO_REDIS, QUIET_S = 3, 15.0

_LOOK_EVERY_S = 0.2


@dataclass(slots=True)
class _Place:
    """One worker of a queue: its process, if it runs, and the monotonic time from which it may be started.

    `lacks_redis` says that the process before could not use Redis.
    """

    queue: str
    process: BaseProcess | None = None
    due_s: float = 0.0
    lacks_redis: bool = False


class Runner:
    """A runner with `settings.long_jobs` workers for long jobs, and one for quick jobs."""

    def __init__(
        self,
        settings: Settings,
        tasks: Mapping[str, Task] | None = None,
        kinds: Mapping[str, Kind] = KINDS,
    ):
        if not settings.long_jobs:
            raise BadSetting("long_jobs is 0: a runner takes at least 1, as no job would begin otherwise")
        self._settings = settings
        self._job_class = job_class_of(
            kinds,
            RunnableJob,
            functions=functions(settings) if tasks is None else tasks,
            public=partial(public_text, settings=settings),
        )
        self._redis_url = settings.long_jobs_redis_address
        self._places = [_Place(queue) for queue in (*[LONG] * settings.long_jobs, QUICK)]
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run long jobs until SIGTERM or SIGINT."""
        for number in STOPS:
            signal.signal(number, lambda *_: self._stopping.set())
        log.info("this runner runs %d long jobs at a time", self._settings.long_jobs)
        try:
            while not self._stopping.is_set():
                self._start_workers()
                self._stopping.wait(_LOOK_EVERY_S)
        finally:
            self._stop()

    def _start_workers(self) -> None:
        """Start the workers that do not run. A worker that ended is started `RESTART_AFTER_S` later."""
        for place in self._places:
            if place.process is not None and not place.process.is_alive():
                place.lacks_redis = place.process.exitcode == NO_REDIS
                if not place.lacks_redis:
                    log.warning("a worker ended with exit code %s and is started again", place.process.exitcode)
                place.process.close()
                place.process, place.due_s = None, time.monotonic() + RESTART_AFTER_S
            if place.process is None and time.monotonic() >= place.due_s:
                # A fork shares the memory of loaded modules. Signals wait until the fork has set its handlers.
                forked = multiprocessing.get_context("fork").Process(target=self._work, args=(place, os.getpid()))
                signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
                try:
                    forked.start()
                finally:
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
                place.process = forked

    def _work(self, place: _Place, parent: int) -> None:
        """Run the jobs of a queue until a signal comes or Redis fails. Called in a process of its own."""
        for number in STOPS:  # first, because the handlers inherited from the runner do not end this process
            signal.signal(number, lambda *_: os._exit(0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        die_with_parent(signal.SIGTERM, parent)
        began_s = time.monotonic()
        with closing(Broker.connect(self._redis_url, ANSWER_S)) as broker:
            name = queue_name(self._settings.keys.root, place.queue)
            queue = Queue(name, broker.library_client(), job_class=self._job_class, serializer=MsgpackSerializer)
            try:
                with broker.translated():
                    own = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
                    LongJobWorker(queue, own, broker).run()
            except (Unavailable, Overloaded) as error:
                if not place.lacks_redis or time.monotonic() - began_s > QUIET_S:
                    log.warning("waiting for Redis: %s", error.message)
                sys.exit(NO_REDIS)

    def _stop(self) -> None:
        """Terminate the workers, and kill each worker that does not end within `STOP_WITHIN_S`."""
        running = [place.process for place in self._places if place.process]
        for process in running:
            process.terminate()
        until_s = time.monotonic() + STOP_WITHIN_S
        for process in running:
            process.join(max(0.0, until_s - time.monotonic()))
            process.kill()
            process.join()
            process.close()
