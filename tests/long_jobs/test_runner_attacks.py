"""Attacks by a program that writes into RQ's keys. The runner obeys none of them, and goes on."""

import json
import os
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import RedisServer, wait_until
from long_job_tasks import queue_names
from rq.callbacks import Callback
from rq.command import send_kill_horse_command, send_shutdown_command, send_stop_job_command
from rq.queue import Queue as RqQueue
from rq.serializers import JSONSerializer
from rq.worker import Worker
from test_runner import Place

from shoal.errors import UnknownJob
from shoal.long_jobs.serializer import MsgpackSerializer

#: The name of the file that the attacks try to make.
TOUCHED = "touched"


class Touch:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return (os.open, (str(self.path), os.O_CREAT))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield a place with a runner, which all tests of this module share."""
    folder = tmp_path_factory.mktemp("attacks")
    server = RedisServer(folder)
    server.start()
    place = Place(server, folder)
    place.start()
    wait_until(lambda: place.connection.ping() and place.jobs.num_runners())
    yield place
    place.close()
    server.stop()


def forge(place: Place, job_id: str, data: Any, **fields: Any) -> str:
    """Write a forged job into RQ's keys and its queue, and return its id."""
    name, job_id = queue_names(place.settings.keys)[0], job_id.replace(" ", "-")
    packed = data if isinstance(data, bytes) else MsgpackSerializer.dumps(data)
    values: Any = {"data": zlib.compress(packed), "status": "queued", "origin": name, **fields}
    place.connection.hset(f"rq:job:{job_id}", mapping=values)
    place.connection.rpush(f"rq:queue:{name}", job_id)
    return job_id


def is_refused(place: Place, job_id: str) -> bool:
    """Return True if the job is in no queue any more, and has failed or was never begun."""
    (name, *_), entry = queue_names(place.settings.keys), job_id.encode()
    lists = [place.connection.lrange(f"rq:queue:{name}{part}", 0, -1) for part in ("", ":intermediate")]
    status = place.connection.hget(f"rq:job:{job_id}", "status")
    return entry not in (*lists[0], *lists[1]) and status in (b"queued", b"failed")


def right(place: Place) -> list[Any]:
    """Return the data of a valid job."""
    arguments = {"folder": str(place.folder), "times": 0, "dies": False}
    return [
        "recover",
        None,
        [],
        {"arguments": arguments, "webhook": "http://a/", "client": ""},
    ]  # earlier releases wrote a webhook


def assert_goes_on(place: Place) -> None:
    """Check that the runner runs another job, and that no attack has succeeded."""
    job_id = place.submit("recover", times=0, dies=False)
    assert place.wait(job_id, "done").result == "done"
    assert not (place.folder / TOUCHED).exists()
    assert "Traceback" not in place.log
    assert "is started again" not in place.log


def test_jobs_with_wrong_data_or_fields_are_refused(place: Place) -> None:
    command, pickled = f"touch {place.folder / TOUCHED}", pickle.dumps(Touch(place.folder / TOUCHED))
    options = {"arguments": {}, "client": ""}
    wrong_data: dict[str, Any] = {
        "pickle": pickled,
        "function": ["os.system", None, [command], {}],
        "method": ["long_job_tasks.recover", None, [], options],
        "instance": ["recover", {"__class__": "os"}, [], options],
        "positional arguments": ["recover", None, [command], options],
        "bytes": ["recover", None, [], options | {"arguments": {"folder": pickled}}],
        "odd bytes": b"\xc1",
        "json": json.dumps(["os.system", None, [command], {}]).encode(),
    }
    wrong_fields: dict[str, Any] = {
        **{"meta": pickled, "retries_left": "-1e99", "created_at": "\xff", "started_at": "now"},
        **{"worker_name": b"\xff", "origin": "another"},
    }
    ids = [
        forge(place, f"wrong-{name}", data, retries_left="3", retry_intervals="[0]")
        for name, data in wrong_data.items()
    ]
    ids += [forge(place, f"wrong-{name}", right(place), **{name: value}) for name, value in wrong_fields.items()]
    wait_until(lambda: all(is_refused(place, job_id) for job_id in ids))
    assert_goes_on(place)


def test_fields_that_long_jobs_do_not_have_are_ignored(place: Place) -> None:
    pickled = pickle.dumps(Touch(place.folder / TOUCHED))
    hook = {"url": "http://127.0.0.1:1/", "job_status": "finished", "method": "POST", "headers": None, "timeout": 1}
    odd: dict[str, dict[str, Any]] = {
        "callbacks": {f"{when}_callback_name": "os.abort" for when in ("success", "failure", "stopped")},
        "webhooks": {"webhooks": json.dumps([hook])},
        "result": {"result": pickled, "exc_info": pickled},
        "repeat": {"repeats_left": "1000", "repeat_intervals": "[0]"},
        "dependencies": {"dependency_ids": '["a"]', "dependency_id": "a"},
        "limits": {"rate_limit_key": "a", "rate_limit_concurrency": "1", "group_id": "a"},
        "numbers": dict.fromkeys(("timeout", "result_ttl", "failure_ttl", "ttl"), "-1e99"),
        "flags": dict.fromkeys(("enqueue_at_front", "allow_dependency_failures", "number_of_retries"), "x"),
        "worker": {"worker_name": "\n[31m", "description": "\n[31m"},
    }
    forge(place, "dependent", right(place), status="deferred")
    for name in odd:
        place.connection.sadd(f"rq:job:odd-{name}:dependents", b"\xff", "dependent")
    for job_id in [forge(place, f"odd-{name}", right(place), **fields) for name, fields in odd.items()]:
        place.wait(job_id, "done")
    assert_goes_on(place)
    assert place.connection.hget("rq:job:dependent", "status") == b"deferred"


def test_entries_that_name_no_job_are_dropped(place: Place) -> None:
    name = queue_names(place.settings.keys)[0]
    between = f"rq:queue:{name}:intermediate"
    place.connection.set("rq:job:text", "x")
    for entry in (b"\xff\xfe", "a/b", "", "x" * 10_000, "unknown", "text"):
        place.connection.rpush(f"rq:queue:{name}", entry)
        place.connection.rpush(between, entry)
    for registry in ("wip", "scheduled", "failed", "deferred", "finished", "canceled"):
        entries = dict.fromkeys((b"\xff:x", b"unknown", b"a:b:c", b":", b"text"), 1.0)
        place.connection.zadd(f"rq:{registry}:{name}", entries)
    place.connection.sadd(f"rq:workers:{name}", "nobody")
    assert_goes_on(place)
    wait_until(lambda: not place.connection.exists(between, f"rq:wip:{name}", f"rq:scheduled:{name}"))
    with pytest.raises(UnknownJob):
        place.jobs.status("text")


def test_a_registry_of_another_type_stops_no_job(place: Place) -> None:
    key = f"rq:scheduled:{queue_names(place.settings.keys)[0]}"
    place.connection.set(key, "x")
    wait_until(lambda: "failed (Redis refuses (WRONGTYPE" in place.log)
    assert_goes_on(place)
    place.connection.delete(key)


def test_a_finished_job_in_the_queue_is_not_done_again(place: Place) -> None:
    job_id = place.submit("recover", times=0, dies=False)
    place.wait(job_id, "done")
    tries = len(place.lines("tries"))
    place.connection.rpush(f"rq:queue:{queue_names(place.settings.keys)[0]}", job_id, job_id)
    assert_goes_on(place)
    assert len(place.lines("tries")) == tries + 1


def test_commands_over_pub_sub_are_ignored(place: Place) -> None:
    job_id = place.submit("ignore")
    place.wait(job_id, "running")
    for worker in Worker.all(place.connection, serializer=MsgpackSerializer):
        send_kill_horse_command(place.connection, worker.name)
        send_shutdown_command(place.connection, worker.name)
    send_stop_job_command(place.connection, job_id, MsgpackSerializer)
    place.let_go()
    place.wait(job_id, "done")
    assert_goes_on(place)


def test_rqs_own_client_can_submit_nothing(place: Place) -> None:
    name = queue_names(place.settings.keys)[0]
    queues = [RqQueue(name, place.connection, serializer=kind) for kind in (None, JSONSerializer, MsgpackSerializer)]
    touch: Any = ("os.mkdir", str(place.folder / TOUCHED))
    ids = [queue.enqueue(*touch, on_failure=Callback("os.abort")).id for queue in queues]
    wait_until(lambda: all(is_refused(place, job_id) for job_id in ids))
    assert_goes_on(place)
