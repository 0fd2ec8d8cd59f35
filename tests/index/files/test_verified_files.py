"""The files of a version are compared with their checksums once on a machine, unless they are other ones since."""

import json
import os
from pathlib import Path

import pytest
from index_versions import publish_version

from shoal.errors import IndexCorrupt
from shoal_workers.index.files import file_check
from shoal_workers.index.files.file_check import FileCheck
from shoal_workers.index.files.manifest import DOCUMENTS, FILES, VECTORS, Manifest
from shoal_workers.index.files.verified_files import VerifiedFiles


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written count as old enough to be known by their times."""
    monkeypatch.setattr(file_check, "SETTLED_S", -60.0)


@pytest.fixture
def version(tmp_path: Path, index_folder: Path) -> Path:
    """A version of an index."""
    return publish_version(tmp_path / "news", index_folder, "v1")


@pytest.fixture
def verified(tmp_path: Path) -> VerifiedFiles:
    """The records of a machine."""
    return VerifiedFiles(tmp_path / "home" / "verified")


def check_of(version: Path, verified: VerifiedFiles | None) -> FileCheck:
    """Return the check of a version, as it is begun by a worker that opens it."""
    return FileCheck(version, Manifest.read(version).checksums, verified)


def compare(version: Path, verified: VerifiedFiles | None) -> None:
    """Compare all files, as a worker does."""
    check = check_of(version, verified)
    check.check_small()
    check.check_rest()
    assert check.is_done


def change_in_place(path: Path) -> None:
    """Change a byte of a file, and give it the times that it had."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(-9, os.SEEK_END)
        file.write(b"?")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def replace_by_another(path: Path) -> None:
    """Replace a file by a wrong one of the same size and times."""
    times, data = path.stat(), bytearray(path.read_bytes())
    data[-9] ^= 1
    (other := path.with_suffix(".other")).write_bytes(data)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("large_bytes", [1, 2**24])
def test_what_one_worker_has_compared_the_next_one_does_not(
    version: Path, verified: VerifiedFiles, monkeypatch: pytest.MonkeyPatch, large_bytes: int
) -> None:
    monkeypatch.setattr(file_check, "LARGE_BYTES", large_bytes)
    assert not check_of(version, verified).is_done
    compare(version, verified)
    assert check_of(version, verified).is_done
    assert not check_of(version, None).is_done


@pytest.mark.parametrize("happens", [change_in_place, replace_by_another])
def test_a_file_that_was_changed_or_replaced_is_compared_again(
    version: Path, verified: VerifiedFiles, happens: object
) -> None:
    compare(version, verified)
    assert callable(happens)
    happens(version / DOCUMENTS)
    check = check_of(version, verified)
    assert not check.is_done
    with pytest.raises(IndexCorrupt, match=r"documents\.jsonl is not what was built"):
        check.check_small()


def test_a_file_that_is_missing_is_told(version: Path, verified: VerifiedFiles) -> None:
    compare(version, verified)
    (version / VECTORS).unlink()
    with pytest.raises(IndexCorrupt, match=r"vectors\.npy cannot be read"):
        check_of(version, verified).check_small()


def test_a_checksum_of_another_manifest_is_compared(version: Path, verified: VerifiedFiles) -> None:
    compare(version, verified)
    other = Manifest.read(version).checksums | {DOCUMENTS: "0" * 64}
    check = FileCheck(version, other, verified)
    with pytest.raises(IndexCorrupt):
        check.check_small()


def test_a_file_that_was_only_just_written_is_not_recorded(
    version: Path, verified: VerifiedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_check, "SETTLED_S", 3_600.0)
    check = check_of(version, verified)
    check.check_small()
    assert check.is_done
    assert not check_of(version, verified).is_done
    monkeypatch.setattr(file_check, "LARGE_BYTES", 1)
    (large := check_of(version, verified)).check_rest()
    assert not large.is_done  # the next look compares it, and then it is compared for all workers


def record_of(verified: VerifiedFiles) -> Path:
    """Return the only record."""
    (path,) = verified._folder.glob("*.json")
    return path


class TestLies:
    """A record that another user could have written, or that no worker wrote, is none."""

    @pytest.fixture(autouse=True)
    def compared(self, version: Path, verified: VerifiedFiles) -> None:
        """The version is compared."""
        compare(version, verified)

    def test_a_record_that_others_may_write(self, version: Path, verified: VerifiedFiles) -> None:
        record_of(verified).chmod(0o620)
        assert verified.read(version) == {}

    def test_a_folder_that_others_may_write(self, version: Path, verified: VerifiedFiles) -> None:
        record_of(verified).parent.chmod(0o703)
        assert verified.read(version) == {}

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
    def test_a_record_of_another_user(self, version: Path, verified: VerifiedFiles) -> None:
        os.chown(record_of(verified), 12_345, -1)
        assert verified.read(version) == {}

    def test_a_link(self, version: Path, verified: VerifiedFiles, tmp_path: Path) -> None:
        path = record_of(verified)
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        assert verified.read(version) == {}
        compare(version, verified)
        assert not path.is_symlink()

    def test_a_record_of_another_version(self, version: Path, verified: VerifiedFiles) -> None:
        values = json.loads(record_of(verified).read_bytes()) | {"folder": "/elsewhere"}
        record_of(verified).write_text(json.dumps(values))
        assert verified.read(version) == {}

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\xff",
            b"[]",
            b"{}",
            b'{"files": {}}',
            b'{"files": 1}',
            b'{"files": {"a": 1}}',
            b'{"files": {"a": [[1], "x"]}}',
            b"[" * 9_999,
        ],
    )
    def test_bytes_that_no_worker_wrote(self, version: Path, verified: VerifiedFiles, data: bytes) -> None:
        record_of(verified).write_bytes(data)
        verified.forget_removed()
        assert verified.read(version) == {}
        compare(version, verified)
        assert set(verified.read(version)) == set(FILES)


def test_a_folder_that_cannot_be_written_harms_nothing(version: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    verified = VerifiedFiles(tmp_path / "file" / "verified")
    compare(version, verified)
    assert not check_of(version, verified).is_done
    verified.forget_removed()


def test_an_index_folder_is_not_written(version: Path, verified: VerifiedFiles) -> None:
    before = {path: path.stat().st_mtime_ns for path in (version, *version.parent.iterdir(), *version.iterdir())}
    compare(version, verified)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_large_files_are_compared_by_one_worker_at_a_time(
    version: Path, verified: VerifiedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_check, "LARGE_BYTES", 1)
    second = check_of(version, verified)
    with verified.turn() as is_ours:
        assert is_ours
        second.check_rest()
        assert not second.is_done
    compare(version, verified)
    reads: list[str] = []
    monkeypatch.setattr(second, "_compare", lambda name, is_wanted: reads.append(name))
    second.check_rest()
    assert (second.is_done, reads) == (True, [])


def test_records_of_versions_that_are_gone_are_removed(version: Path, verified: VerifiedFiles) -> None:
    compare(version, verified)
    verified.forget_removed()
    assert record_of(verified).exists()
    version.rename(version.with_name("away"))
    verified.forget_removed()
    assert not list(verified._folder.glob("*.json"))
