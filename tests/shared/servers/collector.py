"""A collector of OpenTelemetry's spans over HTTP."""

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from http_servers import running
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Received(NamedTuple):
    """A span that the collector received. Times are in nanoseconds, ids in hex."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, object]
    error: str


class Collector(ThreadingHTTPServer):
    """A collector on a port of loopback, with the received `spans`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Received] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def named(self, name: str) -> Sequence[Received]:
        """Return the spans with this name."""
        return [span for span in self.spans if span.name == name]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        self.server.spans += _read(ExportTraceServiceRequest.FromString(data))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def _read(request: ExportTraceServiceRequest) -> Iterator[Received]:
    for group in request.resource_spans:
        about = {item.key: item.value.string_value for item in group.resource.attributes}
        for span in (span for scope in group.scope_spans for span in scope.spans):
            yield Received(
                about.get("service.name", "unknown"),
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                {item.key: getattr(item.value, str(item.value.WhichOneof("value"))) for item in span.attributes},
                span.status.message if span.status.code == 2 else "",
            )


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector while the context lasts."""
    collector = Collector()
    with running(collector):
        yield collector
