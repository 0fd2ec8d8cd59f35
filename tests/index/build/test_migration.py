"""A migration: the documents of the current version get the vectors of another model, while the version is served."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blocking import ChangeLog, as_written
from changes import change
from queues import Queue
from test_builder import MadeVectors

from shoal.contract.options import Options
from shoal.errors import IndexCorrupt, IndexNotFound, Unavailable
from shoal.records.source import Source
from shoal.settings import Settings
from shoal_workers.encoding.chunking import open_chunker
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.builder import BuildResult, build
from shoal_workers.index.build.chunks import Cutter
from shoal_workers.index.build.document_encoder import LocalEncoder
from shoal_workers.index.build.folding import IndexChanges
from shoal_workers.index.build.migration import VersionDocuments
from shoal_workers.index.files.manifest import DOCUMENTS, LEXICAL
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.long_jobs import MigrateIndex, build_index
from shoal_workers.index.versions import current_name, list_versions, rollback


def other_vectors(**options: Any) -> MadeVectors:
    """Return an encoder under the name of another model."""
    encoder = MadeVectors(**options)
    encoder.model = replace(encoder.model, name="other", digest="f" * 64, fingerprint="other")
    return encoder


def source_of(folder: Path, rows: list[dict[str, Any]]) -> Source:
    path = folder / "source.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(path)


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


def test_changes_since_are_kept_and_another_migration_takes_later_ones(queue: Queue, tmp_path: Path) -> None:
    out, changes = tmp_path / "index", IndexChanges(ChangeLog(queue.broker, queue.keys), "news")
    log = as_written(changes.log)
    log.append("news", change(["one"], ["3"]))
    build(source_of(tmp_path, ROWS), out, MadeVectors(), changes=changes)
    log.append("news", change(["two"], ["4"], made_at=1.0))
    assert migrate(out, changes=changes).num_changed == 4
    assert {row["id"] for row in documents(out)} == {row["id"] for row in ROWS} - {"3", "4"} | {"one", "two"}
    log.append("news", change(["three"], made_at=2.0))  # with the vectors of the former model
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


def test_numbered_documents_stay_numbered(tmp_path: Path) -> None:
    out, path = tmp_path / "index", tmp_path / "source.txt"
    path.write_text("storm\nrain\n")
    build(Source(path), out, MadeVectors())
    migrate(out)
    assert Index.open(out).manifest.ids_are_positions


def test_documents_of_a_chunked_index_are_cut_anew(tmp_path: Path, encoder: Encoder, home: Path) -> None:
    out, settings = tmp_path / "index", Settings(home=str(home))
    text = "  " + "\n\n".join(f"Storm {n} brings rain. The market falls." for n in range(12)) + " \n"
    rows = [{"id": "a", "text": text, "year": 2001}, {"id": "b", "text": "rain", "year": 2002}]
    chunker = open_chunker(encoder.tokenizer, encoder.model.name, Options(chunk_tokens=20, chunk_overlap=4), "")
    build(source_of(tmp_path, rows), out, MadeVectors(), cutter=Cutter(chunker, 20, 4))
    before, model = documents(out), LocalEncoder(encoder)
    assert len(before) > 6
    result = migrate(out, model, settings=settings)
    assert documents(out) == before
    assert (result.num_documents, result.count, result.num_embedded) == (2, len(before), len(before))
    manifest = Index.open(out).manifest
    assert (manifest.chunk_tokens, manifest.chunk_overlap, manifest.fingerprint) == (20, 4, encoder.fingerprint)
    whole = list(VersionDocuments(current_version(out)).rows())
    assert [(one.id, one.fields) for one in whole] == [("a", {"year": 2001}), ("b", {"year": 2002})]
    assert whole[0].text.split() == text.split()
    assert len(whole[0].text) == len(text.rstrip())


def test_chunks_without_an_overlap_end_at_the_same_paragraphs_again(
    tmp_path: Path, encoder: Encoder, home: Path
) -> None:
    out, settings = tmp_path / "index", Settings(home=str(home))
    text = "\n\n".join(f"Storm {n} brings {'rain ' * (n % 7)}to the market" for n in range(20))
    chunker = open_chunker(encoder.tokenizer, encoder.model.name, Options(chunk_tokens=20, chunk_overlap=0), "")
    build(source_of(tmp_path, [{"id": "a", "text": text}]), out, MadeVectors(), cutter=Cutter(chunker, 20, 0))
    before = documents(out)
    migrate(out, LocalEncoder(encoder), settings=settings)
    assert documents(out) == before
