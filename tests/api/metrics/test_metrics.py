"""Metrics of the pool: a scrape reports real jobs of a real worker, from the worker's heartbeat."""

import shutil
import subprocess
import time
from collections.abc import Callable

import pytest
from api_stub import COUNTERS, HISTOGRAM, MakeApp, StubWorker
from conftest import RedisServer
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families
from queues import Queue, drive

from shoal import __version__
from shoal.contract import wire
from shoal.contract.jobs import LANES
from shoal.operations import Embed
from shoal.settings import DEFAULTS
from shoal_workers.loop.worker import Worker
from shoal_workers.process import measurements
from shoal_workers.service.service import about

pytest_plugins = ["api_fixtures"]

#: Tokens of `storm`, with the two special tokens.
TOKENS_OF_STORM = 3

#: Bytes that a heartbeat has for its measurements, at most.
MAX_MEASUREMENTS_BYTES = 1_000

Scrape = Callable[..., dict[str, float]]


@pytest.fixture
def scrape(api: FlaskClient, worker: Worker) -> Scrape:
    """Return a function that returns the samples of a metric by their labels, after a heartbeat of the worker."""

    def samples(name: str, *by: str) -> dict[str, float]:
        worker.pool.announce(worker.id, about(worker))
        families = text_string_to_metric_families(api.get("/metrics").get_data(as_text=True))
        found = [sample for family in families for sample in family.samples if sample.name == name]
        values = {" ".join(sample.labels[label] for label in by): sample.value for sample in found}
        assert len(values) == len(found)
        return values

    return samples


def put(queue: Queue, lane: str, *texts: str, deadline: float | None = None) -> None:
    """Put an embed job with these texts."""
    queue.put(lane, [Embed(list(texts), reply_to="me", deadline=deadline)])


def test_an_idle_workers_counters_are_zero(scrape: Scrape, worker: Worker) -> None:
    names = [
        f"shoal_worker_{word[:-1]}seconds" if word.endswith("_s") else f"shoal_worker_{word}"
        for word in measurements.COUNTERS
    ]
    assert [scrape(f"{name}_total", "worker") for name in names] == [{worker.id: 0}] * len(names)
    assert scrape("shoal_worker_wait_seconds_count", "lane") == dict.fromkeys(LANES, 0)


def test_passes_are_measured(scrape: Scrape, worker: Worker, queue: Queue) -> None:
    put(queue, "interactive", "storm", "rain", "storm")
    drive(worker)
    put(queue, "interactive", "storm market")
    drive(worker)
    id, num_tokens = worker.id, [2 * TOKENS_OF_STORM, TOKENS_OF_STORM + 1]
    assert scrape("shoal_worker_batches_total", "worker") == {id: 2}
    assert scrape("shoal_worker_batch_texts_sum", "worker") == {id: 3}
    assert scrape("shoal_worker_batch_texts_bucket", "le")["1.0"] == 1
    assert scrape("shoal_worker_batch_texts_bucket", "le")["4.0"] == 2
    assert scrape("shoal_worker_batch_tokens_sum", "worker") == {id: sum(num_tokens)}
    assert scrape("shoal_worker_batch_tokens_count", "worker") == {id: 2}
    assert scrape("shoal_worker_batch_fill_ratio_sum", "worker") == {id: pytest.approx(sum(num_tokens) / 4_096)}
    assert scrape("shoal_worker_texts_total", "worker") == {id: 4}
    assert scrape("shoal_worker_jobs_total", "worker") == {id: 2}


def test_waits_and_passes_are_timed(scrape: Scrape, worker: Worker, queue: Queue) -> None:
    put(queue, "interactive", *(f"storm {n}" for n in range(100)))
    drive(worker)
    (busy_s,) = scrape("shoal_worker_busy_seconds_total").values()
    assert busy_s > 0
    assert busy_s == pytest.approx(scrape("shoal_worker_encode_seconds_total")[""])
    for lane in ("interactive", "interactive", "bulk"):
        put(queue, lane, "storm")
    drive(worker)
    assert scrape("shoal_worker_wait_seconds_count", "lane") == {"interactive": 3, "bulk": 1}
    waited_s = sum(scrape("shoal_worker_wait_seconds_sum", "lane").values())
    assert waited_s == pytest.approx(scrape("shoal_worker_queue_seconds_total")[""])


def test_refused_jobs_have_waited_too(scrape: Scrape, worker: Worker, queue: Queue) -> None:
    put(queue, "interactive", "storm", deadline=1.0)
    queue.redis.rpush(queue.keys.lane("bulk"), b"no job")
    drive(worker)
    assert scrape("shoal_worker_wait_seconds_count", "lane") == {"interactive": 1, "bulk": 1}
    assert scrape("shoal_worker_failed_total", "worker") == {worker.id: 2}
    assert scrape("shoal_worker_jobs_total", "worker") == {worker.id: 0}


def test_claims_are_counted_and_suspects_among_them(scrape: Scrape, worker: Worker, queue: Queue) -> None:
    for _ in range(3):
        put(queue, "interactive", "storm")
    assert len(queue.take("gone", LANES, 2)) == 2
    assert len(queue.take("left", LANES, 1)) == 1
    queue.leave("left")  # an orderly end, so that its job is no suspect
    queue.may_look(worker.id)
    assert sum(drive(worker) for _ in range(4)) == 3
    assert scrape("shoal_worker_claims_total", "worker") == {worker.id: 2}
    assert scrape("shoal_worker_redeliveries_total", "worker") == {worker.id: 2}


def test_a_lane_reports_its_jobs_and_the_age_of_the_oldest(make_app: MakeApp, scrape: Scrape, queue: Queue) -> None:
    began_s = time.monotonic()
    put(queue, "bulk", "storm", "rain")
    words = ("jobs", "texts", "bytes", "fill_ratio", "oldest_job_age_seconds")
    found = {word: scrape(f"shoal_lane_{word}", "lane") for word in words}
    (job_id,) = queue.redis.zrange(queue.keys.of_lane("bulk", "jobs"), 0, -1)
    num_bytes = queue.redis.hstrlen(queue.keys.record(job_id.decode()), "job")
    assert [values["bulk"] for values in found.values()][:4] == [1, 2, num_bytes, 1 / DEFAULTS.max_backlog]
    assert 0 <= found["oldest_job_age_seconds"]["bulk"] <= time.monotonic() - began_s + 0.1
    assert {values["interactive"] for values in found.values()} == {0}
    api = make_app(max_backlog_texts=4).test_client()  # the fullest limit counts
    assert 'shoal_lane_fill_ratio{lane="bulk"} 0.5\n' in api.get("/metrics").get_data(as_text=True)


def test_results_dead_letters_and_memory_of_redis_are_measured(
    make_app: MakeApp, scrape: Scrape, worker: Worker, queue: Queue
) -> None:
    for _ in range(2):
        queue.redis.xadd(queue.keys.dead, {"reason": "why"})
    queue.put("bulk", [Embed(["storm"])])
    drive(worker)
    assert scrape("shoal_dead_letters") == {"": 2}
    (held,) = scrape("shoal_unread_result_bytes").values()
    assert held > 1_024
    assert scrape("shoal_unread_result_fill_ratio") == {"": pytest.approx(held / (DEFAULTS.max_result_mb * 2**20))}
    api = make_app(max_result_mb=1).test_client()
    assert f"shoal_unread_result_fill_ratio {held / 2**20}\n" in api.get("/metrics").get_data(as_text=True)
    assert scrape("shoal_redis_memory_bytes")[""] > 2**18
    assert scrape("shoal_redis_max_memory_bytes") == {"": 0}


def test_a_worker_reports_its_clock_and_its_memory(scrape: Scrape, worker: Worker) -> None:
    worker.clock.offset_s, worker.clock.error_s = 2.5, 0.5
    assert scrape("shoal_worker_clock_offset_seconds", "worker") == {worker.id: 2.5}
    assert scrape("shoal_worker_clock_error_seconds", "worker") == {worker.id: 0.5}
    found = scrape("shoal_worker_resident_memory_bytes", "worker")
    assert 0.8 < found[worker.id] / scrape("process_resident_memory_bytes")[""] < 1.25


def test_requests_are_counted_by_route_and_status(api: FlaskClient) -> None:
    api.post("/embed", json={"inputs": 5})
    for path in ("/health", "/v1/jobs/some-id", "/nowhere", "/nowhere"):
        api.get(path)
    text = api.get("/metrics").text
    for line in (
        'request_seconds_count{method="POST",route="/embed",status="422"} 1.0',
        'request_seconds_count{method="GET",route="/health",status="200"} 1.0',
        'request_seconds_count{method="GET",route="/v1/jobs/<id>",status="404"} 1.0',
        'request_seconds_count{method="",route="unmatched",status="404"} 2.0',
        'errors_total{code="invalid_request"} 1.0',
    ):
        assert f"\nshoal_http_{line}\n" in text
    assert f'shoal_build_info{{version="{__version__}"}} 1.0' in text


def test_without_redis_the_process_is_still_measured(make_app: MakeApp, own_redis: RedisServer) -> None:
    own_redis.stop()
    text = make_app(redis_url=own_redis.url).test_client().get("/metrics").text
    assert "\nshoal_redis_up 0.0\n" in text
    assert "\nprocess_resident_memory_bytes " in text
    assert "shoal_workers_alive" not in text


def test_a_request_is_measured_in_seconds(api: FlaskClient, scrape: Scrape) -> None:
    began_s = time.perf_counter()
    api.get("/info")
    took_s = time.perf_counter() - began_s
    found = {route: scrape(f"shoal_http_request_seconds_{route}", "route") for route in ("sum", "count")}
    assert found["count"]["/info"] == 1
    assert 0 < found["sum"]["/info"] <= took_s


def test_without_the_right_to_ask_only_the_memory_of_redis_is_left_out(
    make_app: MakeApp, own_redis: RedisServer, queue: Queue
) -> None:
    app = make_app(redis_url=own_redis.url)
    with Queue.connect(own_redis.url, queue.keys).redis as connection:
        connection.execute_command("ACL", "SETUSER", "default", "-info")
        found = app.test_client().get("/metrics").get_data(as_text=True)
        connection.execute_command("ACL", "SETUSER", "default", "+info")
    assert "\nshoal_redis_up 1.0\n" in found
    assert "shoal_redis_memory_bytes" not in found


def test_measurements_need_few_bytes_of_a_heartbeat(worker: Worker) -> None:
    assert len(wire.pack(worker.log.measurements.to_heartbeat())) <= MAX_MEASUREMENTS_BYTES


def test_no_heartbeat_spoils_the_lines_of_others(api: FlaskClient, stub: StubWorker) -> None:
    odd = 'a"} 1\n\\é'
    stub.pool.announce(
        odd,
        {"state": "asleep", "counters": {"jobs": True}, "engine": odd, "clock_offset_s": float("nan")}
        | {"waits": {odd: HISTOGRAM}},
    )
    families = text_string_to_metric_families(api.get("/metrics").get_data(as_text=True))
    found = {(sample.name, sample.labels.get("worker")): sample for family in families for sample in family.samples}
    assert found["shoal_worker_jobs_total", "stub"].value == COUNTERS["jobs"]
    assert found["shoal_worker_jobs_total", odd].value == 1
    assert found["shoal_workers_ready", None].value == 2  # a model that is asleep starts for a job
    assert found["shoal_worker_wait_seconds_count", odd].labels["lane"] == odd
    assert found["shoal_worker_engine_info", odd].labels["engine"] == odd
    stub.pool.leave(odd)
    stub.announce(waits={}, batches={}, memory_bytes=None)  # as a worker of an older version
    text = api.get("/metrics").get_data(as_text=True)
    assert 'shoal_worker_jobs_total{worker="stub"} 7.0\n' in text
    assert "shoal_worker_wait_seconds_count" not in text


@pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool: apt install prometheus")
@pytest.mark.usefixtures("stub")
def test_names_follow_the_rules_of_prometheus(api: FlaskClient) -> None:
    api.post("/embed", json={"inputs": ["a", "b"]})
    api.get("/nowhere")
    found = subprocess.run(["promtool", "check", "metrics"], input=api.get("/metrics").data, capture_output=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")
