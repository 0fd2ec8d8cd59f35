"""The supervisor: starts, watches, restarts and stops Redis, the API, the workers and the runner of long jobs."""

import logging
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from signal import Signals
from urllib.request import ProxyHandler, build_opener

from shoal.broker import embedded
from shoal.errors import NotReady, ShoalError, parse
from shoal.index_folder import read_current
from shoal.process.listen_address import api_url, find_api_addresses
from shoal.process.progress import wait_until
from shoal.settings import Settings
from shoal.supervisor.process import Service

log = logging.getLogger(__name__)

#: Longest time for the API to stop, in seconds. A request waits at most a minute for a result.
API_STOP_WITHIN_S = 70.0

#: Opens URLs of this machine without using the proxies that the environment names.
_open_url = build_opener(ProxyHandler({})).open


class Supervisor:
    """The processes that the settings ask for, and a private Redis if the settings name no Redis. Raises PortInUse."""

    def __init__(self, settings: Settings):
        own_redis = not settings.redis_url
        self.settings = settings = (
            replace(settings, redis_port=embedded.choose_port(settings)) if own_redis else settings
        )
        environment = settings.to_environment()
        shoal = [sys.executable, "-m", "shoal"]
        workers = [Service(f"worker {n + 1}", [*shoal, "worker"], environment) for n in range(settings.workers)]
        jobs = [Service("jobs", [*shoal, "jobs"], environment)] if runs_jobs(settings) else []
        self.services = [Service("api", [*shoal, "api"], environment, API_STOP_WITHIN_S), *jobs, *workers]
        self.redis = Service("redis", embedded.command(settings), {}) if own_redis else None
        self._stopping = False

    def check(self) -> None:
        """Raise PortInUse, IndexNotFound or BadSetting if a process could not start."""
        if self.settings.workers:
            for folder in self.settings.index_folders().values():
                read_current(folder)
        find_api_addresses(self.settings)

    def start(self) -> None:
        """Start all processes, and return once Redis answers; the other processes wait for it. Raises Unavailable."""
        if self.redis is None:
            self._ask("PING")
        for service in reversed(self._all()):
            service.start()
        if self.redis:
            wait_until("Redis", partial(self._answers, self.redis))
            embedded.save_port(self.settings)

    def wait_until_ready(self) -> None:
        """Wait until all processes are ready. Raises the error of a process that ends meanwhile, or NotReady."""
        wait_until("the API and the workers", self._is_ready, 3_600.0)  # a worker may have to fetch its model

    def watch(self) -> None:
        """Restart each process that ends, until `ask_to_stop` is called."""
        while not self._stopping:
            for service in self._all():
                if (code := service.exit_code()) is not None and not self._stopping:
                    time.sleep(1.0)
                    ended = f"ended with exit code {code} ({service.last_error()})"
                    if code < 0:  # a signal ended the process, so its last line is not the reason
                        ended = f"was ended by {Signals(-code).name}"
                    log.warning("%s %s, and is started again", service.name, ended)
                    try:
                        service.start()
                    except OSError as error:  # the system has no memory for a process, or Python is being replaced
                        log.error("%s cannot be started, and is tried again: %s", service.name, error)
            time.sleep(0.2)

    def ask_to_stop(self, *, impatiently: bool = False) -> None:
        """End `watch`; if `impatiently`, a second call kills the running processes. Safe in a signal handler."""
        if self._stopping and impatiently:
            for service in self.services:
                if service.exit_code() is None:
                    service.send_kill()
        self._stopping = True

    def stop(self) -> None:
        """Stop the API, then the runner, the workers and Redis; each finishes its work first."""
        for service in self._all():
            service.stop()

    @property
    def pids(self) -> list[int]:
        """The process ids of the API, the runner and the workers."""
        return [service.process.pid for service in self.services if service.process]

    def _all(self) -> list[Service]:
        return [*self.services, *([self.redis] if self.redis else [])]

    def _ask(self, *command: str) -> bytes:
        from shoal.broker.broker import Broker  # imported late, because the import is slow

        with closing(Broker.connect(self.settings.redis_address)) as broker:
            return bytes(broker.execute(*command))

    def _answers(self, redis: Service) -> bool:
        self._check_stop()
        if redis.exit_code() is not None:
            raise NotReady(embedded.why_it_ended(self.settings))
        try:  # checks which Redis answers, because another service's Redis may have taken the port first
            return redis.process is not None and f"process_id:{redis.process.pid}\r".encode() in self._ask(
                "INFO", "server"
            )
        except ShoalError:
            return False

    def _check_stop(self) -> None:
        if self._stopping:
            raise NotReady("stopped before it was ready: start it again")

    def _is_ready(self) -> bool:
        self._check_stop()
        for service in self.services:
            if (code := service.exit_code()) is not None:
                reason = service.last_error()
                if error := parse(reason):  # one of Shoal's errors, whose message has a remedy
                    raise type(error)(f"{service.name} could not start: {error.message}")
                raise NotReady(f"{service.name} ended with exit code {code} before it was ready: {reason}")
        return is_ready(self.settings) and self._has_own_workers()

    def _has_own_workers(self) -> bool:
        """Return True if this service's workers are ready. The API is ready as soon as any worker of the pool is."""
        from shoal.broker.broker import Broker
        from shoal.queue.pool import Pool

        with closing(Broker.connect(self.settings.redis_address)) as broker, suppress(ShoalError):
            return len(Pool(broker, self.settings.keys).own_ready(self.pids)) == self.settings.workers
        return False


def runs_jobs(settings: Settings) -> bool:
    """Return True if the settings ask for a runner of long jobs, its Redis is not a cluster, and RQ is installed."""
    return settings.long_jobs > 0 and settings.can_keep_long_jobs and find_spec("rq") is not None


def is_ready(settings: Settings) -> bool:
    """Return True if the API answers that it is ready or, if the settings ask for no worker, that it is alive."""
    route = "ready" if settings.workers else "health"
    with suppress(OSError), _open_url(f"{api_url(settings)}/{route}", timeout=2):
        return True
    return False
