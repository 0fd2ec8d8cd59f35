"""Bad input gets the answer that bad_input.md quotes, and the service continues as before."""

import json
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
from page import BadInput
from process import run, run_on_small_disk
from queues import queue_of
from service import Service, service

from shoal import Client
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.contract.options import Options
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.scratch import SCRATCH
from shoal_workers.index.index import Index, current_version

GOOD = {"inputs": "storm in europe"}
MANY = ["storm"] * 100_000
LONG = "storm " * 100
DOCUMENTS, DOCUMENT = "/v1/indexes/default/documents", {"id": "7", "text": "storm"}

#: Requests that HTTP refuses: the row of the page, the path and the body.
REFUSED: dict[str, tuple[str, Any]] = {
    "Not JSON": ("/embed", b"storm"),
    "Wrong type": ("/embed", {"inputs": ["storm", 5]}),
    "Wrong type: JSON, but no object": ("/embed", ["storm"]),
    "Missing field": ("/embed", {"normalize": True}),
    "Unknown field": ("/embed", {"inputs": "storm", "normalise": True}),
    "Unknown query parameter": ("/embed?output_dtype=int8", {"inputs": "storm"}),
    "Empty list": ("/embed", {"inputs": []}),
    "Empty string as a query": ("/search", {"queries": ["storm", ""]}),
    "100,000 texts at once": ("/embed", {"inputs": MANY}),
    "One text of 10 MB": ("/embed", {"inputs": "x" * 10_000_000}),
    "Body of more than 32 MiB": ("/embed", {"inputs": "x" * 2**25}),
    "Text past the model's length, `truncate` off": ("/embed", {"inputs": LONG, "truncate": False}),
    "Lone surrogate": ("/embed", b'{"inputs": "storm \\ud83c"}'),
    "`k` of 0": ("/search", {"queries": "storm", "k": 0}),
    "`k` of -1": ("/search", {"queries": "storm", "k": -1}),
    "`k` of 10,000": ("/search", {"queries": "storm", "k": 10_000}),
    "Unknown index": ("/search", {"queries": "storm", "index": "news"}),
    "Document to add without a text": (DOCUMENTS, {"documents": [{"id": "7", "text": "storm"}, {"id": "8"}]}),
    "Document to add whose id is a number": (DOCUMENTS, {"documents": [{"id": 7, "text": "storm"}]}),
    "Document to add with a field of a hit's own": (DOCUMENTS, {"documents": [DOCUMENT | {"score": 1}]}),
    "Two documents to add with one id": (DOCUMENTS, {"documents": [DOCUMENT, DOCUMENT]}),
    "More than 1,000 documents to add": (DOCUMENTS, {"documents": [DOCUMENT | {"id": str(n)} for n in range(1_001)]}),
    "Document to add to an index that is not served": ("/v1/indexes/news/documents", {"documents": [DOCUMENT]}),
    "Unknown option value": ("/embed", {"inputs": "storm", "pooling": "sum"}),
    "Unknown prompt": ("/embed", {"inputs": "storm", "prompt_name": "poem"}),
    "More `dimensions` than the model has": ("/embed", {"inputs": "storm", "dimensions": 10_000}),
}

#: Jobs that a program puts into Redis itself and a worker refuses: the row of the page and the fields of the job.
FOREIGN: dict[str, dict[str, Any]] = {
    "Msgpack job of the wrong shape: a field is missing": {"v": 1, "op": "embed"},
    "Msgpack job of the wrong shape: a wrong type": {"v": 1, "op": "embed", "texts": "storm"},
    "Job of a future version": {"v": 2, "op": "embed", "texts": ["storm"]},
}

#: Jobs without a readable id, so that no reply is possible.
UNREADABLE: dict[str, bytes] = {
    "Job whose bytes are not msgpack": b"storm",
    "Msgpack job of the wrong shape: no map": msgpack.packb(["storm"]),
}


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


def test_a_bad_request_is_refused_in_words_of_the_page(running: Service, producer: Client, good_vector: Any) -> None:
    def check(name: str) -> None:
        (path, body), row = REFUSED[name], BadInput.row(name)
        response = running.ask("POST", path, body)
        assert response.status == row.status, name
        row.check(**response.body["error"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check, REFUSED))
    assert_still_serving(running, good_vector)
    assert not any(queue_of(producer).backlog().values())


def test_an_odd_request_is_answered(running: Service, encoder: Encoder, index: Index) -> None:
    def answer(name: str, path: str, body: Any) -> Any:
        response = running.ask("POST", path, body)
        assert response.status == BadInput.row(name).status
        return response

    for name, text in (("Empty string as a text", ""), ("NUL byte", "storm\0 rain")):
        vector = encoder.embed([text], Options(), prompt="")
        assert np.array(answer(name, "/embed", {"inputs": text}).body) == pytest.approx(vector, abs=1e-5)
    response = answer("Text past the model's length, `truncate` on", "/embed", {"inputs": LONG})
    assert (response.headers["x-tokens"], response.headers["x-truncated"]) == ("48", "1")
    assert response.body == running.ask("POST", "/embed", {"inputs": f"{LONG} rain"}).body
    response = answer("`k` of more than there are documents", "/search", {"queries": "storm", "k": 1_000})
    assert len(response.body["results"][0]) == index.manifest.count


def test_a_foreign_job_is_answered_with_its_error_or_kept(running: Service, producer: Client, good_vector: Any) -> None:
    queue, keys = queue_of(producer), producer.keys
    for number, (name, job) in enumerate(FOREIGN.items()):
        queue.redis.rpush(keys.lane("interactive"), msgpack.packb(job | {"id": f"foreign-{number}"}))
        _, data = queue.redis.blpop(keys.result(f"foreign-{number}"), PATIENCE_S)
        BadInput.row(name).check(**msgpack.unpackb(data)["error"])
    for name, data in UNREADABLE.items():
        queue.redis.rpush(keys.lane("interactive"), data)
        wait_until(lambda: not any(queue.backlog().values()))
        (letter,) = [values for _, values in queue.redis.xrange(keys.dead) if values[b"job"] == data]
        code, _, message = letter[b"reason"].decode().partition(": ")
        BadInput.row(name).check(code, message)
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
        row, response = BadInput.row("Redis absent at start of `shoal api`"), running.ask("POST", "/embed", GOOD)
        assert response.status == row.status
        row.check(**response.body["error"])
        own_redis.start()
        wait_until(running.is_ready)
        running.worker.send(signal.SIGSTOP)
        submitted = running.ask("POST", "/v1/jobs", {"op": "embed", **GOOD})
        waiting = pool.submit(running.ask, "POST", "/embed", GOOD)
        wait_until(lambda: queue_of(producer).backlog()["interactive"] == 2)
        own_redis.stop()
        row, response = BadInput.row("Redis gone in the middle"), waiting.result()
        assert response.status == row.status
        row.check(**response.body["error"])
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


def assert_ended(name: str, done: "subprocess.CompletedProcess[str]") -> None:
    """Check that a command ended with the exit code, the error code and the message of the row, in one line."""
    line, row = done.stderr.splitlines()[-1], BadInput.row(name)
    message, _, code = line.removeprefix("shoal: ").rpartition(" ")
    assert line.startswith("shoal: ")
    assert row.answer.startswith(f"exit {done.returncode} ")
    row.check(code.strip("[]"), message)
    assert "Traceback" not in done.stderr


#: Damages of an index that a worker refuses: the row of the page, the file and its change.
DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "Index built with another model": (
        "manifest.json",
        lambda data: json.dumps(json.loads(data) | {"model": "a-model", "digest": "0" * 64}).encode(),
    ),
    "Truncated index file": ("vectors.npy", lambda data: data[: len(data) // 2]),
    "Corrupted index file": ("documents.jsonl", lambda data: data.replace(b"storm", b"stork", 1)),
}


def test_a_command_says_why_it_cannot_start(
    running: Service, usual: dict[str, Any], redis_url: str, index_folder: Path, tmp_path: Path
) -> None:
    usual = usual | {"redis_url": redis_url}
    for number, (name, (file, change)) in enumerate(DAMAGES.items()):
        shutil.copytree(index_folder, folder := tmp_path / f"{number}" / "my-index")
        path = current_version(folder) / file
        path.write_bytes(change(path.read_bytes()))
        assert_ended(name, run("worker", **usual | {"indexes": folder}))
    assert_ended("Missing index folder", run("worker", **usual | {"indexes": tmp_path / "my-index"}))
    assert_ended("Missing model folder", run("worker", **usual | {"model": tmp_path / "my-model"}))
    assert_ended("Port in use", run("api", "--port", running.port))
    (tmp_path / "models").symlink_to((usual["home"] / "models").absolute())
    nowhere = {"home": tmp_path, "port": free_port(), "redis_url": f"redis://127.0.0.1:{free_port()}/0"}
    assert_ended("Redis absent at start of `shoal serve`", run("serve", **usual | nowhere))


def test_a_full_disk_keeps_the_index(usual: dict[str, Any], index_folder: Path, tmp_path: Path, index: Index) -> None:
    folder, source = tmp_path / "my-index", tmp_path / "source.txt"
    shutil.copytree(index_folder, folder)
    source.write_text("storm\n" * 1_000)
    done = run_on_small_disk(20_000, "index", "build", source, "--out", folder, **usual)
    assert_ended("Full disk while an index is built", done)
    left = {path.name for path in folder.iterdir()} - {SCRATCH}  # the next build continues from this folder
    assert left == {path.name for path in index_folder.iterdir()}
    assert Index.open(folder).manifest == index.manifest


def test_the_client_refuses_half_a_surrogate_pair_before_it_writes(client: Client) -> None:
    row = BadInput.row("Lone surrogate in `Client.embed`")
    with pytest.raises(Exception, match="surrogate") as caught:
        client.embed(["storm", "rain \ud83c"])
    row.check(caught.value.code, caught.value.message)  # type: ignore[attr-defined]
    assert not any(queue_of(client).backlog().values())
