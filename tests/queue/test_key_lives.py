"""Every key lives as long as docs/architecture.md says."""

import re
from typing import Any

import numpy as np
import pytest
from blocking import ChangeLog, Pool
from page import table
from queues import Queue

from shoal.cache.cache import Cache, Entry, Table
from shoal.changes.change import Change
from shoal.contract.jobs import LANES
from shoal.contract.replies import Reply
from shoal.long_jobs.long_jobs import LongJobs
from shoal.operations import Embed
from shoal.queue.consumer import Answer
from shoal.queue.dead_letters import DeadLetter
from shoal.settings import Settings
from shoal_api.access.api_keys import ApiKey
from shoal_api.access.rate_limit import RateLimits
from shoal_workers.process.crash_report import CrashReports

#: The keys of the page, without the beginning of all keys, and their lives.
LIVES = {name.strip("`").partition("}:")[2]: row[-1] for name, row in table("docs/architecture.md", "Key").items()}

#: Longest time that the test may take, in seconds. A key may be that much older than expected.
SLACK_S = 60


def put(queue: Queue, num: int = 1, client: str = "", **fields: Any) -> None:
    queue.put("bulk", [Embed(["storm"], **fields) for _ in range(num)], client)


def answer(queue: Queue, letter: DeadLetter | None = None) -> None:
    pairs = [(delivery, delivery.job()) for delivery in queue.take("w", LANES, 10_000)]
    queue.start("w", [delivery for delivery, job in pairs if job.reply_to is None])
    queue.reply(Answer(delivery, Reply(job.id), job.reply_to, letter) for delivery, job in pairs)


def make_jobs_wait(queue: Queue) -> None:
    put(queue, 9, "a", reply_to="me")
    queue.take("w", ["bulk"], 4)
    put(queue, client="b", reply_to="me")


def make_every_key(queue: Queue) -> None:
    queue.redis.rpush(queue.keys.lane("bulk"), Embed(["storm"], reply_to="me").pack())
    put(queue, id="submitted")
    answer(queue, DeadLetter("poisoned: why"))
    put(queue, id="suspect")
    queue.take("dead", LANES, 1)
    queue.die("dead")
    queue.pool.leave("reaper")
    make_jobs_wait(queue)
    queue.redis.rpush(queue.keys.lane("bulk"), Embed(["storm"], reply_to="me").pack())
    Pool(queue.broker, queue.keys).announce("w", {"state": "ready", "limits": {"max_jobs": 7}}, "p")
    jobs = LongJobs(Settings(key_prefix=queue.keys.prefix, pool=queue.keys.pool))
    vars(jobs)["_broker"] = queue.broker
    jobs.submit("embed_file", {}, idempotency_key="k")
    ChangeLog(queue.broker, queue.keys).append("news", Change((), np.empty((0, 0), np.float32), ("7",), "", 0.0))
    entry = Entry(np.ones((1, 2), np.float32), 3, False)
    Cache(queue.broker, queue.keys, Table("model", 2, "mean", "print", 1, {}, "")).store({b"0" * 16: entry})
    RateLimits(queue.broker, queue.keys).count(ApiKey("web", "user", b"", "100/minute"))
    CrashReports(queue.broker, queue.keys).write("w", "it crashed", "in line 1")


def name_on_page(key: str) -> str:
    """Return the name of a key on the page; keys of rates only begin with it."""
    patterns = {name: re.sub(r"<\w+>", "[^:]*", name) + (".*" if name == "rate" else "") for name in LIVES}
    return min((name for name, form in patterns.items() if re.fullmatch(form, key)), key=lambda name: "<" in name)


def test_every_key_lives_as_long_as_the_page_says(queue: Queue) -> None:
    make_every_key(queue)
    found = set()
    for key in queue.redis.scan_iter(f"{queue.keys.root}:*"):
        name, ttl_s = name_on_page(key.decode().partition("}:")[2]), queue.redis.pttl(key) / 1_000
        found.add(name)
        if ttl_s < 0:
            assert re.match(r"for ever|while|until", LIVES[name]), key
        elif name not in ("rate", "reclaimed"):
            lives = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) s\b", LIVES[name])]
            assert any(0 < ttl_s <= life_s < ttl_s + SLACK_S for life_s in lives), key
    assert found == LIVES.keys()
    assert 60 < queue.redis.ttl(next(queue.redis.scan_iter(f"{queue.keys.rates}*"))) <= 120  # this window and the next


@pytest.mark.parametrize("lives_s", [3_600, 60, 86_400])
def test_a_record_lives_as_long_as_its_result_or_its_idempotency_key(queue: Queue, lives_s: int) -> None:
    job = Embed(["storm"], id="x")
    if lives_s == 86_400:
        queue.put_once("bulk", job, "key")
        (once,) = queue.redis.scan_iter(queue.keys.once("*"))
        assert lives_s - SLACK_S < queue.redis.ttl(once) <= lives_s
    else:
        queue.put("bulk", [job])
    answer(queue)
    if lives_s == 60:
        queue.wait_result("x", 0)
        assert 0 < queue.redis.ttl(queue.keys.result("x")) <= lives_s
    assert lives_s - SLACK_S < queue.redis.ttl(queue.keys.record("x")) <= lives_s


def test_an_empty_pool_has_only_keys_that_live_for_ever(queue: Queue) -> None:
    make_jobs_wait(queue)
    queue.leave("w")
    queue.put("interactive", [Embed(["storm"] * 200, reply_to="me") for _ in range(3)], client="b")
    for _ in range(10):
        answer(queue)
    jobs = [Embed(["storm"], reply_to=address) for address in ("me", "me", "me", "me", None)]
    queue.put("bulk", jobs)
    queue.answer(queue.take("w", ["bulk"], 4))
    queue.withdraw([jobs[-1].id])  # the client has had a turn
    assert not queue.redis.exists(queue.keys.of_lane("bulk", "old"), queue.keys.record(jobs[-1].id))
    answer(queue)
    assert not any(queue.backlog().values())
    queue.leave("w")
    left = {name.decode() for name in queue.redis.scan_iter(f"{queue.keys.root}:*")}
    assert left == {queue.keys.replies("me")}
