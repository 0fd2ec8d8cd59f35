"""Calls of the application by Granian: a request waits without a thread while its client holds its share of them."""

import io
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from shoal import logs
from shoal.errors import Overloaded
from shoal_api.access.access_control import THREAD_DEMAND, AccessControl
from shoal_api.access.waiting_requests import ThreadDemand
from shoal_api.request import MAX_LENGTH_DIGITS
from shoal_api.server import thread_policy

#: Largest body of a request that may wait: with its headers it stays in memory meanwhile.
MAX_WAITING_BYTES = 32_768

#: A request as Granian passes it: the sender of its response, and its WSGI environment.
Call = tuple["Responder", dict[str, Any]]

_log = logging.getLogger(__name__)


class Responder(Protocol):
    """The sender of the response of a request. It may be used by any thread, also after the call has returned."""

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send the response, unless one was sent already."""


class Calls:
    """The callable that Granian calls in a thread for each request; `run` answers one.

    A request that has to wait keeps no thread: its body is read, the call returns, and the thread of a request that
    ends answers it. One with a large body, or of unknown size, is refused instead.
    """

    def __init__(
        self,
        run: Callable[[Responder, dict[str, Any]], object],
        access: AccessControl,
    ):
        self._run = run
        self._access = access

    def __call__(self, responder: Responder, environ: dict[str, Any]) -> None:
        """Answer the request, and others that wait for its thread; or let it wait."""
        demand = self._access.demand_of(environ)
        if demand is None:
            self._run(responder, environ)
            return
        environ[THREAD_DEMAND] = demand
        waiting, call = self._access.waiting, (responder, environ)
        thread_policy.choose(self._access.num_threads_of(demand.client) + 1)
        try:
            if not waiting.try_enter(demand):
                self._read_body(demand, environ)
                if not waiting.enter(demand, call):
                    return
        except Overloaded as error:
            demand.is_held, demand.refusal = False, error  # access control refuses it, in the form that the route has
            self._run(responder, environ)
            return
        self._answer(demand, call)

    def _read_body(self, demand: ThreadDemand, environ: dict[str, Any]) -> None:
        """Read the body into memory: Granian drops what is unread when the call returns. Raises Overloaded."""
        if not _is_small(environ):
            raise Overloaded(
                f"the requests of this client hold its share of the threads, and this one cannot wait: its body has "
                f"over {MAX_WAITING_BYTES:,} bytes or is of unknown size: send fewer or smaller ones at a time"
            )
        with self._access.reading(demand):
            environ["wsgi.input"] = io.BytesIO(bytes(environ["wsgi.input"].read()))

    def _answer(self, demand: ThreadDemand, call: Call) -> None:
        """Answer a request, then those that wait for its thread. Where it frees several, each gets one of its own.

        They are answered one after the other where the system grants no thread.
        """
        following: list[tuple[ThreadDemand, Call]] = [(demand, call)]
        while following:
            (demand, (responder, environ)), *others = following
            others = [other for other in others if not self._try_start(*other)]
            self._run_safely(responder, environ)
            following = [*others, *self._access.waiting.leave(demand)]

    def _run_safely(self, responder: Responder, environ: dict[str, Any]) -> None:
        """Run the application; answer 500 where it raises."""
        try:
            self._run(responder, environ)
        except Exception as error:
            _log.error("a request failed: %s", logs.places(error))
            responder.response_bytes(500, [], b"")

    def _try_start(self, demand: ThreadDemand, call: Call) -> bool:
        """Answer a request in a thread of its own; return False if the system grants none."""
        try:
            threading.Thread(target=self._answer, args=(demand, call), daemon=True).start()
        except RuntimeError as error:
            _log.warning("a request waits for the thread of another one: %s", error)
            return False
        return True


def _is_small(environ: dict[str, Any]) -> bool:
    """Return True if the body is known to have at most `MAX_WAITING_BYTES`."""
    size = environ.get("CONTENT_LENGTH", "0")
    is_known = "HTTP_TRANSFER_ENCODING" not in environ and size.isdecimal() and len(size) <= MAX_LENGTH_DIGITS
    return is_known and int(size) <= MAX_WAITING_BYTES
