"""The server that runs the application: Granian, processes with many threads each."""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from granian import Granian
from granian.constants import Interfaces
from granian.log import LogLevels

from shoal.errors import ShoalError
from shoal.listening import find_address
from shoal.settings import Settings

#: Longest that requests in flight may take once the server was told to stop: the longest wait there is, and a little.
_STOP_S = 65

#: How often a process looks whether the one that started it is still there.
_LOOK_EVERY_S = 0.5

_log = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then answers what is in flight and returns.

    Raises PortInUse or BadSetting when it cannot listen.
    """
    # Granian would share the port with another Granian and split the requests, so look first.
    address = find_address(settings.host, settings.port)
    _configure_logging(settings)
    server = Granian(
        "shoal_api",
        address=address,
        port=settings.port,
        interface=Interfaces.WSGI,
        websockets=False,
        workers=settings.api_processes,
        respawn_failed_workers=settings.api_processes > 1,
        blocking_threads=settings.api_threads,
        workers_kill_timeout=_STOP_S,
        log_level=LogLevels.error,
    )
    shown = f"[{address}]" if ":" in address else address
    server.on_startup(lambda: _log.info("listening on http://%s:%d", shown, settings.port))
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
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # the handler from before the fork would swallow a stop that comes now
    _share_the_processor()
    from shoal_api.app import create_app

    _configure_logging(settings)
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_stop_without, args=(parent.pid,), daemon=True).start()
    try:
        return create_app(settings)
    except ShoalError as error:
        raise SystemExit(f"shoal: {error.message} [{error.code}]") from error


def _stop_without(parent: int | None) -> None:
    """Stops this process once the one that started it is gone, however that ended.

    The system could tell by a signal, but tells again for each thread of that one, and Granian can hang when a second
    signal to stop comes while it handles the first.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _share_the_processor() -> None:
    """Lets no thread of this process that is woken take the processor from the one that woke it.

    Only one of them can run Python at a time: it would wait at once for the one that it interrupted. This takes a tenth
    off the processor time of a request.
    """
    with suppress(OSError):  # where the system does not allow it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _configure_logging(settings: Settings) -> None:
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
