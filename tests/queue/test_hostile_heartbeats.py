"""Odd heartbeats that no worker wrote. All routes and commands that show the pool work despite them."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from api_stub import ABOUT, COUNTERS, HISTOGRAM, INDEX, MakeApp, StubWorker
from flask import Flask
from process import run
from prometheus_client.parser import text_string_to_metric_families

from shoal.contract import wire
from shoal.queue.pool import MAX_BYTES, MAX_VALUES
from shoal.settings import Settings

pytest_plugins = ["api_fixtures"]

#: Numbers that no worker can have measured.
NUMBERS = (math.nan, math.inf, -math.inf, -1, -1e308, 1e308, 2**64 - 1, -(2**63), True)

#: Values of many types. No field is documented to have most of these types.
ODD: tuple[Any, ...] = (None, True, -1, "x", [], {}, [[]], {"a": {}}, [None], "\x00\x1b[2J")

#: Times in heartbeats of workers with wrong clocks: long ago, and in a thousand years.
TIMES = (0, 1, 32_503_680_000.0, 2.0**40)

#: Fields with values of wrong types at any depth.
SHAPES: tuple[dict[str, Any], ...] = (
    {"indexes": {"a": INDEX, "b": {"count": "many"}}},
    {"index_errors": {"a": None}},
    {"counters": {"jobs": 1, "texts": "many"}},
    {"recent": [{"client": "web", "ended_at": "now"}]},
    {"recent": [{"ended_at": 1.0}]},
    {"rounds": [1.0]},
    {"waits": {"bulk": {"limits": [1], "counts": [1], "sum": 1}}},
)


def beats() -> Iterator[dict[str, Any]]:
    def recent(number: float, **others: float) -> dict[str, Any]:
        times = {"ended_at": number, "total_s": number, "timings": {"queue_s": number}}
        counts = dict.fromkeys(("num_texts", "num_tokens", "num_cached"), number)
        word = {"id": "a", "op": "embed", "lane": "bulk", "client": "", "status": "done", "error": None}
        return {"recent": [word | times | counts | others]}

    for number in NUMBERS:
        histogram = HISTOGRAM | {"sum": number}
        names = ("texts_per_s", "memory_bytes", "written_at", "threads", "pid", "clock_offset_s")
        yield dict.fromkeys(names, number) | {"counters": dict.fromkeys(COUNTERS, number)}
        yield {"waits": {"interactive": histogram}, "batches": {"fill": histogram}}
        yield {"indexes": {"default": INDEX | {"count": number, "num_changes": number}}}
        yield recent(number)
        yield {"rounds": [number] * 5}
    for name in (*ABOUT, "recent", "rounds", "texts_per_s", "written_at", "index_errors", "cache", "limits"):
        yield from ({name: value} for value in ODD)
    for time_s in TIMES:
        yield {"written_at": time_s} | recent(1.0, ended_at=time_s)
    yield from SHAPES


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    return make_app()


def look(app: Flask) -> dict[str, Any]:
    """Assert that every route that shows the pool answers; return the pool."""
    api = app.test_client()
    for path in ("/ready", "/info", "/v1/indexes"):
        assert api.get(path).status_code == 200, path
    metrics = api.get("/metrics").get_data(as_text=True)
    assert {"shoal_workers_ready", "shoal_lane_jobs"} <= {one.name for one in text_string_to_metric_families(metrics)}
    answer = api.get("/v1/pool")
    found: dict[str, Any] = json.loads(answer.data, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert answer.status_code == 200
    return found


def test_everything_that_shows_the_pool_goes_on(app: Flask, stub: StubWorker, settings: Settings) -> None:
    stub.pause()
    found = {f"odd{n}": ABOUT | odd for n, odd in enumerate(beats())}
    for name, about in found.items():
        stub.pool.announce(name, about)
    states = {worker["id"]: worker["state"] for worker in look(app)["workers"]}
    assert states.keys() == {"stub", *found}
    assert {states[name] for name in [*found][-len(SHAPES) :]} == {"unknown"}
    done = run("status", redis_url=settings.redis_url, key_prefix=settings.key_prefix, pool=settings.pool)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"workers alive: {len(found) + 1}" in done.stdout
    for name, about in found.items():  # other numbers than before
        stub.pool.announce(name, about | {"counters": COUNTERS, "written_at": 1_790_000_000.0})
    assert {worker["id"] for worker in look(app)["workers"]} == {"stub", *found}


#: Heartbeats that cannot be read.
UNREADABLE = {
    "empty": b"",
    "no msgpack": b"\xc1",
    "no map": b"\x93\x01\x02\x03",
    "bytes": wire.pack(ABOUT | {"state": b"ready"}),
    "large": wire.pack(ABOUT | {"host": "x" * MAX_BYTES}),
    "many maps": b"\x81\xa1a" + b"\xdd" + (2 * MAX_VALUES).to_bytes(4, "big") + 2 * MAX_VALUES * b"\x80",
    "deep": b"\x81\xa1a" * 100_000 + b"\x80",
}


def test_a_worker_with_an_unreadable_heartbeat_has_an_unknown_state(app: Flask, stub: StubWorker) -> None:
    stub.pause()
    for name, beat in UNREADABLE.items():
        stub.pool.announce(name, {})
        stub.queue.redis.set(stub.queue.keys.worker(name), beat, ex=3_600)
    states = {worker["id"]: worker["state"] for worker in look(app)["workers"]}
    assert states == {"stub": "ready", **dict.fromkeys(UNREADABLE, "unknown")}
