"""docs/redis-users.acl on a real server: each user has the permissions that it needs, and no others."""

import hashlib
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from api_process import Answer, ApiProcess
from blocking import ChangeLog, Pool
from changes import change
from conftest import PATIENCE_S, ROOT, TESTS, RedisServer, free_port, redis_program, running, wait_until
from long_job_tasks import KINDS
from plain_producer import PlainProducer
from process import Process, environment, run
from queues import Queue, connect, queue_of, set_limits

from shoal import Client
from shoal.broker.broker import Broker
from shoal.changes.change_log import START
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.errors import InvalidRequest, Overloaded, ShoalError, Timeout
from shoal.long_jobs.long_jobs import LongJobs
from shoal.operations import Embed
from shoal.queue.lane import LaneLimits
from shoal.settings import Settings
from shoal_api.access import api_keys
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker
from shoal_workers.service.service import about

ACL = ROOT / "docs" / "redis-users.acl"

#: The values that a producer built from the pages gets.
FOUND = {
    "replies": ["done", "done", "done", "done", "failed", "cancelled"],
    "put": [True] * 3,
    "again": {"status": "ok", "is_new": [False]},
    "queued": ["queued", "none", "queued"],
    "cancelled": [*[{"status": "cancelled"}] * 3, {"is_unknown": True}],
    "once": ["ok", "known", "reused"],
    "too_large": "too_large",
    "errors": [
        "jobs[0].texts is one: it takes a whole number from 1 to 999,999",
        "once.key is : it takes a string of 1 to 1,024 bytes",
        "lane is slow: it takes interactive or bulk",
    ],
    "answers": ["done", "done", "cancelled"],
    "done": ["done", "none"],
    "examples": {
        **{"php-7-1": 2, "q-1": 2, "all-1": 1, "tok-1": 7, "rank-1": 2, "long-1": 2},
        "q-2": "unknown_index",
        "q-3": "invalid_request",  # the index of the tests has no field `year`
    },
    "deadlines": ["expired", "expired", "done"],
    "ignored": ["normalise"],
    "broken": {
        "code": "malformed_job",
        "message": "the 1 bytes are not one msgpack map: one of them cannot begin a value",
    },
    "broken_status": "failed",
}

#: Whether the server is older than Redis 7, and so has no rules that only allow reading.
IS_OLD = " v=6." in subprocess.run([redis_program(), "--version"], capture_output=True, text=True, check=True).stdout

#: The keys of jobs, the keys of long jobs and changes of indexes, and all keys, by their names in `Keys`.
_JOBS = {"lane", "held", "suspects", "replies", "result", "unread", "unread_load", "record", "once"}
_LONG = {"long_jobs", "long_jobs_of", "changes", "changed"}
_ALL = {name for name in dir(Keys()) if not name.startswith("_")}

#: For each user, the keys that it writes and the keys that it only reads (SECURITY.md). A new key is only in `_ALL`.
ACCESS = {
    "shoal-api": (_JOBS | _LONG | {"rates", "dead"}, _ALL),
    "shoal-jobs": (_JOBS | _LONG, _ALL),
    "shoal-producer": (_JOBS, {"alive", "worker", "cache", "limits", "scripts"}),
    "shoal-worker": (_ALL, _ALL),
}

#: A function that sends a request with an API key.
Ask = Callable[..., Answer]

#: The word by which a watch ends itself.
END = "the watch ends"

#: Commands that no test here makes a user send: a worker deletes dead letters if there are over 10,000.
RARE = {"shoal-worker": {"xdel", "xlen"}}

#: Commands that have subcommands.
CONTAINERS = ("client", "script", "xgroup", "xinfo")


class Place(NamedTuple):
    """A Redis with the users of the file. The user `api` connects over a Unix socket, so that `Watch` recognises it."""

    server: RedisServer
    api: str
    worker: str
    admin: Any


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    text = ACL.read_text()
    if IS_OLD:
        text = text.replace("%R~", "~")
    for user in ("admin", "api", "jobs", "producer", "worker"):
        text = text.replace(f"{user.upper()}-PASSWORD-SHA256", hashlib.sha256(user.encode()).hexdigest())
    (tmp_path / "users.acl").write_text(text)
    server = RedisServer(tmp_path, aclfile=tmp_path / "users.acl", unixsocket=tmp_path / "redis.sock")
    own = server.url.removeprefix("redis://")
    server.url = f"redis://shoal-admin:admin@{own}"
    server.start()
    with redis.Redis.from_url(server.url, decode_responses=True) as admin:
        limits = f"socket_timeout={PATIENCE_S}&socket_connect_timeout={PATIENCE_S}"
        api = f"unix://shoal-api:api@{tmp_path}/redis.sock?db=0&{limits}"
        yield Place(server, api, f"redis://shoal-worker:worker@{own}", admin)
    server.stop()


class Watch:
    """The commands of each user, which is recognised by the kind of its socket."""

    def __init__(self, url: str):
        self.used: dict[str, set[str]] = defaultdict(set)
        self._url = url
        self._connection = connect(url)
        self._thread = threading.Thread(target=self._watch)
        self._is_watching = threading.Event()

    def __enter__(self) -> "Watch":
        self._thread.start()
        assert self._is_watching.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.echo(END)
        self._connection.close()
        self._thread.join()

    def _watch(self) -> None:
        user = ""
        with redis.Redis.from_url(self._url, socket_timeout=None) as connection, connection.monitor() as monitor:
            self._is_watching.set()
            while END not in (seen := monitor.next_command())["command"]:
                if seen["client_type"] != "lua":  # a script's commands are the commands of the user who runs it
                    user = "shoal-api" if seen["client_type"] == "unix" else "shoal-worker"
                words = seen["command"].lower().split()
                self.used[user].add("|".join(words[:2]) if words[0] in CONTAINERS else words[0])


def granted() -> dict[str, set[str]]:
    lines = [line.split() for line in ACL.read_text().splitlines()]
    return {line[1]: {word[1:] for word in line if word.startswith("+")} for line in lines}


class Runner(Process):
    """A runner that knows the kinds of long jobs in `long_job_tasks`."""

    def __init__(self, log: Path, **settings: Any):
        self.log = log
        command = [sys.executable, str(TESTS / "shared/pool/long_job_tasks.py")]
        env = environment(**settings) | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, env=env, stdout=output, stderr=output)


def succeeds(ask: Ask, path: str) -> bool:
    try:
        return ask("GET", path).status == 200
    except OSError:
        return False


def use_long_jobs(url: str) -> None:
    with LongJobs(Settings(redis_url=url)) as jobs:
        first, second = (jobs.submit("embed_file", {"n": n}, idempotency_key=str(n)) for n in range(2))
        assert jobs.submit("embed_file", {"n": 1}, idempotency_key="1") == second
        assert [jobs.cancel(first), jobs.retry(first)] == ["cancelled", "queued"]
        with connect(url) as connection:
            connection.hset(f"rq:job:{second}", "status", "finished")
        assert jobs.status(second).result is None
        with pytest.raises(InvalidRequest):
            jobs.retry(second)
        assert len(jobs.list()) == 2
        with connect(url) as connection:
            connection.delete(f"rq:job:{second}")
        assert len(jobs.list()) == 1
        assert jobs.num_runners() == 0


def use_clients(place: Place) -> None:
    """Use Redis like programs that put jobs, and like three workers that die of a job."""
    lane, result = Keys().lane("interactive"), Keys().result("by-hand")
    for url in (place.api.replace("db=0", "db=1"), place.worker.replace("/0", "/1")):
        with connect(url) as elsewhere:
            assert elsewhere.ping()
    with connect(place.api) as producer:  # docs/protocol.md
        producer.rpush(lane, Embed(["storm"], id="by-hand").pack())
        assert producer.blpop(result, 0.01) is None
        assert producer.hget(Keys().record("by-hand"), "status") is None
    with closing(Queue.connect(place.worker, Keys())) as dying:
        for n in range(3):
            assert [one.deaths for one in dying.take(f"dying {n}", LANES, 1)] == [n]
            dying.die()
        dying.pool.leave("reaper")
    with closing(Queue.connect(place.worker, Keys(pool="idle"))) as queue:
        assert not queue.take("w", LANES, 1, block_s=0.01)
    use_long_jobs(place.api)
    with Client(place.api, timeout_s=0.05) as client:
        assert client.submit("embed", "storm").cancel() == "cancelled"
        client.submit("embed", ["storm"] * 33)  # a worker runs the job later
        with pytest.raises(Timeout):
            client.submit("embed", "storm").result()
    with closing(Queue.connect(place.worker, Keys())) as queue:
        set_limits(queue, LaneLimits(max_unread_bytes=0))
        with Client(place.api) as refused, pytest.raises(Overloaded):
            refused.submit("embed", "storm")
        set_limits(queue, LaneLimits())
    with Client(place.api, timeout_s=0.05) as client, pytest.raises(Timeout):
        client.embed("storm")  # the job is withdrawn after the timeout


def use_changes(place: Place) -> None:
    with closing(Broker.connect(place.api)) as broker:
        position = ChangeLog(broker, Keys()).append("news", change(deleted=["7"]))
    with closing(Broker.connect(place.worker)) as broker:
        log = ChangeLog(broker, Keys())
        assert log.positions() == {"news": position}
        assert [entry.position for entry in log.since("news", START).entries] == [position]


def fold(url: str) -> None:
    with closing(Broker.connect(url)) as broker:
        log = ChangeLog(broker, Keys())
        position = log.append("news", change(deleted=["7"]))
        log.fold("news", position, [position])


def push_and_take_result(place: Place) -> None:
    with connect(place.api) as producer:
        producer.rpush(Keys().lane("interactive"), Embed(["storm"], id="pushed").pack())
        wait_until(lambda: producer.hget(Keys().record("pushed"), "status") == b"done")
        wait_until(lambda: producer.blpop(Keys().result("by-hand"), 0.01))


def use_api(caller: Ask, admin: Ask, limited: Ask) -> None:
    assert caller("POST", "/embed", {"inputs": "storm"})[0] == 200
    assert caller("POST", "/embed", {"inputs": "storm"})[0] == 200
    assert caller("POST", "/search", {"queries": "storm", "k": 1})[0] == 200
    for _ in range(2):
        submitted = caller("POST", "/v1/jobs", {"op": "embed", "inputs": "rain"}, idempotency_key="once")
        assert submitted.status == 202
    job = submitted.body
    assert caller("GET", f"/v1/jobs/{job['id']}/result?wait=60")[0] == 200
    assert caller("GET", f"/v1/jobs/{job['id']}")[1]["status"] == "done"
    assert caller("DELETE", f"/v1/jobs/{job['id']}")[0] == 200
    for path in ("/info", "/v1/indexes", "/metrics"):
        assert caller("GET", path)[0] == 200
    assert [limited("GET", "/info")[0] for _ in range(3)] == [200, 200, 429]
    wait_until(lambda: admin("GET", "/v1/dead")[1]["dead"])
    (letter,) = admin("GET", "/v1/dead")[1]["dead"]
    assert admin("GET", f"/v1/dead/{letter['id']}")[0] == 200
    assert admin("POST", f"/v1/dead/{letter['id']}/retry")[0] == 202
    assert admin("DELETE", f"/v1/dead/{letter['id']}")[0] == 404


@pytest.mark.wide
def test_users_have_all_permissions_that_they_need_and_no_others(
    place: Place, tiny_source: Path, home: Path, index_folder: Path, tmp_path: Path
) -> None:
    port, key_file = free_port(), tmp_path / "keys"
    keys = [
        api_keys.add(key_file, *about)
        for about in (("a", "user", ""), ("b", "admin", ""), ("c", "user", "2/hour"), ("d", "user", "1/second"))
    ]
    settings = {"home": home, "model": tiny_source, "indexes": index_folder, "threads": 2}
    with (
        Watch(place.server.url) as watch,
        Process(tmp_path / "api.log", "api", redis_url=place.api, port=port, api_keys_file=key_file) as api,
    ):
        ask = ApiProcess(api, port).ask
        *callers, quick = [partial(ask, authorization=f"Bearer {key}", content_type="application/json") for key in keys]
        use_clients(place)
        use_changes(place)
        with Process(tmp_path / "worker.log", "worker", redis_url=place.worker, **settings) as worker:
            wait_until(lambda: succeeds(callers[0], "/ready"))
            use_api(*callers)
            push_and_take_result(place)
            wait_until(lambda: "zrem" in watch.used["shoal-worker"])  # the worker has noticed that the result is gone
            wait_until(
                lambda: succeeds(quick, "/info") and "rename" in watch.used["shoal-api"]
            )  # needs another window of the rate limit
            status = run("status", redis_url=place.api)
            assert "workers alive: 1" in status.stdout
            worker.kill()
            wait_until(lambda: not succeeds(callers[0], "/ready"))
        with Process(tmp_path / "worker.log", "worker", redis_url=place.worker, **settings) as worker:
            wait_until(lambda: succeeds(callers[0], "/ready"))
            logs = [status.stderr]
            assert (api.terminate(), worker.terminate()) == (0, 0)
        logs += [api.output, worker.output]
    assert place.admin.acl_log() == []
    assert "docs/redis-users.acl" not in "".join(logs)
    allowed = granted()
    for user in ("shoal-api", "shoal-worker"):
        assert sorted(watch.used[user] - {"auth"} | RARE.get(user, set())) == sorted(allowed[user]), user


@pytest.mark.wide
def test_the_runner_has_all_permissions_that_it_needs(place: Place, tmp_path: Path) -> None:
    runner_url = place.api.replace("shoal-api:api", "shoal-jobs:jobs")
    url = place.worker.replace("shoal-worker:worker", "shoal-api:api")
    submitter = LongJobs(Settings(redis_url=url), KINDS)
    with (
        Watch(place.server.url) as watch,
        submitter as jobs,
        Runner(tmp_path / "runner.log", redis_url=runner_url) as runner,
    ):
        names = {name: jobs.submit(name, {"folder": str(tmp_path), "rows": 3}) for name in ("count", "fail")}
        wait_until(lambda: jobs.status(names["count"]).status == "running")
        jobs.cancel(names["count"])
        wait_until(lambda: jobs.status(names["count"]).status == "cancelled")
        wait_until(lambda: jobs.status(names["fail"]).status == "failed")
        jobs.retry(names["count"])
        (tmp_path / "go").write_text("3")
        wait_until(lambda: jobs.status(names["count"]).status == "done")
        again = jobs.submit("recover", {"folder": str(tmp_path), "times": 1, "dies": True})
        wait_until(lambda: jobs.status(again).status == "done")
        fold(runner_url)
        assert runner.terminate() == 0
    assert place.admin.acl_log() == []
    used = watch.used["shoal-api"] - {"auth"}
    assert used <= granted()["shoal-jobs"]
    assert granted()["shoal-jobs"] - used <= granted()["shoal-api"] | {"srem", "unwatch", "zrange", "zrangebyscore"}
    assert "docs/redis-users.acl" not in runner.output


def test_a_producer_built_from_the_pages_needs_only_the_permissions_of_its_user(
    place: Place, encoder: Encoder, reranker: Reranker, index: Index
) -> None:
    url = place.api.replace("shoal-api:api", "shoal-producer:producer")
    with closing(Queue.connect(place.worker, Keys())) as queue, Watch(place.server.url) as watch:
        worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), reranker=reranker)
        Pool(queue.broker, queue.keys, alive_s=PATIENCE_S).announce(worker.id, about(worker))
        with connect(url) as connection:
            producer = PlainProducer(connection, queue.keys.root, ROOT / "docs" / "vectors.json")
            producer.before_a_worker()
            with running(worker):
                producer.with_a_worker()
    assert producer.found == FOUND
    assert place.admin.acl_log() == []
    assert watch.used["shoal-api"] - {"auth"} == granted()["shoal-producer"]


@pytest.mark.parametrize("user", ["api", "producer", "worker"])
def test_no_user_may_do_harm(place: Place, user: str) -> None:
    place.admin.set("others", 1)
    place.admin.set("shoal:{default}:result:x", 1)
    with connect(place.worker.replace("worker:worker@", f"{user}:{user}@")) as connection:
        assert connection.ping()
        for command in (
            ("GET", "others"),
            ("XADD", "others", "*", "a", "b"),
            ("EVAL", "return redis.call('GET', KEYS[1])", "1", "others"),
            ("KEYS", "*"),
            ("SCAN", "0"),
            ("FLUSHALL",),
            ("CONFIG", "GET", "*"),
            ("ACL", "LIST"),
            ("MONITOR",),
            ("REPLICAOF", "NO", "ONE"),
            ("SHUTDOWN",),
            ("CLIENT", "LIST"),
            ("MIGRATE", "127.0.0.1", "1", "shoal:{default}:dead", "0", "1"),
            ("PUBLISH", "a", "b"),
        ):
            with pytest.raises(redis.RedisError, match=r"permission|can't run"):
                connection.execute_command(*command)


@pytest.mark.skipif(IS_OLD, reason="before Redis 7 no user only reads a key")
@pytest.mark.parametrize("user", ACCESS)
def test_each_user_reads_and_writes_the_keys_that_the_pages_name(place: Place, user: str) -> None:
    keys, (writes, reads) = Keys(), ACCESS[user]
    names = _ALL - {"prefix", "pool", "root", "of_lane"}
    samples = {name: key("news") if callable(key := getattr(keys, name)) else key for name in names}
    for command, allowed in ((["HSET", "a", "b"], writes), (["HGET", "a"], writes | reads)):
        verdicts = {
            name: place.admin.execute_command("ACL", "DRYRUN", user, command[0], key, *command[1:])
            for name, key in samples.items()
        }
        assert {name for name, verdict in verdicts.items() if verdict in (True, "OK", b"OK")} == names & allowed


def test_the_file_is_refused_until_its_passwords_are_replaced(tmp_path: Path) -> None:
    command = [redis_program(), "--port", str(free_port()), "--dir", str(tmp_path), "--aclfile", str(ACL)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "hash must be" in done.stdout


def test_no_client_comes_in_without_a_password(place: Place) -> None:
    for url in (place.worker.replace(":worker@", ":guess@"), place.worker.replace("shoal-worker:worker@", "")):
        with pytest.raises(ShoalError, match="Redis URL"), Client(url) as client:
            queue_of(client).ping()
