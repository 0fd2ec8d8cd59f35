"""The stack that is broken: Redis, two APIs and the workers, each with a link of its own to Redis, and a supervisor."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import redis
from stack import SHOAL, free_port

from chaos_run.links import Links
from chaos_run.proxy import PRODUCERS
from shoal.broker import embedded
from shoal.errors import NotReady
from shoal.settings import Settings
from shoal.supervisor.process import Service
from shoal_workers.process.watchdog import EXIT_STALLED

#: How long before a process that ended is started again: `shoal serve` takes as long.
RESTART_AFTER_S = 1.0

#: How long a process may take to stop when it is told to, before it is killed.
STOP_WITHIN_S = 20.0

#: Longest that everything may take to be ready.
READY_WITHIN_S = 120.0

NUM_APIS = 2

#: How a worker may end that was told nothing: what each kind of poison does to it.
POISONED = {-signal.SIGABRT: "crashed", -signal.SIGKILL: "out of memory", EXIT_STALLED: "stalled"}

_HERE = Path(__file__).parent
_NATIVE_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(slots=True)
class Watched:
    """A process of the stack and what is to become of it."""

    service: Service
    logfile: Path
    restart_after_s: float = RESTART_AFTER_S
    ended_s: float | None = None
    told_to: str = ""
    told_s: float = 0.0
    is_stopped: bool = False
    deaths: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What the process is called."""
        return self.service.name

    @property
    def pid(self) -> int:
        """The process id that it has, or had last."""
        return self.service.process.pid if self.service.process else 0

    @property
    def is_up(self) -> bool:
        """Whether it runs and nothing is being done to it."""
        return self.ended_s is None and not self.told_to and not self.is_stopped

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to it and to the processes that it started."""
        os.killpg(self.pid, number)

    def look(self) -> str | None:
        """Notes its end, starts it again when it is time; returns why it died if nobody told it to."""
        now = time.monotonic()
        if self.ended_s is not None:
            if now - self.ended_s > self.restart_after_s:
                self.service.start()
                self.ended_s, self.told_to, self.restart_after_s = None, "", RESTART_AFTER_S
            return None
        code = self.service.exit_code()
        if code is None:
            if self.told_to == "stop" and now - self.told_s > STOP_WITHIN_S:
                self.send(signal.SIGKILL)
                self.told_s = now
                return f"{self.name} did not stop within {STOP_WITHIN_S:g} s"
            return None
        self.ended_s = now
        return self._surprise(code)

    def _surprise(self, code: int) -> str | None:
        is_right = {"kill": True, "stop": code in (0, -signal.SIGTERM, -signal.SIGKILL), "": False}[self.told_to]
        poison = POISONED.get(code) if self.name.startswith("worker") else None
        if is_right or poison:
            self.deaths.append(
                f"{self.name.split()[0]} {poison if poison and self.told_to != 'kill' else self.told_to}"
            )
            return None
        self.told_to = ""
        return f"{self.name} (process {self.pid}) ended with exit code {code}, and not because it was told to"


class Supervisor:
    """The processes, their links and their logs, all under one folder."""

    def __init__(self, folder: Path, settings: Settings, pause_s: float, fsync: str):
        self.folder = folder
        self.computed = folder / "computed.bin"
        self._redis_port = free_port()
        self.settings = replace(settings, redis_url=f"redis://127.0.0.1:{self._redis_port}/0")
        workers = [f"worker {n + 1}" for n in range(settings.workers)]
        apis = [f"api {n + 1}" for n in range(NUM_APIS)]
        self.ports = {name: free_port() for name in (*workers, *apis, PRODUCERS)}
        self.api_ports = {name: free_port() for name in apis}
        redis_command = [*embedded.command(self.settings), "--appendfsync", fsync]
        worker_command = [sys.executable, str(_HERE / "worker.py"), str(self.computed), str(pause_s)]
        self.redis = self._watched("redis", redis_command, self.settings)
        self.apis = [self._watched(name, [*SHOAL, "api"], self._settings(name)) for name in apis]
        self.workers = [self._watched(name, worker_command, self._settings(name)) for name in workers]
        self.services = {watched.name: watched for watched in (self.redis, *self.apis, *self.workers)}
        self._links: Links | None = None

    def url_of(self, link: str) -> str:
        """The Redis URL that leads through the link."""
        return f"redis://127.0.0.1:{self.ports[link]}/0"

    def connect(self) -> redis.Redis:
        """A connection to Redis that nothing breaks but Redis itself."""
        return redis.Redis.from_url(self.settings.redis_url, socket_timeout=2)

    def start(self) -> None:
        """Starts everything and returns when every API counts all workers as ready.

        Raises NotReady.
        """
        self.redis.service.start()
        self._links = Links(self._redis_port, self.ports)
        for watched in (*self.apis, *self.workers):
            watched.service.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Returns when every API counts all workers as ready; what was ended is started again meanwhile.

        Raises NotReady, also if a process ends by itself.
        """
        until = time.monotonic() + READY_WITHIN_S
        while not all(map(self._is_ready, self.api_ports.values())):
            for watched in self.services.values():
                if what := watched.look():
                    raise NotReady(f"{what}: {watched.logfile} says why")
            if time.monotonic() > until:
                raise NotReady(f"the stack is not ready within {READY_WITHIN_S:g} s: see the logs in {self.folder}")
            time.sleep(0.1)

    def order(self, link: str, mode: str, value: float = 0.0) -> None:
        """Tells the proxy what to do with a link."""
        assert self._links is not None
        self._links.order(link, mode, value)

    def memory_mb(self) -> Mapping[str, float]:
        """Resident memory of each process with those that it started."""
        found = {}
        for name, watched in self.services.items():
            try:
                root = psutil.Process(watched.pid)
                found[name] = sum(process.memory_info().rss for process in (root, *root.children(True))) / 2**20
            except psutil.NoSuchProcess:
                continue
        return found

    def stop(self) -> None:
        """Stops everything, Redis last."""
        for watched in (*self.apis, *self.workers, self.redis):
            if watched.service.process and watched.service.exit_code() is None:
                watched.send(signal.SIGCONT)
            watched.service.stop()
        if self._links:
            self._links.close()

    def _settings(self, name: str) -> Settings:
        port = self.api_ports.get(name, self.settings.port)
        return replace(self.settings, redis_url=self.url_of(name), port=port)

    def _watched(self, name: str, command: list[str], settings: Settings) -> Watched:
        logfile = self.folder / f"{name.replace(' ', '-')}.log"
        logged = ["/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1', str(logfile), *command]
        environment = settings.to_environment() | {name: str(settings.threads) for name in _NATIVE_THREADS}
        return Watched(Service(name, logged, environment), logfile)

    def _is_ready(self, port: int) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as response:
                return bool(json.load(response)["workers"] >= self.settings.workers)
        except (URLError, OSError):
            return False
