"""A trace leads from the caller through HTTP and the queue to the worker. Without tracing, no library is loaded."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from api_stub import MakeApp, StubWorker
from collector import Collector, collecting
from conftest import wait_until
from flask.testing import FlaskClient
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
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
from shoal_api.server.async_flask import AsyncFlask
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker

pytest_plugins = ["api_fixtures"]


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"
UNSAMPLED = f"00-{TRACE}-00f067aa0ba902b7-00"

MALFORMED = [
    *("", TRACE, CALLER.upper(), f" {CALLER}", f"{CALLER}\n", f"{CALLER}-more", CALLER.replace("00-4b", "ff-4b")),
    *(CALLER.replace(TRACE, "0" * 32), CALLER.replace("00f067aa0ba902b7", "0" * 16), CALLER.replace("4bf", "٤bf")),
    *("00-" + "a" * 10_000, "cc-" + CALLER[3:] + "-" + "x" * 1_000, 7, None, ["a"]),
]


class Spans:
    def __init__(self) -> None:
        self.exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer, self.provider = Tracer(provider), provider

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
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


class TestTraceparent:
    def test_a_valid_one_is_read_unchanged(self) -> None:
        later = f"01{CALLER[2:]}-what a later version has"
        assert (traceparent.valid(CALLER), traceparent.valid(later)) == (CALLER, later)
        assert (traceparent.trace_id(CALLER), traceparent.trace_id(None)) == (TRACE, "")

        assert [value for value in MALFORMED if traceparent.valid(value)] == []

    def test_a_job_has_it_on_the_wire(self) -> None:
        job = Embed(["a"], traceparent=CALLER)
        assert msgpack.unpackb(job.pack())["traceparent"] == CALLER
        assert operations.unpack(job.pack()) == job
        assert "traceparent" not in msgpack.unpackb(Embed(["a"]).pack())
        assert "traceparent" not in msgpack.unpackb(Embed(["a"], traceparent="no").pack())
        assert job.digest() == Embed(["a"]).digest()  # the trace is no part of the question

    def test_a_thread_belongs_to_the_trace_that_it_continues(self, spans: Spans) -> None:
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
    assert [span.parent for span in spans.exporter.get_finished_spans() if span.name == "job"] == [None] * len(
        MALFORMED
    )


class TestWorker:
    def test_each_step_of_a_job_has_a_span_within_the_span_of_the_job(
        self, traced: Worker, queue: Queue, spans: Spans
    ) -> None:
        put(queue, op="search", texts=["storm europe"], traceparent=CALLER)
        traced.step(block_s=0)
        job = spans.named("job")
        assert job.context
        assert job.parent
        assert (f"{job.context.trace_id:032x}", f"{job.parent.span_id:016x}") == (TRACE, "00f067aa0ba902b7")
        assert spans.names == ["encode", "job", "queue", "reply", "search", "tokenize"]
        assert job.attributes
        found = {name: job.attributes[f"shoal.{name}"] for name in ("job_id", "op", "texts", "lane", "worker")}
        assert found == {"job_id": "a", "op": "search", "texts": 1, "lane": "interactive", "worker": traced.id}
        for name in ("queue", "tokenize", "encode", "search", "reply"):
            step = spans.named(name)
            assert step.parent
            assert step.parent.span_id == job.context.span_id
            assert (step.start_time or 0) <= (step.end_time or 0)

    def test_a_failed_job_has_a_span_with_the_code_of_its_error(
        self, traced: Worker, queue: Queue, spans: Spans
    ) -> None:
        put(queue, op="search", index="no such", traceparent=CALLER)
        traced.step(block_s=0)
        assert (spans.names, spans.named("job").status.description) == (["job"], "unknown_index")
        spans.exporter.clear()
        queue.redis.rpush(queue.keys.lane("interactive"), b"\xff\x00")
        traced.step(block_s=0)
        assert spans.named("job").status.description == "malformed_job"

    def test_the_flag_of_the_caller_and_the_sampler_of_the_environment_decide_whether_a_trace_is_kept(
        self, queue: Queue, encoder: Encoder, index: Index, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for sampler, trace, has_spans in (
            ("", UNSAMPLED, False),
            ("always_off", CALLER, False),
            ("always_on", UNSAMPLED, True),
            ("parentbased_always_off", None, False),
            ("parentbased_always_off", CALLER, True),
        ):
            if sampler:
                monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
            spans = Spans()
            worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), tracer=spans.tracer)
            put(queue, traceparent=trace)
            assert worker.step(block_s=0) == 1
            assert bool(spans.names) == has_spans, (sampler, trace)


class TestApi:
    def test_a_request_has_a_span_and_its_job_belongs_to_it(
        self, make_app: MakeApp, stub: StubWorker, spans: Spans
    ) -> None:
        answer = with_spans(make_app(), spans).post("/embed", json={"inputs": "a"}, headers={"Traceparent": CALLER})
        assert answer.status_code == 200
        request = spans.named("POST /embed")
        assert request.parent
        assert f"{request.parent.span_id:016x}" == "00f067aa0ba902b7"
        assert dict(request.attributes or {})["http.response.status_code"] == 200
        assert request.context
        assert stub.traces == [traceparent.format_traceparent(request.context)]

    def test_without_spans_the_trace_of_the_request_is_passed_to_the_job(
        self, make_app: MakeApp, stub: StubWorker
    ) -> None:
        make_app().test_client().post("/embed", json={"inputs": "a"}, headers={"Traceparent": CALLER})
        make_app().test_client().post("/embed", json={"inputs": "b"}, headers={"Traceparent": "malformed"})
        body = {"op": "embed", "inputs": ["a"]}
        make_app().test_client().post("/v1/jobs", json=body, headers={"Traceparent": CALLER})
        wait_until(lambda: stub.traces == [CALLER, None, CALLER])

    def test_an_unknown_path_has_a_span_and_a_probe_has_none(self, make_app: MakeApp, spans: Spans) -> None:
        api = with_spans(make_app(), spans)
        for path in ("/nowhere/marshmallow", "/health", "/ready", "/v1/jobs/none"):
            api.get(path)
        assert spans.names == ["GET /v1/jobs/<id>", "HTTP unmatched"]


def with_spans(app: AsyncFlask, spans: Spans) -> FlaskClient:
    """Return a client of an application that records spans in memory."""
    app.own = replace(app.own, tracer=spans.tracer)
    return app.test_client()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield collector


@pytest.mark.wide
def test_processes_share_one_trace_from_the_caller_to_the_reply(
    collector: Collector, settings: Settings, tiny_source: Path, home: Path, index_folder: Path, tmp_path: Path
) -> None:
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
    assert [span for span in collector.spans if span.trace_id != TRACE] == []
    (request,), (run_,) = collector.named("POST /search"), collector.named("long job")
    services = {"POST /search": "shoal-api", "long job": "shoal-jobs"}
    assert [(span.service, span.parent_id) for span in (request, run_)] == [
        (name, "00f067aa0ba902b7") for name in services.values()
    ]
    (search,), (embed,) = (
        [job for job in collector.named("job") if job.parent_id == s.span_id] for s in (request, run_)
    )
    assert (search.service, search.attributes["shoal.op"]) == ("shoal-worker", "search")
    assert (embed.attributes["shoal.op"], embed.attributes["shoal.texts"]) == ("embed", 2)
    steps = {span.name: span for span in collector.spans if span.parent_id == search.span_id}
    assert steps.keys() == {"queue", "tokenize", "encode", "search", "reply"}
    assert all(step.end_ns <= search.end_ns for step in steps.values())


@pytest.mark.parametrize("is_open", [False, True], ids=["refuses", "hangs"])
def test_a_collector_that_does_not_answer_causes_no_error(
    queue: Queue, encoder: Encoder, index: Index, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
        if not is_open:
            silent.close()
        with closing(Tracer.open("worker")) as tracer:
            worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), tracer=tracer)
            for number in range(20):
                put(queue, id=f"job-{number}")
            work_off(worker, queue)
            assert queue.redis.xlen(queue.keys.replies("me")) == 20


@pytest.mark.wide
def test_without_opentelemetry_a_process_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").touch()  # an empty package takes its place
    path = os.pathsep.join([str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", path)
    for command in ("api", "worker", "jobs"):
        done = run(command, tracing="otlp")
        assert done.returncode == 1
        assert done.stderr.startswith("shoal: tracing is otlp, which needs OpenTelemetry: ")
        assert done.stderr.endswith(" [missing_extra]\n")


@pytest.mark.wide
def test_no_library_for_spans_is_loaded_if_tracing_is_off() -> None:
    """Only the parts for spans are looked for: redis-py itself loads OpenTelemetry's metrics if they are installed."""
    script = (
        "import sys, shoal_api.app, shoal_workers.service.service, shoal_workers.long_jobs.runner\n"
        "from shoal.settings import DEFAULTS\n"
        "from shoal.process.tracing import open_tracer\n"
        "found = {'opentelemetry.exporter'} & {*sys.modules}\n"
        "print(open_tracer(DEFAULTS, 'api'), found)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "None set()\n"
