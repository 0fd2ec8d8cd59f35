"""Every key lives as long as docs/architecture.md says."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from blocking import ChangeLog, Pool
from page import table
from queues import Queue

from shoal.cache.cache import Cache, Entry, Table
from shoal.changes.change import Change
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.long_jobs.long_jobs import LongJobs
from shoal.operations import Embed
from shoal.queue.consumer import Answer
from shoal.queue.dead_letters import DeadLetter
from shoal.settings import Settings
from shoal_api.access.api_keys import ApiKey
from shoal_api.access.rate_limit import RateLimits
from shoal_workers.process.crash_report import CrashReports

PAGE = "docs/architecture.md"

#: The keys of the page and their lives. "the same" means the life of the key before.
LIVES: dict[str, str] = {}
for _key, (*_, _life) in table(PAGE, "Key").items():
    LIVES[_key.strip("`")] = [*LIVES.values()][-1] if _life == "the same" else _life

#: Longest time that the test may take, in seconds. A key may be that much older than expected.
SLACK_S = 60

Act = Callable[[Queue], object]


def put(queue: Queue, num: int = 1, client: str = "", **fields: Any) -> None:
    queue.put("bulk", [Embed(["storm"], **fields) for _ in range(num)], client)


def answer(queue: Queue, letter: DeadLetter | None = None) -> None:
    pairs = [(delivery, delivery.job()) for delivery in queue.take("w", LANES, 10_000)]
    queue.start("w", [delivery for delivery, job in pairs if job.reply_to is None])
    queue.reply(Answer(delivery, Reply(job.id), job.reply_to, letter) for delivery, job in pairs)


def pushed(queue: Queue) -> None:
    queue.redis.rpush(queue.keys.lane("bulk"), Embed(["storm"], reply_to="me").pack())
    queue.take("w", LANES, 1)
    queue.redis.rpush(queue.keys.lane("bulk"), Embed(["storm"], reply_to="me").pack())


def changed(queue: Queue) -> None:
    change = Change((), np.empty((0, 0), np.float32), ("7",), "", 0.0)
    ChangeLog(queue.broker, queue.keys).append("news", change)


def cached(queue: Queue) -> None:
    shape = Table("model", 2, "mean", "print", 1, {}, "")
    entry = Entry(np.ones((1, 2), np.float32), 3, False)
    Cache(queue.broker, queue.keys, shape).store({b"0" * 16: entry})


def submit(queue: Queue, kind: str, key: str) -> None:
    """Submit a long job, over the queue's connections, which its fixture closes."""
    jobs = LongJobs(Settings(key_prefix=queue.keys.prefix, pool=queue.keys.pool))
    vars(jobs)["_broker"] = queue.broker
    jobs.submit(kind, {}, idempotency_key=key)


def waiting(queue: Queue) -> None:
    put(queue, 9, "a", reply_to="me")
    queue.take("w", LANES, 4)
    put(queue, client="b", reply_to="me")


queued, called, listed = partial(put, id="x"), partial(put, reply_to="me"), partial(submit, kind="embed_file", key="k")
submitted: tuple[Act, ...] = (queued, answer)
read: tuple[Act, ...] = (*submitted, lambda queue: queue.wait_result("x", 0))
once: tuple[Act, ...] = (lambda queue: queue.put_once("bulk", Embed(["storm"], id="x"), "key"), answer)
announced: tuple[Act, ...] = (
    lambda queue: Pool(queue.broker, queue.keys).announce("w", {"state": "ready", "limits": {"max_jobs": 7}}, "p"),
)

#: The keys of the page, each with the acts that make it, a function that names it, and the seconds for which it then
#: lives. None is for keys that live for ever, or as long as they are not empty.
EXAMPLES: list[tuple[str, tuple[Act, ...], Callable[[Keys], str], int | None]] = [
    ("lane:<name>", (pushed,), lambda keys: keys.lane("bulk"), None),
    ("lane:<name>:jobs", (waiting,), lambda keys: keys.of_lane("bulk", "jobs"), None),
    ("lane:<name>:load", (waiting,), lambda keys: keys.of_lane("bulk", "load"), None),
    ("lane:<name>:of:<client>", (waiting,), lambda keys: keys.of_lane("bulk", "of:a"), None),
    ("lane:<name>:new", (waiting,), lambda keys: keys.of_lane("bulk", "new"), None),
    ("lane:<name>:old", (waiting,), lambda keys: keys.of_lane("bulk", "old"), None),
    ("lane:<name>:credit", (waiting,), lambda keys: keys.of_lane("bulk", "credit"), None),
    ("lane:<name>:wake", (waiting,), lambda keys: keys.of_lane("bulk", "wake"), None),
    ("lane:pushed", (pushed,), lambda keys: keys.lane("pushed"), None),
    (
        "suspects",
        (queued, lambda queue: queue.take("w", LANES, 1), lambda queue: queue.die("w")),
        lambda keys: keys.suspects,
        None,
    ),
    ("held:<worker_id>", (waiting,), lambda keys: keys.held("w"), None),
    ("holders", (waiting,), lambda keys: keys.holders, None),
    ("replies:<address>", (called, answer), lambda keys: keys.replies("me"), 3_600),
    ("result:<job_id>", submitted, lambda keys: keys.result("x"), 3_600),
    ("result:<job_id>", read, lambda keys: keys.result("x"), 60),
    ("job:<job_id>", (queued,), lambda keys: keys.record("x"), None),
    (
        "job:<job_id>",
        (queued, lambda queue: queue.start("w", queue.take("w", LANES, 10))),
        lambda keys: keys.record("x"),
        None,
    ),
    ("job:<job_id>", submitted, lambda keys: keys.record("x"), 3_600),
    ("job:<job_id>", read, lambda keys: keys.record("x"), 60),
    ("job:<job_id>", once, lambda keys: keys.record("x"), 86_400),
    ("unread", submitted, lambda keys: keys.unread, None),
    ("unread:load", submitted, lambda keys: keys.unread_load, None),
    ("once:<name>", once, lambda keys: keys.once("*"), 86_400),
    ("once:<name>", (listed,), lambda keys: keys.once("*"), 86_400),
    ("long-jobs", (listed,), lambda keys: keys.long_jobs, 34_560_000),
    ("long-jobs:<client>", (listed,), lambda keys: keys.long_jobs_of("*"), 34_560_000),
    ("changes:<index>", (changed,), lambda keys: keys.changes("news"), None),
    ("changed", (changed,), lambda keys: keys.changed, None),
    ("cache:<place>", (cached,), lambda keys: keys.cache("0"), 86_400),
    (  # two windows, because the previous one counts in part
        "rate",
        (lambda queue: RateLimits(queue.broker, queue.keys).count(ApiKey("web", "user", b"", "100/minute")),),
        lambda keys: f"{keys.rates}*",
        120,
    ),
    ("dead", (called, partial(answer, letter=DeadLetter("poisoned: why"))), lambda keys: keys.dead, None),
    ("alive", announced, lambda keys: keys.alive, 3),
    ("processors:<group>", announced, lambda keys: keys.processors("p"), 3),
    ("worker:<worker_id>", announced, lambda keys: keys.worker("w"), 3),
    ("limits", announced, lambda keys: keys.limits, None),
    ("scripts", announced, lambda keys: keys.scripts, None),
    (
        "reclaimed",
        (lambda queue: queue.may_look("w"), lambda queue: queue.consumer("w").reclaim(())),
        lambda keys: keys.reclaimed,
        1,
    ),
    (
        "crash:<worker_id>",
        (lambda queue: CrashReports(queue.broker, queue.keys).write("w", "it crashed", "in line 1"),),
        lambda keys: keys.crash_report("w"),
        3_600,
    ),
]


def test_every_key_of_the_page_has_an_example() -> None:
    assert LIVES.keys() == {f"shoal:{{default}}:{name}" for name, *_ in EXAMPLES}


@pytest.mark.parametrize(("name", "acts", "key", "seconds"), EXAMPLES)
def test_a_key_lives_as_long_as_the_page_says(
    queue: Queue, name: str, acts: tuple[Act, ...], key: Callable[[Keys], str], seconds: int | None
) -> None:
    for act in acts:
        act(queue)
    life = LIVES[f"shoal:{{default}}:{name}"]
    (found,) = queue.redis.keys(re.sub(r"[{}\[\]]", r"\\\g<0>", key(queue.keys)))
    ttl_ms = queue.redis.pttl(found)
    if seconds is None:
        assert ttl_ms == -1
        assert re.match(r"for ever|while|until", life)
        return
    assert seconds - SLACK_S < ttl_ms / 1000 <= seconds
    assert ttl_ms > 0
    said = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) s\b", life)]
    assert seconds in said or name in ("rate", "reclaimed")


def test_an_empty_pool_has_only_keys_that_live_for_ever(queue: Queue) -> None:
    waiting(queue)
    queue.leave("w")
    queue.put("interactive", [Embed(["storm"] * 200, reply_to="me") for _ in range(3)], client="b")
    for _ in range(10):
        answer(queue)
    assert not any(queue.backlog().values())
    queue.leave("w")
    left = {name.decode() for name in queue.redis.scan_iter(f"{queue.keys.root}:*")}
    assert left == {queue.keys.replies("me")}
