"""The compile cache is filled by one process at a time, and no fault of it fails a worker's start."""

import fcntl
import logging
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from shoal.contract.options import Options
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.engines.compile_cache import load_or_make

NUM_STARTS = 4

OPEN = "import sys, pathlib; from shoal_workers.encoding.engines.openvino import OpenVinoEngine as Engine; "
OPEN += "sys.stdin.readline(); Engine(pathlib.Path(sys.argv[1]), 'auto', 2)"


def cut_by_a_byte(path: Path) -> None:
    """Take the last byte off."""
    path.write_bytes(path.read_bytes()[:-1])


def cut_in_half(path: Path) -> None:
    """Keep the first half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    """Keep no byte."""
    path.write_bytes(b"")


def overwritten(path: Path) -> None:
    """Put other bytes in the middle."""
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2 : len(contents) // 2 + 8] = bytes(8)
    path.write_bytes(contents)


def removed(path: Path) -> None:
    """Remove the file."""
    path.unlink()


DAMAGES = [cut_by_a_byte, cut_in_half, emptied, overwritten, removed]


def not_to_be_called() -> bytes:
    """Fail: the file is to be read."""
    raise AssertionError


def cached_file(folder: Path) -> Path:
    """Return the one compiled graph that is kept in a prepared folder."""
    (path,) = (path for path in (folder / "cache").iterdir() if path.suffix != ".lock")
    return path


class TestFile:
    def test_it_is_made_once_and_then_read(self, tmp_path: Path) -> None:
        assert load_or_make(tmp_path / "cache" / "name", lambda: b"compiled") == b"compiled"
        assert load_or_make(tmp_path / "cache" / "name", not_to_be_called) == b"compiled"

    def test_of_many_that_start_together_one_makes_it(self, tmp_path: Path) -> None:
        together, made = Barrier(8), []

        def make() -> bytes:
            made.append(1)
            return b"compiled"

        def start(_: int) -> bytes:
            together.wait()
            return load_or_make(tmp_path / "name", make)

        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(start, range(8))) == {b"compiled"}
        assert len(made) == 1

    @pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
    def test_a_damaged_file_is_made_again(self, damage: Callable[[Path], None], tmp_path: Path) -> None:
        path = tmp_path / "name"
        load_or_make(path, lambda: b"compiled " * 100)
        damage(path)
        assert load_or_make(path, lambda: b"compiled again") == b"compiled again"
        assert load_or_make(path, not_to_be_called) == b"compiled again"

    def test_the_lock_of_a_killed_process_is_free(self, tmp_path: Path) -> None:
        code = "import sys, os, pathlib; from shoal_workers.encoding.engines.compile_cache import load_or_make; "
        code += "load_or_make(pathlib.Path(sys.argv[1]), lambda: os.kill(os.getpid(), 9))"
        killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "name")])
        assert killed.returncode == -9
        assert load_or_make(tmp_path / "name", lambda: b"compiled") == b"compiled"

    def test_a_suspended_process_is_not_waited_for_without_end(self, tmp_path: Path) -> None:
        with (tmp_path / "name.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(TimeoutError, match=r"name\.lock for over 0 s"):
                load_or_make(tmp_path / "name", not_to_be_called, max_wait_s=0)
        assert load_or_make(tmp_path / "name", lambda: b"compiled") == b"compiled"

    def test_on_a_full_disk_an_error_is_raised_and_nothing_left(self, tmp_path: Path) -> None:
        (tmp_path / "name.new").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            load_or_make(tmp_path / "name", lambda: b"compiled")
        assert [path.name for path in tmp_path.iterdir()] == ["name.lock"]


class TestEngine:
    @pytest.fixture
    def folder(self, tiny_model: Path, tmp_path: Path) -> Path:
        """Return a prepared folder of the test's own, without a compiled graph."""
        for path in tiny_model.iterdir():
            if path.is_file():
                (tmp_path / path.name).hardlink_to(path)
        return tmp_path

    @pytest.mark.parametrize("precision", ["f32", "int8"])
    def test_a_kept_graph_makes_the_same_vectors(self, precision: str, folder: Path) -> None:
        cold, warm = (Encoder.open(folder, "openvino", precision, 2).embed(["storm"], Options(), "") for _ in range(2))
        assert np.array_equal(cold, warm)

    def test_one_kept_graph_is_used_with_any_number_of_threads(self, folder: Path) -> None:
        for threads in (1, 2):
            Encoder.open(folder, "openvino", "f32", threads)
        cached_file(folder)

    @pytest.mark.wide
    def test_workers_that_start_together_all_start(self, folder: Path) -> None:
        command = [sys.executable, "-c", OPEN, str(folder)]
        workers = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(NUM_STARTS)]
        for worker in workers:
            assert worker.stdin
            worker.stdin.write(b"\n")
            worker.stdin.flush()
        for worker in workers:
            worker.communicate()
        assert [worker.returncode for worker in workers] == [0] * NUM_STARTS
        cached_file(folder)

    def test_a_start_survives_a_file_that_holds_no_graph(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        Encoder.open(folder, "openvino", "f32", 1)
        path = cached_file(folder)
        path.unlink()
        load_or_make(path, lambda: b"no graph " * 100)
        with caplog.at_level(logging.WARNING):
            Encoder.open(folder, "openvino", "f32", 2)
        assert len(caplog.messages) == 1
        assert "compiled at every start" in caplog.text

    def test_a_start_survives_a_cache_that_cannot_be_written(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (folder / "cache").write_bytes(b"a file, where a folder is expected")
        with caplog.at_level(logging.WARNING):
            Encoder.open(folder, "openvino", "f32", 2)
        assert len(caplog.messages) == 1

    def test_a_start_survives_a_folder_in_the_place_of_the_file(self, folder: Path) -> None:
        Encoder.open(folder, "openvino", "f32", 1)
        path = cached_file(folder)
        path.unlink()
        path.mkdir()
        Encoder.open(folder, "openvino", "f32", 1)
