"""The server that runs the application: Granian, with one event loop in each process."""

import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops, TaskImpl
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.net import SocketSpec  # type: ignore[attr-defined]

from shoal.errors import ShoalError
from shoal.process import logs, tracing
from shoal.process.listen_address import find_api_addresses
from shoal.process.system_limits import raise_file_limit
from shoal.settings import Settings
from shoal_api.access.access_control import MAX_CONNECTIONS, AccessControl
from shoal_api.server.shutdown import SETTLE_S, drain, on_stop_signal

if TYPE_CHECKING:
    from shoal_api.server.rsgi import RsgiServer

#: Seconds that running requests may last after the server is told to stop: the longest wait for a result, plus 5 s.
_STOP_S = 65

#: Largest size of all headers of a request. Granian checks it after each read, so up to twice this size may pass.
MAX_HEADER_BYTES = 65_536

#: Open files of a process besides its clients' connections: connections to Redis, and files of libraries and metrics.
_OTHER_FILES = 1_024

#: Time between two checks that the parent process is alive.
_CHECK_PARENT_EVERY_S = 0.5

_log = logging.getLogger(__name__)


class _Server(Granian):  # type: ignore[valid-type,misc]
    """Granian with processes for each of several addresses. Granian itself listens on one address."""

    def __init__(self, target: str, addresses: Sequence[str], **options: Any):
        super().__init__(target, address=addresses[0], **options)
        self._addresses = addresses

    def _spawn_worker(self, idx: int, *arguments: Any, **options: Any) -> Any:
        """Start a process that opens its own socket, on its own address."""
        self._ssp = SocketSpec(self._addresses[idx % len(self._addresses)], self.bind_port, self.backlog)
        return super()._spawn_worker(idx, *arguments, **options)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then answer the running requests.

    Raises PortInUse, BadSetting, MissingExtra, and Unavailable if the URL of Redis cannot be read.
    """
    tracing.check_extra(settings)
    # This checks that the port is free. Otherwise two Granians would share its requests without an error.
    addresses = find_api_addresses(settings)
    num_processes = settings.api_processes * len(addresses)
    AccessControl(settings).close()  # raises errors of the key file and of Redis's URL before any process starts
    logs.configure(settings)
    num_files = raise_file_limit(MAX_CONNECTIONS + _OTHER_FILES)
    max_connections = min(MAX_CONNECTIONS, max(num_files - _OTHER_FILES, num_files // 2))
    server = _Server(
        "shoal_api",
        addresses,
        port=settings.port,
        interface=Interfaces.RSGI,
        loop=Loops.uvloop if find_spec("uvloop") else Loops.asyncio,
        task_impl=TaskImpl.asyncio,  # each request has a context of its own, and can be cancelled
        websockets=False,
        http=HTTPModes.http1,  # HTTP/2 has no time limit for headers in Granian
        http1_settings=HTTP1Settings(
            header_read_timeout=int(settings.receive_timeout_s * 1_000), max_buffer_size=MAX_HEADER_BYTES
        ),
        backlog=max_connections,
        backpressure=max_connections,
        workers=num_processes,
        respawn_failed_workers=num_processes > 1,
        workers_kill_timeout=_STOP_S,
        log_level=LogLevels.error,
    )
    for address in addresses:
        shown = f"[{address}]" if ":" in address else address
        server.on_startup(partial(_log.info, "listening on http://%s:%d", shown, settings.port))
    server.on_startup(lambda: on_stop_signal(server.signal_handler_interrupt))
    with ExitStack() as stack:
        if num_processes > 1:  # all share one metrics folder, set before prometheus_client is imported
            folder = stack.enter_context(TemporaryDirectory(prefix="shoal-metrics-"))
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        server.serve(target_loader=partial(_load_app, settings), wrap_loader=False)


def _load_app(settings: Settings) -> "RsgiServer":
    """Make the application in the process that serves it, because its threads would not survive a fork."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until Granian sets its own handler; `_stop` waits for this
    from shoal_api.app import create_app
    from shoal_api.server.rsgi import RsgiServer

    logs.configure(settings)
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_stop_with_parent, args=(parent.pid,), daemon=True).start()
    try:
        app = create_app(settings)
    except ShoalError as error:
        raise SystemExit(error.line) from error
    gc.freeze()  # these objects live as long as the process, so the collector need not visit them again
    server = RsgiServer(app, settings.port, settings.receive_timeout_s)
    tracer = app.own.tracer
    send_spans = tracer.close if tracer else lambda: None
    on_stop_signal(partial(_stop, server, settings.port, app.own.stopping, send_spans))
    return server


def _stop(server: "RsgiServer", port: int, stopping: threading.Event, send_spans: Callable[[], object]) -> None:
    """Drain the connections, send the spans that are left, then let Granian stop this process."""
    stopping.set()
    try:
        drain(port)
    except OSError:
        _log.exception("could not wait for the connections to become idle: the server stops now")
    send_spans()
    while server.loop is None:  # Granian is still starting
        time.sleep(SETTLE_S)
    server.loop.call_soon_threadsafe(_end)


def _end() -> None:
    """Send this process the signal that stops Granian."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.kill(os.getpid(), signal.SIGTERM)


def _stop_with_parent(parent: int | None) -> None:
    """Stop this process once its parent process is gone."""
    while os.getppid() == parent:
        time.sleep(_CHECK_PARENT_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)
