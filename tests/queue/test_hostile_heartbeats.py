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


def beats() -> Iterator[tuple[str, dict[str, Any]]]:
    def recent(number: float, **others: float) -> dict[str, Any]:
        times = {"ended_at": number, "total_s": number, "timings": {"queue_s": number}}
        counts = dict.fromkeys(("num_texts", "num_tokens", "num_cached"), number)
        word = {"id": "a", "op": "embed", "lane": "bulk", "client": "", "status": "done", "error": None}
        return {"recent": [word | times | counts | others]}

    for n, number in enumerate(NUMBERS):
        counters, histogram = dict.fromkeys(COUNTERS, number), HISTOGRAM | {"sum": number}
        waits = {"waits": {"interactive": histogram}, "batches": {"fill": histogram}}
        single = dict.fromkeys(
            ("texts_per_s", "memory_bytes", "written_at", "threads", "pid", "clock_offset_s"), number
        )
        yield f"number {n}", ABOUT | {"counters": counters} | waits | single
        yield f"count {n}", ABOUT | {"indexes": {"default": INDEX | {"count": number, "num_changes": number}}}
        yield f"recent {n}", ABOUT | recent(number)
        yield f"rounds {n}", ABOUT | {"rounds": [number] * 5}
    for name in (*ABOUT, "recent", "rounds", "texts_per_s", "written_at", "index_errors", "cache", "limits"):
        for n, value in enumerate(ODD):
            yield f"{name} {n}", ABOUT | {name: value}
    for time_s in TIMES:
        yield f"time {time_s}", ABOUT | {"written_at": time_s} | recent(1.0, ended_at=time_s)


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    return make_app()


def write(stub: StubWorker, name: str, beat: bytes) -> None:
    stub.pool.announce(name, {})
    stub.queue.redis.set(stub.queue.keys.worker(name), beat, ex=3_600)


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


def test_everything_that_shows_the_pool_goes_on(app: Flask, stub: StubWorker) -> None:
    stub.pause()
    found = dict(beats())
    for name, about in found.items():
        stub.pool.announce(name, about)
    assert {worker["id"] for worker in look(app)["workers"]} == {"stub", *found}


@pytest.mark.wide
def test_shoal_status_goes_on(settings: Settings, stub: StubWorker) -> None:
    pool: dict[str, Any] = {"redis_url": settings.redis_url, "key_prefix": settings.key_prefix, "pool": settings.pool}
    found = dict(beats())
    for name, about in found.items():
        stub.pool.announce(name, about)
    write(stub, "large", wire.pack(ABOUT | {"host": "x" * 10_000_000}))
    done = run("status", **pool)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) < 200_000
    assert f"workers alive: {len(found) + 2}" in done.stdout
    assert "  large unknown: no index\n" in done.stdout


@pytest.mark.parametrize(
    "beat",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        wire.pack(ABOUT | {"state": b"ready"}),
        wire.pack(ABOUT | {"host": "x" * MAX_BYTES}),
        b"\x81\xa1a" + b"\xdd" + (2 * MAX_VALUES).to_bytes(4, "big") + 2 * MAX_VALUES * b"\x80",
        b"\x81\xa1a" * 100_000 + b"\x80",
    ],
    ids=["empty", "no msgpack", "no map", "bytes", "large", "many maps", "deep"],
)
def test_a_worker_with_an_unreadable_heartbeat_has_an_unknown_state(app: Flask, stub: StubWorker, beat: bytes) -> None:
    stub.pause()
    write(stub, "odd", beat)
    states = {worker["id"]: worker["state"] for worker in look(app)["workers"]}
    assert states == {"stub": "ready", "odd": "unknown"}
