"""One process at a time fills the compile cache, and a fault of the cache does not prevent a worker's start."""

import fcntl
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from shoal.contract.options import Options
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.engines.compile_cache import load_or_make

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut by a byte": lambda kept: kept[:-1],
    "emptied": lambda _: b"",
    "overwritten": lambda kept: kept[:100] + bytes(8) + kept[108:],
}


def not_to_be_called() -> bytes:
    raise AssertionError


def cached_file(folder: Path) -> Path:
    """Return the only compiled graph in a prepared folder."""
    (path,) = (path for path in (folder / "cache").iterdir() if path.suffix != ".lock")
    return path


class TestFile:
    def test_one_of_many_threads_makes_the_file(self, tmp_path: Path) -> None:
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

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_damaged_file_is_made_again(self, damage: str, tmp_path: Path) -> None:
        path = tmp_path / "cache" / "name"
        load_or_make(path, lambda: b"compiled " * 100)
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
        assert load_or_make(path, lambda: b"compiled again") == b"compiled again"
        assert load_or_make(path, not_to_be_called) == b"compiled again"

    def test_the_wait_for_another_process_is_limited(self, tmp_path: Path) -> None:
        with (tmp_path / "name.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(TimeoutError, match=r"name\.lock for over 0 s"):
                load_or_make(tmp_path / "name", not_to_be_called, max_wait_s=0)
        assert load_or_make(tmp_path / "name", lambda: b"compiled") == b"compiled"

    def test_a_full_disk_raises_an_error_and_leaves_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "name.new").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            load_or_make(tmp_path / "name", lambda: b"compiled")
        assert [path.name for path in tmp_path.iterdir()] == ["name.lock"]


class TestEngine:
    @pytest.mark.parametrize("precision", ["f32", "int8"])
    def test_one_file_serves_any_number_of_threads_with_the_same_vectors(self, precision: str, own_model: Path) -> None:
        cold, warm, other = (
            Encoder.open(own_model, "openvino", precision, threads).embed(["storm"], Options(), "")
            for threads in (2, 2, 1)
        )
        assert np.array_equal(cold, warm)
        assert other == pytest.approx(cold, abs=1e-6)
        assert sum(path.suffix != ".lock" for path in (own_model / "cache").iterdir()) == (
            1 if precision == "f32" else 2
        )

    def test_a_worker_starts_though_the_file_has_no_graph(
        self, own_model: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        Encoder.open(own_model, "openvino", "f32", 1)
        path = cached_file(own_model)
        path.unlink()
        load_or_make(path, lambda: b"no graph " * 100)
        with caplog.at_level(logging.WARNING):
            Encoder.open(own_model, "openvino", "f32", 2)
        assert len(caplog.messages) == 1
        assert "compiled at every start" in caplog.text

    @pytest.mark.parametrize("precision", ["f32", "int8"])
    def test_a_worker_starts_though_the_cache_cannot_be_written(
        self, own_model: Path, tiny_model: Path, caplog: pytest.LogCaptureFixture, precision: str
    ) -> None:
        (own_model / "cache").write_bytes(b"a file instead of a folder")
        with caplog.at_level(logging.WARNING):
            found = Encoder.open(own_model, "openvino", precision, 2)
        assert len(caplog.messages) == 1
        assert found.fingerprint == Encoder.open(tiny_model, "openvino", precision, 1).fingerprint
