"""The deployment under test: Redis, two APIs and the workers, each with its own link to Redis."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import redis
from stack import NATIVE_THREADS, SHOAL, free_port, is_ready, logged

from chaos_run.clock import set_clock
from chaos_run.proxy import Link
from chaos_run.redis_group import RedisGroup
from shoal.broker import embedded
from shoal.errors import NotReady
from shoal.process.progress import wait_until
from shoal.settings import Settings
from shoal.supervisor.process import Service
from shoal_workers.process.watchdog import EXIT_STALLED

#: Seconds until a process that ended is started again, as in `shoal serve`.
RESTART_AFTER_S = 1.0

#: Seconds that a process has for an orderly stop before it is killed.
STOP_WITHIN_S = 20.0

#: Seconds that a batch takes in addition to its computation.
PAUSE_S = 0.3

NUM_APIS, NUM_WORKERS = 2, 4

#: The link for programs that put jobs into Redis themselves.
PRODUCERS = "producers"

#: The effect of poison, by the worker's exit code.
POISONED = {-signal.SIGABRT: "crashed", -signal.SIGKILL: "out of memory", EXIT_STALLED: "stalled"}


@dataclass(slots=True)
class Process:
    """A process of the deployment, its present fault (`told_to` kill or stop), and its deaths so far."""

    service: Service
    restart_after_s: float = RESTART_AFTER_S
    ended_s: float | None = None
    told_to: str = ""
    told_s: float = 0.0
    is_stopped: bool = False
    deaths: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """The present or last process id."""
        return self.service.process.pid if self.service.process else 0

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children, unless they have ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def check(self) -> str | None:
        """Record the end of the process, and start it again. Return the reason if no fault of the run ended it."""
        now, code = time.monotonic(), self.service.exit_code()
        if self.ended_s is not None:
            if now - self.ended_s > self.restart_after_s:
                self.service.start()
                self.ended_s, self.told_to, self.restart_after_s = None, "", RESTART_AFTER_S
        elif code is not None:
            self.ended_s = now
            return self._surprise(code)
        elif self.told_to == "stop" and now - self.told_s > STOP_WITHIN_S:
            self.send(signal.SIGKILL)
            self.told_s = now
            return f"{self.service.name} did not stop within {STOP_WITHIN_S:g} s"
        return None

    def _surprise(self, code: int) -> str | None:
        name = self.service.name
        is_right = {"kill": True, "stop": code in (0, -signal.SIGTERM, -signal.SIGKILL), "": False}[self.told_to]
        poison = POISONED.get(code) if name.startswith("worker") else None
        if is_right or poison:
            self.deaths.append(f"{name.split()[0]} {poison if poison and self.told_to != 'kill' else self.told_to}")
            return None
        self.told_to = ""
        return f"{name} (process {self.pid}) ended with exit code {code}, and not because it was told to"


class Deployment:
    """The processes, their links and their logs, all under one folder."""

    def __init__(self, folder: Path, settings: Settings, fsync: str, group: str = ""):
        self.folder = folder
        self.computed = folder / "computed.bin"
        redis_port = free_port()
        self.settings = replace(settings, redis_url=f"redis://127.0.0.1:{redis_port}/0", redis_port=redis_port)
        workers = [f"worker {n + 1}" for n in range(NUM_WORKERS)]
        self.api_ports = {f"api {n + 1}": free_port() for n in range(NUM_APIS)}
        commands = {name: self._worker_command(name) for name in workers}
        commands |= {name: [*SHOAL, "api"] for name in self.api_ports}
        #: The group of Redis servers, if there are several; processes reach it without links.
        self.group = RedisGroup(group, folder, settings.keys.root) if group else None
        self.links: dict[str, Link] = {}
        if self.group:
            self.settings = replace(settings, redis_url=self.group.url)
            commands |= self.group.commands()
        else:
            self.links = {name: Link(redis_port) for name in (*workers, *self.api_ports, PRODUCERS)}
            commands["redis"] = [*embedded.command(self.settings), "--appendfsync", fsync]
        self.processes = {name: self._process(name, command) for name, command in commands.items()}

    def _worker_command(self, name: str) -> list[str]:
        parts = Path(__file__).parent
        self.set_clock(name, 0.0)
        program = [str(parts / "worker.py"), str(self.computed), str(PAUSE_S)]
        return [sys.executable, str(parts / "clock.py"), str(self._clock(name)), *program]

    def _clock(self, worker: str) -> Path:
        return self.folder / f"{worker.replace(' ', '-')}.clock"

    def set_clock(self, worker: str, ahead_s: float) -> None:
        """Set the calendar clock of the worker, also for its next starts."""
        set_clock(self._clock(worker), ahead_s)

    def _process(self, name: str, command: list[str]) -> Process:
        settings, log = self.settings, self.folder / f"{name.replace(' ', '-')}.log"
        if name.startswith(("worker", "api")):
            settings = replace(settings, redis_url=self.url_of(name), port=self.api_ports.get(name, settings.port))
        environment = settings.to_environment() | dict.fromkeys(NATIVE_THREADS, str(settings.threads))
        return Process(Service(name, logged(command, log), environment))

    def url_of(self, link: str) -> str:
        """Return the Redis URL that leads through the link."""
        return self.group.url if self.group else f"redis://127.0.0.1:{self.links[link].port}/0"

    def connect(self, answer_s: float) -> redis.Redis:
        """Return a connection to Redis without a link; an answer may take `answer_s` seconds."""
        if self.group:
            return self.group.connect(answer_s)
        return redis.Redis.from_url(self.settings.redis_url, socket_timeout=answer_s, protocol=2)

    def start(self) -> None:
        """Start everything and wait until every API counts all workers as ready. Raises NotReady."""
        for name, process in reversed(self.processes.items()):
            if self.group and name == f"api {NUM_APIS}":  # all servers of Redis have started
                self.group.form()
            process.service.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until every API counts all workers as ready, and start ended processes again meanwhile.

        Raises NotReady, for example if a process ends by itself.
        """

        def are_ready() -> bool:
            for process in self.processes.values():
                if what := process.check():
                    raise NotReady(f"{what}: its log in {self.folder} says why")
            with suppress(OSError):
                return all(is_ready(f"http://127.0.0.1:{port}", NUM_WORKERS) for port in self.api_ports.values())
            return False

        wait_until(f"the workers, whose logs are in {self.folder},", are_ready)

    def memory_mb(self) -> Mapping[str, float]:
        """Return the resident memory of each process together with its children."""
        found = {}
        for name, process in self.processes.items():
            with suppress(psutil.NoSuchProcess):
                root = psutil.Process(process.pid)
                found[name] = sum(each.memory_info().rss for each in (root, *root.children(True))) / 2**20
        return found

    def stop(self) -> None:
        """Stop everything, Redis last."""
        for process in self.processes.values():
            if process.service.process and process.service.exit_code() is None:
                process.send(signal.SIGCONT)
            process.service.stop()
        for link in self.links.values():
            link.close()
