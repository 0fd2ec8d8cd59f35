"""Bad input gets an exact answer, and the service continues. In an expected message, … stands for any words."""

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import redis
from conftest import PATIENCE_S, RedisServer, free_port, wait_until
from process import run, run_on_small_disk
from queues import queue_of
from service import Service, service

from shoal import Client
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.contract.options import Options
from shoal_api.schema.error_statuses import STATUS
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.scratch import SCRATCH
from shoal_workers.index.index import Index, current_version

GOOD: dict[str, Any] = {"inputs": "storm in europe"}
LONG = "storm " * 100

#: Requests that HTTP refuses: the path, the body, and the code and the message of the answer.
REFUSED: list[tuple[str, Any, str, str]] = [
    ("/embed", b"storm", "invalid_json", "the body is not JSON (… line 1 column 1): send an object …"),
    ("/embed", ["storm"], "invalid_request", "the body is a JSON array: send an object with named fields"),
    ("/embed", {"inputs": ["storm", 5]}, "invalid_request", "inputs[1] is 5: it takes a string"),
    ("/embed", {"normalize": True}, "invalid_request", "inputs is missing: it is required"),
    ("/embed", GOOD | {"normalise": 1}, "invalid_request", 'unknown field "normalise": did you mean normalize?'),
    ("/embed?a=5", GOOD, "invalid_request", 'unknown query parameter "a": there are none here'),
    ("/embed", {"inputs": []}, "invalid_request", "the list of texts is empty: send at least one"),
    ("/search", {"queries": ["a", ""]}, "invalid_request", "queries[1] is empty: there is nothing to search for"),
    ("/embed", {"inputs": ["storm"] * 100_000}, "too_large", "100,000 texts at a time exceed the limit …, 87,500 (SH…"),
    ("/embed", {"inputs": "x" * 10_000_000}, "too_large", "text 0 has 10,000,000 characters …"),
    ("/embed", {"inputs": "x" * 2**25}, "too_large", "the body is larger than 33,554,432 bytes (…): split the list"),
    ("/embed", {"inputs": LONG, "truncate": False}, "text_too_long", "text 0 has more than the 48 tokens of …"),
    ("/embed", b'{"inputs": "storm \\ud83c"}', "invalid_text", "the body has half of a surrogate pair …"),
    ("/search", {"queries": "storm", "k": 0}, "invalid_request", "k is 0: it takes at least 1"),
    ("/search", {"queries": "storm", "k": 10_000}, "invalid_request", "k is 10000: it takes at most 1000"),
    ("/search", {"queries": "storm", "index": "a"}, "unknown_index", 'no index "a": this worker serves default'),
    ("/embed", GOOD | {"prompt_name": "poem"}, "invalid_request", "prompt_name …poem…: [document, query]"),
    ("/embed", GOOD | {"dimensions": 99}, "invalid_request", "dimensions is 99: the vectors of … have 32"),
]

#: Jobs that a program puts into Redis itself and a worker refuses: their fields, and the code and message of the reply.
FOREIGN: list[tuple[dict[str, Any], str, str]] = [
    ({"v": 1, "op": "embed"}, "malformed_job", "the job has no field 'texts': id, op and texts are required"),
    ({"v": 1, "op": "embed", "texts": "a"}, "invalid_request", "texts is a string: it takes a list of strings"),
    ({"v": 2, "op": "embed", "texts": ["a"]}, "unsupported_version", "the job has v 2: this worker speaks version 1"),
]

#: Jobs without a readable id, so that no reply is possible, and the reasons of their dead letters.
UNREADABLE = [
    (b"storm", "malformed_job: the 5 bytes are not one msgpack map: more bytes follow the first value"),
    (msgpack.packb(["storm"]), "malformed_job: the msgpack value is an array: send a map"),
]

NO_REDIS = "Redis does not answer (…): check that it runs and that the Redis URL is right"


def check(expected: str, message: str) -> None:
    """Check that the message is the expected one."""
    assert re.fullmatch(".*".join(map(re.escape, expected.split("…"))), message, re.DOTALL), message


@pytest.fixture(scope="module")
def usual(tiny_source: Path, tiny_model: Path, home: Path, index_folder: Path) -> dict[str, Any]:
    """Return the settings of a service with the tiny model."""
    model = {"model": tiny_source, "home": home, "precision": "f32", "threads": 1}
    return {"key_prefix": "bad", "pool": "input", "indexes": index_folder} | model


@pytest.fixture(scope="module")
def running(
    redis_server: RedisServer, usual: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """Run a service on the tests' Redis."""
    with service(tmp_path_factory.mktemp("running"), redis_url=redis_server.url, **usual) as started:
        wait_until(started.is_ready)
        yield started


@pytest.fixture
def producer(redis_url: str) -> Iterator[Client]:
    """A client of the service's queue."""
    with Client(redis_url, key_prefix="bad", pool="input", timeout_s=PATIENCE_S) as client:
        yield client


@pytest.fixture
def good_vector(encoder: Encoder) -> Any:
    """Return the right vector for the good request."""
    return pytest.approx(encoder.embed([GOOD["inputs"]], Options(), prompt=""), abs=1e-5)


def assert_still_serving(running: Service, good_vector: Any) -> None:
    """Check that the service still answers good requests."""
    response = running.ask("POST", "/embed", GOOD)
    assert (response.status, np.array(response.body)) == (200, good_vector)
    assert len(running.ask("POST", "/search", {"queries": "storm", "k": 3}).body["results"][0]) == 3


def test_a_bad_request_is_refused_with_a_reason(running: Service, producer: Client, good_vector: Any) -> None:
    def refuse(path: str, body: Any, code: str, message: str) -> None:
        response = running.ask("POST", path, body)
        assert (response.status, response.body["error"]["code"]) == (STATUS[code], code), message
        check(message, response.body["error"]["message"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda row: refuse(*row), REFUSED))
    assert_still_serving(running, good_vector)
    assert not any(queue_of(producer).backlog().values())


def test_an_odd_request_is_answered(running: Service, encoder: Encoder, index: Index) -> None:
    for text in ("", "storm\0 rain"):
        vector = encoder.embed([text], Options(), prompt="")
        assert np.array(running.ask("POST", "/embed", {"inputs": text}).body) == pytest.approx(vector, abs=1e-5)
    response = running.ask("POST", "/embed", {"inputs": LONG})
    assert (response.headers["x-tokens"], response.headers["x-truncated"]) == ("48", "1")
    assert response.body == running.ask("POST", "/embed", {"inputs": f"{LONG} rain"}).body
    response = running.ask("POST", "/search", {"queries": "storm", "k": 1_000})
    assert len(response.body["results"][0]) == index.manifest.count


def test_a_foreign_job_is_answered_with_its_error_or_kept(running: Service, producer: Client, good_vector: Any) -> None:
    queue, keys = queue_of(producer), producer.keys
    for number, (job, code, message) in enumerate(FOREIGN):
        queue.redis.rpush(keys.lane("interactive"), msgpack.packb(job | {"id": f"foreign-{number}"}))
        _, data = queue.redis.blpop(keys.result(f"foreign-{number}"), PATIENCE_S)
        assert msgpack.unpackb(data)["error"] == {"code": code, "message": message}
    for data, reason in UNREADABLE:
        queue.redis.rpush(keys.lane("interactive"), data)
        wait_until(lambda: not any(queue.backlog().values()))
        (letter,) = [values for _, values in queue.redis.xrange(keys.dead) if values[b"job"] == data]
        assert letter[b"reason"].decode() == reason
    assert_still_serving(running, good_vector)


def test_a_redis_that_is_absent_is_waited_for_and_when_it_goes_jobs_are_kept(
    own_redis: RedisServer, usual: dict[str, Any], tmp_path: Path, good_vector: Any
) -> None:
    own_redis.stop()
    with (
        service(tmp_path, redis_url=own_redis.url, **usual) as running,
        ThreadPoolExecutor(1) as pool,
        Client(own_redis.url, key_prefix="bad", pool="input") as producer,
    ):
        response = running.ask("POST", "/embed", GOOD)
        assert response.status == 503
        check(NO_REDIS, response.body["error"]["message"])
        own_redis.start()
        wait_until(running.is_ready)
        running.worker.send(signal.SIGSTOP)
        submitted = running.ask("POST", "/v1/jobs", {"op": "embed", **GOOD})
        waiting = pool.submit(running.ask, "POST", "/embed", GOOD)
        wait_until(lambda: queue_of(producer).backlog()["interactive"] == 2)
        own_redis.stop()
        assert waiting.result().status == 503
        check(NO_REDIS, waiting.result().body["error"]["message"])
        running.worker.send(signal.SIGCONT)
        own_redis.start()
        wait_until(running.is_ready)
        result = running.ask("GET", f"{submitted.headers['location']}/result?wait=60")
        assert result.status == 200, result.body
        assert np.array(result.body["embeddings"]) == good_vector
        assert_still_serving(running, good_vector)


def test_a_lane_key_of_another_type_is_reported(own_redis: RedisServer, usual: dict[str, Any], tmp_path: Path) -> None:
    keys = Keys(usual["key_prefix"], usual["pool"])
    needed = [keys.of_lane("interactive", what) for what in ("jobs", "load", "new", "old", "credit")]
    of_puts = [keys.of_lane("bulk", what) for what in ("jobs", "load", "new", "old", "credit")]
    others = [key for lane in LANES for key in (keys.lane(lane), keys.of_lane(lane, "wake"))]
    with (
        service(tmp_path, redis_url=own_redis.url, **usual) as running,
        redis.Redis.from_url(own_redis.url) as other,
    ):
        wait_until(running.is_ready)
        for key in (*needed, *of_puts, *others, keys.unread_load):
            other.pipeline().delete(key).set(key, "something else").execute()
            answer = running.ask("POST", "/embed", {"inputs": key})
            if key not in (*needed, keys.unread_load):  # no interactive put needs this key
                assert answer.status == 200, (key, answer.body)
            else:
                assert answer.status == 503, (key, answer.body)
                assert all(words in answer.body["error"]["message"] for words in (f"{key} ", "delete it"))
            other.delete(key)
            wait_until(running.is_ready)
            assert running.ask("POST", "/embed", {"inputs": f"{key} again"}).status == 200


def assert_ended(done: "subprocess.CompletedProcess[str]", line: str) -> None:
    """Check that a command ended with this line and the exit code 1."""
    assert done.returncode == 1
    check(f"shoal: {line}", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr


#: Damages of an index that a worker refuses: the file, its change, and the last line.
DAMAGES: list[tuple[str, Callable[[bytes], bytes], str]] = [
    (
        "manifest.json",
        lambda data: json.dumps(json.loads(data) | {"model": "a-model", "digest": "0" * 64}).encode(),
        "…/my-index/… was built with a-model (000000000000…), but … SHOAL_MODEL to that model [index_mismatch]",
    ),
    ("vectors.npy", lambda data: data[: len(data) // 2], "…/vectors.npy is not what was built … [index_corrupt]"),
    ("documents.jsonl", lambda data: data.replace(b"storm", b"stork", 1), "…/documents.jsonl is not … [index_corrupt]"),
]


def test_a_command_says_why_it_cannot_start(
    running: Service, usual: dict[str, Any], redis_url: str, index_folder: Path, tmp_path: Path
) -> None:
    usual = usual | {"redis_url": redis_url}
    for number, (file, change, line) in enumerate(DAMAGES):
        shutil.copytree(index_folder, folder := tmp_path / f"{number}" / "my-index")
        path = current_version(folder) / file
        path.write_bytes(change(path.read_bytes()))
        assert_ended(run("worker", **usual | {"indexes": folder}), line)
    line = "…/my-index holds no index: build one with `shoal index build SOURCE --out …/my-index` [index_not_found]"
    assert_ended(run("worker", **usual | {"indexes": tmp_path / "my-index"}), line)
    line = "…/my-model is not a folder of a model: it has neither modules.json nor config.json [model_not_found]"
    assert_ended(run("worker", **usual | {"model": tmp_path / "my-model"}), line)
    line = "127.0.0.1:… is taken by another program: stop it, or choose another --port [port_in_use]"
    assert_ended(run("api", "--port", running.port), line)
    (tmp_path / "models").symlink_to((usual["home"] / "models").absolute())
    nowhere = {"home": tmp_path, "port": free_port(), "redis_url": f"redis://127.0.0.1:{free_port()}/0"}
    assert_ended(run("serve", **usual | nowhere), f"{NO_REDIS} [unavailable]")


def test_a_full_disk_keeps_the_index(usual: dict[str, Any], index_folder: Path, tmp_path: Path, index: Index) -> None:
    folder, source = tmp_path / "my-index", tmp_path / "source.txt"
    shutil.copytree(index_folder, folder)
    source.write_text("storm\n" * 1_000)
    done = run_on_small_disk(20_000, "index", "build", source, "--out", folder, **usual)
    line = (
        "no room to build an index in …/my-index (…): free some space and start the build again, which then goes on; "
    )
    assert_ended(done, f"{line}an index there is unchanged [disk_full]")
    left = {path.name for path in folder.iterdir()} - {SCRATCH}  # the next build continues from this folder
    assert left == {path.name for path in index_folder.iterdir()}
    assert Index.open(folder).manifest == index.manifest
