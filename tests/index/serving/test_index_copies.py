"""Indexes on their way through a store: workers elsewhere see whole versions alone, whatever fails and whenever."""

import itertools
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_store import SECRET, FaultyStore, Killed
from index_versions import add_version, publish_version

from shoal.errors import FileError, IndexCorrupt, Unavailable
from shoal.index_folder import CURRENT
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.files import file_check
from shoal_workers.index.files.manifest import DOCUMENTS, FILES, MANIFEST, VECTORS
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.serving.open_indexes import OpenIndexes
from shoal_workers.index.store.copies import (
    GONE_AFTER_S,
    MAX_RETRY_AFTER_S,
    NUM_KEPT,
    RETRY_AFTER_S,
    Copies,
    read_errors,
    tell_damage,
)
from shoal_workers.index.store.store import UPLOADED, upload, upload_missing
from shoal_workers.index.versions import delete, make_current


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    """An empty store."""
    return FaultyStore(tmp_path / "store")


@pytest.fixture
def news(tmp_path: Path, index_folder: Path) -> Path:
    """The folder of an index on the machine that builds, with the version v1."""
    publish_version(tmp_path / "home" / "news", index_folder, "v1")
    return tmp_path / "home" / "news"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The folder of the copies on the machine that serves."""
    return tmp_path / "copies"


@pytest.fixture
def copies(store: FaultyStore, copied: Path) -> Copies:
    """The copies on that machine."""
    return Copies(store, copied)


def send(folder: Path, store: FaultyStore, *, is_published: bool = True) -> None:
    """Upload an index, after its version was published or after something else."""
    upload(folder, store, is_published=is_published)


def served(copied: Path) -> str | None:
    """Return the version of the copy, as its documents say, after a check of all of its files."""
    return str(Index.open(copied / "news").document(0)["version"]) if (copied / "news" / CURRENT).exists() else None


def versions_in(folder: Path) -> set[str]:
    """Return the names of what is in a folder of an index, beside the files of its own."""
    return {path.name for path in folder.iterdir() if path.is_dir()}


def assert_whole(store: FaultyStore) -> str:
    """Check that the version which the store says to serve is whole, and return its name."""
    Index.open(store.folder / "news")
    return current_version(store.folder / "news").name


class TestUpload:
    def test_what_the_store_has_is_not_sent_again(self, news: Path, store: FaultyStore) -> None:
        send(news, store)
        store.heal()
        send(news, store)
        assert store.faults.paths("wb") == ["news/current"]

    def test_the_others_are_there_for_a_rollback(self, news: Path, store: FaultyStore, index_folder: Path) -> None:
        publish_version(news, index_folder, "v2")
        add_version(news, index_folder, "v3")
        send(news, store)
        assert assert_whole(store) == "v2"
        assert versions_in(store.folder / "news") == {"v1", "v2", "v3"}
        assert store.faults.paths("wb").index("news/current") < store.faults.paths("wb").index(f"v1/{VECTORS}")

    def test_versions_that_were_removed_go(self, news: Path, store: FaultyStore, index_folder: Path) -> None:
        send(news, store)
        publish_version(news, index_folder, "v2")
        delete(news, "v1")
        send(news, store)
        assert versions_in(store.folder / "news") == {"v2"}
        assert store.faults.paths("rm") == ["v1/manifest.json", "news/v1"]
        assert (news / UPLOADED).read_text() == "v2\n"

    def test_only_publishing_replaces_what_another_machine_has_published(
        self, news: Path, store: FaultyStore, index_folder: Path, tmp_path: Path
    ) -> None:
        send(news, store, is_published=False)
        assert assert_whole(store) == "v1"
        publish_version(news, index_folder, "v2")
        send(news, store, is_published=False)  # as after an upload that failed
        assert assert_whole(store) == "v2"
        publish_version(tmp_path / "other" / "news", index_folder, "w1")
        send(tmp_path / "other" / "news", store)
        delete(news, "v1")
        send(news, store, is_published=False)
        assert assert_whole(store) == "w1"
        assert versions_in(store.folder / "news") == {"v2", "w1"}
        send(news, store)
        assert assert_whole(store) == "v2"

    def test_an_upload_anew_mends_the_store(self, news: Path, store: FaultyStore, copies: Copies, copied: Path) -> None:
        send(news, store)
        right = (news / "v1" / VECTORS).read_bytes()
        (store.folder / "news" / "v1" / VECTORS).write_bytes(right[:-1] + b"?")
        (store.folder / "news" / "v1" / DOCUMENTS).unlink()
        copies.look(0)
        assert "run `shoal index upload`" in read_errors(copied)["news"]
        upload(news, store, is_published=False, is_anew=True)
        assert assert_whole(store) == "v1"
        copies.look(RETRY_AFTER_S)
        assert (served(copied), read_errors(copied)) == ("v1", {})

    def test_whenever_it_is_killed_the_store_serves_a_whole_version(
        self, news: Path, store: FaultyStore, index_folder: Path
    ) -> None:
        send(news, store)
        publish_version(news, index_folder, "v2")
        delete(news, "v1")
        number, is_killed = 0, True
        while is_killed:
            number += 1
            shutil.rmtree(store.folder / "news" / "v2", ignore_errors=True)
            shutil.copytree(news / "v2", store.folder / "news" / "v1", dirs_exist_ok=True)
            (store.folder / "news" / CURRENT).write_text("v1\n")
            (news / UPLOADED).write_text("v1\n")
            store.kill_at(number)
            try:
                send(news, store)
                is_killed = False
            except Killed:
                assert (store.folder / "news" / assert_whole(store)).is_dir()
            store.heal()
            send(news, store)
            assert assert_whole(store) == "v2"
            assert versions_in(store.folder / "news") == {"v2"}
        assert number > len(FILES)

    def test_a_damaged_version_is_not_sent(self, news: Path, store: FaultyStore, index_folder: Path) -> None:
        send(news, store)
        version = publish_version(news, index_folder, "v2")
        data = (version / VECTORS).read_bytes()
        (version / VECTORS).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        for _ in range(2):
            with pytest.raises(IndexCorrupt, match="is not what was built, so it is not uploaded"):
                send(news, store)
        assert assert_whole(store) == "v1"
        (version / MANIFEST).write_text("{}")
        with pytest.raises(IndexCorrupt, match=r"manifest\.json cannot be read"):
            send(news, store)

    @pytest.mark.parametrize(("removed", "at"), [("v1", MANIFEST), ("v2", VECTORS)])
    def test_a_version_that_is_removed_meanwhile_is_left_out(
        self, news: Path, store: FaultyStore, index_folder: Path, removed: str, at: str
    ) -> None:
        publish_version(news, index_folder, "v2")

        def remove(operation: str, path: str) -> None:
            if path.endswith(f"news/{removed}/{at}"):
                shutil.rmtree(news / removed, ignore_errors=True)

        store.faults.fault = remove
        send(news, store)
        assert (store.folder / "news" / CURRENT).exists() == (removed == "v1")
        store.heal()
        if removed == "v2":
            make_current(news, "v1")
        send(news, store)
        assert assert_whole(store) == ("v2" if removed == "v1" else "v1")
        assert versions_in(store.folder / "news") == {"v1", "v2"} - {removed}

    def test_what_the_store_lacks_is_uploaded_and_nothing_else(
        self, news: Path, store: FaultyStore, index_folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        upload_missing(news.parent / "none", store)
        publish_version(news.parent / "faq", index_folder, "v1")
        shutil.copytree(news, news.parent / "broken")
        (news.parent / "broken" / "v1" / MANIFEST).unlink()
        shutil.copytree(news, news.parent / "with space")
        send(news, store)
        publish_version(news, index_folder, "v2")
        upload_missing(news.parent, store)
        assert versions_in(store.folder) == {"faq", "news"}
        assert (current_version(store.folder / "faq").name, assert_whole(store)) == ("v1", "v1")
        assert "index broken is not uploaded to the store: " in caplog.text

    @pytest.mark.parametrize("error", [PermissionError, OSError])
    def test_a_store_that_takes_none_is_told_without_its_words(
        self, news: Path, store: FaultyStore, error: type[Exception], caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(operation: str, path: str) -> None:
            if operation == "wb":
                raise error(f"the key {SECRET} may not do that")

        store.faults.fault = refuse
        upload_missing(news.parent, store)
        assert "index news is not uploaded to the store: " in caplog.text
        assert SECRET not in caplog.text

    def test_a_folder_that_is_not_there_is_not_made(self, news: Path, store: FaultyStore) -> None:
        store.folder.rmdir()
        with pytest.raises(FileError, match="there is no such file, folder or bucket"):
            send(news, store)


class TestCopies:
    def test_a_copy_follows_the_store(
        self, news: Path, store: FaultyStore, copies: Copies, copied: Path, index_folder: Path
    ) -> None:
        copies.look(0)
        assert served(copied) is None
        for name in ("v1", "v2", "v3"):
            if name != "v1":
                publish_version(news, index_folder, name)
            send(news, store)
            copies.look(0)
            assert served(copied) == name
        assert versions_in(copied / "news") == {"v2", "v3"}
        assert NUM_KEPT == 2
        make_current(news, "v2")
        send(news, store)
        store.heal()
        for _ in range(2):
            copies.look(0)
            assert (served(copied), store.faults.paths("rb")) == ("v2", [])  # it is there
        assert read_errors(copied) == {}

    def test_what_is_no_index_is_left_alone(self, news: Path, store: FaultyStore, copies: Copies, copied: Path) -> None:
        send(news, store)
        (store.folder / "notes.txt").write_text("no index")
        for name in ("unpublished", ".hidden", "with space"):
            shutil.copytree(store.folder / "news", store.folder / name)
        (store.folder / "unpublished" / CURRENT).unlink()
        copies.look(0)
        copies.look(GONE_AFTER_S)
        assert versions_in(copied) == {"news"}
        assert read_errors(copied) == {}

    def test_whenever_it_is_killed_the_copy_is_a_whole_version(
        self, news: Path, store: FaultyStore, copied: Path, index_folder: Path
    ) -> None:
        send(news, store)
        Copies(store, copied).look(0)
        shutil.copytree(copied, copied.parent / "before")
        publish_version(news, index_folder, "v2")
        send(news, store)
        seen, number, is_killed = set(), 0, True
        while is_killed:
            number += 1
            shutil.rmtree(copied)
            shutil.copytree(copied.parent / "before", copied)
            store.kill_at(number)
            try:
                Copies(store, copied).look(0)
                is_killed = False
            except Killed:
                seen.add(served(copied))
            store.heal()
            Copies(store, copied).look(0)
            assert served(copied) == "v2"
            assert versions_in(copied / "news") == {"v1", "v2"}
        assert seen == {"v1"}
        assert number > len(FILES)

    def test_an_interrupted_download_goes_on_after_the_files_that_are_whole(
        self, news: Path, store: FaultyStore, copies: Copies, copied: Path
    ) -> None:
        send(news, store)
        store.heal()
        store.kill_at(8)
        with pytest.raises(Killed):
            copies.look(0)
        first = store.faults.paths("rb")
        assert len(first) == 3
        (scratch,) = (copied / "news").glob(".download-*")
        (scratch / Path(first[-1]).name).write_bytes(b"half")
        store.heal()
        copies.look(0)
        again = store.faults.paths("rb")
        assert not set(first[:-1]) & set(again)
        assert set(first) | set(again) == {f"v1/{name}" for name in FILES}
        assert served(copied) == "v1"

    def test_what_an_interruption_left_is_no_version(
        self, news: Path, store: FaultyStore, copies: Copies, copied: Path
    ) -> None:
        (copied / "news" / ".download-v0").mkdir(parents=True)
        (copied / "news" / "v1").mkdir()
        (copied / "news" / "v1" / VECTORS).write_bytes(b"")
        send(news, store)
        copies.look(0)
        assert (served(copied), versions_in(copied / "news")) == ("v1", {"v1"})

    def test_an_index_that_is_gone_for_a_while_is_removed(
        self, news: Path, store: FaultyStore, copies: Copies, copied: Path
    ) -> None:
        send(news, store)
        (store.folder / "other").mkdir()
        copies.look(0)
        (store.folder / "news" / CURRENT).rename(store.folder / "current")
        copies.look(1)
        (store.folder / "current").rename(store.folder / "news" / CURRENT)
        copies.look(2)
        shutil.rmtree(store.folder / "news")
        copies.look(3)
        copies.look(2 + GONE_AFTER_S)
        assert served(copied) == "v1"
        copies.look(3 + GONE_AFTER_S)
        assert versions_in(copied) == set()

    def test_a_store_that_has_nothing_takes_nothing_away(
        self, news: Path, store: FaultyStore, copies: Copies, copied: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        send(news, store)
        copies.look(0)
        shutil.rmtree(store.folder)
        copies.look(1)
        copies.look(2 + GONE_AFTER_S)
        assert served(copied) == "v1"
        assert "the store of indexes has no indexes: check its address" in read_errors(copied)["news"]
        assert caplog.text.count("has no indexes") == 1
        store.folder.mkdir()
        send(news, store)
        copies.look(3 + GONE_AFTER_S)
        assert read_errors(copied) == {}


@pytest.fixture
def broken(news: Path, store: FaultyStore, copies: Copies, index_folder: Path) -> Path:
    """The version v2 in the store, which is to be served next; a copy has v1."""
    send(news, store)
    copies.look(0)
    publish_version(news, index_folder, "v2")
    send(news, store)
    return store.folder / "news" / "v2"


class TestFaults:
    def test_a_wrong_checksum_leaves_the_version_before(
        self, broken: Path, store: FaultyStore, copies: Copies, copied: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        right = (broken / VECTORS).read_bytes()
        (broken / VECTORS).write_bytes(right[:-1] + b"?")
        for now in range(9):
            copies.look(now)
        assert served(copied) == "v1"
        assert "news/v2/vectors.npy in the store of indexes is not what was built" in read_errors(copied)["news"]
        assert [record.levelno for record in caplog.records if "is not what" in record.message] == [logging.WARNING]
        assert store.faults.paths("rb").count(f"v2/{VECTORS}") == 1
        (broken / VECTORS).write_bytes(right)
        copies.look(RETRY_AFTER_S)
        assert served(copied) == "v2"
        assert read_errors(copied) == {}
        assert [store.faults.paths("rb").count(f"v2/{name}") for name in (DOCUMENTS, VECTORS)] == [1, 2]

    def test_it_is_tried_less_and_less_often_until_another_version_comes(
        self, broken: Path, news: Path, store: FaultyStore, copies: Copies, copied: Path, index_folder: Path
    ) -> None:
        (broken / VECTORS).write_bytes(b"")
        times: list[float] = []
        now = 0.0
        while now < 4 * MAX_RETRY_AFTER_S:
            store.heal()
            copies.look(now)
            if f"v2/{VECTORS}" in store.faults.paths("rb"):
                times.append(now)
            now += RETRY_AFTER_S
        pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert pauses[:3] == [RETRY_AFTER_S, 2 * RETRY_AFTER_S, 4 * RETRY_AFTER_S]
        assert max(pauses) <= MAX_RETRY_AFTER_S
        publish_version(news, index_folder, "v3")
        send(news, store)
        copies.look(now)
        assert served(copied) == "v3"

    @pytest.mark.parametrize("data", [b"", b"v2", b"../v1\n", b"/etc\n", b".v1\n", b"\xff\n", b"v1\nv2\n", b"v" * 999])
    def test_a_current_that_names_no_version(
        self, broken: Path, store: FaultyStore, copies: Copies, copied: Path, data: bytes
    ) -> None:
        (broken.parent / CURRENT).write_bytes(data)
        copies.look(0)
        assert served(copied) == "v1"
        assert read_errors(copied)["news"].startswith("news/current in the store of indexes ")
        (broken.parent / CURRENT).write_bytes(b"v2\n")
        copies.look(0)
        assert served(copied) == "v2"

    @pytest.mark.parametrize(
        ("missing", "told"), [("", "v2 in the store of indexes is to be served"), (DOCUMENTS, "is missing: run `shoal")]
    )
    def test_a_missing_version_or_file(
        self, broken: Path, copies: Copies, copied: Path, missing: str, told: str
    ) -> None:
        shutil.move(broken / missing, broken.parent.parent / "elsewhere")
        copies.look(0)
        assert served(copied) == "v1"
        assert told in read_errors(copied)["news"]
        shutil.move(broken.parent.parent / "elsewhere", broken / missing)
        copies.look(RETRY_AFTER_S)
        assert (served(copied), read_errors(copied)) == ("v2", {})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"version": "../../evil"}, "is another version by its manifest"),
            ({"checksums": {"../../../evil": "0" * 64}}, "cannot be read"),
            ({"layout": 99}, "cannot be read"),
            ({"source": "x" * 2**20}, "has more than 1,048,576 bytes"),
        ],
    )
    def test_a_hostile_manifest(
        self, broken: Path, copies: Copies, copied: Path, changes: dict[str, Any], message: str
    ) -> None:
        manifest = json.loads((broken / MANIFEST).read_bytes()) | changes
        (broken / MANIFEST).write_text(json.dumps(manifest))
        (broken / "evil").write_text("evil")
        copies.look(0)
        assert served(copied) == "v1"
        assert message in read_errors(copied)["news"]
        assert list(copied.parent.rglob("evil")) == [broken / "evil"]

    def test_a_version_that_is_larger_than_the_disk(
        self, broken: Path, store: FaultyStore, copies: Copies, copied: Path
    ) -> None:
        store.faults.sizes = {VECTORS: 10**18}
        store.faults.done = []
        copies.look(0)
        assert served(copied) == "v1"
        assert f"and {copied / 'news'} has " in read_errors(copied)["news"]
        assert store.faults.paths("rb") == []

    def test_a_full_disk(self, broken: Path, store: FaultyStore, copied: Path) -> None:
        script = (
            "import resource, signal, sys\n"
            "from pathlib import Path\n"
            "from shoal_workers.index.store.copies import Copies\n"
            "from shoal_workers.index.store.store import IndexStore\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))\n"
            "Copies(IndexStore.open(f'file://{sys.argv[1]}'), Path(sys.argv[2])).look(0)\n"
        )
        subprocess.run([sys.executable, "-c", script, store.folder, copied], check=True)
        assert served(copied) == "v1"
        assert "no room to copy a version into" in read_errors(copied)["news"]
        assert versions_in(copied / "news") == {"v1"}
        Copies(store, copied).look(0)
        assert served(copied) == "v2"

    @pytest.mark.parametrize("error", [OSError, PermissionError, ValueError, KeyError])
    def test_a_store_that_is_away_changes_nothing_and_tells_no_secret(
        self, broken: Path, store: FaultyStore, copies: Copies, copied: Path, error: type[Exception]
    ) -> None:
        def fail(operation: str, path: str) -> None:
            raise error(f"cannot reach user:{SECRET}@host")

        store.faults.fault = fail
        with pytest.raises((FileError, Unavailable), match="the store of indexes cannot be listed") as caught:
            copies.look(0)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
        assert served(copied) == "v1"

    def test_an_index_that_cannot_be_read_holds_up_no_other(
        self, broken: Path, store: FaultyStore, copies: Copies, copied: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        shutil.copytree(store.folder / "news", store.folder / "faq")

        def refuse(operation: str, path: str) -> None:
            if "faq/v2" in path:
                raise PermissionError(f"the key {SECRET} may not do that")

        store.faults.fault = refuse
        copies.look(0)
        assert served(copied) == "v2"
        assert "check the credentials" in read_errors(copied)["faq"]
        assert SECRET not in caplog.text + str(read_errors(copied))
        shutil.rmtree(store.folder / "faq")
        copies.look(GONE_AFTER_S)
        copies.look(2 * GONE_AFTER_S)
        assert read_errors(copied) == {}

    def test_a_worker_tells_of_it(
        self, broken: Path, copies: Copies, copied: Path, encoder: Encoder, caplog: pytest.LogCaptureFixture
    ) -> None:
        (broken / VECTORS).write_bytes(b"")
        copies.look(0)
        indexes = OpenIndexes({}, copied, encoder.model)
        indexes.look(0)
        assert indexes["news"].document(0)["version"] == "v1"
        assert "is not what was built" in indexes.errors["news"]


class TestDamagedCopy:
    """A worker that finds the copy damaged has it mended from the store."""

    @pytest.fixture
    def indexes(
        self, news: Path, store: FaultyStore, copies: Copies, copied: Path, encoder: Encoder
    ) -> Iterator[OpenIndexes]:
        """The copies as a worker serves them, before it has looked at the first."""
        send(news, store)
        copies.look(0)
        store.heal()
        indexes = OpenIndexes({}, copied, encoder.model, are_copies=True)
        yield indexes
        shutil.rmtree(copied)
        for now in range(2):
            indexes.look(now)

    def test_what_is_damaged_or_missing_is_downloaded_again(
        self, indexes: OpenIndexes, store: FaultyStore, copies: Copies, copied: Path
    ) -> None:
        version = copied / "news" / "v1"
        data = (version / VECTORS).read_bytes()
        (version / VECTORS).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        (version / DOCUMENTS).unlink()
        indexes.look(0)
        assert not indexes
        copies.look(1)
        assert sorted(store.faults.paths("rb")) == [f"v1/{DOCUMENTS}", f"v1/{VECTORS}"]
        indexes.look(RETRY_AFTER_S)
        assert (served(copied), list(indexes), indexes.errors) == ("v1", ["news"], {})
        store.heal()
        copies.look(2)
        assert store.faults.paths("rb") == []

    @pytest.mark.parametrize("missing", [MANIFEST, ""])
    def test_a_manifest_or_all_files_are_missing(
        self, indexes: OpenIndexes, copies: Copies, copied: Path, missing: str
    ) -> None:
        (copied / "news" / "v1" / MANIFEST).unlink()
        if not missing:
            shutil.rmtree(copied / "news" / "v1")
        indexes.look(0)
        copies.look(1)
        assert served(copied) == "v1"

    def test_a_wrong_large_file_is_found_while_it_is_served(
        self, indexes: OpenIndexes, copies: Copies, copied: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_check, "LARGE_BYTES", 0)
        data = (copied / "news" / "v1" / VECTORS).read_bytes()
        (copied / "news" / "v1" / VECTORS).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        indexes.look(0)
        mapped = indexes["news"].vectors
        indexes.check_files(0)
        assert "is not what was built" in indexes.errors["news"]
        copies.look(1)
        assert mapped.tobytes() != (mended := np.load(copied / "news" / "v1" / VECTORS)).tobytes()
        indexes.check_files(RETRY_AFTER_S)
        assert (indexes["news"].vectors.tobytes(), indexes.errors) == (mended.tobytes(), {})

    def test_one_that_is_as_in_the_store_is_not_compared_without_end(
        self, indexes: OpenIndexes, store: FaultyStore, copies: Copies, copied: Path
    ) -> None:
        for now in (1, 2):
            tell_damage(copied, "news")
            copies.look(now)
            assert "is as the store of indexes has it" in read_errors(copied)["news"]
        copies.look(MAX_RETRY_AFTER_S)
        copies.look(3 * MAX_RETRY_AFTER_S)
        assert read_errors(copied) == {}
        assert store.faults.paths("rb") == []


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"news": 1}', b"\xff", b"[" * 9_999])
def test_errors_that_cannot_be_read_are_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / ".errors.json").write_bytes(data)
    assert set(read_errors(tmp_path).values()) <= {"1"}
