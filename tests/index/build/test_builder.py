"""Building an index: a new version appears complete or not at all, and until then the old one stays."""

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TESTS
from index_versions import quantise

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
from shoal.task_progress import TaskProgress
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import GROUP, SYNC_EVERY, Encoded, LocalEncoder, Waiting, no_wait
from shoal_workers.index.build.scratch import SCRATCH, BuildState
from shoal_workers.index.build.validation import SEARCHED_AT_ONCE, Sample
from shoal_workers.index.build.vectors import EMBEDDED, texts_of
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.documents import HashTable, hash_of
from shoal_workers.index.files.manifest import BAD_ROWS, DOCUMENTS, FILES, IDS, IMPACTS, MANIFEST, OFFSETS, QUANTISED
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.versions import HISTORY, LOCK, rollback

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

    def encode(self, texts: Iterable[str], outputs: Sequence[str], waiting: Waiting = no_wait) -> Generator[Encoded]:
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
    """Return the names in the folder of the index, except the file with the lock of its versions."""
    return {path.name for path in out.iterdir()} - {LOCK}


def contents(out: Path) -> dict[str, bytes]:
    """Return the contents of the current version's files; of its manifest, without the entries of this build alone."""
    folder = current_version(out)
    found = {name: (folder / name).read_bytes() for name in FILES}
    manifest = json.loads((folder / MANIFEST).read_text())
    return found | {MANIFEST: repr({**manifest, "version": "", "built_at": ""}).encode()}


def stop_at(step: str) -> Callable[[TaskProgress], None]:
    """Return a report that stops a build at a step."""

    def report(progress: TaskProgress) -> None:
        if progress.step == step:
            raise Unavailable("stop")

    return report


#: The program of a process that builds. It ends at its 4,500th text, or writes no file of over `sys.argv[3]` bytes.
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


def build_elsewhere(source: Source, out: Path, max_bytes: int = 2**30) -> subprocess.CompletedProcess[str]:
    """Run a build in another process."""
    command = [sys.executable, "-c", PROGRAM, source.path, str(out), str(max_bytes)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_an_index_has_the_documents_in_their_order_with_their_vectors(
    source: Write, out: Path, encoder: Encoder
) -> None:
    texts = ["storm", "market falls", "rain " * 100, "Zürich", "storm", *(f"storm {n}" for n in range(GROUP))]
    reports: list[TaskProgress] = []
    result = build(source(texts), out, LocalEncoder(encoder), reports.append)
    index = Index.open(out)
    assert index.vectors == pytest.approx(encoder.embed(texts, Options(), encoder.model.prompts["document"]), abs=1e-5)
    assert [index.documents.document(n) for n in range(5)] == [
        {"id": f"d{n}", "text": texts[n], "n": n} for n in range(5)
    ]
    assert (result.num_embedded, result.num_repeated, result.found_share) == (GROUP + 4, 1, 1.0)
    assert index.manifest.prompt == "document"
    embedding = [(report.rows, report.fraction) for report in reports if report.step == "embedding"]
    assert embedding == [(GROUP, GROUP / (GROUP + 4)), (GROUP + 4, 1)]
    steps = ["indexing words", "embedding", "copying", "quantising", "validating", "publishing"]
    assert list(dict.fromkeys(report.step for report in reports)) == steps


def test_documents_have_the_prompt_for_documents(encoder: Encoder) -> None:
    model = replace(encoder.model, prompts={"document": "rain "})
    (found,) = LocalEncoder(Encoder(model, encoder.tokenizer, encoder.engine)).encode(["storm"], ("vector",))
    assert (found.vectors == encoder.embed(["rain storm"], Options(), "")).all()


class TestAnIncrementalBuild:
    TEXTS = tuple(f"text {n}" for n in range(200))

    def test_embeds_only_new_and_changed_texts_and_equals_a_full_one(
        self, source: Write, out: Path, tmp_path: Path
    ) -> None:
        build(source(["storm"]), out, MadeVectors())
        build(source(self.TEXTS), out, MadeVectors(), publishes=False)  # its vectors are reused all the same
        changed = ["new first", *self.TEXTS[50:], "new last", "new first"]
        encoder = MadeVectors()
        result = build(source(changed), out, encoder)
        assert (result.num_embedded, result.num_reused, result.num_repeated) == (2, 150, 1)
        assert encoder.num_texts == 2 + 20  # the texts of the validation
        assert build(source(changed), tmp_path / "full", MadeVectors()).num_embedded == 152
        assert {name for name in FILES if contents(out)[name] != contents(tmp_path / "full")[name]} == set()

    @pytest.mark.parametrize("why", ["asked", "model", "settings", "unknown settings", "damage", "layout"])
    def test_embeds_all_texts_if_the_former_version_cannot_be_used(
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


class TestLearnedWords:
    def test_of_former_texts_are_reused_with_their_vectors(self, source: Write, out: Path) -> None:
        texts = ["storm", "rain rain", "storm", "sun"]
        build(source(texts), out, first := MadeVectors(), language="learned")
        assert first.num_texts == 3 + 4  # the texts of the validation
        build(source(["wind", *texts]), out, second := MadeVectors(), language="learned")
        assert second.num_texts == 1 + 5
        full = out.with_name("full")
        build(source(["wind", *texts]), full, MadeVectors(), language="learned")
        indexes = [Index.open(folder) for folder in (out, full)]
        query = [letters_of("rain or storm")]
        one, other = (index.lexical.scores(index.lexical.weigh_learned(query)) for index in indexes)
        np.testing.assert_allclose(one, other, rtol=0.02)
        assert one.argmax() == 2
        assert build(source(["wind", *texts]), out, MadeVectors(), language="learned").is_unchanged

    def test_that_are_damaged_are_learned_anew(self, source: Write, out: Path) -> None:
        build(documents := source(["storm", "rain"]), out, MadeVectors(), language="learned")
        data = (path := current_version(out) / IMPACTS).read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert build(documents, out, MadeVectors(), language="learned").num_embedded == 2

    def test_follow_words_of_another_kind(self, source: Write, out: Path) -> None:
        """All texts are encoded again, because the pass that weighs a text makes its vector too."""
        documents = source(["storm", "rain"])
        build(documents, out, MadeVectors())
        learned = build(documents, out, MadeVectors(), language="learned")
        assert (learned.num_embedded, Index.open(out).has_learned_words) == (2, True)
        words = build(documents, out, MadeVectors(), language="english")
        assert (words.num_embedded, Index.open(out).has_learned_words) == (0, False)

    def test_of_an_interrupted_build_are_kept(self, source: Write, out: Path) -> None:
        documents = source([f"text {n}" for n in range(SYNC_EVERY + 100)])
        with pytest.raises(Unavailable):
            build(documents, out, MadeVectors(breaks=Unavailable("stop"), before=SYNC_EVERY + 64), language="learned")
        build(documents, out, again := MadeVectors(), language="learned")
        assert again.num_texts == 100 + 20
        full = out.with_name("full")
        build(documents, full, MadeVectors(), language="learned")
        assert contents(out) == contents(full)


class TestAnInterruptedBuild:
    def test_that_was_killed_goes_on_and_is_byte_for_byte_an_undisturbed_one(
        self, source: Write, out: Path, tmp_path: Path
    ) -> None:
        documents = source([f"text {n}" for n in range(5_000)])
        done = build_elsewhere(documents, out)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert names(out) == {SCRATCH}
        again = MadeVectors()
        assert build(documents, out, again).num_embedded == 5_000
        assert again.num_texts == 5_000 - SYNC_EVERY + 25
        build(documents, tmp_path / "undisturbed", MadeVectors())
        assert contents(out) == contents(tmp_path / "undisturbed")
        assert names(out) == {current_version(out).name, CURRENT, HISTORY}
        assert names(current_version(out)) == {*FILES, MANIFEST, BAD_ROWS}

    @pytest.mark.parametrize("step", ["reading", "quantising", "publishing"])
    def test_goes_on_from_every_step(self, source: Write, out: Path, tmp_path: Path, step: str) -> None:
        texts = [f"text {n % 4_000}" for n in range(4_200)]
        for folder in (out, tmp_path / "undisturbed"):
            build(source(["text 1", "text 7"]), folder, MadeVectors())
            if folder == out:
                with pytest.raises(Unavailable):
                    build(source(texts), out, MadeVectors(), stop_at(step))
            assert build(source(texts), folder, MadeVectors()).num_embedded == 3_998
        assert contents(out) == contents(tmp_path / "undisturbed")

    @pytest.mark.parametrize("error", [Unavailable, DiskFull, Internal, Cancelled])
    def test_leaves_nothing_only_if_it_cannot_go_on(self, source: Write, out: Path, error: type[ShoalError]) -> None:
        with pytest.raises(error):
            build(source(["storm"]), out, MadeVectors(breaks=error("stop")))
        assert out.exists() == (error is not Cancelled)

    @pytest.mark.parametrize("why", ["model", "full", "damage", "learned"])
    def test_embeds_all_texts_if_what_was_kept_cannot_be_used(self, source: Write, out: Path, why: str) -> None:
        texts = [f"text {n}" for n in range(SYNC_EVERY + 100)]
        with pytest.raises(Unavailable):
            build(source(texts), out, MadeVectors(breaks=Unavailable("stop"), before=SYNC_EVERY + 64))
        if why == "damage":
            os.truncate(out / SCRATCH / EMBEDDED, 1_000)
        encoder = MadeVectors("b" * 64 if why == "model" else "a" * 64)
        language = "learned" if why == "learned" else None
        build(source(texts), out, encoder, reuses=why != "full", language=language)
        assert encoder.num_texts == len(texts) + 20

    def test_of_another_model_takes_what_was_kept_away(self, source: Write, out: Path) -> None:
        texts = [f"text {n}" for n in range(SYNC_EVERY - 64)]
        with pytest.raises(Unavailable):
            build(source(texts[:32]), out, MadeVectors(), stop_at("quantising"))
        with pytest.raises(Unavailable):
            build(source(texts), out, MadeVectors("b" * 64, breaks=Unavailable("stop"), before=len(texts) - 64))
        build(source(texts), out, again := MadeVectors())
        assert again.num_texts == len(texts) + 20

    def test_is_of_use_to_a_build_of_other_documents_with_other_options(self, source: Write, out: Path) -> None:
        texts = [f"text {n}" for n in range(SYNC_EVERY + 100)]
        with pytest.raises(Unavailable):
            build(source(texts), out, MadeVectors(breaks=Unavailable("stop"), before=SYNC_EVERY + 64), key="one")
        changed = ["new", *texts[100:200], "text 100", *texts[:50]]
        result = build(source(changed), out, again := MadeVectors(), kinds={"n": "keyword"}, language="none")
        assert (again.num_texts, result.num_embedded, result.num_repeated) == (1 + 20, 151, 1)
        build(source(changed), full := out.with_name("full"), MadeVectors(), kinds={"n": "keyword"}, language="none")
        assert contents(out) == contents(full)


class TestWhatCannotBeBuilt:
    @pytest.mark.parametrize(
        ("lines", "reason"),
        [
            ('{"text": "rain"}\n' * 99 + "{bad\n", r"line 100.*; --skip-bad \(on_bad: skip\) leaves"),
            (
                '{"id": 0, "text": "a"}\n{"id": 0, "text": "b"}',
                r'line 2: .*, line 1 has the id "0" already; ids',
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

    def test_bad_rows_are_left_out_if_that_is_asked_for(self, out: Path, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        rows = [("a", "one"), ("b", ""), ("a", "two"), ("c", "six")]
        path.write_text("".join(f'{{"id": "{name}", "text": "{text}"}}\n' for name, text in rows) + "{bad\n")
        reports: list[TaskProgress] = []
        result = build(Source(path), out, MadeVectors(), reports.append, skips_bad=True)
        index = Index.open(out)
        assert [index.documents.document(row)["text"] for row in range(result.count)] == ["one", "six"]
        assert (index.manifest.num_bad, reports[-1].num_bad, reports[-1].rows) == (3, 3, 5)
        left_out = [json.loads(line) for line in (index.folder / BAD_ROWS).read_text().splitlines()]
        assert [row["row"] for row in left_out] == [2, 5, 3]
        assert tuple(row["reason"] for row in left_out) == result.first_bad
        assert 'has the id "a" already' in left_out[2]["reason"]
        path.write_text('{"text": "one", "score": 1}\n')
        with pytest.raises(BadDocument, match=r'there are no documents in it; .*: a hit has its own "score"'):
            build(Source(path), out, MadeVectors(), skips_bad=True)

    def test_two_builds_at_once(self, source: Write, out: Path) -> None:
        documents, refused = source(["storm", "rain"]), []

        def build_another(_: TaskProgress) -> None:
            with pytest.raises(IndexBusy) as caught:
                build(documents, out, MadeVectors())
            refused.append(str(caught.value))

        first = build(documents, out, MadeVectors(), build_another)
        assert set(refused) == {f"{out} has a build already: wait until it has ended, or stop it"}
        assert names(out) == {first.version, CURRENT, HISTORY}

    def test_in_a_folder_that_is_a_link(self, source: Write, out: Path, tmp_path: Path) -> None:
        (other := tmp_path / "other").mkdir()
        (other / "mine.txt").write_text("mine")
        out.mkdir(parents=True)
        (out / SCRATCH).symlink_to(other)
        with pytest.raises(FileError, match="is a link, but a build empties this folder: remove the link"):
            build(source(["storm"]), out, MadeVectors())
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
        """Workers may have been started with other weights of the same digest, or with another text of a prompt."""
        before = build(source([f"text {n}" for n in range(100)]), out, MadeVectors())

        class Others(MadeVectors):
            def encode(
                self, texts: Iterable[str], outputs: Sequence[str], waiting: Waiting = no_wait
            ) -> Generator[Encoded]:
                yield from super().encode((f"other {text}" for text in texts), outputs)

        with pytest.raises(IndexCorrupt, match=r"is not published: of 20 of its documents, .* are found"):
            build(source([f"text {n}" for n in range(90)]), out, Others())
        assert names(out) == {before.version, CURRENT, HISTORY}
        assert current_version(out).name == before.version

    def test_without_room_for_the_vectors_nothing_is_embedded(self, source: Write, out: Path) -> None:
        encoder = MadeVectors()
        encoder.model = replace(encoder.model, dimension=2**60)
        with pytest.raises(DiskFull, match=r"the vectors of 1 documents take 4,611,.* free: free some space"):
            build(source(["storm"]), out, encoder)
        assert encoder.num_texts == 0

    def test_on_a_full_disk_the_old_index_stays(self, source: Write, out: Path) -> None:
        before = build(source(["storm", "rain"]), out, MadeVectors())
        manifest = Index.open(out).manifest
        done = build_elsewhere(source(f"text {n}" for n in range(1_000)), out, 20_000)
        assert f"no room to build an index in {out}" in done.stdout, done.stderr
        assert "an index there is unchanged" in done.stdout
        assert names(out) == {before.version, CURRENT, HISTORY, SCRATCH}
        assert Index.open(out).manifest == manifest


class TestAnUnchangedSource:
    def test_the_version_stays_and_a_rollback_leads_to_the_one_before(self, source: Write, out: Path) -> None:
        first = build(source(["storm"]), out, MadeVectors())
        second = build(source(["storm", "rain"]), out, MadeVectors())
        again = build(source(["storm", "rain"]), out, MadeVectors())
        assert (again.version, again.is_unchanged, again.num_embedded) == (second.version, True, 0)
        assert (again.is_published, again.num_documents) == (True, 2)
        assert not (out / SCRATCH).exists()
        assert rollback(out) == first.version

    def test_a_build_with_another_option_makes_a_version(self, source: Write, out: Path) -> None:
        options: dict[str, Any] = {"encoder": MadeVectors(), "language": "none"}
        version = build(source(["storm", "rain"]), out, **options).version
        changes: list[dict[str, Any]] = [
            *({"language": "english"}, {"kinds": {"n": "keyword"}}, {"encoder": MadeVectors(fingerprint="f2")}),
            {"reuses": False},
        ]
        for change in changes:
            options |= change
            again = build(source(["storm", "rain"]), out, **options)
            assert not again.is_unchanged
            assert current_version(out).name == again.version != version
            version = again.version

    def test_ids_in_place_of_equal_positions_make_another_version(self, tmp_path: Path, out: Path) -> None:
        for name, line in (("a.txt", "storm"), ("a.jsonl", '{"id": "0", "text": "storm"}')):
            (tmp_path / name).write_text(line)
            assert not build(Source(tmp_path / name), out, MadeVectors()).is_unchanged

    def test_a_damaged_version_is_built_again(self, source: Write, out: Path) -> None:
        for name in (QUANTISED, DOCUMENTS):
            build(source(["storm", "rain"]), out, MadeVectors())
            damaged = current_version(out) / name
            damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
            assert not build(source(["storm", "rain"]), out, MadeVectors()).is_unchanged
            assert Index.open(out).documents.document(0)["text"] == "storm"


def test_a_large_version_is_validated_piece_by_piece(tmp_path: Path) -> None:
    lines = [f'{{"id": "{n}", "text": "{n}"}}\n'.encode() for n in range(SEARCHED_AT_ONCE + 5_000)]
    (tmp_path / DOCUMENTS).write_bytes(b"".join(lines))
    save_array(tmp_path / OFFSETS, np.cumsum([0, *map(len, lines)], dtype=np.int64))
    HashTable.of(b"".join(hash_of(str(n)) for n in range(len(lines)))).save(tmp_path, IDS)
    encoded = MadeVectors().encode(map(str, range(len(lines))), ("vector",))
    vectors = np.concatenate([found.vectors for found in encoded])
    parts = list[float]()
    state = BuildState(tmp_path, lambda _: None, "v1", count=len(lines))
    sample = Sample.encode(state, MadeVectors(), ("vector",))
    assert sample.check(vectors, quantise(vectors), None, parts.append) == 1
    assert parts == [0, SEARCHED_AT_ONCE / len(lines)]


def test_the_texts_of_many_rows_take_no_memory_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "source.txt").write_text("storm\n")
    out, rows = tmp_path / "index", np.zeros(10**6, np.int64)
    build(Source(tmp_path / "source.txt"), out, MadeVectors())
    tracemalloc.start()
    try:
        assert next(texts_of(current_version(out), 1, rows)) == "storm"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
