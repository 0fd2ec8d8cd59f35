"""The server that runs the application: Granian, one process with many threads."""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from granian import Granian
from granian.constants import Interfaces
from granian.log import LogLevels

from shoal.errors import ShoalError
from shoal.listening import find_address
from shoal.settings import Settings

#: Longest that requests in flight may take once the server was told to stop: the longest wait there is, and a little.
_STOP_S = 65

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
        blocking_threads=settings.api_threads,
        workers_kill_timeout=_STOP_S,
        log_level=LogLevels.error,
    )
    shown = f"[{address}]" if ":" in address else address
    server.on_startup(lambda: _log.info("listening on http://%s:%d", shown, settings.port))
    server.serve(target_loader=partial(_load, settings), wrap_loader=False)


def _load(settings: Settings) -> Callable[..., Any]:
    """The application, made in the process that serves it: its threads would not survive a fork."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # the handler from before the fork would swallow a stop that comes now
    from shoal_api.app import create_app

    _configure_logging(settings)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        return create_app(settings)
    except ShoalError as error:
        raise SystemExit(f"shoal: {error.message} [{error.code}]") from error


def _stop_with_parent() -> None:
    """Stops this process when the one that started it is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _configure_logging(settings: Settings) -> None:
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
