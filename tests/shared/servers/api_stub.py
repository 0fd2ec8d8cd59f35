"""A worker with made-up answers for the tests of the HTTP front end, and the check of an error's shape."""

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from blocking import Pool
from flask.testing import FlaskClient
from numpy.typing import NDArray
from queues import Queue
from werkzeug.test import TestResponse

from shoal.contract.jobs import LANES, Job
from shoal.contract.keys import Keys
from shoal.contract.options import Options
from shoal.contract.replies import TIMINGS, Reply
from shoal.contract.vectors import SparseVector
from shoal.errors import Expired, Internal, ShoalError, TextTooLong, UnknownIndex, Unsupported
from shoal.operations import Decode, Embed, Rerank, Search, Tokenize
from shoal.queue.consumer import Answer, Delivery
from shoal_api.server.async_flask import AsyncFlask

#: A function that makes an application. Its arguments replace settings.
MakeApp = Callable[..., AsyncFlask]

#: The tags of Shoal's own routes in the OpenAPI document.
OWN = {"wait for the answer", "submit and fetch", "long jobs", "indexes", "dead letters", "service"}

DIMENSION = 4
MAX_TOKENS = 8
INDEX = {
    "count": 3,
    "version": "v1",
    "built_at": "2026-01-01T00:00:00Z",
    "model": "stub",
    "digest": "d",
    "dimension": DIMENSION,
    "prompt": "",
    "num_changes": 0,
    "changes_through": "0-0",
    "fields": {"year": "number"},
}
COUNTERS = {"jobs": 7, "texts": 8, "tokens": 9, "batches": 2, "failed": 1, **dict.fromkeys(TIMINGS, 0.5)}
COUNTERS |= {"cache_hits": 3, "cache_misses": 8, "cache_refused": 4}
COUNTERS |= {"busy_s": 1.5, "cpu_s": 2.5, "claims": 6, "redeliveries": 5}
HISTOGRAM = {"limits": [0.5, 2], "counts": [3, 0, 1], "sum": 10.5}
ABOUT = {
    "state": "ready",
    "model": "stub",
    "digest": "d",
    "fingerprint": "f",
    "dimension": DIMENSION,
    "matryoshka_dimensions": [2, 4],
    "max_tokens": MAX_TOKENS,
    "engine": "none",
    "precision": "f32",
    "threads": 1,
    "host": "here",
    "pid": 1,
    "clock_offset_s": 0.5,
    "clock_error_s": 0.001,
    "indexes": {"default": INDEX},
    "prompts": ["query"],
    "outputs": ["vector", "tokens", "chunks", "sparse", "multivector"],
    "reranker": "stub-reranker",
    "reranker_fingerprint": "r",
    "counters": COUNTERS,
    "waits": {"interactive": HISTOGRAM, "bulk": HISTOGRAM},
    "batches": dict.fromkeys(("texts", "tokens", "fill"), HISTOGRAM),
    "memory_bytes": 2**20,
}


@lru_cache(1_000)
def vector_of(text: str) -> NDArray[np.float32]:
    """Return the stub worker's vector of a text. It is read-only."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    vector = np.random.default_rng(seed).standard_normal(DIMENSION, dtype=np.float32)
    vector.flags.writeable = False
    return vector


def sparse_of(text: str) -> SparseVector:
    """Return the stub worker's sparse vector of a text. The weight of a word's length is a tenth of the length."""
    lengths = np.unique([len(word) for word in text.split()]).astype(np.int32)
    return SparseVector(lengths, (lengths / np.float32(10)).astype(np.float32))


def multivector_of(text: str) -> NDArray[np.float32]:
    """Return the stub worker's multivector of a text: a vector for each word."""
    return np.array([vector_of(word) for word in text.split()], np.float32).reshape(-1, DIMENSION)


def raw_score_of(query: str, text: str) -> np.float32:
    """Return the stub worker's raw score of a text for a query."""
    return np.float32(vector_of(f"{query} {text}")[0])


def examples(api: FlaskClient) -> list[tuple[str, dict[str, Any]]]:
    """Return the path and the body of each example of a POST in the description of the API."""
    description = api.get("/openapi.json").get_json()
    schemas, found = description["components"]["schemas"], []
    for path, methods in description["paths"].items():
        names = re.findall(r"schemas/(\w+)", json.dumps(methods.get("post", {}).get("requestBody")))
        found += [(path, schemas[name]["example"]) for name in dict.fromkeys(names)]
    return found


def close_app(app: AsyncFlask) -> None:
    """Close the connections and threads of an application whose event loop is its own."""
    app.loop.close()
    app.threads.shutdown()
    app.upload_threads.shutdown()
    for each in app.contexts.values():
        each.long_jobs.close()
    app.own.access.close()


class StubWorker:
    """A real consumer of the queue with made-up vectors and hits."""

    def __init__(self, redis_url: str, keys: Keys):
        self.queue = Queue.connect(redis_url, keys)
        self.pool = Pool(self.queue.broker, keys, alive_s=3_600)
        #: The options of each job so far.
        self.asked: list[Options] = []
        #: The trace of each job so far.
        self.traces: list[str | None] = []
        self._open = threading.Event()
        self._open.set()
        self._parked = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self, **about: Any) -> None:
        """Announce the worker and begin to answer."""
        self.announce(**about)
        self._thread.start()

    def announce(self, **about: Any) -> None:
        """Write the worker's heartbeat, with some values replaced. Replies name the heartbeat's model from then on."""
        self._about = ABOUT | about
        self.pool.announce("stub", self._about)

    def pause(self) -> None:
        """Take no more jobs until `resume`, and wait until all taken jobs are answered."""
        self._parked.clear()
        self._open.clear()
        self._parked.wait()

    def resume(self) -> None:
        """Take jobs again."""
        self._open.set()

    def stop(self) -> None:
        """End the worker, even if it is paused."""
        self._stopped.set()
        self._open.set()
        self._thread.join()
        self.queue.close()

    def step(self) -> None:
        """Take the waiting jobs and answer them."""
        deliveries = self.queue.take("stub", LANES, 64, block_s=0.02)
        jobs = [delivery.job() for delivery in deliveries]
        self.asked += [job.options for job in jobs]
        self.traces += [job.traceparent for job in jobs]
        submitted = [d for d, job in zip(deliveries, jobs, strict=True) if job.reply_to is None]
        started = zip(submitted, self.queue.start("stub", submitted), strict=True)
        cancelled = [delivery for delivery, runs in started if not runs]
        pairs = zip(deliveries, jobs, strict=True)
        self.queue.reply([self._answer(delivery, job) for delivery, job in pairs if delivery not in cancelled])

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self._open.is_set():
                self._parked.set()
                self._open.wait()
            try:
                self.step()
            except ShoalError:
                self._stopped.wait(0.02)

    def _answer(self, delivery: Delivery, job: Job) -> Answer:
        try:
            reply = _reply(job, self._about)
        except ShoalError as error:
            reply = Reply.failure(job.id, error)
        return Answer(delivery, reply, job.reply_to)


def _reply(job: Job, about: Mapping[str, Any]) -> Reply:
    if job.deadline is not None and job.deadline < time.time():
        raise Expired("the deadline passed")
    if "fail" in job.texts:
        raise Internal("the stub was told to fail")
    if isinstance(job, Tokenize):
        rest = {"special": job.special_tokens, "start": 0}
        found = [{"id": len(text), "text": text, "stop": len(text)} | rest for text in job.texts]
        return Reply(job.id, pieces=[[piece] for piece in found])
    if isinstance(job, Decode):
        return Reply(job.id, decoded=[f"text {ids}, {job.special_tokens}" for ids in job.texts])
    lengths = [len(text.split()) + 2 for text in job.texts]
    if not job.options.truncate and max(lengths) > MAX_TOKENS:
        raise TextTooLong(f"a text has {max(lengths)} tokens and the model takes {MAX_TOKENS}")
    tokens = [min(length, MAX_TOKENS) for length in lengths]
    reply = Reply(
        job.id,
        tokens=tokens,
        truncated=[length > MAX_TOKENS for length in lengths],
        characters=[len(" ".join(text.split()[: MAX_TOKENS - 2])) for text in job.texts],
        timings=dict(zip(TIMINGS, (0.001, 0.002, 0.003, 0.004), strict=True)),
        model=about["model"],
        fingerprint="f",
    )
    if isinstance(job, Rerank):
        return replace(reply, scores=_scores(job), model="stub-reranker", fingerprint="r")
    if isinstance(job, Search):
        return replace(reply, hits=_hits(job))
    assert isinstance(job, Embed)
    if job.options.output == "chunks":
        chunks = [_chunks(text) for text in job.texts]
        rows = np.repeat([vector_of(text) for text in job.texts], list(map(len, chunks)), axis=0)
        return replace(reply, vectors=rows, output="chunks", chunks=chunks)
    return replace(reply, **_outputs(job, tokens, about["outputs"]))


def _outputs(job: Embed, tokens: list[int], known: list[str]) -> dict[str, Any]:
    outputs = job.options.outputs
    if unknown := sorted({*outputs} - {*known}):
        raise Unsupported(f"the model stub makes no {unknown[0]}: it makes {', '.join(known)}")
    made: dict[str, Any] = {"output": outputs[0]}
    if outputs[0] in ("vector", "tokens"):
        vectors = np.array([vector_of(text) for text in job.texts])
        is_long = outputs[0] == "tokens"
        made["vectors"] = np.repeat(vectors, tokens, axis=0) if is_long else vectors[:, : job.options.dimensions]
    if "sparse" in outputs:
        made["sparse"] = list(map(sparse_of, job.texts))
    if "multivector" in outputs:
        made["multivectors"] = list(map(multivector_of, job.texts))
    if "twice" in job.texts:
        made["sparse"] *= 2
    return made


def _chunks(text: str) -> list[dict[str, Any]]:
    """Return a chunk for each word, or one for a text without words."""
    places = [match.span() for match in re.finditer(r"\S+", text)] or [(0, 0)]
    return [{"start": start, "stop": stop, "tokens": 3} for start, stop in places]


def _scores(job: Rerank) -> NDArray[np.float32]:
    if "unscored" in job.texts:
        raise Unsupported("this worker has no reranker")
    raw = np.array([raw_score_of(job.query or "", text) for text in job.texts])
    return raw if job.raw_scores else 1 / (1 + np.exp(-raw))


def _hits(job: Search) -> list[list[dict[str, Any]]]:
    if job.index != "default":
        raise UnknownIndex(f"no index {job.index!r}: there is default")
    hits = [{"id": str(n), "score": 1 - n / 10, "text": f"document {n}", "topic": "sea"} for n in range(3)]
    return [hits[: job.k] for _ in job.texts]


def error_of(response: TestResponse, status: int) -> tuple[str, str]:
    """Check the status and shape of an error; return its code and message."""
    assert response.status_code == status
    assert response.mimetype == "application/json"
    body = response.get_json()
    assert list(body) == ["error"]
    assert sorted(body["error"]) == ["code", "message"]
    return body["error"]["code"], body["error"]["message"]
