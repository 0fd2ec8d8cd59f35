"""Vector engines are reached by TLS, in a store like S3, and within the limits of a server."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from certificates import certificate, has_openssl
from changes import unit_vectors
from conftest import free_port, wait_until
from redis import Redis, ResponseError
from test_engine_search import hits_of, ignore, publish
from vector_engines import ENGINES, PASSWORD

from shoal.errors import InvalidRequest, Unavailable
from shoal_workers.index.build.engine_push import push
from shoal_workers.index.engine_index import EngineIndex, open_version
from shoal_workers.index.engines.engine import open_table


@pytest.mark.skipif(not has_openssl(), reason="there is no openssl 3 to make certificates")
def test_vector_sets_are_reached_by_tls(tmp_path: Path) -> None:
    certificate(tmp_path, "ca")
    certificate(tmp_path, "server", "ca")
    publish(tmp_path / "news", "v1", 3)
    with ENGINES["redis"]() as engine, Redis.from_url(engine.url, password=PASSWORD) as connection:
        files = {"tls-cert-file": "server.pem", "tls-key-file": "server.key", "tls-ca-cert-file": "ca.pem"}
        options: dict[str, Any] = {name: tmp_path / file for name, file in files.items()}
        options |= {"tls-auth-clients": "no", "tls-port": (port := free_port())}
        try:
            connection.config_set(*[str(part) for option in options.items() for part in option])
        except ResponseError:
            pytest.skip("this Redis has no TLS")
        url = f"rediss://127.0.0.1:{port}/0"
        with pytest.raises(Unavailable, match="does not answer"):
            push(tmp_path / "news", url, PASSWORD, ignore)
        version = push(tmp_path / "news", f"{url}?ssl_ca_certs={tmp_path}/ca.pem", PASSWORD, ignore)
        pushed = open_version(tmp_path / "news" / version, password=PASSWORD)
        assert isinstance(pushed, EngineIndex)
        assert len(hits_of(pushed, unit_vectors(1)[0])) == 3


#: A program that writes a table at an address, and searches it. LanceDB keeps connections for the life of a process.
PROGRAM = """
import sys
import numpy as np
from shoal_workers.index.engines.engine import open_table
table, vectors = open_table(sys.argv[1], "", 60), np.eye(3, dtype=np.float32)
table.create(3, {})
table.add(0, vectors, ["first", "second", "third"], [{}] * 3)
table.finish()
print(table.count(), table.search(vectors[1:2], 1, None))
"""


@pytest.mark.skipif(not (find_spec("lancedb") and find_spec("moto")), reason="needs the packages lancedb and moto")
def test_a_table_of_lancedb_may_lie_in_s3() -> None:
    store = f"http://127.0.0.1:{(port := free_port())}"
    values = {
        "ENDPOINT": store,
        "ALLOW_HTTP": "1",
        "REGION": "us-east-1",
        "ACCESS_KEY_ID": "a",
        "SECRET_ACCESS_KEY": "b",
    }
    environment = os.environ | {f"AWS_{name}": value for name, value in values.items()}
    with subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stderr=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: makes_bucket(f"{store}/indexes"))
            command = [sys.executable, "-c", PROGRAM, "lance+s3://indexes/folder#news"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
        finally:
            server.terminate()
    assert done.stdout == "3 [[(1.0, 'second')]]\n", done.stderr


def makes_bucket(url: str) -> bool:
    with suppress(OSError), urlopen(Request(url, method="PUT")) as answer:
        return bool(answer.status == 200)
    return False


def test_large_documents_are_sent_to_qdrant_in_parts() -> None:
    document = json.dumps({"id": "0", "text": "x" * 12_000_000})
    with ENGINES["qdrant"]() as engine:
        table = open_table(f"{engine.url}#large", PASSWORD)
        table.create(4, {})
        table.add(0, unit_vectors(3, 4), [document] * 3, [{}] * 3)
        assert table.count() == 3


@pytest.mark.skipif(not find_spec("qdrant_client"), reason="needs the package qdrant_client")
@pytest.mark.parametrize("address", ["qdrant://secret@localhost:6333", "qdrants://localhost:6333?api=secret"])
def test_an_address_of_qdrant_has_no_key(address: str) -> None:
    with pytest.raises(InvalidRequest, match="has a host, a port and a path, and nothing else"):
        open_table(f"{address}#news", "")
