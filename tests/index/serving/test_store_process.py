"""The process that uses the store of indexes: bad settings are reported at the start, and no hang stops a worker."""

import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result
from conftest import wait_until
from faulty_store import SECRET, install_hanging_store
from index_versions import publish_version

from shoal.cli.main import main
from shoal.errors import BadSetting, Cancelled, FileError, MissingExtra, Unavailable
from shoal.settings import Settings
from shoal_workers.index.files.manifest import DOCUMENTS
from shoal_workers.index.index import Index
from shoal_workers.index.store.local_copies import read_errors
from shoal_workers.index.store.store import check_protocol
from shoal_workers.index.store.store_process import check_store, kept_copies, run_store_process, upload_index


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of one machine, with a store in a folder."""
    (tmp_path / "store").mkdir()
    return Settings(home=str(tmp_path / "home"), index_store=f"file://{tmp_path}/store")


@pytest.fixture
def news(settings: Settings, index_folder: Path) -> Path:
    """Return the folder of an index with the version v1."""
    publish_version(settings.index_home_folder / "news", index_folder, "v1")
    return settings.index_home_folder / "news"


@pytest.fixture
def hanging(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return settings with a store that hangs."""
    for name, value in install_hanging_store(tmp_path).items():
        monkeypatch.setenv(name, value)
    return replace(settings, index_store="hanging://host/indexes")


def copied_version(settings: Settings) -> str | None:
    """Return the version of the copy, according to its documents."""
    folder = settings.index_copies_folder / "news"
    return str(Index.open(folder).documents.document(0)["version"]) if (folder / "current").exists() else None


def children() -> list[psutil.Process]:
    """Return the child processes that use a store."""
    found = []
    for process in psutil.Process().children():
        try:
            found += [process] if "shoal_workers.index.store.store_process" in process.cmdline() else []
        except psutil.NoSuchProcess:
            continue
    return found


class TestSettings:
    def test_the_extra_and_an_unknown_protocol_are_named(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(BadSetting, match='index_store is a "nostore" URL'):
            check_store(replace(settings, index_store="nostore://host"))
        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(MissingExtra, match=r"index_store needs fsspec; run: .*s3"):
            check_protocol("s3://bucket/indexes")

    def test_without_a_store_nothing_is_copied(self, settings: Settings) -> None:
        check_store(Settings())
        with kept_copies(Settings()):
            assert children() == []
        assert settings.served_folder == settings.home_folder / "index-copies"
        assert replace(settings, index_store="").served_folder == settings.home_folder / "indexes"

    @pytest.mark.parametrize("url", ["/srv/store", f"https://user:{SECRET}@host/", "a::s3://b/c"])
    def test_a_text_that_is_no_url_of_a_store_is_refused_and_not_shown(self, url: str) -> None:
        with pytest.raises(BadSetting, match="index_store is not the URL") as caught:
            Settings(index_store=url)
        assert SECRET not in str(caught.value)


class TestUpload:
    def test_a_command_repairs_the_store(self, settings: Settings, news: Path, tmp_path: Path) -> None:
        def command(*store: str) -> Result:
            home = str(settings.index_home_folder)
            return CliRunner().invoke(main, ["index", "upload", "news", "--index-home", home, *store])

        assert upload_index(settings, news)
        (tmp_path / "store" / "news" / "v1" / DOCUMENTS).unlink()
        assert command("--index-store", settings.index_store).exit_code == 0
        assert Index.open(tmp_path / "store" / "news").manifest.version == "v1"
        assert "goes to no store" in command("--index-store", "").output

    def test_of_an_index_in_another_folder_does_nothing(
        self, settings: Settings, index_folder: Path, tmp_path: Path
    ) -> None:
        assert not upload_index(settings, index_folder)
        at_home, no_store = settings.index_home_folder / "news", replace(settings, index_store="")
        assert not upload_index(no_store, at_home)
        assert list((tmp_path / "store").iterdir()) == []

    def test_an_error_says_what_has_been_done(self, settings: Settings, news: Path, tmp_path: Path) -> None:
        (tmp_path / "store").rmdir()
        with pytest.raises(FileError, match=rf"no such file.*{news} is changed, and the store is not yet"):
            upload_index(settings, news)

    def test_a_report_may_stop_it(self, hanging: Settings) -> None:
        def stop() -> None:
            if children():
                raise Cancelled("stop")

        with pytest.raises(Cancelled):
            run_store_process(hanging, "copy", report=stop)
        assert children() == []

    def test_a_store_that_hangs_is_given_up(self, hanging: Settings) -> None:
        with pytest.raises(Unavailable, match=r"the store of indexes has not answered for 0\.5 s"):
            run_store_process(hanging, "copy", max_silence_s=0.5)
        assert children() == []


class TestKeptCopies:
    def test_an_index_that_was_there_before_the_store_is_served(
        self, settings: Settings, news: Path, index_folder: Path
    ) -> None:
        publish_version(settings.index_home_folder / "with space", index_folder, "v1")
        with kept_copies(settings):
            wait_until(lambda: copied_version(settings) == "v1")
        assert [path.name for path in settings.index_copies_folder.iterdir() if path.is_dir()] == ["news"]

    def test_one_worker_of_a_machine_copies_and_another_goes_on(
        self, settings: Settings, news: Path, index_folder: Path
    ) -> None:
        with kept_copies(settings):
            wait_until(children)
            with kept_copies(settings):
                upload_index(settings, news)
                wait_until(lambda: copied_version(settings) == "v1")
                assert len(children()) == 1
                children()[0].kill()
                publish_version(news, index_folder, "v2")
                upload_index(settings, news)
        assert children() == []
        with kept_copies(settings):
            wait_until(lambda: copied_version(settings) == "v2")

    def test_a_store_that_fails_is_reported_with_each_copy(
        self, settings: Settings, news: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (settings.index_copies_folder / "news").mkdir(parents=True)
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        with kept_copies(replace(settings, index_store=f"file://{tmp_path}/loop")):
            wait_until(lambda: "cannot be listed" in read_errors(settings.index_copies_folder).get("news", ""))
        assert "the copies of indexes are served" in caplog.text

    def test_a_folder_that_cannot_be_made(self, settings: Settings, tmp_path: Path) -> None:
        (tmp_path / "home").write_text("no folder")
        with pytest.raises(FileError, match="index-copies cannot be written"), kept_copies(settings):
            pass
