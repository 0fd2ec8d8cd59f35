"""The formats of vectors through HTTP: their bytes, the time of an answer, and the time to read it."""

import io
import json
import random
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPMessage
from typing import Any, NamedTuple

import msgpack
import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray
from safetensors.numpy import load

from shoal.bench.trial import Row

#: Numbers of texts in a request.
BATCHES = (32, 256)

#: The format that the others are compared with.
SLOWEST = "JSON, read by `json`"

Vectors = NDArray[np.float32]


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
            raise SystemExit(f"{self.path} answered {response.status}: {body[:200].decode()}")
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


def measure(
    scenario: str, connection: HTTPConnection, take: Callable[[int], Sequence[str]], num_rounds: int
) -> list[Row]:
    """Return the bytes of each format, and the milliseconds of its answer and of reading it, of each round.

    `take` returns so many texts for a request. Each round takes the formats in another order, after one to warm up.
    """
    order = random.Random(0)
    found: dict[tuple[int, str], list[dict[str, float]]] = {(size, name): [] for size in BATCHES for name in FORMATS}
    for _ in range(num_rounds + 1):
        for size, name in order.sample(list(found), len(found)):
            found[size, name].append(_once(FORMATS[name], connection, take(size)))
    return [
        Row(scenario, f"{size} vectors", name, {figure: [each[figure] for each in runs[1:]] for figure in runs[0]})
        for (size, name), runs in found.items()
    ]


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
