"""An index in PostgreSQL, pushed by the command, and searched through the API."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_until
from process import run
from service import Service, service
from vector_engines import PostgreSQL, own_postgresql

from shoal.contract.keys import Keys

#: Searches that an engine does not take, each with the part of the message that names its option.
REFUSED: list[dict[str, Any]] = [
    {"mode": "lexical"},
    {"sort": [{"field": "n"}]},
    {"boost": [{"field": "n", "weight": 1}]},
    {"facets": ["n"]},
    {"group_by": "n"},
    {"snippet": {}},
    {"cursor": ""},
    {"explain": True},
    {"like": ["0"]},
    {"diversity": 0.5},
]


def test_an_index_in_an_engine_is_searched_like_any_other(
    home: Path,
    tiny_source: Path,
    redis_url: str,
    keys: Keys,
    index_folder: Path,
    tmp_path: Path,
) -> None:
    indexes = tmp_path / "indexes"
    for name in ("files", "pushed"):
        shutil.copytree(index_folder, indexes / name)
    settings: dict[str, Any] = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool, "home": home}
    settings |= {"model": tiny_source, "precision": "f32", "threads": 1, "index_home": indexes}
    with own_postgresql() as server, service(tmp_path, **settings) as pool:
        wait_until(pool.is_ready)
        body = {"queries": ["storm europe", "rain"], "k": 5}
        expected = pool.ask("POST", "/search", body | {"index": "files"}).body
        done = run("index", "push", "pushed", "--to", server.url, engine_password="unused", **settings)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: "postgresql" in [one["engine"] for one in pool.ask("GET", "/v1/indexes").body["indexes"]])
        found = pool.ask("POST", "/search", body | {"index": "pushed"}).body
        assert scores(found) == pytest.approx(scores(expected), abs=1e-5)
        check_options(pool)

        server.stop()
        answer = pool.ask("POST", "/search", body | {"index": "pushed"})
        assert (answer.status, answer.body["error"]["code"]) == (503, "unavailable")
        assert "pgvector, which has the index, does not answer" in answer.body["error"]["message"]
        assert pool.ask("POST", "/search", body | {"index": "files"}).status == 200
        server.start()
        wait_until(lambda: pool.ask("POST", "/search", body | {"index": "pushed"}).status == 200)
        check_changed_rows(pool, server)


def check_changed_rows(pool: Service, server: PostgreSQL) -> None:
    """Change the documents in the engine so that no reply can have them. A search then fails alone."""
    import psycopg

    with psycopg.connect(server.url) as connection:
        ((table,),) = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        added = f'{{"x":{2**64},'
        connection.execute(f"""UPDATE "{table}" SET document = overlay(document placing '{added}' from 1 for 1)""")
    answer = pool.ask("POST", "/search", {"queries": ["storm"], "index": "pushed"})
    assert (answer.status, answer.body["error"]["code"]) == (500, "internal")
    assert pool.ask("POST", "/search", {"queries": ["storm"], "index": "pushed", "fields": ["text"]}).status == 200


def scores(answer: dict[str, Any]) -> list[float]:
    return [hit["score"] for hits in answer["results"] for hit in hits]


def check_options(pool: Service) -> None:
    """Compare the answers to searches with options, and to changes."""
    body = {"queries": ["storm"], "k": 2, "index": "pushed"}
    (hits,) = pool.ask("POST", "/search", body | {"fields": [], "min_score": -1, "negative": ["rain"]}).body["results"]
    assert [hit.keys() for hit in hits] == [{"id", "score"}] * 2
    for option in REFUSED:
        answer = pool.ask("POST", "/search", body | option)
        (name,) = option
        assert answer.status == 422, answer.body
        assert answer.body["error"]["message"].startswith(f"{name} does not go with this index, which is in pgvector")
    documents = {"documents": [{"id": "new", "text": "storm"}]}
    answer = pool.ask("POST", "/v1/indexes/pushed/documents", documents)
    assert (answer.status, "gets whole versions" in answer.body["error"]["message"]) == (422, True)
