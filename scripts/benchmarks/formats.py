"""The formats of vectors through HTTP: bytes, the times of an answer and of reading it, and what number types lose."""

import io
import json
import random
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPMessage
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgpack
import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray
from safetensors.numpy import load
from stack import DATA, stack

from benchmarks.plan import Plan, say
from benchmarks.trial import Row
from shoal.errors import NotReady

#: Numbers of texts in a request.
BATCHES = (32, 256)

#: The format that most programs read.
SLOWEST = "JSON, read by `json`"

#: Texts that the cache has; texts whose vectors are compared, and how many of them are queries for the rest.
NUM_CACHED, NUM_COMPARED, NUM_QUERIES = 4_096, 10_000, 500

#: Texts in one request of that comparison.
COMPARED_AT_ONCE = 500

#: Rounds with texts that the cache has, in times of those with others.
CACHED_ROUNDS = 10


class Answer(NamedTuple):
    """An answer: its headers, its body, and the time from the request to its last byte."""

    headers: HTTPMessage
    body: bytes
    seconds: float


class Format(NamedTuple):
    """A format: how it is asked for, and how its answer becomes an array `[texts, dimension]`."""

    decode: Callable[[Answer], NDArray[Any]]
    accept: str = "application/json"
    path: str = "/embed"
    fields: dict[str, Any] = {}  # noqa: RUF012

    def ask(self, connection: HTTPConnection, texts: Sequence[str]) -> Answer:
        """Ask for the vectors of the texts."""
        name = "input" if self.path.startswith("/v1") else "inputs"
        data = orjson.dumps({name: texts, **self.fields})
        started_s = time.perf_counter()
        connection.request("POST", self.path, data, {"Accept": self.accept, "Content-Type": "application/json"})
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise NotReady(f"{self.path} answered {response.status}: {body[:200].decode()}")
        return Answer(response.headers, body, time.perf_counter() - started_s)


def read_raw(answer: Answer) -> NDArray[Any]:
    """Return the array of raw bytes; int8 is multiplied by its scales."""
    shape = tuple(map(int, answer.headers["X-Shape"].split(",")))
    rows: NDArray[Any] = np.frombuffer(answer.body, answer.headers["X-Dtype"], shape[0] * shape[1]).reshape(shape)
    if rows.dtype == np.int8:
        rows = rows * np.frombuffer(answer.body, "<f4", offset=rows.nbytes)[:, None]
    return rows


def _msgpack(answer: Answer) -> NDArray[Any]:
    array = msgpack.unpackb(answer.body)["embeddings"]
    return np.frombuffer(array["data"], array["dtype"]).reshape(array["shape"])


def _arrow(answer: Answer) -> NDArray[Any]:
    column = pa.ipc.open_stream(answer.body).read_all()["embeddings"].chunk(0)
    return np.asarray(column.flatten()).reshape(len(column), -1)


def _base64(answer: Answer) -> NDArray[Any]:
    rows = [b64decode(item["embedding"]) for item in orjson.loads(answer.body)["data"]]
    return np.frombuffer(b"".join(rows), "<f4").reshape(len(rows), -1)


#: Every format that is measured, by the words for it.
FORMATS: dict[str, Format] = {
    SLOWEST: Format(lambda answer: np.array(json.loads(answer.body), np.float32)),
    "JSON, read by `orjson`": Format(lambda answer: np.array(orjson.loads(answer.body), np.float32)),
    "base64 of OpenAI's route": Format(_base64, path="/v1/embeddings", fields={"encoding_format": "base64"}),
    "msgpack": Format(_msgpack, "application/msgpack"),
    "raw": Format(read_raw, "application/octet-stream"),
    "`.npy`": Format(lambda answer: np.load(io.BytesIO(answer.body)), "application/x-npy"),
    "safetensors": Format(lambda answer: load(answer.body)["embeddings"], "application/x-safetensors"),
    "Arrow": Format(_arrow, "application/vnd.apache.arrow.stream"),
    "raw float16": Format(read_raw, "application/octet-stream", fields={"output_dtype": "float16"}),
    "raw int8, restored": Format(read_raw, "application/octet-stream", fields={"output_dtype": "int8"}),
    "raw ubinary": Format(read_raw, "application/octet-stream", fields={"output_dtype": "ubinary"}),
}


def run(plan: Plan) -> list[Row]:
    """Measure all formats with texts that the cache has and with others, and what the number types lose."""
    if not (DATA / "datasets.py").exists():
        say("formats: the data folder is missing; name it with SHOAL_DATA")
        return []
    known, others = plan.texts.headlines[:NUM_CACHED], iter(plan.texts.headlines[NUM_COMPARED:])
    with stack() as shoal, closing(HTTPConnection(urlsplit(shoal.url).netloc, timeout=300)) as connection:
        say("formats: accuracy")
        rows = accuracy(connection, plan.texts.headlines[:NUM_COMPARED], NUM_QUERIES)
        say("formats: times")
        rows += measure("from the cache", connection, lambda size: known[:size], CACHED_ROUNDS * plan.runs)
        return rows + measure("computed", connection, lambda size: [*islice(others, size)], plan.runs)


def accuracy(connection: HTTPConnection, texts: Sequence[str], num_queries: int) -> list[Row]:
    """Return the mean and least cosine of restored vectors, and the share of the 10 nearest that are found, by type."""
    exact = _vectors(connection, texts, "float32")
    expected = _nearest(exact[:num_queries] @ exact[num_queries:].T)
    found = []
    for name in ("float16", "int8", "ubinary"):
        rows = _vectors(connection, texts, name)
        if name == "ubinary":  # the order of dot products of signs is that of the numbers of equal bits
            rows = np.unpackbits(rows, axis=1)[:, : exact.shape[1]] * 2.0 - 1
        rows = rows.astype(np.float32)
        cosines = (rows * exact).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(exact, axis=1)
        near = _nearest(rows[:num_queries] @ rows[num_queries:].T)
        share = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(expected.tolist(), near.tolist(), strict=True)])
        figures = {"mean cosine": cosines.mean(), "least cosine": cosines.min(), "of the 10 nearest": share}
        case = f"{len(texts):,} texts"
        found.append(Row("formats", case, name, {f"accuracy: {each}": [float(x)] for each, x in figures.items()}))
    return found


def _vectors(connection: HTTPConnection, texts: Sequence[str], number_type: str) -> NDArray[Any]:
    """Return the vectors of all texts in a number type; int8 ones are restored."""
    way = Format(read_raw, "application/octet-stream", fields={"output_dtype": number_type})
    parts = (texts[n : n + COMPARED_AT_ONCE] for n in range(0, len(texts), COMPARED_AT_ONCE))
    return np.concatenate([read_raw(way.ask(connection, part)) for part in parts])


def _nearest(similarity: NDArray[Any]) -> NDArray[Any]:
    """Return the columns of the 10 largest numbers of each row."""
    return np.argpartition(-similarity, 10, axis=1)[:, :10]


def measure(where: str, connection: HTTPConnection, take: Callable[[int], Sequence[str]], num_rounds: int) -> list[Row]:
    """Return the bytes of each format, and the milliseconds of its answer and of reading it, of each round.

    `take` returns so many texts for a request. Each round takes the formats in another order, after one to warm up.
    """
    order = random.Random(0)
    found: dict[tuple[int, str], list[dict[str, float]]] = {(size, name): [] for size in BATCHES for name in FORMATS}
    for _ in range(num_rounds + 1):
        for size, name in order.sample(list(found), len(found)):
            found[size, name].append(_once(FORMATS[name], connection, take(size)))
    rows = []
    for (size, name), (_, *rounds) in found.items():
        figures = {figure: [each[figure] for each in rounds] for figure in rounds[0]}
        rows.append(Row("formats", f"{size} vectors {where}", name, figures))
    return rows


def _once(way: Format, connection: HTTPConnection, texts: Sequence[str]) -> dict[str, float]:
    answer = way.ask(connection, texts)
    started_s = time.perf_counter()
    way.decode(answer)
    reading_s = time.perf_counter() - started_s
    return {
        "bytes": len(answer.body),
        "answer ms": answer.seconds * 1e3,
        "reading ms": reading_s * 1e3,
        "both ms": (answer.seconds + reading_s) * 1e3,
    }
