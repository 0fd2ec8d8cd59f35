"""The meter of a pool: what it computes from lanes, and from heartbeats that are made up here."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from blocking import Pool, read_pool
from queues import Queue

from shoal.contract.histogram import Histogram
from shoal.contract.replies import TIMINGS
from shoal_api.viewers.pool_meter import PoolMeter, WorkerMeter

#: The time of the first heartbeats.
START_S = 1_790_000_000.0


@pytest.fixture
def pool(queue: Queue) -> Pool:
    """Return the test's own pool."""
    return Pool(queue.broker, queue.keys, alive_s=3_600)


class Look:
    """A meter of the test's pool, with its last measurements."""

    def __init__(self, queue: Queue, num_cached: Callable[[], float] = lambda: 0):
        self.queue, self._meter = queue, PoolMeter(num_cached)
        self.found: dict[str, Any] = {}

    def again(self) -> dict[str, Any]:
        """Measure the pool."""
        self.found = self._meter.measure(read_pool(self.queue))
        return self.found


@pytest.fixture
def look(queue: Queue) -> Look:
    """Return a meter of the test's pool that has measured nothing yet."""
    return Look(queue)


def waits(*seconds: float) -> dict[str, Any]:
    """Return a heartbeat's histogram of these waits."""
    histogram = Histogram((0.1, 1.0, 10.0))
    for wait_s in seconds:
        histogram.add(wait_s)
    return histogram.to_map()


def recent(job_id: str, ended_at: float, **changes: Any) -> dict[str, Any]:
    """Return a recent job."""
    known = {"id": job_id, "op": "embed", "lane": "bulk", "client": "web", "num_texts": 2, "num_tokens": 9}
    known |= {"num_cached": 1, "status": "done", "error": None, "ended_at": ended_at, "total_s": 0.5}
    return known | {"timings": dict.fromkeys(TIMINGS, 0.1)} | changes


def beat(pool: Pool, worker_id: str, after_s: float, **fields: Any) -> None:
    """Write the heartbeat of a worker, this many seconds after the first heartbeats."""
    pool.announce(worker_id, {"state": "ready", "written_at": START_S + after_s} | fields)


class TestRates:
    def test_rates_add_up_all_workers_each_by_its_own_clock(self, pool: Pool, look: Look) -> None:
        beat(pool, "a", 0, counters={"jobs": 100, "texts": 1_000, "tokens": 5, "failed": 1, "busy_s": 3.0})
        beat(pool, "b", 2, counters={"jobs": 0, "texts": 0, "busy_s": 0.0})
        look.again()
        assert (look.found["rates"]["jobs_per_s"], look.found["rates"]["busy"]) == (None, None)
        beat(pool, "a", 5, counters={"jobs": 150, "texts": 2_000, "tokens": 505, "failed": 2, "busy_s": 5.5})
        beat(pool, "b", 12, counters={"jobs": 20, "texts": 100, "busy_s": 1.0})
        look.again()
        found = look.found["rates"]
        assert (found["jobs_per_s"], found["computed_texts_per_s"]) == (10.0 + 2.0, 200.0 + 10.0)
        assert (found["tokens_per_s"], found["failed_per_s"], found["busy"]) == (100.0, 0.2, 0.3)
        assert found["num_workers"] == 2

    def test_a_long_forward_pass_makes_no_worker_more_than_busy(self, pool: Pool, look: Look) -> None:
        for after_s, busy_s in ((0, 0.0), (5, 5.5)):
            beat(pool, "a", after_s, counters={"jobs": 0, "busy_s": busy_s})
            beat(pool, "b", after_s, counters={"jobs": 0, "busy_s": 0.0})
            look.again()
        assert look.found["rates"]["busy"] == 0.5
        assert [worker["busy"] for worker in look.found["workers"]] == [1.0, 0.0]

    def test_times_of_steps_are_the_average_jobs(self, pool: Pool, look: Look) -> None:
        for after_s in (0, 5):
            counters = {"jobs": 10 * after_s, "queue_s": 1.0 * after_s, "encode_s": 0.25 * after_s, "search_s": 0.0}
            beat(pool, "a", after_s, counters=counters)
            look.again()
        found = look.found["rates"]
        assert [found[name] for name in TIMINGS] == [0.1, 0.0, 0.025, 0.0]

    def test_texts_that_the_caller_found_in_the_cache_count(self, queue: Queue, pool: Pool) -> None:
        num_cached = iter([0, 30, 90])
        look = Look(queue, lambda: next(num_cached))
        for after_s in (0, 5):
            beat(pool, "a", after_s, counters={"cache_hits": 2 * after_s, "cache_misses": 6 * after_s})
            look.again()
        assert look.found["rates"]["cache_hit_rate"] == pytest.approx((10 + 30) / (10 + 30 + 30), rel=1e-3)
        assert look.found["rates"]["cached_texts_per_s"] > 2.0
        look.again()
        assert look.found["rates"]["cache_hit_rate"] == pytest.approx((10 + 90) / (10 + 90 + 30), rel=1e-3)

    def test_a_worker_of_an_older_version_measures_nothing(self, pool: Pool, look: Look) -> None:
        for jobs in (0, 50):
            pool.announce("old", {"state": "ready", "counters": {"jobs": jobs}})
            look.again()
        (worker,) = look.found["workers"]
        assert (worker["state"], worker["jobs_per_s"], worker["written_at"]) == ("ready", None, None)
        assert look.found["rates"]["jobs_per_s"] is None

    def test_counters_that_fell_or_are_new_measure_what_is_known(self, pool: Pool, look: Look) -> None:
        beat(pool, "a", 0, counters={"jobs": 100})
        look.again()
        beat(pool, "a", 5, counters={"jobs": 3, "texts": 10}, waits={"bulk": waits(0.05)})
        found = look.again()
        assert (found["rates"]["jobs_per_s"], found["rates"]["computed_texts_per_s"]) == (0.0, 2.0)
        assert found["lanes"][1]["wait_p50_s"] == 0.05

    def test_texts_found_in_the_cache_are_counted_anew_once_the_clock_was_set_back(self, look: Look) -> None:
        num_cached = iter([0, 50, 60])
        meter, now = PoolMeter(lambda: next(num_cached)), read_pool(look.queue)
        for time_s in (START_S, START_S - 3_600, START_S - 3_595):
            found = meter.measure(replace(now, time_s=time_s, workers={}))
        assert found["rates"]["cached_texts_per_s"] == 2.0

    def test_a_clock_that_was_set_back_leaves_nothing_for_ever(self) -> None:
        meter = WorkerMeter()
        for time_s in (START_S + 3_600, START_S + 3_605, START_S, *range(int(START_S) + 5, int(START_S) + 205, 5)):
            meter.update({"written_at": float(time_s), "counters": {"jobs": 1}})
            assert meter.work is None or meter.work.seconds > 0
        assert meter.work
        assert meter.work.seconds == 10.0


class TestLanes:
    def test_waits_are_taken_from_all_workers(self, pool: Pool, look: Look) -> None:
        quick, slow = [0.05] * 90, [5.0] * 10
        for worker_id in ("a", "b"):
            beat(pool, worker_id, 0, waits={"bulk": waits(100.0)})
        look.again()
        beat(pool, "a", 5, waits={"bulk": waits(100.0, *quick)})
        beat(pool, "b", 5, waits={"bulk": waits(100.0, *slow)})
        look.again()
        interactive, bulk = look.found["lanes"]
        assert bulk["wait_p50_s"] == pytest.approx(0.1 * 50 / 90)
        assert bulk["wait_p95_s"] == pytest.approx(1.0 + 9.0 / 2)
        assert (interactive["wait_p50_s"], interactive["wait_p95_s"]) == (None, None)

    def test_a_lane_shows_the_waits_of_the_last_seconds(self, pool: Pool, look: Look) -> None:
        for after_s, found in ((0, waits()), (1, waits(5.0)), (2, waits(5.0, 0.05))):
            beat(pool, "a", after_s, waits={"bulk": found})
            look.again()
        assert look.found["lanes"][1]["wait_p95_s"] > 1.0
        beat(pool, "a", 12, waits={"bulk": waits(5.0, 0.05)})
        assert look.again()["lanes"][1]["wait_p95_s"] is None


class TestWorkers:
    def test_workers_are_described_by_their_heartbeats(self, pool: Pool, look: Look) -> None:
        fill = Histogram((0.5, 1.0)).to_map()
        told = {"model": "m", "engine": "avx512", "precision": "bf16", "threads": 2, "host": "h", "pid": 7}
        told |= {"texts_per_s": 900.5, "memory_bytes": 2**28}
        beat(pool, "a", 0, **told, counters={"jobs": 0}, batches={"fill": fill})
        look.again()
        fill = {"limits": [0.5, 1.0], "counts": [1, 3, 0], "sum": 3.0}
        beat(pool, "a", 5, **told, counters={"jobs": 5, "texts": 10, "busy_s": 1.0}, batches={"fill": fill})
        look.again()
        (worker,) = look.found["workers"]
        assert worker.items() >= (told | {"id": "a", "state": "ready", "written_at": START_S + 5}).items()
        rates = {"jobs_per_s": 1.0, "computed_texts_per_s": 2.0, "busy": 0.2, "batch_fill": 0.75}
        assert worker.items() >= rates.items()


class TestRecentJobs:
    def test_the_newest_of_all_workers_come_first(self, pool: Pool, look: Look) -> None:
        beat(pool, "a", 0, recent=[recent("3", 30.0), recent("1", 10.0)])
        beat(pool, "b", 0, recent=[recent("2", 20.0, id=None, op=None, num_texts=None, error="expired")])
        look.again()
        found = look.found["recent"]
        assert [(job["id"], job["worker"]) for job in found] == [("3", "a"), (None, "b"), ("1", "a")]
        assert found[0] == recent("3", 30.0) | {"worker": "a"}


def test_a_meter_keeps_only_what_it_measures_by() -> None:
    meter = WorkerMeter()
    tracemalloc.start()
    try:
        for second in range(1, 61):
            indexes = {"news": {"error": f"{second:0100000}"}}
            meter.update({"written_at": float(second), "counters": {"texts": second}, "indexes": indexes})
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert meter.work is not None
    assert meter.work.rise("texts") == 10
    assert kept_bytes < 1_000_000  # one heartbeat has 100,000 of them
