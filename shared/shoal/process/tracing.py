"""Tracing: the steps of requests and jobs as OpenTelemetry spans, with their times. A thread sends them to a collector.

OpenTelemetry is loaded only if the settings ask for spans, and is configured by its own variables, OTEL_*.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Self

from shoal import __version__
from shoal.errors import MissingExtra
from shoal.process.extra import install_command
from shoal.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

#: Longest time that a process waits for its collector before it ends, in seconds.
CLOSE_WITHIN_S = 2.0

#: The type of a span attribute's value.
Value = str | int | float | bool

#: The kind of a span: the server's side of a request, the processing of a job from a queue, or a step of either.
Kind = Literal["SERVER", "CONSUMER", "INTERNAL"]


class Tracer:
    """The spans of a process. If the collector does not answer, spans are lost, and nothing else. Thread-safe."""

    def __init__(self, provider: "TracerProvider"):
        self._provider = provider
        self._tracer = provider.get_tracer("shoal", __version__)

    @classmethod
    def open(cls, process: str) -> Self:
        """Return the tracer of a process. Its service is named by OTEL_SERVICE_NAME, or `shoal-<process>`."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        named = OTELResourceDetector().detect().attributes
        provider = TracerProvider(
            resource=Resource.create({"service.name": f"shoal-{process}", **named}),
            shutdown_on_exit=False,  # shutdown would wait for a collector that does not answer
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def begin(
        self,
        name: str,
        kind: Kind,
        parent: str | None,
        start_ns: int,
        attributes: Mapping[str, Value] | None = None,
    ) -> "Span":
        """Return a span that began at `start_ns`, in Unix nanoseconds, in the trace of `parent` or in a new one."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = Context()
        if parent:
            context = TraceContextTextMapPropagator().extract({"traceparent": parent}, context)
        return self._tracer.start_span(name, context, SpanKind[kind], attributes, start_time=start_ns)

    def fail(self, span: "Span", code: str) -> None:
        """Mark a span as failed with the code of its error. The message, which could contain a text, is left out."""
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, code))

    def close(self) -> None:
        """Send the remaining spans, within `CLOSE_WITHIN_S` seconds."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_WITHIN_S)


def check_extra(settings: Settings) -> None:
    """Load OpenTelemetry if the settings ask for spans. Raises MissingExtra."""
    if settings.tracing == "off":
        return
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"tracing is {settings.tracing}, which needs OpenTelemetry: {install_command('tracing')}"
        ) from error


def open_tracer(settings: Settings, process: str) -> Tracer | None:
    """Return the tracer of a process, or None if the settings ask for no spans. Raises MissingExtra."""
    check_extra(settings)
    return None if settings.tracing == "off" else Tracer.open(process)
