"""The traceparent of a piece of work, in the form of W3C's Trace Context: `00-<trace id>-<span id>-<flags>`."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

#: A traceparent of any version. Version 00 ends after the flags. Later versions may have more parts after another dash.
_FORM = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.ASCII)

_continued: ContextVar[str | None] = ContextVar("traceparent", default=None)


def valid(value: Any) -> str | None:
    """Return the value if it is a traceparent, or else None, because an unreadable trace must not fail a job."""
    if not isinstance(value, str) or len(value) > 128:  # in version 00 it has 55 characters
        return None
    found = _FORM.fullmatch(value)
    return value if found and not (found[1] == "00" and found[3]) else None


def trace_id(traceparent: str | None) -> str:
    """Return the 32 hex digits that identify the trace, or an empty string without a traceparent."""
    return traceparent[3:35] if traceparent else ""


def current() -> str | None:
    """Return the traceparent that `continued` has set, or else the traceparent of OpenTelemetry's current span."""
    if traceparent := _continued.get():
        return traceparent
    opentelemetry: Any = sys.modules.get("opentelemetry.trace")  # never imported here, as there is no span without it
    if opentelemetry is None:
        return None
    span = opentelemetry.get_current_span().get_span_context()
    return format_traceparent(span) if span.is_valid else None


def format_traceparent(span: "SpanContext") -> str:
    """Return the traceparent of work that belongs to the span."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


@contextmanager
def continued(traceparent: str | None) -> Iterator[None]:
    """Make the traceparent the current one of this thread or task while the context is open."""
    token = _continued.set(traceparent)
    try:
        yield
    finally:
        _continued.reset(token)
