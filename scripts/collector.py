"""A collector of spans that prints each trace as a tree.

It is for a first look, and for the tests: it forgets all when it ends.
"""

import argparse
import gzip
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from shoal.process.printable import printable

#: Time without a span after which a trace is printed: processes send theirs every 5 s.
QUIET_S = 6.0


class Received(NamedTuple):
    """A span as a collector has it; times are in nanoseconds, ids in hex."""

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
    """A collector on loopback, at a port of its own if none is named; `spans` are those that it has received."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.spans: list[Received] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def named(self, name: str) -> Sequence[Received]:
        """Return the spans of that name."""
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
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def tree(spans: Sequence[Received]) -> Iterator[str]:
    """Yield the lines of a trace: each span below its parent, with when it began and how long it took."""
    begin_ns, ids = min(span.start_ns for span in spans), {span.span_id for span in spans}

    def below(parents: Sequence[Received], depth: int) -> Iterator[str]:
        for span in sorted(parents, key=lambda span: span.start_ns):
            times = f"{(span.start_ns - begin_ns) / 1e6:9.2f} ms {(span.end_ns - span.start_ns) / 1e6:9.2f} ms"
            error = f"  error {span.error}" if span.error else ""
            yield f"{times}  {'  ' * depth}{printable(f'{span.name}  ({span.service}){error}')}"
            yield from below([child for child in spans if child.parent_id == span.span_id], depth + 1)

    yield f"trace {spans[0].trace_id}"
    yield from below([span for span in spans if span.parent_id not in ids], 0)


def print_traces(port: int) -> None:
    """Print the traces that come, each once nothing more came for a while."""
    with Collector(port) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        print(f"waiting for spans at {collector.url}", flush=True)
        while True:
            num_spans = len(collector.spans)
            time.sleep(QUIET_S)
            if num_spans and num_spans == len(collector.spans):
                found, collector.spans = collector.spans, []
                for trace_id in dict.fromkeys(span.trace_id for span in found):
                    print("\n".join(tree([span for span in found if span.trace_id == trace_id])), flush=True)


def main() -> None:
    """Print traces until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="scripts/collector", description=__doc__)
    parser.add_argument("port", type=int, nargs="?", default=4318, help="port of this machine; 4318 without one")
    port = parser.parse_args().port
    try:
        print_traces(port)
    except KeyboardInterrupt:
        return
    except (OSError, OverflowError) as error:
        sys.exit(f"port {port} cannot be used ({error}): end what listens there, or name another one")


if __name__ == "__main__":
    main()
