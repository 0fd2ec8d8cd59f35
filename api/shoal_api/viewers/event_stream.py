"""Server-sent events: their format, and the events of a job."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from threading import Event
from typing import Any

from shoal.errors import ShoalError, UnknownJob
from shoal_api.answers.response import StreamedResponse, json_line
from shoal_api.context import context
from shoal_api.request import json_request

#: Seconds between two reads of the job's status.
LOOK_EVERY_S = 1.0

#: Seconds without an event after which a comment is sent, to find out whether the client is still there.
KEEP_ALIVE_S = 5.0

#: Longest duration of a stream, in seconds. The client then connects again, perhaps to another process.
MAX_STREAM_S = 600.0

#: Statuses of a job that has ended.
_ENDED = ("done", "failed", "cancelled", "expired")

#: The first line of a stream. A browser connects again this many milliseconds after the stream has ended.
FIRST = b"retry: 1000\n\n"

_KEEP_ALIVE = b": the job is as before\n\n"


def as_stream(events: AsyncIterator[bytes]) -> StreamedResponse:
    """Return a response with these events, for as long as the request's key allows them."""
    access, request = context().access, json_request()

    async def allowed() -> AsyncIterator[bytes]:
        async for line in events:
            if not access.still_allows(request):
                return
            yield line

    headers = {"Content-Type": "text/event-stream; charset=utf-8", "Connection": "close", "X-Accel-Buffering": "no"}
    return StreamedResponse(allowed(), headers)


def event(name: str, line: bytes) -> bytes:
    """Return an event with a line of data, which ends with a line break."""
    return b"event: %b\ndata: %b\n" % (name.encode(), line)


async def events_of_job(read: Callable[[], Awaitable[dict[str, Any]]], stopping: Event) -> AsyncIterator[bytes]:
    """Yield an event for each change of the job's state from `read`, and one for its end unless the server stops."""
    started_s = sent_s = time.monotonic()
    last: dict[str, Any] = {}
    yield FIRST
    while time.monotonic() < started_s + MAX_STREAM_S:
        try:
            found = await read()
        except UnknownJob:  # Redis has forgotten the job meanwhile
            yield event("end", json_line(last))
            return
        except ShoalError:  # Redis is away: it may come back
            found = last
        if found != last:
            last, sent_s = found, time.monotonic()
            yield event("progress", json_line(found))
        if found.get("status") in _ENDED:
            yield event("end", json_line(found))
            return
        if time.monotonic() > sent_s + KEEP_ALIVE_S:
            sent_s = time.monotonic()
            yield _KEEP_ALIVE
        await asyncio.sleep(LOOK_EVERY_S)
        if stopping.is_set():
            return
