"""Server-sent events: the progress of a job, for as long as its client reads."""

import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

from shoal.errors import ShoalError, UnknownJob
from shoal_api.response import StreamedResponse, json_line

#: Interval at which the job is looked at.
LOOK_EVERY_S = 1.0

#: Longest time without an event, after which a comment shows whether the client is still there.
KEEP_ALIVE_S = 5.0

#: Longest time of a stream. A client connects again then, and so the thread is free for others in between.
MAX_STREAM_S = 600.0

#: States in which nothing more happens to a job.
_ENDED = ("done", "failed", "cancelled", "expired")

#: Milliseconds after which a browser connects again.
_FIRST = b"retry: 1000\n\n"

_KEEP_ALIVE = b": the job is as before\n\n"


def event_stream(read: Callable[[], dict[str, Any]], stopping: Event) -> StreamedResponse:
    """Return the stream of a job's events; `read` returns the job as JSON has it, and raises ShoalErrors."""
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "Connection": "close", "X-Accel-Buffering": "no"}
    return StreamedResponse(_events(read, stopping), headers)


def _events(read: Callable[[], dict[str, Any]], stopping: Event) -> Iterator[bytes]:
    """Yield an event for each change of the job, and one for its end; end without it if the server stops."""
    started_s = sent_s = time.monotonic()
    last: dict[str, Any] = {}
    yield _FIRST
    while time.monotonic() < started_s + MAX_STREAM_S:
        try:
            found = read()
        except UnknownJob:  # it was forgotten meanwhile
            yield _event("end", last)
            return
        except ShoalError:  # Redis is away: it may come back
            found = last
        if found != last:
            last, sent_s = found, time.monotonic()
            yield _event("progress", found)
        if found.get("status") in _ENDED:
            yield _event("end", found)
            return
        if time.monotonic() > sent_s + KEEP_ALIVE_S:
            sent_s = time.monotonic()
            yield _KEEP_ALIVE
        if stopping.wait(LOOK_EVERY_S):
            return


def _event(name: str, value: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n" % (name.encode(), json_line(value))
