"""Indexes on their way through a store: workers elsewhere only see whole versions, whatever fails at any moment."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result
from conftest import wait_until
from faulty_store import SECRET, FaultyStore, Killed, install_hanging_store
from index_versions import add_version, publish_version

from shoal.cli.main import main
from shoal.errors import BadSetting, FileError, IndexCorrupt, MissingExtra, Unavailable
from shoal.index_folder import CURRENT
from shoal.settings import Settings
from shoal_workers.index.files.manifest import DOCUMENTS, FILES, MANIFEST, VECTORS
from shoal_workers.index.index import Index
from shoal_workers.index.store.copy_process import check_store, kept_copies, upload_index
from shoal_workers.index.store.local_copies import (
    NUM_KEPT,
    RETRY_AFTER_S,
    WRONG_RETRY_AFTER_S,
    Copies,
)
from shoal_workers.index.store.store import check_protocol, upload
from shoal_workers.index.versions import delete, make_current


class Scene:
    """The index `news` on the machine that builds it, in a store, and on a machine that serves it."""

    def __init__(self, folder: Path, template: Path):
        self.template = template
        self.home = folder / "home"
        self.news = self.home / "news"
        self.store = FaultyStore(folder / "store")
        self.stored = folder / "store" / "news"
        self.copied = folder / "copies"
        self.copies = Copies(self.store, self.copied)
        self.publish("v1")

    def publish(self, version: str) -> Path:
        return publish_version(self.news, self.template, version)

    def send(self, **options: bool) -> None:
        upload(self.news, self.store, **options)

    def look(self, now: float = 0) -> None:
        self.copies.look(now)

    def is_killed_at(self, number: int, run: Callable[[], None]) -> bool:
        """Run a process that dies in place of its operation with this number; return False if it has fewer."""
        self.store.kill_at(number)
        try:
            run()
        except Killed:
            return True
        finally:
            self.store.heal()
        return False

    @property
    def stored_version(self) -> str:
        """The version that the store says to serve, after a check of all its files."""
        return Index.open(self.stored).folder.name

    @property
    def served(self) -> str:
        """The version of the copy according to its documents, after a check of all its files; empty without a copy."""
        folder = self.copied / "news"
        return str(Index.open(folder).documents.document(0)["version"]) if (folder / CURRENT).exists() else ""

    @property
    def error(self) -> str:
        return self.copies.faults.get("news", "")

    @property
    def downloaded(self) -> list[str]:
        """The files that were downloaded since the store was healed."""
        return self.store.faults.paths("rb")


@pytest.fixture
def scene(tmp_path: Path, index_folder: Path) -> Scene:
    return Scene(tmp_path, index_folder)


@pytest.fixture
def broken(scene: Scene) -> Path:
    """Return the folder of v2 in the store, the version to serve next; the copy has v1."""
    scene.send()
    scene.look()
    scene.publish("v2")
    scene.send()
    return scene.stored / "v2"


def versions_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def damage(path: Path) -> bytes:
    """Change the last byte of a file; return the right contents."""
    right = path.read_bytes()
    path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    return right


class TestUpload:
    def test_an_upload_sends_the_files_that_the_store_lacks_the_current_version_first(self, scene: Scene) -> None:
        scene.publish("v2")
        add_version(scene.news, scene.template, "v3")
        scene.send()
        assert scene.stored_version == "v2"
        assert versions_in(scene.stored) == {"v1", "v2", "v3"}  # v1 allows a rollback
        written = scene.store.faults.paths("wb")
        assert written.index("news/current") < min(written.index(f"{other}/{VECTORS}") for other in ("v1", "v3"))
        scene.store.heal()
        scene.send()
        assert scene.store.faults.paths("wb") == ["news/current"]
        (scene.stored / "v2" / MANIFEST).unlink()
        (scene.stored / "v2" / VECTORS).write_bytes(b"half")  # as if an upload had been interrupted
        scene.store.heal()
        scene.send()
        assert scene.store.faults.paths("wb") == [f"v2/{VECTORS}", f"v2/{MANIFEST}", "news/current"]
        damage(scene.stored / "v2" / VECTORS)
        (scene.stored / "v2" / DOCUMENTS).unlink()
        scene.look()
        assert "run `shoal index upload`" in scene.error
        scene.send(is_anew=True)
        assert scene.stored_version == "v2"
        scene.look(RETRY_AFTER_S)
        assert (scene.served, scene.error) == ("v2", "")

    def test_the_store_is_as_the_machine_that_sent_last(self, scene: Scene, tmp_path: Path) -> None:
        scene.send()
        other = tmp_path / "other" / "news"
        add_version(other, scene.template, "w0")
        upload(other, scene.store)  # the folder has no current version
        assert (scene.stored_version, versions_in(scene.stored)) == ("v1", {"v1", "w0"})
        publish_version(other, scene.template, "w1")
        upload(other, scene.store)
        assert (scene.stored_version, versions_in(scene.stored)) == ("w1", {"w0", "w1"})
        scene.publish("v2")
        delete(scene.news, "v1")
        scene.send()
        assert (scene.stored_version, versions_in(scene.stored)) == ("v2", {"v2"})

    def test_whenever_it_is_killed_the_store_serves_a_whole_version(self, scene: Scene) -> None:
        scene.send()
        scene.publish("v2")
        delete(scene.news, "v1")
        for number in range(1, 1_000):
            shutil.rmtree(scene.stored / "v2", ignore_errors=True)
            shutil.copytree(scene.news / "v2", scene.stored / "v1", dirs_exist_ok=True)
            (scene.stored / CURRENT).write_text("v1\n")
            is_killed = scene.is_killed_at(number, scene.send)
            assert (scene.stored / scene.stored_version).is_dir()
            scene.send()
            assert scene.stored_version == "v2"
            assert versions_in(scene.stored) == {"v2"}
            if not is_killed:
                break
        assert len(FILES) < number < 999

    def test_a_damaged_version_is_not_sent(self, scene: Scene) -> None:
        scene.send()
        version = scene.publish("v2")
        damage(version / VECTORS)
        for _ in range(2):
            with pytest.raises(IndexCorrupt, match="is not what was built"):
                scene.send()
        assert scene.stored_version == "v1"
        (version / MANIFEST).write_text("{}")
        with pytest.raises(IndexCorrupt, match=r"manifest\.json cannot be read"):
            scene.send()

    @pytest.mark.parametrize(
        ("removed", "when", "served"), [("v1", f"v1/{MANIFEST}", "v2"), ("v2", f"v2/{VECTORS}", "v0")]
    )
    def test_a_version_that_is_removed_meanwhile_is_left_out(
        self, scene: Scene, removed: str, when: str, served: str
    ) -> None:
        scene.publish("v0")
        scene.send()
        scene.publish("v2")
        shutil.rmtree(scene.stored / "v1")

        def remove(operation: str, path: str) -> None:
            if path.endswith(f"news/{when}"):
                shutil.rmtree(scene.news / removed, ignore_errors=True)

        scene.store.faults.fault = remove
        scene.send()
        assert scene.stored_version == served


class TestCopies:
    def test_a_copy_follows_the_store(self, scene: Scene) -> None:
        scene.look()
        assert scene.served == ""
        for name in ("v1", "v2", "v3"):
            scene.publish(name) if name != "v1" else None
            scene.send()
            scene.look()
            assert scene.served == name
        assert versions_in(scene.copied / "news") == {"v2", "v3"}
        assert NUM_KEPT == 2
        make_current(scene.news, "v2")
        scene.send()
        scene.store.heal()
        for _ in range(2):
            scene.look()
            assert (scene.served, scene.downloaded, scene.error) == ("v2", [], "")  # the copy has the version

    def test_other_files_than_indexes_are_left_alone(self, scene: Scene) -> None:
        scene.send()
        (scene.store.folder / "notes.txt").write_text("no index")
        for name in ("unpublished", ".hidden", "with space"):
            shutil.copytree(scene.stored, scene.store.folder / name)
        (scene.store.folder / "unpublished" / CURRENT).unlink()
        scene.look()
        assert (versions_in(scene.copied), scene.copies.faults) == ({"news"}, {})

    @pytest.mark.usefixtures("broken")
    def test_whenever_it_is_killed_the_copy_is_a_whole_version(self, scene: Scene) -> None:
        shutil.copytree(scene.copied, scene.copied.parent / "before")
        for number in range(1, 1_000):
            shutil.rmtree(scene.copied)
            shutil.copytree(scene.copied.parent / "before", scene.copied)
            if not scene.is_killed_at(number, lambda: Copies(scene.store, scene.copied).look(0)):
                break
            assert scene.served == "v1"
            Copies(scene.store, scene.copied).look(0)
            assert scene.served == "v2"
            assert versions_in(scene.copied / "news") == {"v1", "v2"}
        assert len(FILES) < number < 999
        assert scene.served == "v2"

    def test_an_index_that_is_gone_is_removed_but_not_by_an_empty_store(self, scene: Scene) -> None:
        scene.send()
        (scene.store.folder / "other").mkdir()
        scene.look()
        shutil.move(scene.store.folder, away := scene.store.folder.with_name("away"))
        with pytest.raises(FileError, match="the store of indexes has no indexes: check its address"):
            scene.look()
        assert scene.served == "v1"
        shutil.move(away, scene.store.folder)
        shutil.rmtree(scene.stored)
        scene.look()
        assert versions_in(scene.copied) == set()


class TestFaults:
    def test_a_wrong_checksum_leaves_the_version_before_until_another_comes(
        self, broken: Path, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        right = damage(broken / VECTORS)
        for now in (*range(9), WRONG_RETRY_AFTER_S - 1):
            scene.look(now)
        assert scene.served == "v1"
        assert "news/v2/vectors.npy in the store of indexes is not what was built" in scene.error
        assert len([record for record in caplog.records if "is not what" in record.message]) == 1
        assert scene.downloaded.count(f"v2/{VECTORS}") == 1
        scene.look(WRONG_RETRY_AFTER_S)
        assert scene.downloaded.count(f"v2/{VECTORS}") == 2
        scene.publish("v3")
        scene.send()
        scene.look(WRONG_RETRY_AFTER_S + 1)
        assert scene.served == "v3"
        (broken / VECTORS).write_bytes(right)
        make_current(scene.news, "v2")
        scene.send()
        scene.look(WRONG_RETRY_AFTER_S + 2)  # the version that failed is tried at once after another one
        assert (scene.served, scene.error) == ("v2", "")

    @pytest.mark.parametrize(
        ("file", "data", "reason"),
        [
            *(
                (f"../{CURRENT}", data, "")
                for data in (b"", b"v2", b"../v1\n", b".v1\n", b"\xff\n", b"v1\nv2\n", b"v" * 999)
            ),
            (".", None, "v2 in the store of indexes should be served"),
            (DOCUMENTS, None, "is missing: run `shoal"),
            (MANIFEST, {"version": "../../evil"}, "is of another version"),
            (MANIFEST, {"checksums": {"../../../evil": "0" * 64}}, "cannot be read"),
            (MANIFEST, {"layout": 99}, "cannot be read"),
            (MANIFEST, {"source": "x" * 2**20}, "has more than 1,048,576 bytes"),
        ],
    )
    def test_a_missing_or_hostile_file(self, broken: Path, scene: Scene, file: str, data: Any, reason: str) -> None:
        """`data` is the wrong content, or wrong entries of a manifest; without `data`, the file is missing."""
        path, kept = broken / file, scene.store.folder / "kept"
        path.rename(kept)
        if isinstance(data, dict):
            data = json.dumps(json.loads(kept.read_bytes()) | data).encode()
        if data is not None:
            path.write_bytes(data)
        (scene.store.folder / "evil").write_text("evil")
        scene.look()
        assert scene.served == "v1"
        assert (reason or "news/current in the store of indexes ") in scene.error
        assert list(scene.copied.parent.rglob("evil")) == [scene.store.folder / "evil"]
        kept.replace(path)
        scene.look(WRONG_RETRY_AFTER_S)
        assert (scene.served, scene.error) == ("v2", "")

    def test_a_file_that_is_longer_than_it_said_is_not_read_to_its_end(self, broken: Path, scene: Scene) -> None:
        size = (broken / VECTORS).stat().st_size - 4
        assert sum(map(len, scene.store.read(f"news/v2/{VECTORS}", size))) == size

    @pytest.mark.usefixtures("broken")
    def test_a_version_that_is_larger_than_the_disk_and_a_full_disk(self, scene: Scene) -> None:
        scene.store.heal()
        scene.store.faults.sizes = {VECTORS: 10**18}
        scene.look()
        assert (scene.served, scene.downloaded) == ("v1", [])
        assert f"and {scene.copied / 'news'} has " in scene.error
        scene.store.heal()
        script = (
            "import resource, signal, sys\n"
            "from pathlib import Path\n"
            "from shoal_workers.index.store.local_copies import Copies\n"
            "from shoal_workers.index.store.store import IndexStore\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))\n"
            "Copies(IndexStore.open(f'file://{sys.argv[1]}'), Path(sys.argv[2])).look(0)\n"
        )
        command = [sys.executable, "-c", script, str(scene.store.folder), str(scene.copied)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        assert scene.served == "v1"
        assert "no room to copy a version into" in said
        assert versions_in(scene.copied / "news") == {"v1"}
        scene.look(RETRY_AFTER_S)
        assert scene.served == "v2"

    @pytest.mark.usefixtures("broken")
    @pytest.mark.parametrize("error", [PermissionError, KeyError])
    def test_a_store_that_is_away_changes_nothing_and_shows_no_secret(
        self, scene: Scene, error: type[Exception]
    ) -> None:
        def fail(operation: str, path: str) -> None:
            raise error(f"cannot reach user:{SECRET}@host")

        scene.store.faults.fault = fail
        with pytest.raises((FileError, Unavailable), match="the store of indexes cannot be listed") as caught:
            scene.look()
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
        assert scene.served == "v1"

    @pytest.mark.usefixtures("broken")
    def test_an_index_that_cannot_be_read_holds_up_no_other(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        shutil.copytree(scene.stored, scene.store.folder / "faq")

        def refuse(operation: str, path: str) -> None:
            if "faq/v2" in path:
                raise PermissionError(f"the key {SECRET} may not do that")

        scene.store.faults.fault = refuse
        scene.look()
        assert scene.served == "v2"
        assert "index faq: faq/v2/manifest.json in the store of indexes cannot be read: access is denied" in caplog.text
        assert SECRET not in caplog.text


# The process that uses the store: bad settings are reported at the start, and no hang stops a worker


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of one machine, with a store in a folder."""
    (tmp_path / "store").mkdir()
    return Settings(home=str(tmp_path / "home"), index_store=f"file://{tmp_path}/store")


@pytest.fixture
def news(settings: Settings, index_folder: Path) -> Path:
    return publish_version(settings.index_home_folder / "news", index_folder, "v1").parent


def wait_for_copy(settings: Settings, version: str) -> None:
    """Wait until the copy has a version, according to its documents."""
    folder = settings.index_copies_folder / "news"
    wait_until((folder / CURRENT).exists)
    wait_until(lambda: Index.open(folder).documents.document(0)["version"] == version)


def children() -> list[psutil.Process]:
    """Return the child processes that use a store."""
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            found += [process] if "shoal_workers.index.store.copy_process" in process.cmdline() else []
    return found


def test_a_store_that_cannot_be_used_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("/srv/store", f"https://user:{SECRET}@host/", "a::s3://b/c"):
        with pytest.raises(BadSetting, match="index_store is not the URL") as caught:
            Settings(index_store=url)
        assert SECRET not in str(caught.value)
    with pytest.raises(BadSetting, match='index_store is a "nostore" URL'):
        check_store(replace(settings, index_store="nostore://host"))
    monkeypatch.setitem(sys.modules, "fsspec.registry", None)
    with pytest.raises(MissingExtra, match=r"index_store needs fsspec; run: .*s3"):
        check_protocol("s3://bucket/indexes")


def test_without_a_store_or_for_an_index_in_another_folder_nothing_is_copied(
    settings: Settings, index_folder: Path, tmp_path: Path
) -> None:
    no_store = replace(settings, index_store="")
    check_store(no_store)
    with kept_copies(no_store):
        assert children() == []
    assert settings.served_folder == settings.home_folder / "index-copies"
    assert no_store.served_folder == settings.home_folder / "indexes"
    assert not upload_index(no_store, settings.index_home_folder / "news")
    assert not upload_index(settings, index_folder)
    assert list((tmp_path / "store").iterdir()) == []


def test_a_command_repairs_the_store(settings: Settings, news: Path, tmp_path: Path) -> None:
    def command(*store: str) -> Result:
        home = str(settings.index_home_folder)
        return CliRunner().invoke(main, ["index", "upload", "news", "--index-home", home, *store])

    assert upload_index(settings, news)
    (tmp_path / "store" / "news" / "v1" / DOCUMENTS).unlink()
    assert command("--index-store", settings.index_store).exit_code == 0
    assert Index.open(tmp_path / "store" / "news").manifest.version == "v1"
    assert "has no store" in command("--index-store", "").output
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(FileError, match=rf"no such file.*{news} is changed, and the store is not yet"):
        upload_index(settings, news)


def test_a_process_whose_store_hangs_ends_with_its_worker(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in install_hanging_store(tmp_path).items():
        monkeypatch.setenv(name, value)
    hanging = replace(settings, index_store="hanging://host/indexes")
    with kept_copies(hanging):
        wait_until(children)
    assert children() == []
    code = "from shoal_workers.index.store import copy_process as s; s.MAX_SILENCE_S = 0.5; s.main('0')"
    env = os.environ | hanging.to_environment()
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == -signal.SIGALRM


def test_one_worker_of_a_machine_copies_and_another_goes_on(settings: Settings, news: Path, index_folder: Path) -> None:
    upload_index(settings, news)
    with kept_copies(settings):
        wait_until(children)
        with kept_copies(settings):
            wait_for_copy(settings, "v1")
            assert [path.name for path in settings.index_copies_folder.iterdir() if path.is_dir()] == ["news"]
            assert len(children()) == 1
            children()[0].kill()
            publish_version(news, index_folder, "v2")
            upload_index(settings, news)
    assert children() == []
    with kept_copies(settings):
        wait_for_copy(settings, "v2")


def test_a_store_that_fails_is_reported(settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with kept_copies(replace(settings, index_store=f"file://{tmp_path}/loop")):
        said = [""]

        def is_said() -> bool:
            said[0] += capfd.readouterr().err
            return "the copies of indexes are served" in said[0]

        wait_until(is_said)
    assert "cannot be listed" in said[0]
    shutil.rmtree(settings.home_folder)
    settings.home_folder.write_text("no folder")
    with pytest.raises(FileError, match="index-copies cannot be written"), kept_copies(settings):
        pass
