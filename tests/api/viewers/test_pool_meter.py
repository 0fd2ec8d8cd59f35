"""The meter of a pool: the figures that it computes from lanes and from made-up heartbeats."""

import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from blocking import read_pool
from queues import Queue

from shoal.contract.histogram import Histogram
from shoal.contract.replies import TIMINGS
from shoal_api.viewers.pool_meter import PoolMeter, WorkerMeter

#: The time of the first heartbeats.
START_S = 1_790_000_000.0

#: Heartbeats by the ids of their workers.
Beats = dict[str, dict[str, Any]]

#: A function that measures a pool at several times, each with heartbeats, and returns the last figures.
Measure = Callable[..., Any]


@pytest.fixture
def measure(queue: Queue) -> Measure:
    """Return a function that measures a pool, once a second unless `times` are given."""
    empty = read_pool(queue)

    def measure(*rounds: Beats, times: Iterable[float] = (), num_cached: Iterable[float] = ()) -> Any:
        cached, meter = iter(num_cached), PoolMeter(lambda: next(cached, 0))
        for time_s, workers in zip(times or range(len(rounds)), rounds, strict=True):
            found = meter.measure(replace(empty, time_s=time_s, workers=workers))
        return found

    return measure


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


def beat(after_s: float = 0, **fields: Any) -> dict[str, Any]:
    """Return a heartbeat, this many seconds after the first heartbeats."""
    return {"state": "ready", "written_at": START_S + after_s} | fields


def counted(after_s: float, **counters: float) -> dict[str, Any]:
    """Return a heartbeat with these counters."""
    return beat(after_s, counters=counters)


class TestRates:
    def test_rates_add_up_all_workers_each_by_its_own_clock(self, measure: Measure) -> None:
        first = {"a": counted(0, jobs=100, texts=1_000, tokens=5, failed=1, busy_s=3.0)}
        first["b"] = counted(2, jobs=0, texts=0, busy_s=0.0)
        rates = measure(first)["rates"]
        assert (rates["jobs_per_s"], rates["busy"]) == (None, None)
        second = {"a": counted(5, jobs=150, texts=2_000, tokens=505, failed=2, busy_s=5.5)}
        second["b"] = counted(12, jobs=20, texts=100, busy_s=1.0)
        rates = measure(first, second)["rates"]
        assert (rates["jobs_per_s"], rates["computed_texts_per_s"]) == (10.0 + 2.0, 200.0 + 10.0)
        assert (rates["tokens_per_s"], rates["failed_per_s"], rates["busy"]) == (100.0, 0.2, 0.3)
        assert rates["num_workers"] == 2
        found = measure(*({"a": counted(s, busy_s=1.1 * s), "b": counted(s, busy_s=0.0)} for s in (0, 5)))
        assert found["rates"]["busy"] == 0.5
        assert [worker["busy"] for worker in found["workers"]] == [1.0, 0.0]
        beats = (counted(s, jobs=10 * s, queue_s=1.0 * s, encode_s=0.25 * s, search_s=0.0) for s in (0, 5))
        rates = measure(*({"a": each} for each in beats))["rates"]
        assert [rates[name] for name in TIMINGS] == [0.1, 0.0, 0.025, 0.0]

    def test_texts_that_the_caller_found_in_the_cache_count(self, measure: Measure) -> None:
        beats = [{"a": counted(s, cache_hits=2 * s, cache_misses=6 * s)} for s in (0, 5, 5)]
        rates = measure(*beats, times=(0, 5, 6), num_cached=(0, 30, 90))["rates"]
        assert rates["cache_hit_rate"] == (10 + 90) / (10 + 90 + 30)
        assert rates["cached_texts_per_s"] == 2 + 90 / 6
        back = measure({}, {}, {}, times=(START_S, START_S - 3_600, START_S - 3_595), num_cached=(0, 50, 60))
        assert back["rates"]["cached_texts_per_s"] == 2.0  # rates begin anew once the clock was set back

    def test_counters_that_fell_are_new_or_lack_a_time_give_only_known_rates(self, measure: Measure) -> None:
        found = measure(*({"old": {"state": "ready", "counters": {"jobs": jobs}}} for jobs in (0, 50)))
        (worker,) = found["workers"]
        assert (worker["state"], worker["jobs_per_s"], worker["written_at"]) == ("ready", None, None)
        assert found["rates"]["jobs_per_s"] is None
        later = counted(5, jobs=3, texts=10) | {"waits": {"bulk": waits(0.05)}}
        found = measure({"a": counted(0, jobs=100)}, {"a": later})
        assert (found["rates"]["jobs_per_s"], found["rates"]["computed_texts_per_s"]) == (0.0, 2.0)
        assert found["lanes"][1]["wait_p50_s"] == 0.05

    def test_a_clock_that_was_set_back_leaves_nothing_for_ever(self) -> None:
        meter = WorkerMeter()
        for time_s in (START_S + 3_600, START_S + 3_605, START_S, *range(int(START_S) + 5, int(START_S) + 205, 5)):
            meter.update({"written_at": float(time_s), "counters": {"jobs": 1}})
            assert meter.work is None or meter.work.seconds > 0
        assert meter.work
        assert meter.work.seconds == 10.0


class TestLanes:
    def test_waits_of_the_last_seconds_are_taken_from_all_workers(self, measure: Measure) -> None:
        first = beat(waits={"bulk": waits(100.0)})
        quick = beat(5, waits={"bulk": waits(100.0, *[0.05] * 90)})
        slow = beat(5, waits={"bulk": waits(100.0, *[5.0] * 10)})
        interactive, bulk = measure({"a": first, "b": first}, {"a": quick, "b": slow})["lanes"]
        assert bulk["wait_p50_s"] == pytest.approx(0.1 * 50 / 90)
        assert bulk["wait_p95_s"] == pytest.approx(1.0 + 9.0 / 2)
        assert (interactive["wait_p50_s"], interactive["wait_p95_s"]) == (None, None)
        told = ((0, waits()), (1, waits(5.0)), (2, waits(5.0, 0.05)), (12, waits(5.0, 0.05)))
        beats = [{"a": beat(after_s, waits={"bulk": found})} for after_s, found in told]
        assert measure(*beats[:3])["lanes"][1]["wait_p95_s"] > 1.0
        assert measure(*beats)["lanes"][1]["wait_p95_s"] is None


class TestWorkers:
    def test_workers_are_described_by_their_heartbeats(self, measure: Measure) -> None:
        told = {"model": "m", "engine": "avx512", "precision": "bf16", "threads": 2, "host": "h", "pid": 7}
        told |= {"texts_per_s": 900.5, "memory_bytes": 2**28}
        fills = ([0, 0, 0], 0.0), ([1, 3, 0], 3.0)
        beats = [
            counted(5 * n, jobs=5 * n, texts=10 * n, busy_s=1.0 * n)
            | {**told, "batches": {"fill": {"limits": [0.5, 1.0], "counts": counts, "sum": total}}}
            for n, (counts, total) in enumerate(fills)
        ]
        (worker,) = measure(*({"a": each} for each in beats))["workers"]
        assert worker.items() >= (told | {"id": "a", "state": "ready", "written_at": START_S + 5}).items()
        rates = {"jobs_per_s": 1.0, "computed_texts_per_s": 2.0, "busy": 0.2, "batch_fill": 0.75}
        assert worker.items() >= rates.items()


class TestRecentJobs:
    def test_the_newest_of_all_workers_come_first(self, measure: Measure) -> None:
        unknown = recent("2", 20.0, id=None, op=None, num_texts=None, error="expired")
        found = measure({"a": beat(recent=[recent("3", 30.0), recent("1", 10.0)]), "b": beat(recent=[unknown])})
        assert [(job["id"], job["worker"]) for job in found["recent"]] == [("3", "a"), (None, "b"), ("1", "a")]
        assert found["recent"][0] == recent("3", 30.0) | {"worker": "a"}


def test_a_meter_keeps_only_the_values_that_it_needs() -> None:
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
    assert kept_bytes < 1_000_000  # one heartbeat has 100,000 jobs
