"""Spans: the steps of requests and jobs with their times, in OpenTelemetry's form, sent to a collector by a thread.

OpenTelemetry's own variables configure them: OTEL_EXPORTER_OTLP_ENDPOINT and _HEADERS, OTEL_TRACES_SAMPLER,
OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_BSP_*.
"""

import threading
from collections.abc import Mapping
from typing import Literal, Self

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shoal import __version__

#: Longest that the end of a process waits for a collector that does not answer, in seconds.
CLOSE_WITHIN_S = 2.0

_PROPAGATOR = TraceContextTextMapPropagator()

#: The value of an attribute of a span.
Value = str | int | float | bool

#: The kind of a span: the server's side of a call, the taking of a job from a queue, or a step of its work.
Kind = Literal["SERVER", "CONSUMER", "INTERNAL"]


class Tracer:
    """The spans of a process. A collector that is away costs spans and nothing else. Thread-safe."""

    def __init__(self, provider: TracerProvider):
        self._provider = provider
        self._tracer = provider.get_tracer("shoal", __version__)

    @classmethod
    def open(cls, process: str) -> Self:
        """Return the tracer of a process, which OTEL_SERVICE_NAME may call otherwise than `shoal-<process>`."""
        named = OTELResourceDetector().detect().attributes
        provider = TracerProvider(
            resource=Resource.create({"service.name": f"shoal-{process}", **named}),
            shutdown_on_exit=False,  # it would wait for a collector that does not answer
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
    ) -> Span:
        """Return a span that began at that time, in Unix nanoseconds, in the trace of `parent` or a new one."""
        context = _PROPAGATOR.extract({"traceparent": parent}, Context()) if parent else Context()
        return self._tracer.start_span(name, context, SpanKind[kind], attributes, start_time=start_ns)

    def fail(self, span: Span, code: str) -> None:
        """Have a span say that it failed, with the code of the error; its message could hold a text."""
        span.set_status(Status(StatusCode.ERROR, code))

    def close(self) -> None:
        """Send the spans that are left, in at most `CLOSE_WITHIN_S`."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_WITHIN_S)
