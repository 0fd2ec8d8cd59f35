"""Hostile names that another program wrote into Redis. They control no terminal and forge no line of a command."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from api_stub import ABOUT, INDEX, StubWorker
from long_job_callers import Rq
from process import run
from queues import Queue

from shoal.contract.keys import Keys
from shoal.long_jobs.long_jobs import LongJobs
from shoal.operations import Embed
from shoal.settings import Settings

pytest_plugins = ["api_fixtures", "long_job_fixtures"]

#: A name that would clear the screen, rename the window, and begin a forged line.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\nworkers alive: 99"

SHOWN = r"\u001b[2J\u001b]0;owned\u0007\u009b31m\u202e\nworkers alive: 99"


@pytest.fixture
def pool(settings: Settings) -> dict[str, str]:
    """Return the settings of the test's pool, for a command."""
    return {"redis_url": settings.redis_url, "key_prefix": settings.key_prefix, "pool": settings.pool}


@pytest.fixture
def named(stub: StubWorker) -> Iterator[StubWorker]:
    """Return the pool's worker, beside another worker whose names are all hostile."""
    names = dict.fromkeys(("state", "model", "engine", "precision", "host"), HOSTILE)
    indexes = {"indexes": {HOSTILE: INDEX | {"version": HOSTILE}}, "index_errors": {HOSTILE: HOSTILE}}
    stub.pool.announce(HOSTILE, ABOUT | names | indexes)
    yield stub
    stub.pool.leave(HOSTILE)


def lines(*arguments: str, **settings: Any) -> list[str]:
    """Run a command and return the lines that it prints; fail if one has a control character."""
    done = run(*arguments, **settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", done.stdout), repr(done.stdout)
    return done.stdout.split("\n")[:-1]


@pytest.mark.usefixtures("named")
def test_status_escapes_hostile_names(pool: dict[str, str]) -> None:
    found = lines("status", **pool)
    assert [line for line in found if line.startswith("workers alive")] == ["workers alive: 2"]
    assert f"  {SHOWN} {SHOWN} {SHOWN} {SHOWN} {SHOWN}: {SHOWN} (3)" in found
    assert f"    index {SHOWN}: {SHOWN}" in found


def test_dead_letters_escape_hostile_texts(pool: dict[str, str], queue: Queue) -> None:
    fields = {"job": Embed([HOSTILE], id="a").pack(), "traceback": f"line 1\n{HOSTILE}\r\nline 2"}
    names = dict.fromkeys(("reason", "lane", "worker"), HOSTILE)
    letter = queue.redis.xadd(queue.keys.dead, fields | names | {"deliveries": "3"}).decode()
    far = queue.redis.xadd(queue.keys.dead, {"job": b"no job"}, id="1000000000000000000-1").decode()
    listed = lines("dead", "list", **pool)
    assert listed[0] == "2 dead letters"
    assert listed[1].startswith(f"{far}  1000000000000000 s  6 unreadable bytes")
    assert listed[2].endswith(SHOWN)
    shown = lines("dead", "show", letter, **pool)
    assert {f"{name}: {SHOWN}" for name in ("reason", "lane", "worker")} <= set(shown)
    (text,) = (line.removeprefix("text 0: ") for line in shown if line.startswith("text 0: "))
    assert json.loads(text) == HOSTILE
    first, *rest = SHOWN.split(r"\n")
    assert shown[-4:] == ["line 1", first, *rest, "line 2"]


@pytest.mark.wide
def test_long_jobs_escape_hostile_texts(pool: dict[str, str], settings: Settings, rq: Rq) -> None:
    with LongJobs(settings) as jobs:
        job_id = jobs.submit("embed_file", {"source": HOSTILE, "out": "x"}, client=HOSTILE)
    assert [line for line in lines("job", "list", **pool) if SHOWN in line]
    assert f"source: {SHOWN}" in lines("job", "show", job_id, **pool)
    for command in (("list",), ("show", job_id)):
        found = json.loads("\n".join(lines("job", *command, "--json", **pool)))
        assert found["arguments"]["source"] == HOSTILE


def test_a_hit_escapes_hostile_texts(
    pool: dict[str, str], keys: Keys, stub: StubWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit = {"id": "1", "score": 0.5, "text": f"first\n{HOSTILE}", "topic": HOSTILE}
    monkeypatch.setattr("api_stub._hits", lambda job: [[hit]])
    found = lines("search", "storm", "--fields", "topic", **pool)
    assert found[0] == "0.500  1  first"
    topic = found[-1].partition("topic: ")[2]
    assert json.loads(topic) == HOSTILE
    as_json = json.loads("".join(lines("search", "storm", "--json", **pool)))
    assert as_json == [hit]
