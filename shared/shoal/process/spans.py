"""OpenTelemetry spans: the steps of requests and jobs with their times. A thread sends the spans to a collector.

OpenTelemetry's own variables configure the spans: OTEL_EXPORTER_OTLP_ENDPOINT and _HEADERS, OTEL_TRACES_SAMPLER,
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

#: Longest time that a process waits for its collector before it ends, in seconds.
CLOSE_WITHIN_S = 2.0

_PROPAGATOR = TraceContextTextMapPropagator()

#: The type of a span attribute's value.
Value = str | int | float | bool

#: The kind of a span: the server's side of a request, the processing of a job from a queue, or a step of either.
Kind = Literal["SERVER", "CONSUMER", "INTERNAL"]


class Tracer:
    """The spans of a process. If the collector does not answer, spans are lost, and nothing else. Thread-safe."""

    def __init__(self, provider: TracerProvider):
        self._provider = provider
        self._tracer = provider.get_tracer("shoal", __version__)

    @classmethod
    def open(cls, process: str) -> Self:
        """Return the tracer of a process. Its service is named by OTEL_SERVICE_NAME, or `shoal-<process>`."""
        named = OTELResourceDetector().detect().attributes
        provider = TracerProvider(
            resource=Resource.create({"service.name": f"shoal-{process}", **named}),
            shutdown_on_exit=False,  # the exit would wait for a collector that does not answer
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
        """Return a span that began at `start_ns`, in Unix nanoseconds, in the trace of `parent` or in a new one."""
        context = _PROPAGATOR.extract({"traceparent": parent}, Context()) if parent else Context()
        return self._tracer.start_span(name, context, SpanKind[kind], attributes, start_time=start_ns)

    def fail(self, span: Span, code: str) -> None:
        """Mark a span as failed with the code of its error. The message, which could contain a text, is left out."""
        span.set_status(Status(StatusCode.ERROR, code))

    def close(self) -> None:
        """Send the remaining spans, within `CLOSE_WITHIN_S` seconds."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_WITHIN_S)
