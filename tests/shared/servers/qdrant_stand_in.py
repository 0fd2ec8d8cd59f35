"""A stand-in for a server of Qdrant: it reads requests with the models of Qdrant's client, whose local mode answers.

Run it with a folder for its collections, a port, and a key of the API.
"""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter
from qdrant_client import QdrantClient, models

#: Largest body of a request in bytes, as of Qdrant.
MAX_BODY_BYTES = 32 << 20


def answer(client: QdrantClient, method: str, path: str, body: bytes) -> Any:
    """Return the result of a request. Raises LookupError if there is no collection."""
    _, _, name, *rest = path.split("/")
    do: dict[tuple[str, ...], Callable[[], Any]] = {
        ("GET", "exists"): lambda: {"exists": client.collection_exists(name)},
        ("PUT",): lambda: create(client, name, models.CreateCollection.model_validate_json(body)),
        ("DELETE",): lambda: client.delete_collection(name),
    }
    if (call := do.get((method, *rest))) is not None:
        return call()
    if not client.collection_exists(name):
        raise LookupError(f"Not found: Collection `{name}` doesn't exist!")
    do = {
        ("GET",): lambda: client.get_collection(name),
        ("PUT", "index"): lambda: models.CreateFieldIndex.model_validate_json(body) and {"status": "completed"},
        ("PUT", "points"): lambda: client.upsert(name, batch_of(body)),
        ("POST", "points", "count"): lambda: client.count(name),
        ("POST", "points", "query", "batch"): lambda: client.query_batch_points(
            name, models.QueryRequestBatch.model_validate_json(body).searches
        ),
    }
    return do[(method, *rest)]()


def create(client: QdrantClient, name: str, wanted: models.CreateCollection) -> bool:
    return bool(client.create_collection(name, wanted.vectors))


def batch_of(body: bytes) -> models.Batch:
    batch: models.Batch = TypeAdapter(models.PointsBatch).validate_json(body).batch
    return batch


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, client: QdrantClient, key: str, *args: Any):
        self.client, self.key = client, key
        super().__init__(*args)

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        status, reply = 200, {"status": "ok", "time": 0.0}
        if self.headers["api-key"] != self.key:
            status, reply = 401, {}
        elif len(body) > MAX_BODY_BYTES:
            status, reply = 413, {}
        else:
            try:
                reply["result"] = answer(self.client, self.command, urlsplit(self.path).path, body)
            except LookupError as error:
                status, reply = 404, {"status": {"error": str(error)}}
        data = TypeAdapter(Any).dump_json(reply)
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = handle_one

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder, port, key = sys.argv[1:]
    HTTPServer(("127.0.0.1", int(port)), partial(Handler, QdrantClient(path=folder), key)).serve_forever()
