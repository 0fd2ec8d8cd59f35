"""Building an index: a new version appears complete or not at all, and until then the old one stays."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TESTS

from shoal.bulk.served_model import ModelInfo
from shoal.contract.options import Options
from shoal.contract.vectors import SparseVector
from shoal.errors import (
    BadDocument,
    Cancelled,
    DiskFull,
    FileError,
    IndexBusy,
    IndexCorrupt,
    Internal,
    ShoalError,
    Unavailable,
)
from shoal.index_folder import CURRENT
from shoal.records.source import Source
from shoal.task_progress import Report, TaskProgress
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build import validation
from shoal_workers.index.build.builder import BuildResult, build
from shoal_workers.index.build.document_encoder import GROUP, Encoded, LocalEncoder, Waiting
from shoal_workers.index.build.scratch import SCRATCH, SYNC_EVERY
from shoal_workers.index.build.vectors import EMBEDDED, texts_of
from shoal_workers.index.files.checksums import checksum
from shoal_workers.index.files.manifest import (
    BAD_ROWS,
    DOCUMENTS,
    FILES,
    IMPACTS,
    LEXICAL,
    MANIFEST,
    QUANTISED,
    Manifest,
)
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.versions import HISTORY, LOCK, publish, rollback

DIMENSION = 8


class MadeVectors:
    """An encoder that computes vectors from the letters of texts, counts the texts, and can stop with an error."""

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

    def encode(self, texts: Iterable[str], outputs: Sequence[str], waiting: Waiting) -> Generator[Encoded]:
        """Yield the outputs of the texts, a few texts at a time."""
        source = iter(texts)
        while group := list(islice(source, 32)):
            if self._breaks and self.num_texts + len(group) > self._before:
                raise self._breaks
            self.num_texts += len(group)
            hashes = b"".join(blake2b(text.encode(), digest_size=2 * DIMENSION).digest() for text in group)
            vectors = np.frombuffer(hashes, np.int16).reshape(-1, DIMENSION).astype(np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            yield Encoded(vectors, [letters_of(text) for text in group] if "sparse" in outputs else [])


def letters_of(text: str) -> SparseVector:
    """Return a sparse vector, in which a letter's weight is larger the more often the text has it."""
    found, counts = np.unique(np.frombuffer(text.encode(), np.uint8), return_counts=True)
    return SparseVector(found.astype(np.int32), np.sqrt(counts, dtype=np.float32))


def source_of(folder: Path, rows: Iterable[dict[str, Any]]) -> Source:
    """Write the rows into a file, and return it as a source."""
    (path := folder / "source.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(path)


class Builds:
    """Builds of the index in `out`."""

    def __init__(self, folder: Path):
        self.folder, self.out = folder, folder / "out" / "index"

    def source(self, texts: Iterable[str]) -> Source:
        return source_of(self.folder, ({"id": f"d{n}", "text": text, "n": n} for n, text in enumerate(texts)))

    def run(self, texts: Iterable[str], encoder: Any = None, report: Report = print, **options: Any) -> BuildResult:
        return build(self.source(texts), self.out, encoder or MadeVectors(), report, **options)

    def fail(self, texts: Iterable[str], encoder: Any = None, report: Report = print, **options: Any) -> None:
        with pytest.raises(Unavailable):
            self.run(texts, encoder, report, **options)

    def run_elsewhere(self, texts: Iterable[str], max_bytes: int = 2**30) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, self.source(texts).path, str(self.out), str(max_bytes)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    def same_as_in_full(self, texts: Iterable[str], **options: Any) -> bool:
        """Return True if the current version's files equal the files of a build of these texts in another folder."""
        build(self.source(texts), full := self.folder / "full", MadeVectors(), **options)
        pairs = [(self.current / name, current_version(full) / name) for name in FILES]
        return all(one.read_bytes() == other.read_bytes() for one, other in pairs)

    @property
    def names(self) -> set[str]:
        """The names in the folder of the index, except the file with the lock of its versions."""
        return {path.name for path in self.out.iterdir()} - {LOCK}

    @property
    def current(self) -> Path:
        return current_version(self.out)


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path)


def stop_at(step: str) -> Report:
    def report(progress: TaskProgress) -> None:
        if progress.step == step:
            raise Unavailable("stop")

    return report


def stopping(before: int, digest: str = "a" * 64) -> MadeVectors:
    return MadeVectors(digest, breaks=Unavailable("stop"), before=before)


#: A program that builds an index. It ends at its 4,500th text, or writes no file of over `sys.argv[3]` bytes.
PROGRAM = """
import os, resource, signal, sys
from shoal.errors import DiskFull
from test_builder import MadeVectors, Path, Source, build

def report(progress):
    if progress.rows > 4_500 and progress.step == "embedding":
        os.kill(os.getpid(), signal.SIGKILL)

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    build(Source(sys.argv[1]), Path(sys.argv[2]), MadeVectors(), report)
except DiskFull as error:
    print(error)
"""

#: Texts for a build that is interrupted after it has saved the first `SYNC_EVERY`.
MANY = [f"text {n}" for n in range(SYNC_EVERY + 100)]


def test_an_index_has_the_documents_in_their_order_with_their_vectors(builds: Builds, encoder: Encoder) -> None:
    model = replace(encoder.model, prompts={"document": "rain "})
    texts = ["storm", "market falls", "rain " * 100, "Zürich", "storm", *(f"storm {n}" for n in range(GROUP))]
    reports: list[TaskProgress] = []
    result = builds.run(texts, LocalEncoder(Encoder(model, encoder.tokenizer, encoder.engine)), reports.append)
    index = Index.open(builds.out)
    assert not isinstance(
        texts_of(index.folder, len(texts), np.zeros(1, np.int64)), list
    )  # texts of many rows take no memory
    assert index.vectors == pytest.approx(encoder.embed([f"rain {text}" for text in texts], Options(), ""), abs=1e-5)
    assert [index.documents.document(n) for n in range(5)] == [
        {"id": f"d{n}", "text": texts[n], "n": n} for n in range(5)
    ]
    assert (result.num_embedded, result.num_repeated, result.found_share) == (GROUP + 4, 1, 1.0)
    assert index.manifest.prompt == "document"
    embedding = [(report.rows, report.fraction) for report in reports if report.step == "embedding"]
    assert embedding == [(GROUP, GROUP / (GROUP + 4)), (GROUP + 4, 1)]
    steps = ["indexing words", "embedding", "copying", "quantising", "validating", "publishing"]
    assert list(dict.fromkeys(report.step for report in reports)) == steps


# Texts that are embedded already


def test_only_new_and_changed_texts_are_embedded_and_the_version_equals_a_full_one(
    builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "SEARCHED_AT_ONCE", 150)  # the version is validated in two pieces
    builds.run(["storm"])
    builds.run(MANY[:200], publishes=False)  # the vectors of this version are reused all the same
    changed = ["new first", *MANY[50:200], "new last", "new first"]
    result = builds.run(changed, encoder := MadeVectors())
    assert (result.num_embedded, result.num_reused, result.num_repeated, result.found_share) == (2, 150, 1, 1.0)
    assert encoder.num_texts == 2 + 20  # the validation embeds texts too
    assert builds.same_as_in_full(changed)


@pytest.mark.parametrize("why", ["asked", "model", "settings", "unknown settings", "damage", "layout"])
def test_all_texts_are_embedded_if_the_former_version_cannot_be_used(
    builds: Builds, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    builds.run(MANY[:200])
    manifest = json.loads((builds.current / MANIFEST).read_text())
    if why == "damage":
        path = builds.current / "vectors.npy"
        path.write_bytes(path.read_bytes()[:-4] + b"1234")
    if why == "layout":
        manifest["layout"] = 2
    if why == "unknown settings":
        del manifest["fingerprint"]
    (builds.current / MANIFEST).write_text(json.dumps(manifest))
    fingerprint = {"settings": "f2", "unknown settings": ""}.get(why, "f1")
    encoder = MadeVectors("b" * 64 if why == "model" else "a" * 64, fingerprint=fingerprint)
    assert builds.run(MANY[:200], encoder, reuses=why != "asked").num_embedded == 200
    said = "it was built with another engine, precision, prompt or length of texts, or does not name"
    assert (said in caplog.text) == ("settings" in why)


def test_learned_words_are_reused_with_their_vectors_unless_they_are_damaged(builds: Builds) -> None:
    texts = ["storm", "rain rain", "storm", "sun"]
    learned: dict[str, Any] = {"language": "learned"}
    builds.run(texts, first := MadeVectors(), **learned)
    builds.run(["wind", *texts], second := MadeVectors(), **learned)
    assert (first.num_texts, second.num_texts) == (3 + 4, 1 + 5)  # includes the texts of the validation
    build(builds.source(["wind", *texts]), full := builds.folder / "full", MadeVectors(), **learned)
    one, other = (
        index.lexical.scores(index.lexical.weigh_learned([letters_of("rain or storm")]))
        for index in map(Index.open, (builds.out, full))
    )
    np.testing.assert_allclose(one, other, rtol=0.02)
    assert one.argmax() == 2
    assert builds.run(["wind", *texts], **learned).is_unchanged
    data = (path := builds.current / IMPACTS).read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert builds.run(["wind", *texts], **learned).num_embedded == 1  # an older version provides the rest
    elsewhere = builds.folder / "elsewhere"
    for language, num_embedded in (("english", 2), ("learned", 2), ("english", 0)):  # one pass makes vectors and words
        source = builds.source(["storm", "rain"])
        assert build(source, elsewhere, MadeVectors(), language=language).num_embedded == num_embedded
        assert Index.open(elsewhere).has_learned_words == (language == "learned")


# Interrupted builds


def test_a_build_that_was_killed_goes_on_and_is_byte_for_byte_an_undisturbed_one(builds: Builds) -> None:
    texts = [f"text {n}" for n in range(5_000)]
    done = builds.run_elsewhere(texts)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert builds.names == {SCRATCH}
    assert builds.run(texts, again := MadeVectors()).num_embedded == 5_000
    assert again.num_texts == 5_000 - SYNC_EVERY + 25
    assert builds.same_as_in_full(texts)
    assert builds.names == {builds.current.name, CURRENT, HISTORY}
    assert {path.name for path in builds.current.iterdir()} == {*FILES, MANIFEST, BAD_ROWS}


@pytest.mark.parametrize("step", ["reading", "quantising", "publishing"])
def test_a_build_goes_on_from_every_step(builds: Builds, step: str) -> None:
    texts = [f"text {n % 4_000}" for n in range(4_200)]
    builds.run(["text 1", "text 7"])
    builds.fail(texts, report=stop_at(step))
    assert builds.run(texts).num_embedded == 3_998
    assert builds.same_as_in_full(texts)


@pytest.mark.parametrize("error", [Unavailable, DiskFull, Internal, Cancelled])
def test_only_a_build_that_cannot_go_on_leaves_nothing(builds: Builds, error: type[ShoalError]) -> None:
    with pytest.raises(error):
        builds.run(["storm"], MadeVectors(breaks=error("stop")))
    assert builds.out.exists() == (error is not Cancelled)


@pytest.mark.parametrize("why", ["words", "model", "full", "damage", "learned"])
def test_the_texts_that_an_interrupted_build_saved_are_embedded_again_only_if_they_cannot_be_used(
    builds: Builds, why: str
) -> None:
    language = "learned" if why == "words" else None
    builds.fail(MANY, stopping(SYNC_EVERY + 64), language=language)
    if why == "damage":
        os.truncate(builds.out / SCRATCH / EMBEDDED, 1_000)
    if why == "learned":
        language = "learned"
    again = MadeVectors("b" * 64 if why == "model" else "a" * 64)
    builds.run(MANY, again, reuses=why != "full", language=language)
    assert again.num_texts == 20 + (100 if why == "words" else len(MANY))
    assert builds.same_as_in_full(MANY, language=language)


def test_an_interrupted_build_is_of_use_to_a_build_of_other_documents_but_not_to_one_of_another_model(
    builds: Builds,
) -> None:
    texts = MANY[: SYNC_EVERY - 64]
    builds.fail(texts[:32], report=stop_at("quantising"))
    builds.fail(texts, stopping(len(texts) - 64, "b" * 64))  # this removes the saved outputs
    builds.run(texts, again := MadeVectors(), publishes=False)
    assert again.num_texts == len(texts) + 20
    shutil.rmtree(builds.out)
    builds.fail(MANY, stopping(SYNC_EVERY + 64))
    changed = ["new", *MANY[100:200], MANY[100], *MANY[:50]]
    options: dict[str, Any] = {"kinds": {"n": "keyword"}, "language": "none"}
    result = builds.run(changed, again := MadeVectors(), **options)
    assert (again.num_texts, result.num_embedded, result.num_repeated) == (1 + 20, 151, 1)
    assert builds.same_as_in_full(changed, **options)


# Builds that fail


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ('{"text": "rain"}\n' * 99 + "{bad\n", r"line 100.*; --skip-bad \(on_bad: skip\) leaves"),
        ('{"id": 0, "text": "a"}\n{"id": 0, "text": "b"}', r'line 2: .*, line 1 has the id "0" already; ids'),
        ("", "there are no documents in it"),
    ],
)
def test_a_bad_source_leaves_no_trace(builds: Builds, tmp_path: Path, lines: str, reason: str) -> None:
    (tmp_path / "bad.jsonl").write_text(lines)
    encoder, left = MadeVectors(), set[str]()
    for _ in range(2):
        with pytest.raises(BadDocument, match=reason):
            build(Source(tmp_path / "bad.jsonl"), builds.out, encoder)
        assert ((builds.out.exists() and builds.names) or set(), encoder.num_texts) == (left, 0)
        left = {builds.run(["storm"]).version, CURRENT, HISTORY}


def test_bad_rows_are_left_out_if_that_is_asked_for(builds: Builds, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    rows = [("a", "one"), ("b", ""), ("a", "two"), ("c", "six")]
    path.write_text("".join(f'{{"id": "{name}", "text": "{text}"}}\n' for name, text in rows) + "{bad\n")
    reports: list[TaskProgress] = []
    result = build(Source(path), builds.out, MadeVectors(), reports.append, skips_bad=True)
    index = Index.open(builds.out)
    assert [index.documents.document(row)["text"] for row in range(result.count)] == ["one", "six"]
    assert (index.manifest.num_bad, reports[-1].num_bad, reports[-1].rows) == (3, 3, 5)
    left_out = [json.loads(line) for line in (index.folder / BAD_ROWS).read_text().splitlines()]
    assert [row["row"] for row in left_out] == [2, 5, 3]
    assert tuple(row["reason"] for row in left_out) == result.first_bad
    assert 'has the id "a" already' in left_out[2]["reason"]
    path.write_text(path.read_text() + "{worse\n")
    again = build(Source(path), builds.out, MadeVectors(), skips_bad=True)
    assert (again.is_unchanged, again.num_bad) == (False, 4)  # each version lists its own bad rows
    path.write_text('{"text": "one", "score": 1}\n')
    with pytest.raises(BadDocument, match=r'there are no documents in it; .*: a hit has its own "score"'):
        build(Source(path), builds.out, MadeVectors(), skips_bad=True)


def test_a_second_build_at_once_and_a_folder_that_is_a_link_are_refused(builds: Builds) -> None:
    def build_another(_: TaskProgress) -> None:
        with pytest.raises(IndexBusy, match=f"^{builds.out} has a build already: wait until it has ended, or stop it$"):
            builds.run(["storm", "rain"])

    first = builds.run(["storm", "rain"], report=build_another)
    assert builds.names == {first.version, CURRENT, HISTORY}
    (builds.folder / "mine.txt").write_text("mine")
    (builds.out / SCRATCH).symlink_to(builds.folder)
    with pytest.raises(FileError, match="is a link, but a build empties this folder: remove the link"):
        builds.run(["storm"])
    assert (builds.folder / "mine.txt").exists()


def test_codes_and_vectors_that_do_not_belong_to_their_texts_are_noticed(builds: Builds) -> None:
    """Workers may have other weights with the same digest, or another text for a prompt."""

    def lose_codes(progress: TaskProgress) -> None:
        if progress.step == "validating":
            codes = np.load(builds.out / SCRATCH / QUANTISED, mmap_mode="r+")
            codes[:1] = 0
            codes.flush()

    with pytest.raises(IndexCorrupt, match="the new version is not published"):
        builds.run(MANY[:20], report=lose_codes)
    assert not (builds.out / CURRENT).exists()
    before = builds.run(MANY[:100])

    class Others(MadeVectors):
        def encode(self, texts: Iterable[str], *arguments: Any) -> Generator[Encoded]:
            yield from super().encode((f"other {text}" for text in texts), *arguments)

    with pytest.raises(IndexCorrupt, match=r"is not published: of 20 of its documents, .* are found"):
        builds.run(MANY[:90], Others())
    assert builds.names == {before.version, CURRENT, HISTORY}
    assert builds.current.name == before.version


def test_without_room_nothing_is_embedded_and_the_old_index_stays(builds: Builds) -> None:
    before = builds.run(["storm", "rain"])
    encoder = MadeVectors(fingerprint="large")
    encoder.model = replace(encoder.model, dimension=2**60)
    with pytest.raises(DiskFull, match=r"the vectors of 1 documents take 4,611,.* free: free some space"):
        builds.run(["storm"], encoder)
    assert encoder.num_texts == 0
    manifest = Index.open(builds.out).manifest
    done = builds.run_elsewhere((f"text {n}" for n in range(1_000)), 20_000)
    assert f"no room to build an index in {builds.out}" in done.stdout, done.stderr
    assert "an index there is unchanged" in done.stdout
    assert builds.names == {before.version, CURRENT, HISTORY, SCRATCH}
    assert Index.open(builds.out).manifest == manifest


# Builds that would repeat the current version


def test_only_a_build_with_another_option_or_of_a_damaged_version_makes_a_version(builds: Builds) -> None:
    options: dict[str, Any] = {"encoder": MadeVectors(), "language": "none"}
    first, second, again = (builds.run(texts, **options) for texts in (["storm"], ["storm", "rain"], ["storm", "rain"]))
    assert (again.version, again.is_unchanged, again.num_embedded) == (second.version, True, 0)
    assert (again.is_published, again.num_documents) == (True, 2)
    assert not (builds.out / SCRATCH).exists()
    assert rollback(builds.out) == first.version
    publish(builds.out, second.version)
    names = [second.version]
    changes: list[dict[str, Any]] = [
        *({"language": "english"}, {"kinds": {"n": "keyword"}}, {"encoder": MadeVectors(fingerprint="f2")}),
        *({"reuses": False}, {"reuses": True, "damaged": QUANTISED}, {"damaged": DOCUMENTS}),
    ]
    for change in changes:
        if damaged := change.pop("damaged", ""):
            path = builds.current / damaged
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        options |= change
        again = builds.run(["storm", "rain"], **options)
        assert not again.is_unchanged
        assert builds.current.name == again.version not in names
        names.append(again.version)
    path, manifest = builds.current / LEXICAL, Manifest.read(builds.current)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 0}))  # of an earlier release
    manifest.checksums[LEXICAL] = checksum(path)
    manifest.save(builds.current)
    assert not builds.run(["storm", "rain"], **options).is_unchanged
    assert Index.open(builds.out).documents.document(0)["text"] == "storm"
    for name, line in (("a.txt", "storm"), ("a.jsonl", '{"id": "0", "text": "storm"}')):  # ids in place of positions
        (builds.folder / name).write_text(line)
        assert not build(Source(builds.folder / name), builds.out, MadeVectors()).is_unchanged
