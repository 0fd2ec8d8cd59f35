"""Changes of an index: a search finds the hits that it would find in an index built of the resulting documents."""

import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import unit_vectors
from hypothesis import given
from hypothesis import strategies as st
from index_versions import write_version
from made_documents import DIMENSION, Made, Vectors, apply, made_of, near_ties, open_made

from shoal.changes.change import Change
from shoal.errors import IndexCorrupt
from shoal.records.document import Document
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.checksums import checksum
from shoal_workers.index.files.documents import HashTable, hash_of
from shoal_workers.index.files.manifest import IDS, MANIFEST
from shoal_workers.index.index import Index

Hits = list[list[dict[str, Any]]]


def by_scoring_all(made: Made, queries: Vectors, k: int) -> Hits:
    """Return the hits of a full sort of all scores."""
    if not made.documents:
        return [[] for _ in queries]
    vectors, hits = np.stack(made.vectors), []
    for query in queries:
        scores = np.vecdot(vectors, query)
        best = [made.documents[n] for n in np.argsort(-scores, kind="stable")[:k]]
        ordered = np.sort(scores)[::-1][:k].tolist()
        hits.append([{"id": d.id, "score": s, "text": d.text, **d.fields} for d, s in zip(best, ordered, strict=True)])
    return hits


@given(st.data())
def test_a_search_finds_what_an_index_of_the_documents_would_find(data: st.DataObject) -> None:
    seed, count = data.draw(st.integers(0, 1_000)), data.draw(st.integers(1, 70))
    pool = data.draw(st.sampled_from([near_ties, lambda n, s: unit_vectors(n, DIMENSION, s)]))(200, seed)
    made = made_of(count, pool, data.draw(st.integers(1, count)))
    ids = [str(n % 90) for n in range(len(pool))]
    some_ids = st.lists(st.sampled_from(ids), max_size=8)
    with tempfile.TemporaryDirectory() as folder:
        index = open_made(Path(folder) / "v1", made)
        for number in range(data.draw(st.integers(1, 4))):
            changes = []
            for _ in range(data.draw(st.integers(1, 3))):
                every = sorted({d.id for d in made.documents})
                deleted = every if data.draw(st.integers(0, 9)) == 0 else data.draw(some_ids)
                added = data.draw(st.lists(st.integers(0, len(pool) - 1), min_size=not deleted, max_size=30))
                changes.append(made.change(added, ids, deleted, pool))
            apply(index, changes, f"1-{number}")
            k, queries = data.draw(st.sampled_from([1, 5, 300])), pool[: data.draw(st.integers(1, 4))]
            found = index.search(queries, k)
            assert found == by_scoring_all(made, queries, k)
            assert index.count == len(made.documents)
        if made.documents:
            assert found == open_made(Path(folder) / "v2", made).search(queries, k)


def test_added_documents_that_differ_by_rounding_alone(tmp_path: Path) -> None:
    vectors = np.repeat(unit_vectors(1, 384), 1_000, axis=0)
    vectors += np.random.default_rng(0).uniform(-1e-7, 1e-7, vectors.shape).astype(np.float32)
    made = made_of(1, vectors)
    index = open_made(tmp_path / "v1", made)
    ids = [str(n) for n in range(len(vectors))]
    apply(index, [made.change(range(1, len(vectors)), ids, [], vectors)])
    queries = np.concatenate([vectors[:2], unit_vectors(4, 384, 1)])
    assert index.search(queries, 10) == by_scoring_all(made, queries, 10)


def test_small_values_take_no_more_memory_than_their_bytes(tmp_path: Path) -> None:
    pool = unit_vectors(30, DIMENSION)
    index = open_made(tmp_path / "v1", made_of(5, pool))
    fields: dict[str, Any] = {"many": [{}] * 4_000}
    packed = [Change((Document(str(n), "storm", fields),), pool[n : n + 1], (), "d", 0.0).pack() for n in range(20)]
    tracemalloc.start()
    try:
        apply(index, map(Change.unpack, packed))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1.5 * sum(map(len, packed)) < 200_000
    (hits,) = index.search(pool[19:20], 1)
    assert hits == [{"id": "19", "score": hits[0]["score"], "text": "storm", **fields}]


def test_ids_that_no_build_wrote_are_refused(tmp_path: Path) -> None:
    made = made_of(4, unit_vectors(4, DIMENSION))
    write_version(version := tmp_path / "v1", made.documents, np.stack(made.vectors))
    halves = np.frombuffer(hash_of("7"), "<u8")
    save_array(
        version / IDS, np.stack([np.full(4, halves[0]), np.full(4, halves[1]), np.arange(4, 8, dtype=np.uint64)])
    )
    values = json.loads((version / MANIFEST).read_text())
    values["checksums"][IDS] = checksum(version / IDS)
    (version / MANIFEST).write_text(json.dumps(values))
    index = Index.open_version(version)
    assert index.documents.rows_of(["8"]).tolist() == []
    with pytest.raises(IndexCorrupt, match="has rows that"):
        index.documents.rows_of(["7"])


@given(st.lists(st.sampled_from("abcdefgh"), max_size=30), st.lists(st.sampled_from("abcdefghij"), max_size=12))
def test_all_rows_of_some_hashes_are_found(texts: list[str], wanted: list[str]) -> None:
    table = HashTable.of(b"".join(map(hash_of, texts)))
    expected = [row for row, text in enumerate(texts) if text in wanted]
    assert table.rows_of(b"".join(map(hash_of, wanted))).tolist() == expected
