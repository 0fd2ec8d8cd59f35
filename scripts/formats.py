"""Measures the formats of vectors through HTTP against a running service: docs/formats.md has what it found."""

import argparse
import io
import json
import random
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPMessage
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgpack
import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray
from safetensors.numpy import load
from stack import about_machine, datasets

BATCHES = (32, 256)

#: Texts whose vectors are compared, and how many of them are queries for the rest.
NUM_COMPARED, NUM_QUERIES = 10_000, 500

#: Texts in one request for those.
_BATCH = 500

Vectors = NDArray[np.float32]


class Answer(NamedTuple):
    """An answer: its headers, its body, and the time from the request to its last byte."""

    headers: HTTPMessage
    body: bytes
    seconds: float


class Format(NamedTuple):
    """A format: how it is asked for, and how its answer becomes float32 `[texts, dimension]`."""

    decode: Callable[[Answer], Vectors]
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


def _raw(answer: Answer) -> NDArray[Any]:
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
    "JSON, read by `json`": Format(lambda answer: np.array(json.loads(answer.body), np.float32)),
    "JSON, read by `orjson`": Format(lambda answer: np.array(orjson.loads(answer.body), np.float32)),
    "base64 of OpenAI's route": Format(_base64, path="/v1/embeddings", fields={"encoding_format": "base64"}),
    "msgpack": Format(_msgpack, "application/msgpack"),
    "raw": Format(_raw, "application/octet-stream"),
    "`.npy`": Format(lambda answer: np.load(io.BytesIO(answer.body)), "application/x-npy"),
    "safetensors": Format(lambda answer: load(answer.body)["embeddings"], "application/x-safetensors"),
    "Arrow": Format(_arrow, "application/vnd.apache.arrow.stream"),
    "raw float16": Format(_raw, "application/octet-stream", fields={"output_dtype": "float16"}),
    "raw int8, restored": Format(_raw, "application/octet-stream", fields={"output_dtype": "int8"}),
    "raw ubinary": Format(_raw, "application/octet-stream", fields={"output_dtype": "ubinary"}),
}


def times(connection: HTTPConnection, texts: Sequence[str], num_rounds: int) -> dict[str, tuple[int, float, float]]:
    """Return the bytes of each format, and the median seconds of its answer and of reading it.

    Each round takes them in another order.
    """
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in FORMATS}
    sizes, order = {}, random.Random(0)
    for _ in range(num_rounds):
        for name, way in order.sample(list(FORMATS.items()), len(FORMATS)):
            answer = way.ask(connection, texts)
            started_s = time.perf_counter()
            way.decode(answer)
            spent[name].append((answer.seconds, time.perf_counter() - started_s))
            sizes[name] = len(answer.body)
    middle = {name: [median(column) for column in zip(*pairs, strict=True)] for name, pairs in spent.items()}
    return {name: (sizes[name], answer_s, read_s) for name, (answer_s, read_s) in middle.items()}


def vectors_of(connection: HTTPConnection, texts: Sequence[str], number_type: str) -> NDArray[Any]:
    """Return the vectors of all texts in a number type; int8 ones are restored."""
    way = Format(_raw, "application/octet-stream", fields={"output_dtype": number_type})
    parts = [way.ask(connection, texts[n : n + _BATCH]) for n in range(0, len(texts), _BATCH)]
    return np.concatenate([_raw(part) for part in parts])


def _nearest(similarity: NDArray[Any]) -> NDArray[Any]:
    """Return the columns of the 10 largest numbers of each row."""
    return np.argpartition(-similarity, 10, axis=1)[:, :10]


def accuracy(
    connection: HTTPConnection, texts: Sequence[str], num_queries: int
) -> dict[str, tuple[float, float, float]]:
    """Return the mean and least cosine of restored vectors, and the share of the 10 nearest that are found, by type."""
    exact = vectors_of(connection, texts, "float32")
    expected = _nearest(exact[:num_queries] @ exact[num_queries:].T)
    found = {}
    for name in ("float16", "int8", "ubinary"):
        rows = vectors_of(connection, texts, name)
        if name == "ubinary":  # the order of dot products of signs is that of the numbers of equal bits
            rows = np.unpackbits(rows, axis=1)[:, : exact.shape[1]] * 2.0 - 1
        rows = rows.astype(np.float32)
        cosines = (rows * exact).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(exact, axis=1)
        near = _nearest(rows[:num_queries] @ rows[num_queries:].T)
        share = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(expected.tolist(), near.tolist(), strict=True)])
        found[name] = (float(cosines.mean()), float(cosines.min()), float(share))
    return found


def main() -> None:
    """Print Markdown: the machine, and both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="http://localhost:8080")
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    print(json.dumps(about_machine()))
    headlines = datasets().abc_headlines()
    with closing(HTTPConnection(urlsplit(args.url).netloc, timeout=300)) as connection:
        print("\n| format | vectors | bytes | answer, ms | reading, ms |\n|---|---|---|---|---|")
        for size in BATCHES:
            for name, (num_bytes, answer_s, read_s) in times(connection, headlines[:size], args.rounds).items():
                print(f"| {name} | {size} | {num_bytes:,} | {answer_s * 1e3:.2f} | {read_s * 1e3:.3f} |")
        print("\n| number type | mean cosine | least cosine | of the 10 nearest |\n|---|---|---|---|")
        for name, (mean, least, share) in accuracy(connection, headlines[:NUM_COMPARED], NUM_QUERIES).items():
            print(f"| `{name}` | {mean:.6f} | {least:.6f} | {share:.1%} |")


if __name__ == "__main__":
    main()
