"""The watch over the pool: one thread of a process reads Redis for all viewers, and before the first comes."""

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Condition, Event, Lock, Thread
from typing import Any, NamedTuple

from shoal import logs
from shoal.errors import Internal, ShoalError
from shoal.queue.pool_history import EVERY_S, PoolHistory
from shoal_api.response import json_line

_log = logging.getLogger(__name__)


#: Most recent jobs that are shown.
MAX_RECENT = 100

#: Views that are kept for the next viewer who may see the same.
_MAX_SHARED = 16


class View(NamedTuple):
    """A sample as a viewer may see it: its time, in Unix seconds, and all of it as a line of JSON."""

    time_s: float
    json: bytes


class Details(NamedTuple):
    """The part that is read only for viewers, as it has no history: dead letters and long jobs as JSON has them."""

    dead: Sequence[dict[str, Any]] = ()
    long_jobs: Sequence[dict[str, Any]] = ()


class PoolWatch:
    """The thread that samples the pool until `stopping` is set, and what was read. Thread-safe.

    `read_details` is called for a client, or for None, which stands for all of them, by its first viewer who asks after
    a sample; its others get the same, also the same bytes if they have seen as much.
    """

    def __init__(
        self,
        sample: Callable[[], object],
        history: PoolHistory,
        read_details: Callable[[str | None], Details],
        stopping: Event,
        every_s: float = EVERY_S,
    ):
        self.every_s = every_s
        self._sample_pool = sample
        self._history = history
        self._read_details = read_details
        self._stopping = stopping
        self._number = 0
        self._error: ShoalError | None = None
        self._changed = Condition()
        self._details: dict[str | None, Details] = {}
        self._earlier: dict[str | None, Details] = {}
        self._details_number = 0
        self._viewing = Lock()
        self._render_once = lru_cache(_MAX_SHARED)(self._render)
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin to sample, unless that was done before."""
        with self._changed:
            if self._thread is None and not self._stopping.is_set():
                self._thread = Thread(target=self._run, name="pool-watch", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Sample no more, and let all viewers go."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread:
            self._thread.join()

    @property
    def is_stopped(self) -> bool:
        """True once no more samples come."""
        return self._stopping.is_set()

    def wait(self, number: int, timeout_s: float) -> int:
        """Return the number of the last sample, once it is above `number`; after that time or at a stop, as it is.

        A try in vain counts as a sample.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or self._stopping.is_set(), timeout_s)
            return self._number

    def view(self, client: str | None, since_s: float = 0.0) -> View:
        """Return what a viewer may see, with the samples later than `since_s`, as docs/http.md has it.

        That are the jobs of a client and no dead letters, or for None everything.
        """
        with self._viewing:
            return self._render_once(self._number, client, since_s)

    def _render(self, number: int, client: str | None, since_s: float) -> View:
        """Return what may be seen after that number of samples."""
        found, details, error = self._history.snapshot(since_s), self._read_once(number, client), self._error
        recent = [job for job in found["recent"] if client in (None, job["client"])][:MAX_RECENT]
        seen = found | {
            "is_admin": client is None,
            "error": {"code": error.code, "message": error.message} if error else None,
            "recent": recent,
            "dead": list(details.dead) if client is None else None,
            "long_jobs": list(details.long_jobs),
        }
        return View(found["time"], json_line(seen))

    def _run(self) -> None:
        while not self._stopping.is_set():
            error = self._sample()
            with self._changed:
                self._error, self._number = error, self._number + 1
                self._changed.notify_all()
            self._stopping.wait(self.every_s)
        with self._changed:
            self._changed.notify_all()

    def _sample(self) -> ShoalError | None:
        try:
            self._sample_pool()
        except ShoalError as error:
            return error
        except Exception as error:
            _log.error("the watch over the pool goes on after an error: %s", logs.places(error))
            return Internal("the pool could not be read; the log of the API has the traceback")
        return None

    def _read_once(self, number: int, client: str | None) -> Details:
        """Return the details of a client, read after that sample; those before it if Redis fails."""
        if self._details_number != number:
            self._details_number, self._earlier, self._details = number, self._details, {}
        if client not in self._details:
            self._details[client] = self._try_to_read(client, self._earlier.get(client, Details()))
        return self._details[client]

    def _try_to_read(self, client: str | None, earlier: Details) -> Details:
        if self._error:
            return earlier
        try:
            return self._read_details(client)
        except ShoalError:
            return earlier
