"""The server that runs the application: Granian, processes with many threads each."""

import logging
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from granian import Granian
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels

from shoal.address import find_api_address
from shoal.errors import ShoalError
from shoal.settings import Settings
from shoal_api.access import api_keys
from shoal_api.server.shutdown import SETTLE_S, drain, when_told_to_stop

#: Longest that requests in flight may take once the server was told to stop: the longest wait there is, and a little.
_STOP_S = 65

#: Largest headers of a request, all together; it may be twice this, as what comes at once is looked at at once.
MAX_HEADER_BYTES = 65_536

#: Most connections of a process; more wait to be taken. Each takes some kilobytes while it is idle.
MAX_CONNECTIONS = 4_096

#: Files that a process has open beside its callers' connections: those to Redis and its own, at most.
_OTHER_FILES = 1_024

#: How often a process looks whether the one that started it is still there.
_LOOK_EVERY_S = 0.5

_log = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then answers what is in flight and returns.

    Raises PortInUse or BadSetting when it cannot listen, or may not.
    """
    # Granian would share the port with another Granian and split the requests, so look first.
    address = find_api_address(settings)
    if settings.api_keys_file:
        api_keys.read(Path(settings.api_keys_file))
    _configure_logging(settings)
    max_connections = _allow_connections()
    server = Granian(
        "shoal_api",
        address=address,
        port=settings.port,
        interface=Interfaces.WSGI,
        websockets=False,
        http=HTTPModes.http1,  # the other has no limit of time for headers
        http1_settings=HTTP1Settings(
            header_read_timeout=int(settings.receive_timeout_s * 1_000), max_buffer_size=MAX_HEADER_BYTES
        ),
        backlog=max_connections,
        backpressure=max_connections,
        workers=settings.api_processes,
        respawn_failed_workers=settings.api_processes > 1,
        blocking_threads=settings.api_threads,
        workers_kill_timeout=_STOP_S,
        log_level=LogLevels.error,
    )
    shown = f"[{address}]" if ":" in address else address
    server.on_startup(lambda: _log.info("listening on http://%s:%d", shown, settings.port))
    server.on_startup(lambda: when_told_to_stop(server.signal_handler_interrupt))
    with _one_count(settings.api_processes):
        server.serve(target_loader=partial(_load, settings), wrap_loader=False)


@contextmanager
def _one_count(num_processes: int) -> Iterator[None]:
    """A folder for the metrics that several processes count together; prometheus_client asks for it when imported."""
    if num_processes == 1:
        yield
        return
    with TemporaryDirectory(prefix="shoal-metrics-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        yield


def _load(settings: Settings) -> Callable[..., Any]:
    """The application, made in the process that serves it: its threads would not survive a fork."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # `_stop` waits for Granian's own handler
    _share_the_processor()
    from shoal_api.app import create_app
    from shoal_api.context import Context
    from shoal_api.server.slow_clients import SlowClients

    _configure_logging(settings)
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_stop_without, args=(parent.pid,), daemon=True).start()
    try:
        app = create_app(settings)
    except ShoalError as error:
        raise SystemExit(f"shoal: {error.message} [{error.code}]") from error
    when_told_to_stop(partial(_stop, settings.port, Context.of(app).stopping))
    SlowClients(settings.port, Context.of(app).gate.running, settings.receive_timeout_s).start()
    return app


def _stop(port: int, stopping: threading.Event) -> None:
    """Ends the connections in good order, then lets Granian stop this process."""
    stopping.set()
    drain(port)
    while not callable(stop := signal.getsignal(signal.SIGTERM)):  # it has not got so far
        time.sleep(SETTLE_S)
    stop(signal.SIGTERM, None)


def _stop_without(parent: int | None) -> None:
    """Stops this process once the one that started it is gone, however that ended."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _allow_connections() -> int:
    """How many connections a process may have, after the system was asked for as many files as that takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    num_files = max(soft, min(MAX_CONNECTIONS + _OTHER_FILES, most))
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, hard))
    return min(MAX_CONNECTIONS, max(num_files - _OTHER_FILES, num_files // 2))


def _share_the_processor() -> None:
    """Lets no thread of this process that is woken take the processor from the one that woke it.

    Only one of them can run Python at a time: it would wait at once for the one that it interrupted. This takes a tenth
    off the processor time of a request.
    """
    with suppress(OSError):  # where the system does not allow it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _configure_logging(settings: Settings) -> None:
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
