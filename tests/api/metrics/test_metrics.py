"""Metrics of the pool: a scrape reports real jobs of a real worker, from the worker's heartbeat."""

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


def counts(scrape: Scrape, *names: str) -> list[float]:
    """Return the values of metrics of the worker."""
    return [scrape(f"shoal_worker_{name}", "worker").popitem()[1] for name in names]


def put(queue: Queue, lane: str, *texts: str, deadline: float | None = None) -> None:
    """Put an embed job with these texts."""
    queue.put(lane, [Embed(list(texts), reply_to="me", deadline=deadline)])


def test_passes_and_waits_are_measured(scrape: Scrape, worker: Worker, queue: Queue) -> None:
    names = (f"{word[:-1]}seconds" if word.endswith("_s") else word for word in measurements.COUNTERS)
    assert {*counts(scrape, *(f"{name}_total" for name in names))} == {0}
    assert scrape("shoal_worker_wait_seconds_count", "lane") == dict.fromkeys(LANES, 0)
    put(queue, "interactive", "storm", "rain", "storm")
    drive(worker)
    put(queue, "bulk", "storm market")
    drive(worker)
    assert counts(scrape, "batches_total", "batch_texts_sum", "batch_tokens_count") == [2, 3, 2]
    limits = scrape("shoal_worker_batch_texts_bucket", "le")
    assert (limits["1.0"], limits["4.0"]) == (1, 2)
    assert counts(scrape, "batch_tokens_sum", "batch_fill_ratio_sum") == [10, pytest.approx(10 / 4_096)]
    assert counts(scrape, "texts_total", "jobs_total") == [4, 2]
    assert scrape("shoal_worker_wait_seconds_count", "lane") == {"interactive": 1, "bulk": 1}
    (busy_s,), (encode_s,) = (counts(scrape, f"{name}_seconds_total") for name in ("busy", "encode"))
    assert busy_s == pytest.approx(encode_s)
    assert busy_s > 0
    waited_s = sum(scrape("shoal_worker_wait_seconds_sum", "lane").values())
    assert [waited_s] == pytest.approx(counts(scrape, "queue_seconds_total"))
    put(queue, "interactive", "storm", deadline=1.0)  # refused jobs have waited too
    queue.redis.rpush(queue.keys.lane("bulk"), b"no job")
    drive(worker)
    assert scrape("shoal_worker_wait_seconds_count", "lane") == {"interactive": 2, "bulk": 2}
    assert counts(scrape, "failed_total", "jobs_total") == [2, 2]


def test_claims_are_counted_and_suspects_among_them(scrape: Scrape, worker: Worker, queue: Queue) -> None:
    for _ in range(3):
        put(queue, "interactive", "storm")
    first, _ = queue.take("gone", LANES, 2)
    queue.redis.hset(queue.keys.record(first.key), "deaths", 1)  # it was a suspect before
    assert len(queue.take("left", LANES, 1)) == 1
    queue.leave("left")  # leaves in order, so that its job does not become a suspect
    queue.may_look(worker.id)
    assert sum(drive(worker) for _ in range(4)) == 3
    assert counts(scrape, "claims_total", "redeliveries_total") == [2, 2]


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
    assert 'shoal_lane_fill_ratio{lane="bulk"} 0.5\n' in api.get("/metrics").text


def test_results_letters_and_memory_are_measured(
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


def test_a_worker_reports_its_clock_and_its_memory_in_few_bytes(scrape: Scrape, worker: Worker) -> None:
    worker.clock.offset_s, worker.clock.error_s = 2.5, 0.5
    assert counts(scrape, "clock_offset_seconds", "clock_error_seconds") == [2.5, 0.5]
    (num_bytes,) = counts(scrape, "resident_memory_bytes")
    assert 0.8 < num_bytes / scrape("process_resident_memory_bytes")[""] < 1.25
    assert len(wire.pack(worker.log.measurements.to_heartbeat())) <= 1_000


def test_requests_are_timed_and_counted_by_route_and_status(api: FlaskClient, scrape: Scrape) -> None:
    began_s = time.perf_counter()
    api.get("/info")
    took_s = time.perf_counter() - began_s
    assert 0 < scrape("shoal_http_request_seconds_sum", "route")["/info"] <= took_s
    api.post("/embed", json={"inputs": 5})
    for path in ("/health", "/v1/jobs/some-id", "/nowhere", "/nowhere"):
        api.get(path)
    text = api.get("/metrics").text
    for line in (
        'http_request_seconds_count{method="POST",route="/embed",status="422"} 1.0',
        'http_request_seconds_count{method="GET",route="/health",status="200"} 1.0',
        'http_request_seconds_count{method="GET",route="/v1/jobs/<id>",status="404"} 1.0',
        'http_request_seconds_count{method="",route="unmatched",status="404"} 2.0',
        'http_errors_total{code="invalid_request"} 1.0',
        f'build_info{{version="{__version__}"}} 1.0',
    ):
        assert f"\nshoal_{line}\n" in text


def test_values_that_redis_lacks_are_left_out(make_app: MakeApp, own_redis: RedisServer, queue: Queue) -> None:
    api = make_app(redis_url=own_redis.url).test_client()
    with Queue.connect(own_redis.url, queue.keys).redis as connection:
        connection.execute_command("ACL", "SETUSER", "default", "-info")
        text = api.get("/metrics").text
        connection.execute_command("ACL", "SETUSER", "default", "+info")
    assert "\nshoal_redis_up 1.0\n" in text
    assert "shoal_redis_memory_bytes" not in text
    own_redis.stop()
    text = api.get("/metrics").text
    assert "\nshoal_redis_up 0.0\n" in text
    assert "\nprocess_resident_memory_bytes " in text
    assert "shoal_workers_alive" not in text


def test_no_heartbeat_spoils_the_lines_of_others(api: FlaskClient, stub: StubWorker) -> None:
    odd = 'a"} 1\n\\é'
    about = {"state": "asleep", "counters": {"jobs": True}, "engine": odd, "clock_offset_s": float("nan")}
    stub.pool.announce(odd, about | {"waits": {odd: HISTOGRAM}})
    families = text_string_to_metric_families(api.get("/metrics").get_data(as_text=True))
    found = {(sample.name, sample.labels.get("worker")): sample for family in families for sample in family.samples}
    assert found["shoal_worker_jobs_total", "stub"].value == COUNTERS["jobs"]
    assert found["shoal_worker_jobs_total", odd].value == 1
    assert found["shoal_workers_ready", None].value == 2  # a model that is asleep starts for a job
    assert found["shoal_worker_wait_seconds_count", odd].labels["lane"] == odd
    assert found["shoal_worker_engine_info", odd].labels["engine"] == odd
    stub.pool.leave(odd)
    stub.announce(waits={}, batches={}, memory_bytes=None)  # a heartbeat of an older version
    text = api.get("/metrics").text
    assert 'shoal_worker_jobs_total{worker="stub"} 7.0\n' in text
    assert "shoal_worker_wait_seconds_count" not in text
