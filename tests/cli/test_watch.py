"""The command `shoal index watch`: when it builds, and when it ends."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import wait_until
from process import Process

from shoal.errors import BadDocument, IndexBusy, InvalidRequest, ModelNotFound, ShoalError, Unavailable
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.versions import list_versions
from shoal_workers.watch_command import INTERRUPTED, RETRY_S, Watcher, watch


class Scene:
    """A source, builds and a clock under the control of a test."""

    def __init__(self) -> None:
        self.state: object | ShoalError = 1
        self.errors: list[ShoalError] = []
        self.built: list[object] = []
        self.told: list[str] = []
        self.now_s = 1_000.0
        self.watcher = Watcher(self._look, self._build, lambda error: self.told.append(error.code), lambda: self.now_s)

    def _look(self) -> object:
        if isinstance(self.state, ShoalError):
            raise self.state
        return self.state

    def _build(self) -> None:
        self.built.append(self.state)
        if self.errors:
            raise self.errors.pop()

    def after(self, *states: object) -> list[object]:
        """Let the watcher see each of these states, and return the states in which it began a build."""
        self.built.clear()
        for self.state in states:
            self.watcher.step()
        return [*self.built]


class TestWhenItBuilds:
    def test_at_once_and_when_a_change_has_settled(self) -> None:
        scene = Scene()
        assert scene.after(1) == [1]
        assert scene.after(1, 1) == []
        assert scene.after(2, 3, 4) == []
        assert scene.after(4, 4) == [4]
        assert scene.after(5, 4, 4) == []  # the source is again as it was built
        assert scene.told == []

    @pytest.mark.parametrize("error", [Unavailable("away"), IndexBusy("another")])
    def test_again_after_an_error_that_may_pass(self, error: ShoalError) -> None:
        scene = Scene()
        scene.errors = [error, error]
        assert scene.after(1, 1, 1) == [1]
        for built in ([1], [1], []):
            scene.now_s += RETRY_S
            assert scene.after(1, 1) == built
        assert scene.told == [error.code] * 2

    def test_a_bad_document_is_built_again_only_after_a_change(self) -> None:
        scene = Scene()
        scene.errors = [BadDocument("line 1")]
        assert scene.after(1, 1, 1) == [1]
        scene.now_s += 10 * RETRY_S
        assert scene.after(1, 1) == []
        assert scene.after(2, 2) == [2]
        assert scene.told == ["bad_document"]

    def test_an_error_of_the_command_ends_it_at_the_first_build_only(self) -> None:
        scene = Scene()
        scene.errors = [ModelNotFound("no model")]
        with pytest.raises(ModelNotFound):
            scene.after(1)
        scene = Scene()
        assert scene.after(1) == [1]
        scene.errors = [ModelNotFound("no model")]
        assert (scene.after(2, 2), scene.told) == ([2], ["model_not_found"])

    def test_a_source_that_is_missing_for_a_while(self) -> None:
        scene = Scene()
        assert scene.after(1) == [1]
        assert scene.after(InvalidRequest("there is no file"), InvalidRequest("there is no file")) == []
        assert scene.after(1, 1) == []
        assert scene.after(2, 2) == [2]
        assert scene.told == ["invalid_request"]
        scene = Scene()
        with pytest.raises(InvalidRequest):
            scene.after(InvalidRequest("there is no file"))


def documents(out: Path) -> dict[str, str]:
    """Return the texts of an index by their ids."""
    index = Index.open(out)
    return {row["id"]: row["text"] for row in map(index.documents.document, range(index.manifest.count))}


@pytest.mark.wide
def test_the_command_builds_a_folder_again_until_it_is_stopped(tmp_path: Path, tiny_source: Path, home: Path) -> None:
    folder, out = tmp_path / "docs", tmp_path / "index"
    folder.mkdir()
    (folder / "a.md").write_text("# Storm")
    settings = {"model": tiny_source, "home": home, "threads": 1}

    def has(wanted: dict[str, str]) -> Callable[[], bool]:
        return lambda: (out / "current").exists() and documents(out) == wanted

    arguments = ("index", "watch", folder, "--out", out, "--local", "--every", 0.1, "--chunk-tokens", 8)
    with Process(tmp_path / "log", *arguments, **settings) as process:
        wait_until(has({"a.md": "Storm"}))
        (folder / "b.md").write_text("Rain")
        (folder / "a.md").write_text("Wind")
        wait_until(has({"a.md": "Wind", "b.md": "Rain"}))
        (folder / "c.md").write_bytes(b"\xff")
        wait_until(lambda: "c.md: byte 0xff at 0 is not utf-8" in process.output)
        (folder / "c.md").unlink()
        os.remove(folder / "a.md")
        wait_until(has({"b.md": "Rain"}))
        process.send(signal.SIGINT)
        assert process.wait() == INTERRUPTED
    assert "the index stays as it is" in (tmp_path / "log").read_text()
    assert Index.open(out).manifest.chunk_tokens == 8
    assert len(list_versions(out)) >= 2
    assert json.loads((current_version(out) / "manifest.json").read_text())["num_embedded"] == 0


def test_sources_that_cannot_be_watched_are_refused(tmp_path: Path) -> None:
    for every in ("nan", "0"):
        ended = CliRunner().invoke(watch, [".", "--every", every])
        assert (ended.exit_code, "--every" in ended.output) == (2, True)
    refused = {"https://example.org/a.txt": "is a URL: watch a file", str(tmp_path / "no"): "there is no file"}
    for source, reason in refused.items():
        result = CliRunner().invoke(watch, [source, "--out", str(tmp_path / "index"), "--home", str(tmp_path)])
        assert isinstance(result.exception, InvalidRequest)
        assert reason in result.exception.message
