"""Redis, the API and the workers as one: started, watched, restarted and stopped together by `shoal serve`."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from select import select
from urllib.error import URLError
from urllib.request import urlopen

import click

from shoal.address import find_address, find_api_address
from shoal.broker import embedded
from shoal.broker.connections import connect, shown, translated
from shoal.errors import BadSetting, NotReady, ShoalError
from shoal.settings import EMBEDDED_PORT, Settings
from shoal.supervisor.pidfile import already, only_one, running
from shoal.supervisor.process import Service

log = logging.getLogger(__name__)

#: Longest that the stack may take to become ready, preparing the model not counted.
READY_WITHIN_S = 120.0

#: How long the API may take to stop: those who wait for a result wait no longer than a minute.
API_STOP_WITHIN_S = 70.0

#: How long to wait before a process that ended by itself is started again.
RESTART_AFTER_S = 1.0


class Supervisor:
    """The processes that the settings ask for."""

    def __init__(self, settings: Settings):
        self.settings = settings
        environment = settings.to_environment()
        shoal = [sys.executable, "-m", "shoal"]
        workers = [Service(f"worker {n + 1}", [*shoal, "worker"], environment) for n in range(settings.workers)]
        self.services = [Service("api", [*shoal, "api"], environment, API_STOP_WITHIN_S), *workers]
        self.redis = Service("redis", embedded.command(settings), {}) if embedded.is_wanted(settings) else None
        self._stopping = False

    def check_ports(self) -> None:
        """Raises PortInUse if something listens where this is to listen."""
        find_api_address(self.settings)
        if self.redis:
            remedy = "stop that Redis or Shoal, or name a Redis of your own with --redis-url"
            find_address("127.0.0.1", EMBEDDED_PORT, remedy)

    def start(self) -> None:
        """Starts everything and returns when it is ready to serve.

        Raises NotReady if a process ends before that, PortInUse, and Unavailable without Redis.
        """
        if self.redis:
            self._start_redis(self.redis)
        else:
            with closing(connect(self.settings.redis_url)) as connection, translated():
                connection.ping()
        for service in self.services:
            service.start()
        _wait_for("the API and the workers", self._is_ready)

    def watch(self) -> None:
        """Restarts what ends by itself, until `ask_to_stop` is called."""
        while not self._stopping:
            for service in self._all():
                if (code := service.exit_code()) is not None and not self._stopping:
                    log.warning("%s ended with exit code %d and is started again", service.name, code)
                    time.sleep(RESTART_AFTER_S)
                    service.start()
            time.sleep(0.2)

    def ask_to_stop(self, *, impatiently: bool = False) -> None:
        """Ends `watch`; when asked again impatiently, kills what has not finished. Safe in a signal handler."""
        if self._stopping and impatiently:
            for service in self.services:
                if service.exit_code() is None:
                    service.hurry()
        self._stopping = True

    def stop(self) -> None:
        """Stops the API, then the workers, then Redis, each after it has finished what it began."""
        for service in self._all():
            service.stop()

    def _all(self) -> list[Service]:
        return [*self.services, *([self.redis] if self.redis else [])]

    def _start_redis(self, service: Service) -> None:
        service.start()
        connection = connect(self.settings.redis_url)

        def answers() -> bool:
            if (code := service.exit_code()) is not None:
                log_file = self.settings.home_folder / "redis" / "redis.log"
                raise NotReady(f"redis-server ended at once with exit code {code}: {log_file} says why")
            try:
                with translated():
                    return bool(connection.ping())
            except ShoalError:
                return False

        with closing(connection):
            _wait_for("Redis", answers)

    def _is_ready(self) -> bool:
        if self._stopping:
            raise NotReady("stopped before it was ready")
        for service in self.services:
            if (code := service.exit_code()) is not None:
                raise NotReady(
                    f"{service.name} ended with exit code {code} before it was ready: the line above says why"
                )
        return is_ready(self.settings)


def address(settings: Settings) -> str:
    """Where a client on this machine reaches the API."""
    host = "localhost" if settings.host in ("0.0.0.0", "::", "127.0.0.1") else settings.host  # noqa: S104 - not bound
    return f"http://{host}:{settings.port}"


def is_ready(settings: Settings) -> bool:
    """Whether the API says that it and as many workers as the settings ask for are ready."""
    route = "ready" if settings.workers else "health"
    try:
        with urlopen(f"{address(settings)}/{route}", timeout=2) as response:  # noqa: S310 - always http
            return bool(json.load(response).get("workers", 0) >= settings.workers)
    except (URLError, OSError):
        return False


def serve(settings: Settings, *, detach: bool = False, query: str | None = None) -> None:
    """Runs the stack until Ctrl-C or SIGTERM, or leaves it running if `detach`.

    Raises BadSetting when one runs already in the same home folder.
    """
    if detach:
        return _detach(settings, query)
    with only_one(settings):
        stack = Supervisor(settings)
        stack.check_ports()
        _prepare_model(settings)
        signal.signal(signal.SIGTERM, lambda *_: stack.ask_to_stop())
        signal.signal(signal.SIGINT, lambda *_: stack.ask_to_stop(impatiently=True))
        try:
            stack.start()
            _greet(settings, query)
            stack.watch()
        finally:
            click.echo("stopping …", err=True)
            stack.stop()


def stop(settings: Settings) -> str:
    """Stops the stack that runs in the home folder, and says what happened."""
    pid = running(settings)
    if pid is None:
        return f"nothing runs in {settings.home_folder}"
    process = os.pidfd_open(pid)
    signal.pidfd_send_signal(process, signal.SIGTERM)
    _wait_for("everything to stop", lambda: bool(select([process], [], [], 0)[0]))
    os.close(process)
    return f"stopped (process {pid})"


def _detach(settings: Settings, query: str | None) -> None:
    if pid := running(settings):
        raise BadSetting(already(settings, pid))
    logfile = settings.home_folder / "serve.log"
    logfile.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "shoal", "serve", *(["--try", query] if query else [])]
    environment = os.environ | settings.to_environment() | {"PYTHONUNBUFFERED": "1"}
    with logfile.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )

    def ready() -> bool:
        if process.poll() is not None:
            raise NotReady(f"it did not start; {logfile} ends with:\n{logfile.read_text()[-2_000:]}")
        return "curl" in logfile.read_text()

    _wait_for("it to be ready", ready)
    click.echo(logfile.read_text(), nl=False)
    click.echo(
        f"running in the background (process {process.pid}, log {logfile}); end it with --stop in place of --detach"
    )


def _prepare_model(settings: Settings) -> None:
    if settings.workers:
        command = [sys.executable, "-m", "shoal", "model", "prepare"]
        done = subprocess.run(command, env=os.environ | settings.to_environment(), stdout=subprocess.DEVNULL)
        if done.returncode:
            raise NotReady("the model could not be prepared: the line above says why")


def _greet(settings: Settings, query: str | None) -> None:
    """Says where everything is, and shows that it works."""
    from shoal.client import Client

    click.echo(f"ready: {address(settings)} (pages at /docs), Redis at {shown(settings.redis_url)}")
    query = query or "europe climate change storm"
    if "default" in settings.index_folders() and settings.workers:
        with Client.from_settings(settings) as client:
            click.echo(f"search: {query}")
            for hit in client.search(query, k=3):
                click.echo(f"  {hit['score']:.3f}  {hit['text']}")
        path, body = "search", {"queries": query, "k": 3}
    else:
        path, body = "embed", {"inputs": query}
    key = '-H "authorization: Bearer $YOUR_KEY" ' if settings.api_keys_file else ""
    url, data = f"{address(settings)}/{path}", json.dumps(body)
    click.echo(f"try: curl -s {url} {key}-H 'content-type: application/json' -d '{data}'")


def _wait_for(what: str, is_done: Callable[[], bool]) -> None:
    """Waits with a sign of life after a second; raises NotReady when it takes too long."""
    started = time.monotonic()
    shown = False
    while not is_done():
        waited = time.monotonic() - started
        if waited > READY_WITHIN_S:
            raise NotReady(
                f"{what}: not after {READY_WITHIN_S:g} s; see the lines above, or run it with --log-level debug"
            )
        if waited > 1 and not shown:
            click.echo(f"waiting for {what} …", err=True)
            shown = True
        time.sleep(0.05)
