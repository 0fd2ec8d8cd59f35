"""Building an index: a new version is complete or absent, and until then the old one stays."""

import json
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocking import ChangeLog, as_written
from conftest import TESTS
from numpy.typing import NDArray
from queues import Queue

from shoal.changes.change import Change
from shoal.contract.options import Options
from shoal.errors import (
    BadDocument,
    Cancelled,
    DiskFull,
    FileError,
    IndexBusy,
    IndexCorrupt,
    Internal,
    InvalidRequest,
    Paused,
    ShoalError,
    Unavailable,
)
from shoal.index_folder import CURRENT
from shoal.long_task import TaskProgress
from shoal.records.source import Source
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import GROUP, SYNC_EVERY, LocalEncoder, ModelInfo, Waiting, no_wait
from shoal_workers.index.build.folding import IndexChanges
from shoal_workers.index.build.scratch import SCRATCH, STATE
from shoal_workers.index.build.vectors import EMBEDDED
from shoal_workers.index.files.manifest import BAD_ROWS, DOCUMENTS, FILES, MANIFEST, QUANTISED
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.versions import HISTORY, rollback

DIMENSION = 8


class MadeVectors:
    """An encoder that makes vectors of the letters of texts, counts the texts, and can break off."""

    def __init__(
        self,
        digest: str = "a" * 64,
        *,
        fingerprint: str = "f1",
        breaks: ShoalError | None = None,
        before: int = 0,
    ):
        self.model = ModelInfo("made", digest, "mean", DIMENSION, "", fingerprint)
        self.num_texts = 0
        self._breaks = breaks
        self._before = before

    def embed(self, texts: Iterable[str], waiting: Waiting = no_wait) -> Generator[NDArray[np.float32]]:
        """Yield the vectors of the texts, a few at a time."""
        source = iter(texts)
        while group := list(islice(source, 32)):
            if self._breaks and self.num_texts + len(group) > self._before:
                raise self._breaks
            self.num_texts += len(group)
            hashes = b"".join(blake2b(text.encode(), digest_size=2 * DIMENSION).digest() for text in group)
            vectors = np.frombuffer(hashes, np.int16).reshape(-1, DIMENSION).astype(np.float32)
            yield vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the folder for the index."""
    return tmp_path / "out" / "index"


@pytest.fixture
def source(tmp_path: Path) -> Callable[[Iterable[str]], Source]:
    """Return a function that writes a source of texts."""

    def write(texts: Iterable[str]) -> Source:
        path = tmp_path / "source.jsonl"
        lines = (json.dumps({"id": f"d{n}", "text": text, "n": n}) + "\n" for n, text in enumerate(texts))
        path.write_text("".join(lines))
        return Source(path)

    return write


Write = Callable[[Iterable[str]], Source]


def names(out: Path) -> set[str]:
    """List the folder of the index."""
    return {path.name for path in out.iterdir()}


def contents(out: Path) -> dict[str, bytes]:
    """Return what the files of the current version hold, and of its manifest what is not of this build alone."""
    folder = current_version(out)
    found = {name: (folder / name).read_bytes() for name in FILES}
    manifest = json.loads((folder / MANIFEST).read_text())
    return found | {MANIFEST: repr({**manifest, "version": "", "built_at": ""}).encode()}


class TestAnIndex:
    def test_the_vectors_are_those_of_the_documents(self, source: Write, out: Path, encoder: Encoder) -> None:
        texts = ["storm", "market falls", "rain " * 100, "Zürich", "storm"]
        result = build(source(texts), out, LocalEncoder(encoder))
        index = Index.open(out)
        prompt = encoder.model.prompts["document"]
        assert index.vectors == pytest.approx(encoder.embed(texts, Options(), prompt), abs=1e-6)
        assert [index.document(n) for n in range(5)] == [
            {"id": f"d{n}", "text": t, "n": n} for n, t in enumerate(texts)
        ]
        assert (result.count, result.num_embedded, result.num_repeated, result.found_share) == (5, 4, 1, 1.0)
        assert index.manifest.prompt == "document"
        model = replace(encoder.model, prompts={"document": "rain "})
        (vectors,) = LocalEncoder(Encoder(model, encoder.tokenizer, encoder.engine)).embed(["storm"])
        assert (vectors == encoder.embed(["rain storm"], Options(), "")).all()

    def test_more_than_one_group_stays_in_order(self, source: Write, out: Path, encoder: Encoder) -> None:
        texts = [f"storm {n}" for n in range(GROUP + 3)]
        reports: list[TaskProgress] = []
        build(source(texts), out, LocalEncoder(encoder), reports.append)
        index = Index.open(out)
        embedding = [report for report in reports if report.step == "embedding"]
        assert [(report.rows, report.fraction) for report in embedding] == [
            (GROUP, GROUP / (GROUP + 3)),
            (GROUP + 3, 1),
        ]
        steps = ["indexing words", "embedding", "quantising", "validating", "publishing"]
        assert list(dict.fromkeys(report.step for report in reports)) == steps
        assert index.document(GROUP + 2)["id"] == f"d{GROUP + 2}"
        assert index.vectors[-1] == pytest.approx(encoder.embed([texts[-1]], Options(), "")[0], abs=1e-5)


class TestAnIncrementalBuild:
    TEXTS = tuple(f"text {n}" for n in range(200))

    def test_embeds_new_and_changed_texts_alone_and_is_the_full_one(
        self, source: Write, out: Path, tmp_path: Path
    ) -> None:
        build(source(self.TEXTS), out, MadeVectors())
        changed = ["new first", *self.TEXTS[50:], "new last", "new first"]
        encoder = MadeVectors()
        result = build(source(changed), out, encoder)
        assert (result.num_embedded, result.num_reused, result.num_repeated) == (2, 150, 1)
        assert encoder.num_texts == 2 + 20  # those of the validation
        assert build(source(changed), tmp_path / "full", MadeVectors()).num_embedded == 152
        assert {name for name in FILES if contents(out)[name] != contents(tmp_path / "full")[name]} == set()

    def test_takes_vectors_of_a_version_that_was_not_published(self, source: Write, out: Path) -> None:
        build(source(["storm"]), out, MadeVectors())
        build(source(self.TEXTS), out, MadeVectors(), publishes=False)
        assert build(source(reversed(self.TEXTS)), out, MadeVectors()).num_embedded == 0

    @pytest.mark.parametrize("why", ["asked", "model", "settings", "unknown settings", "damage", "layout"])
    def test_is_a_full_one_where_the_former_version_cannot_be_used(
        self, source: Write, out: Path, why: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        build(source(self.TEXTS), out, MadeVectors())
        folder = current_version(out)
        manifest = json.loads((folder / MANIFEST).read_text())
        if why == "damage":
            (folder / "vectors.npy").write_bytes((folder / "vectors.npy").read_bytes()[:-4] + b"1234")
        if why == "layout":
            manifest["layout"] = 2
        if why == "unknown settings":
            del manifest["fingerprint"]
        (folder / MANIFEST).write_text(json.dumps(manifest))
        fingerprint = {"settings": "f2", "unknown settings": ""}.get(why, "f1")
        encoder = MadeVectors("b" * 64 if why == "model" else "a" * 64, fingerprint=fingerprint)
        assert build(source(self.TEXTS), out, encoder, reuses=why != "asked").num_embedded == 200
        said = "it was built with another engine, precision, prompt or length of texts, or does not say"
        assert (said in caplog.text) == ("settings" in why)


class TestAnInterruptedBuild:
    COUNT = SYNC_EVERY + 400

    def texts(self) -> list[str]:
        """Return so many texts that some of their vectors are safe when the build breaks off."""
        return [f"text {n}" for n in range(self.COUNT)]

    @pytest.mark.parametrize("error", [Paused, Unavailable, DiskFull, Internal])
    def test_goes_on_and_is_byte_for_byte_an_undisturbed_one(
        self, source: Write, out: Path, tmp_path: Path, error: type[ShoalError]
    ) -> None:
        documents = source(self.texts())
        with pytest.raises(error):
            build(documents, out, MadeVectors(breaks=error("stop"), before=SYNC_EVERY + 50))
        assert names(out) == {SCRATCH}
        again = MadeVectors()
        assert build(documents, out, again).num_embedded == self.COUNT
        assert again.num_texts == self.COUNT - SYNC_EVERY + self.COUNT // 200
        build(documents, tmp_path / "undisturbed", MadeVectors())
        assert contents(out) == contents(tmp_path / "undisturbed")
        assert names(out) == {current_version(out).name, CURRENT, HISTORY}
        assert not (current_version(out) / STATE).exists()

    @pytest.mark.parametrize("step", ["reading", "quantising", "validating", "publishing"])
    def test_goes_on_from_every_step(self, source: Write, out: Path, tmp_path: Path, step: str) -> None:
        build(source(["text 1", "text 7"]), out, MadeVectors())
        documents = source([f"text {n % 4_000}" for n in range(4_200)])

        def stop(progress: TaskProgress) -> None:
            if progress.step == step:
                raise Paused("stop")

        with pytest.raises(Paused):
            build(documents, out, MadeVectors(), stop)
        if step == "publishing":
            (out / SCRATCH / EMBEDDED).unlink()  # the last step before the version has its name
        assert build(documents, out, MadeVectors()).num_embedded == 3_998
        build(source(["text 1", "text 7"]), tmp_path / "other", MadeVectors())
        build(source([f"text {n % 4_000}" for n in range(4_200)]), tmp_path / "other", MadeVectors())
        assert contents(out) == contents(tmp_path / "other")

    @pytest.mark.parametrize("change", ["source", "key", "model"])
    def test_begins_anew_if_it_is_another_one(
        self, source: Write, out: Path, change: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        texts = self.texts()
        documents = source(texts)
        with pytest.raises(Paused):
            build(documents, out, MadeVectors(breaks=Paused("stop"), before=SYNC_EVERY + 50), key="one")
        again = MadeVectors("b" * 64 if change == "model" else "a" * 64)
        if change == "source":
            texts[0] = "another"
            documents = source(texts)
        build(documents, out, again, key="two" if change == "key" else "one")
        assert again.num_texts == self.COUNT + self.COUNT // 200
        assert Index.open(out).document(0)["text"] == texts[0]
        said = f"of an unfinished build, {SYNC_EVERY:,} vectors of {self.COUNT:,} documents from {documents.path}"
        assert [record for record in caplog.records if said in record.getMessage()]

    def test_begins_anew_after_what_it_left_was_damaged(self, source: Write, out: Path) -> None:
        documents = source(self.texts())
        with pytest.raises(Paused):
            build(documents, out, MadeVectors(breaks=Paused("stop"), before=SYNC_EVERY + 50))
        os.truncate(out / SCRATCH / DOCUMENTS, 1_000)
        with pytest.raises(ValueError, match="Expecting value"):
            build(documents, out, MadeVectors())
        assert build(documents, out, MadeVectors()).num_embedded == self.COUNT

    def test_leaves_nothing_when_it_is_cancelled(self, source: Write, out: Path) -> None:
        with pytest.raises(Cancelled):
            build(source(["storm", "rain"]), out, MadeVectors(breaks=Cancelled("stop"), before=0))
        assert not out.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from shoal.records.source import Source
from shoal_workers.index.build.builder import build
from test_builder import MadeVectors

def report(progress):
    if progress.rows > 4_500 and progress.step == "embedding":
        os.kill(os.getpid(), signal.SIGKILL)

build(Source(Path(sys.argv[1])), Path(sys.argv[2]), MadeVectors(), report)
"""


def test_a_build_that_was_killed_goes_on(source: Write, out: Path, tmp_path: Path) -> None:
    documents = source([f"text {n}" for n in range(5_000)])
    done = python(KILLED, documents.path, out)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert names(out) == {SCRATCH}
    again = MadeVectors()
    build(documents, out, again)
    assert again.num_texts == 5_000 - SYNC_EVERY + 25
    build(documents, tmp_path / "undisturbed", MadeVectors())
    assert contents(out) == contents(tmp_path / "undisturbed")


class TestWhatCannotBeBuilt:
    @pytest.mark.parametrize(
        ("lines", "reason"),
        [
            ('{"text": "rain"}\n' * 99 + "{bad\n", "line 100"),
            (
                '{"id": 0, "text": "a"}\n{"id": 0, "text": "b"}',
                r'line 2: the id "0" is already that of .*, line 1; ids',
            ),
            ("", "there are no documents in it"),
        ],
    )
    def test_a_bad_source_leaves_no_trace(
        self, source: Write, out: Path, tmp_path: Path, lines: str, reason: str
    ) -> None:
        (tmp_path / "bad.jsonl").write_text(lines)
        encoder = MadeVectors()
        with pytest.raises(BadDocument, match=reason):
            build(Source(tmp_path / "bad.jsonl"), out, encoder)
        assert (out.exists(), encoder.num_texts) == (False, 0)
        before = build(source(["storm"]), out, MadeVectors())
        with pytest.raises(BadDocument, match=reason):
            build(Source(tmp_path / "bad.jsonl"), out, MadeVectors())
        assert names(out) == {before.version, CURRENT, HISTORY}

    def test_bad_rows_are_left_out_where_that_is_asked_for(self, out: Path, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        rows = [("a", "one"), ("b", ""), ("a", "two"), ("c", "six")]
        path.write_text("".join(f'{{"id": "{name}", "text": "{text}"}}\n' for name, text in rows) + "{bad\n")
        reports: list[TaskProgress] = []
        result = build(Source(path), out, MadeVectors(), reports.append, skips_bad=True)
        index = Index.open(out)
        assert [index.document(row)["text"] for row in range(result.count)] == ["one", "six"]
        assert (index.manifest.num_bad, reports[-1].num_bad, reports[-1].rows) == (3, 3, 5)
        left_out = [json.loads(line) for line in (index.folder / BAD_ROWS).read_text().splitlines()]
        assert [row["row"] for row in left_out] == [2, 5, 3]
        assert tuple(row["reason"] for row in left_out) == result.first_bad
        assert 'line 3: the id "a" is already that of' in left_out[2]["reason"]

    @pytest.mark.wide
    def test_memory_for_documents_of_one_id_is_small(self, out: Path, tmp_path: Path) -> None:
        path, count = tmp_path / "bad.jsonl", 20_000
        path.write_text('{"id": "a", "text": "storm"}\n' * count)
        tracemalloc.start()
        try:
            assert build(Source(path), out, MadeVectors(), skips_bad=True).num_bad == count - 1
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 250 * count

    def test_two_builds_at_once(self, source: Write, out: Path) -> None:
        documents, refused = source(["storm", "rain"]), []

        def build_another(_: TaskProgress) -> None:
            with pytest.raises(IndexBusy) as caught:
                build(documents, out, MadeVectors())
            refused.append(str(caught.value))

        first = build(documents, out, MadeVectors(), build_another)
        said = f"{out} is being built already, by process {os.getpid()} since .* from {documents.path}: wait until that"
        assert all(re.match(said, message) for message in refused)
        assert refused
        assert names(out) == {first.version, CURRENT, HISTORY}

    def test_in_a_folder_that_is_a_link(self, source: Write, out: Path, tmp_path: Path) -> None:
        (other := tmp_path / "other").mkdir()
        (other / "mine.txt").write_text("mine")
        out.mkdir(parents=True)
        for target in (other, tmp_path / "nowhere"):
            (out / SCRATCH).symlink_to(target)
            with pytest.raises(FileError, match="is a link, but a build empties this folder: remove the link"):
                build(source(["storm"]), out, MadeVectors())
            (out / SCRATCH).unlink()
        assert names(other) == {"mine.txt"}

    def test_a_search_that_misses_documents(self, source: Write, out: Path) -> None:
        def lose_codes(progress: TaskProgress) -> None:
            if progress.step == "validating":
                codes = np.load(out / SCRATCH / QUANTISED, mmap_mode="r+")
                codes[::2] = 0
                codes.flush()

        with pytest.raises(IndexCorrupt, match="the new version is not published"):
            build(source([f"text {n}" for n in range(100)]), out, MadeVectors(), lose_codes)
        assert not (out / CURRENT).exists()

    def test_vectors_that_do_not_belong_to_their_texts(self, source: Write, out: Path) -> None:
        """As when workers were started with other weights of the same digest, or with a prompt of another text."""
        before = build(source([f"text {n}" for n in range(100)]), out, MadeVectors())

        class Others(MadeVectors):
            def embed(self, texts: Iterable[str], waiting: Waiting = no_wait) -> Generator[NDArray[np.float32]]:
                yield from super().embed(f"other {text}" for text in texts)

        with pytest.raises(IndexCorrupt, match=r"is not published: of 20 of its documents, .* are found"):
            build(source([f"text {n}" for n in range(90)]), out, Others())
        assert names(out) == {before.version, CURRENT, HISTORY}
        assert current_version(out).name == before.version

    def test_there_is_certainly_no_room(self, source: Write, out: Path) -> None:
        encoder = MadeVectors()
        encoder.model = replace(encoder.model, dimension=2**60)
        with pytest.raises(DiskFull, match=r"the vectors of 1 documents take 4,611,.* free: free some space"):
            build(source(["storm"]), out, encoder)
        assert encoder.num_texts == 0


FULL_DISK = """
import resource, sys
from pathlib import Path
from shoal.errors import DiskFull
from shoal.records.source import Source
from shoal_workers.index.build.builder import build
from test_builder import MadeVectors
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    build(Source(Path(sys.argv[1])), Path(sys.argv[2]), MadeVectors())
except DiskFull as error:
    print(error)
"""


def test_on_a_full_disk_the_old_index_stays(source: Write, out: Path) -> None:
    before = build(source(["storm", "rain"]), out, MadeVectors())
    manifest = Index.open(out).manifest
    done = python(FULL_DISK, source(f"text {n}" for n in range(1_000)).path, out)
    assert f"no room to build an index in {out}" in done.stdout, done.stderr
    assert "an index there is unchanged" in done.stdout
    assert names(out) == {before.version, CURRENT, HISTORY, SCRATCH}
    assert Index.open(out).manifest == manifest


def python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program that may import this module."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=False)


class TestAnUnchangedSource:
    def test_the_version_stays_and_a_rollback_leads_to_the_one_before(self, source: Write, out: Path) -> None:
        build(source(["storm"]), out, MadeVectors())
        first = current_version(out).name
        second = build(source(["storm", "rain"]), out, MadeVectors())
        for _ in range(3):
            again = build(source(["storm", "rain"]), out, MadeVectors())
            assert (again.version, again.is_unchanged, again.num_embedded) == (second.version, True, 0)
            assert (again.is_published, again.num_documents) == (True, 2)
        assert not (out / SCRATCH).exists()
        assert rollback(out) == first

    @pytest.mark.parametrize(
        "options",
        [
            {"reuses": False},
            {"kinds": {"n": "keyword"}},
            {"language": "english"},
            {"encoder": MadeVectors(fingerprint="f2")},
        ],
        ids=lambda options: next(iter(options)),
    )
    def test_a_build_with_another_option_makes_a_version(
        self, source: Write, out: Path, options: dict[str, Any]
    ) -> None:
        first = build(source(["storm", "rain"]), out, MadeVectors(), language="none")
        others: dict[str, Any] = {"encoder": MadeVectors(), "language": "none"} | options
        again = build(source(["storm", "rain"]), out, **others)
        assert not again.is_unchanged
        assert current_version(out).name == again.version != first.version

    def test_a_version_with_cells_and_a_map_of_an_earlier_release_is_served_and_stays(
        self, source: Write, out: Path
    ) -> None:
        build(source(["storm", "rain"]), out, MadeVectors())
        version = current_version(out)
        manifest = json.loads((version / MANIFEST).read_text())
        manifest |= {"layout": 6, "num_cells": 1, "cell_margin": 0.3, "bit_margin": 9.0, "num_candidates": 0}
        manifest["checksums"] |= {"centroids.npy": "f" * 64, "map-places.npy": "f" * 64}
        (version / MANIFEST).write_text(json.dumps(manifest))
        index = Index.open(out)
        assert index.search(index.vectors[1:], 1)[0][0]["text"] == "rain"
        assert build(source(["storm", "rain"]), out, MadeVectors()).is_unchanged

    @pytest.mark.parametrize("name", [QUANTISED, DOCUMENTS])
    def test_a_damaged_version_is_built_again(self, source: Write, out: Path, name: str) -> None:
        build(source(["storm", "rain"]), out, MadeVectors())
        damaged = current_version(out) / name
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
        assert not build(source(["storm", "rain"]), out, MadeVectors()).is_unchanged
        assert Index.open(out).document(0)["text"] == "storm"


def test_changes_of_positions_are_refused_where_a_source_has_no_ids(out: Path, tmp_path: Path, queue: Queue) -> None:
    changes = IndexChanges(ChangeLog(queue.broker, queue.keys), "news")
    as_written(changes.log).append("news", Change((), np.empty((0, 8), np.float32), ("late-1", "1"), "a" * 64, 100.0))
    (tmp_path / "source.txt").write_text("storm\nrain\n")
    with pytest.raises(InvalidRequest, match=r'no column of ids.* a change of id "1", .*--id-column'):
        build(Source(tmp_path / "source.txt"), out, MadeVectors(), changes=changes)
    (tmp_path / "source.csv").write_text("id,text\n1,storm\n2,rain\n")
    assert build(Source(tmp_path / "source.csv"), out, MadeVectors(), changes=changes).count == 1
    assert not Index.open(out).manifest.ids_are_positions
