"""Indexes whose rows are chunks of documents, and migrations to another model, which cut new chunks."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from blocking import ChangeLog, as_written
from changes import change, unit_vectors
from queues import Queue
from test_builder import MadeVectors, source_of

from shoal.changes.change import Change
from shoal.contract.options import Options
from shoal.errors import (
    BadDocument,
    IndexCorrupt,
    IndexNotFound,
    InvalidRequest,
    ModelMismatch,
    ModelNotFound,
    Unavailable,
)
from shoal.operations import Search
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal.records.source import Source
from shoal.settings import Settings
from shoal_workers.encoding.chunking import open_chunker
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.builder import BuildResult, build
from shoal_workers.index.build.chunks import Cutter
from shoal_workers.index.build.document_encoder import LocalEncoder
from shoal_workers.index.build.merged_changes import IndexChanges
from shoal_workers.index.build.migration import VersionDocuments
from shoal_workers.index.files.manifest import BAD_ROWS, DOCUMENTS, LEXICAL
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.long_jobs import BuildIndex, MigrateIndex, build_index
from shoal_workers.index.versions import current_name, list_versions, rollback

LONG = " ".join(f"Storm {n} brings rain. The market falls in Europe." for n in range(12))


class Chunked:
    """An index of chunks of 20 tokens, with an overlap of 4 tokens, unless a build has other options."""

    def __init__(self, folder: Path, encoder: Encoder):
        self.out = folder / "index"
        self._encoder = encoder

    def build(self, *documents: dict[str, Any], sizes: tuple[int, int] = (20, 4), **options: Any) -> BuildResult:
        options_of_chunks = Options(chunk_tokens=sizes[0], chunk_overlap=sizes[1])
        chunker = open_chunker(self._encoder.tokenizer, self._encoder.model.name, options_of_chunks, "")
        arguments: dict[str, Any] = {"encoder": MadeVectors(), "cutter": Cutter(chunker, *sizes)} | options
        return build(source_of(self.out.parent, documents), self.out, **arguments)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows of the current version."""
        index = Index.open(self.out)
        return [index.documents.document(row) for row in range(index.manifest.count)]


@pytest.fixture
def chunked(tmp_path: Path, encoder: Encoder) -> Chunked:
    return Chunked(tmp_path, encoder)


def test_each_chunk_is_a_row_with_the_fields_of_its_document_and_its_place(chunked: Chunked, encoder: Encoder) -> None:
    documents = {"id": "a", "text": LONG, "year": 2001}, {"id": "b", "text": "rain"}
    result = chunked.build(*documents, encoder=LocalEncoder(encoder))
    found = chunked.rows
    of_a = [row for row in found if row["document"] == "a"]
    assert len(of_a) > 5
    assert all(row["text"] == LONG[row["start"] : row["stop"]] for row in of_a)
    assert all(row["id"] == "a" and row["year"] == 2001 for row in of_a)
    assert (of_a[0]["start"], of_a[-1]["stop"]) == (0, len(LONG))
    assert any(one["stop"] > other["start"] for one, other in pairwise(of_a))  # the chunks overlap
    assert found[-1] == {"id": "b", "text": "rain", "document": "b", "start": 0, "stop": 4}
    index = Index.open(chunked.out)
    assert index.vectors == pytest.approx(encoder.embed([row["text"] for row in found], Options(), ""), abs=1e-5)
    assert (result.count, result.num_documents) == (len(found), 2)
    manifest = index.manifest
    assert (manifest.chunk_tokens, manifest.chunk_overlap, manifest.num_documents) == (20, 4, 2)
    assert index.documents.rows_of(["a"]).tolist() == list(range(len(of_a)))


def test_unchanged_chunks_keep_their_vectors_unless_their_sizes_differ(chunked: Chunked) -> None:
    chunked.build({"id": "a", "text": LONG})
    again = chunked.build({"id": "a", "text": LONG + " More rain."})
    assert 0 < again.num_embedded <= 2
    assert again.num_reused == again.count - again.num_embedded
    for sizes in ((20, 4), (10, 4), (10, 0)):
        assert not chunked.build({"id": "a", "text": "rain"}, sizes=sizes).is_unchanged


def test_a_document_with_the_id_of_another_is_one_bad_row(chunked: Chunked) -> None:
    documents = {"id": "a", "text": LONG}, {"id": "a", "text": LONG + LONG}, {"id": "b", "text": LONG}
    result = chunked.build(*documents, skips_bad=True)
    assert (result.num_bad, result.num_documents) == (1, 2)
    assert len((current_version(chunked.out) / BAD_ROWS).read_text().splitlines()) == 1
    assert {row["id"] for row in chunked.rows} == {"a", "b"}
    assert max(row["stop"] for row in chunked.rows) == len(LONG)
    chunked.build({"id": "1.1", "text": "rain"}, {"id": "1.10", "text": "rain"})  # numbers of sections
    assert Index.open(chunked.out).columns.kinds["document"] == "keyword"


def test_changed_documents_are_folded_in_as_chunks(queue: Queue, chunked: Chunked) -> None:
    changes = IndexChanges(ChangeLog(queue.broker, queue.keys), "news")
    documents = {"id": "a", "text": LONG}, {"id": "b", "text": LONG}, {"id": "c", "text": "rain"}
    chunked.build(*documents, changes=changes)
    added = Document("a", "Rain. " * 40, {"start": "of a field that gives way"})
    as_written(changes.log).append("news", Change((added,), unit_vectors(1), ("b",), "d", 0.0))
    result = chunked.build(*documents, changes=changes)
    assert {row["id"] for row in chunked.rows} == {"a", "c"}
    of_a = [row for row in chunked.rows if row["id"] == "a"]
    assert len(of_a) > 2
    assert all(row["text"] == added.text[row["start"] : row["stop"]] for row in of_a)
    assert (result.num_documents, result.num_changed) == (2, 2)


def test_a_document_that_gives_no_chunks_is_a_bad_row(chunked: Chunked) -> None:
    good = {"id": "b", "text": "storm"}
    taken = good, {"id": "a", "text": "rain", "start": 1, "stop": 2}
    large = good, {"id": "a", "text": "rain " * 2_000, "note": "n" * 2**20}
    with pytest.raises(BadDocument, match=r"source.jsonl, line 2: a chunk has its own start, stop; rename the column"):
        chunked.build(*taken, sizes=(4, 0))
    with pytest.raises(BadDocument, match=r"source.jsonl, line 2: the fields of document .a. would take"):
        chunked.build(*large, sizes=(4, 0))
    assert chunked.build(*large, sizes=(4, 0), skips_bad=True).num_bad == 1


def test_a_long_job_cuts_with_the_tokenizer_of_the_model(tmp_path: Path, encoder: Encoder, home: Path) -> None:
    (tmp_path / "source.txt").write_text(LONG)
    request = BuildIndex("news", str(tmp_path / "source.txt"), chunk_tokens=10, chunk_overlap=2)
    model, settings = LocalEncoder(encoder), Settings(home=str(home))
    result = build_index(request, tmp_path / "index", model, lambda _: None, settings=settings)
    assert result.count > 10
    for folder, name in ((home, model.model.name), (tmp_path, str(tmp_path))):
        with pytest.raises((ModelNotFound, ModelMismatch), match="build where a worker is, or without chunk_tokens"):
            Cutter.open(folder, replace(model.model, name=name, digest="f" * 64), request.options())
    cutter = Cutter.open(tmp_path / "other", model.model, request.options())  # this prepares the model
    assert cutter is not None
    assert [part.text for part in cutter.cut(Document("a", "Storm. Rain.", {}))] == ["Storm. Rain."]
    with pytest.raises(InvalidRequest, match="takes 48 tokens, 2 of them for special tokens and the prompt"):
        Cutter.open(tmp_path / "other", model.model, Options(chunk_tokens=47))


# Searches: each document is one hit


def hits(index: Index, encoder: Encoder, **options: Any) -> list[dict[str, Any]]:
    job = Search(["storm rain"], k=1_000, search=SearchOptions(**options))
    [found] = index.find(job, encoder.embed(job.texts, Options(), "")).answer().hits
    return found


def test_a_hit_is_the_best_chunk_of_its_document(chunked: Chunked, encoder: Encoder) -> None:
    texts = {"a": LONG, "b": "Rain. " * 60 + LONG, "c": LONG.replace("Storm", "Climate change"), "d": "storm"}
    chunked.build(*({"id": name, "text": text} for name, text in texts.items()), encoder=LocalEncoder(encoder))
    index = Index.open(chunked.out)
    chunks = hits(index, encoder, group_by="")
    assert len(chunks) == index.manifest.count
    best: dict[str, dict[str, Any]] = {}
    for chunk in chunks:
        best.setdefault(chunk["id"], chunk)
    assert hits(index, encoder) == list(best.values())
    found = hits(index, encoder, group_by="", filter={"document": "a", "start": {"gte": 1}})
    assert {(hit["id"], hit["start"] > 0) for hit in found} == {("a", True)}
    assert len(found) == len(index.documents.rows_of(["a"])) - 1
    added = tuple(Document(name, "storm rain", {}) for name in ("x", "y", "a"))  # each is a hit of its own
    vectors = encoder.embed([one.text for one in added], Options(), "")
    change = Change(added, vectors, ("c",), index.manifest.digest, 0.0)
    index.live = index.live.after([change], "1-0", index.documents.rows_of)
    ids = [hit["id"] for hit in hits(index, encoder)]
    assert (ids[:3], sorted(ids)) == (["x", "y", "a"], ["a", "b", "d", "x", "y"])


# Migrations


def other_vectors(**options: Any) -> MadeVectors:
    """Return an encoder under the name of another model."""
    encoder = MadeVectors(**options)
    encoder.model = replace(encoder.model, name="other", digest="f" * 64, fingerprint="other")
    return encoder


def migrate(out: Path, encoder: Any = None, **options: Any) -> BuildResult:
    request = MigrateIndex.of("news", out, publish=True)
    return build_index(request, out, encoder or other_vectors(), print, **options)


def documents(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (current_version(out) / DOCUMENTS).read_text().splitlines()]


ROWS = [{"id": str(n), "text": f"storm {n}", "code": "1.10", "on": 20030219 + n, "note": "n" * 300} for n in range(30)]

#: Kinds that do not follow from the values of the fields.
KINDS = {"code": "keyword", "on": "date", "note": "keyword"}


def test_documents_kinds_and_language_stay_and_the_vectors_come_from_the_other_model(tmp_path: Path) -> None:
    out = tmp_path / "index"
    first = build(source_of(tmp_path, ROWS), out, MadeVectors(), kinds=KINDS, language="english")
    before, bytes_before = Index.open(out), (out / first.version / DOCUMENTS).read_bytes()
    result = migrate(out)
    after = Index.open(out)
    assert (result.num_embedded, result.num_reused, result.is_published) == (30, 0, True)
    manifest = after.manifest
    assert (manifest.model, manifest.fingerprint, manifest.source) == ("other", "other", "source.jsonl")
    assert (out / result.version / DOCUMENTS).read_bytes() == bytes_before
    assert after.columns.kinds == before.columns.kinds == KINDS
    assert json.loads((out / result.version / LEXICAL).read_text())["language"] == "english"
    assert rollback(out) == first.version
    assert migrate(out, MadeVectors()).is_unchanged
    (tmp_path / "source.txt").write_text("storm\nrain\n")
    build(Source(tmp_path / "source.txt"), out, MadeVectors())
    migrate(out)
    assert Index.open(out).manifest.ids_are_positions  # numbered documents stay numbered


def test_changes_since_are_kept_and_another_migration_takes_later_ones(queue: Queue, tmp_path: Path) -> None:
    out, changes = tmp_path / "index", IndexChanges(ChangeLog(queue.broker, queue.keys), "news")
    log = as_written(changes.log)
    log.append("news", change(["one"], ["3"]))
    build(source_of(tmp_path, ROWS), out, MadeVectors(), changes=changes)
    log.append("news", change(["two"], ["4"], made_at=1.0))
    assert migrate(out, changes=changes).num_changed == 4
    assert {row["id"] for row in documents(out)} == {row["id"] for row in ROWS} - {"3", "4"} | {"one", "two"}
    log.append("news", change(["three"], made_at=2.0))  # the change has vectors of the former model
    again = migrate(out, changes=changes)
    assert (again.num_embedded, again.num_reused) == (1, 30)
    assert documents(out)[-1]["id"] == "three"
    assert migrate(out, changes=changes).is_unchanged


def test_the_version_before_is_served_until_the_end_and_another_one_that_is_published_stays(tmp_path: Path) -> None:
    out = tmp_path / "index"
    with pytest.raises(IndexNotFound):
        migrate(out)
    first = build(source_of(tmp_path, ROWS), out, MadeVectors())
    with pytest.raises(Unavailable):
        migrate(out, other_vectors(breaks=Unavailable("away")))
    assert current_name(out) == first.version
    assert migrate(out).version == current_name(out)
    assert len(list_versions(out)) == 2
    request = MigrateIndex.of("news", out, publish=True)
    last = build(source_of(tmp_path, ROWS[:9]), out, MadeVectors())
    assert not build_index(request, out, other_vectors(), print).is_published
    assert current_name(out) == last.version
    path = out / last.version / DOCUMENTS
    path.write_text(path.read_text().replace("storm 7", "storm 8"))
    with pytest.raises(IndexCorrupt, match="is not what was built"):
        migrate(out)


def test_documents_of_a_chunked_index_are_cut_anew(chunked: Chunked, encoder: Encoder, home: Path) -> None:
    out, settings = chunked.out, Settings(home=str(home))
    text = "  " + "\n\n".join(f"Storm {n} brings rain. The market falls." for n in range(12)) + " \n"
    chunked.build({"id": "a", "text": text, "year": 2001}, {"id": "b", "text": "rain", "year": 2002})
    before, model = documents(out), LocalEncoder(encoder)
    assert len(before) > 6
    result = migrate(out, model, settings=settings)
    assert documents(out) == before
    assert (result.num_documents, result.count, result.num_embedded) == (2, len(before), len(before))
    manifest = Index.open(out).manifest
    assert (manifest.chunk_tokens, manifest.chunk_overlap, manifest.fingerprint) == (20, 4, encoder.fingerprint)
    source = VersionDocuments(current_version(out))
    whole = list(source.rows())
    assert source.fraction == 1.0
    assert [(one.id, one.fields) for one in whole] == [("a", {"year": 2001}), ("b", {"year": 2002})]
    assert whole[0].text.split() == text.split()
    assert len(whole[0].text) == len(text.rstrip())
    # Chunks without an overlap end at the same paragraphs again.
    text = "\n\n".join(f"Storm {n} brings {'rain ' * (n % 7)}to the market" for n in range(20))
    chunked.build({"id": "a", "text": text}, sizes=(20, 0))
    before = documents(out)
    migrate(out, model, settings=settings)
    assert documents(out) == before
