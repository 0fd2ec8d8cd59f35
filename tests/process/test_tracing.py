"""A trace leads from the caller through HTTP and the queue to the worker. Without tracing, no library is loaded."""

import gzip
import os
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest
from api_stub import MakeApp, StubWorker
from conftest import wait_until
from http_servers import CannedServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from process import Process, run
from queues import Queue, work_off
from service import service

from shoal import operations
from shoal.bulk.embed_file import BulkRequest
from shoal.contract import traceparent
from shoal.long_jobs.long_jobs import LongJobs
from shoal.operations import Embed
from shoal.process.tracing import Tracer
from shoal.settings import Settings
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker

pytest_plugins = ["api_fixtures", "http_fixtures"]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"
UNSAMPLED = f"00-{TRACE}-00f067aa0ba902b7-00"

MALFORMED = [
    *("", TRACE, CALLER.upper(), f" {CALLER}", f"{CALLER}\n", f"{CALLER}-more", CALLER.replace("00-4b", "ff-4b")),
    *(CALLER.replace(TRACE, "0" * 32), CALLER.replace("00f067aa0ba902b7", "0" * 16), CALLER.replace("4bf", "٤bf")),
    *("00-" + "a" * 10_000, "cc-" + CALLER[3:] + "-" + "x" * 1_000, 7, None, ["a"]),
]


class Spans:
    """The spans of a tracer, kept in memory."""

    def __init__(self) -> None:
        self.exporter, self.provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = Tracer(self.provider)

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in self.exporter.get_finished_spans())

    def named(self, name: str) -> Any:
        (found,) = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return found


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def traced(queue: Queue, encoder: Encoder, index: Index, spans: Spans) -> Worker:
    return Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), tracer=spans.tracer)


def put(queue: Queue, **fields: Any) -> None:
    job = {"v": 1, "id": "a", "op": "embed", "texts": ["storm"], "reply_to": "me"} | fields
    queue.redis.rpush(queue.keys.lane("interactive"), msgpack.packb(job))


def test_a_job_has_a_valid_trace_on_the_wire() -> None:
    later = f"01{CALLER[2:]}-what a later version has"
    assert (traceparent.valid(CALLER), traceparent.valid(later)) == (CALLER, later)
    assert (traceparent.trace_id(CALLER), traceparent.trace_id(None)) == (TRACE, "")
    assert [value for value in MALFORMED if traceparent.valid(value)] == []
    job = Embed(["a"], traceparent=CALLER)
    assert msgpack.unpackb(job.pack())["traceparent"] == CALLER
    assert operations.unpack(job.pack()) == job
    for other in (Embed(["a"]), Embed(["a"], traceparent="no")):
        assert "traceparent" not in msgpack.unpackb(other.pack())
        assert job.digest() == other.digest()  # equal searches may have different traces


def test_a_thread_belongs_to_the_trace_that_it_continues(spans: Spans) -> None:
    assert traceparent.current() is None
    with spans.provider.get_tracer("program").start_as_current_span("program") as span:
        own = traceparent.current()
        assert own == traceparent.format_traceparent(span.get_span_context())
        with traceparent.continued(CALLER):
            assert traceparent.current() == CALLER
        assert traceparent.current() == own


def test_a_job_with_a_malformed_trace_is_answered(traced: Worker, queue: Queue, spans: Spans) -> None:
    for value in MALFORMED:
        put(queue, traceparent=value)
        assert traced.step(block_s=0) == 1
    parents = [span.parent for span in spans.exporter.get_finished_spans() if span.name == "job"]
    assert parents == [None] * len(MALFORMED)


def test_each_step_of_a_job_has_a_span_within_the_span_of_the_job(traced: Worker, queue: Queue, spans: Spans) -> None:
    put(queue, op="search", texts=["storm europe"], traceparent=CALLER)
    traced.step(block_s=0)
    job = spans.named("job")
    assert (f"{job.context.trace_id:032x}", f"{job.parent.span_id:016x}") == (TRACE, "00f067aa0ba902b7")
    assert spans.names == ["encode", "job", "queue", "reply", "search", "tokenize"]
    found = {name: job.attributes[f"shoal.{name}"] for name in ("job_id", "op", "texts", "lane", "worker")}
    assert found == {"job_id": "a", "op": "search", "texts": 1, "lane": "interactive", "worker": traced.id}
    for name in ("queue", "tokenize", "encode", "search", "reply"):
        step = spans.named(name)
        assert step.parent.span_id == job.context.span_id
        assert step.start_time <= step.end_time
    unknown = msgpack.packb({"v": 1, "id": "b", "op": "search", "texts": ["storm"], "index": "no such"})
    for data, code in ((unknown, "unknown_index"), (b"\xff\x00", "malformed_job")):
        spans.exporter.clear()
        queue.redis.rpush(queue.keys.lane("interactive"), data)
        traced.step(block_s=0)
        assert (spans.names, spans.named("job").status.description) == (["job"], code)


def test_a_request_has_a_span_and_its_job_belongs_to_it(make_app: MakeApp, stub: StubWorker, spans: Spans) -> None:
    app = make_app()
    app.own = replace(app.own, tracer=spans.tracer)
    api = app.test_client()
    assert api.post("/embed", json={"inputs": "a"}, headers={"Traceparent": CALLER}).status_code == 200
    request = spans.named("POST /embed")
    assert f"{request.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert request.attributes["http.response.status_code"] == 200
    assert stub.traces == [traceparent.format_traceparent(request.context)]
    spans.exporter.clear()
    for path in ("/nowhere/marshmallow", "/health", "/ready", "/v1/jobs/none"):
        api.get(path)
    assert spans.names == ["GET /v1/jobs/<id>", "HTTP unmatched"]  # a probe has no span


def test_without_spans_the_trace_of_the_request_is_passed_to_the_job(make_app: MakeApp, stub: StubWorker) -> None:
    api = make_app().test_client()
    api.post("/embed", json={"inputs": "a"}, headers={"Traceparent": CALLER})
    api.post("/embed", json={"inputs": "b"}, headers={"Traceparent": "malformed"})
    api.post("/v1/jobs", json={"op": "embed", "inputs": ["a"]}, headers={"Traceparent": CALLER})
    wait_until(lambda: stub.traces == [CALLER, None, CALLER])


class Received(NamedTuple):
    """A span that the collector received, with the name of its service."""

    service: str
    span: Any

    def attribute(self, name: str) -> Any:
        (value,) = [item.value for item in self.span.attributes if item.key == f"shoal.{name}"]
        return getattr(value, value.WhichOneof("value"))


@pytest.mark.wide
def test_processes_share_one_trace_from_the_caller_to_the_reply(
    canned: CannedServer,
    settings: Settings,
    tiny_source: Path,
    home: Path,
    index_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", canned.url)
    (tmp_path / "texts.txt").write_text("storm\nrain\n")
    names = {"redis_url": settings.redis_url, "key_prefix": settings.key_prefix, "pool": settings.pool}
    values: dict[str, Any] = names | {"home": home, "model": tiny_source, "precision": "f32", "tracing": "otlp"}
    with (
        service(tmp_path, indexes=index_folder, **values) as running,
        Process(tmp_path / "jobs.log", "jobs", roots=tmp_path, **values) as runner,
    ):
        wait_until(running.is_ready)
        for trace in (CALLER, UNSAMPLED):
            assert running.ask("POST", "/search", {"queries": ["storm"]}, {"traceparent": trace}).status == 200
        with LongJobs(settings) as jobs, traceparent.continued(CALLER):
            job_id = jobs.submit("embed_file", asdict(BulkRequest(str(tmp_path / "texts.txt"), str(tmp_path / "out"))))
            wait_until(lambda: jobs.status(job_id).has_ended)
        assert runner.terminate() == 0, runner.output
    bodies = [gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body for _, body in canned.bodies]
    found = []
    for group in (group for body in bodies for group in ExportTraceServiceRequest.FromString(body).resource_spans):
        (name,) = [item.value.string_value for item in group.resource.attributes if item.key == "service.name"]
        found += [Received(name, span) for scope in group.scope_spans for span in scope.spans]
    assert {one.span.trace_id.hex() for one in found} == {TRACE}
    caller, children = bytes.fromhex("00f067aa0ba902b7"), dict[str, Received]()
    (request,) = [one for one in found if one.span.name == "POST /search"]
    assert (request.service, request.span.parent_span_id) == ("shoal-api", caller)
    for parent, op, texts in ((request.span.span_id, "search", 1), (caller, "embed", 2)):
        (job,) = [one for one in found if one.span.name == "job" and one.span.parent_span_id == parent]
        assert (job.service, job.attribute("op"), job.attribute("texts")) == ("shoal-worker", op, texts)
        children[op] = job
    end = children["search"].span
    steps = {one.span.name: one.span for one in found if one.span.parent_span_id == end.span_id}
    assert steps.keys() == {"queue", "tokenize", "encode", "search", "reply"}
    assert all(step.end_time_unix_nano <= end.end_time_unix_nano for step in steps.values())


def test_a_collector_that_does_not_answer_causes_no_error(
    queue: Queue, encoder: Encoder, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
        with closing(Tracer.open("worker")) as tracer:
            worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), tracer=tracer)
            for number in range(20):
                put(queue, id=f"job-{number}")
            work_off(worker, queue)
            assert queue.redis.xlen(queue.keys.replies("me")) == 20


@pytest.mark.wide
def test_without_opentelemetry_a_process_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").touch()  # an empty package replaces OpenTelemetry
    path = os.pathsep.join([str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", path)
    for command in ("api", "worker"):
        done = run(command, tracing="otlp")
        assert done.returncode == 1
        assert done.stderr.startswith("shoal: tracing is otlp, which needs OpenTelemetry: ")
        assert done.stderr.endswith(" [missing_extra]\n")


@pytest.mark.wide
def test_no_library_for_spans_is_loaded_if_tracing_is_off() -> None:
    """Only modules for spans count, because redis-py itself loads OpenTelemetry's metrics if they are installed."""
    script = (
        "import sys, shoal_api.app, shoal_workers.service.service, shoal_workers.long_jobs.runner\n"
        "from shoal.settings import DEFAULTS\n"
        "from shoal.process.tracing import open_tracer\n"
        "found = {'opentelemetry.exporter'} & {*sys.modules}\n"
        "print(open_tracer(DEFAULTS, 'api'), found)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "None set()\n"
