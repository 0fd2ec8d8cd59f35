"""The handle of a long job that was submitted over HTTP, whose result can be downloaded."""

import json
from collections.abc import Iterator
from hashlib import file_digest
from os import PathLike
from pathlib import Path
from urllib.parse import quote

from shoal.client.http.handle import job_path
from shoal.client.http.long_jobs import MIN_BYTES_PER_S, HttpLongJobs
from shoal.client.long_handle import LongHandle
from shoal.contract.excerpt import excerpt
from shoal.errors import FileError, MalformedJob

#: The file of a result that names the others, and the one with the rows that were left out.
_MANIFEST, _BAD_ROWS = "manifest.json", "bad-rows.jsonl"


class HttpLongHandle(LongHandle):
    """A long job that was submitted over HTTP, whose result can be downloaded."""

    jobs: HttpLongJobs

    def save(self, folder: str | PathLike[str]) -> Path:
        """Download the vectors of a bulk job that is done into the folder, with their manifest; return the folder.

        Files that are there already with the right checksum are kept, so an interrupted download goes on. Raises
        FileError for a file that arrives with another checksum, and what the API answers for a job that is not done.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        manifest = self._download(_MANIFEST, place)
        for name, checksum, size in _files_of(manifest.read_bytes()):
            path = place / name
            if path.is_file() and _checksum(path) == checksum:
                continue
            scratch = self._download(name, place, size)
            if _checksum(scratch) != checksum:
                raise FileError(f"{name} of job {self.id} arrived with another checksum: save it again")
            scratch.replace(path)
        if self.progress().num_bad:
            self._download(_BAD_ROWS, place).replace(place / _BAD_ROWS)
        manifest.replace(place / _MANIFEST)
        return place

    def _download(self, name: str, folder: Path, size: int = 0) -> Path:
        """Return the path of a downloaded file, which has a scratch name."""
        scratch, client = folder / f".{name}", self.jobs.client
        until = client.until(size / MIN_BYTES_PER_S)
        with scratch.open("wb") as file:
            client.ask("GET", f"{job_path(self.id)}/files/{quote(name)}", until, sink=file)
        return scratch


def _files_of(manifest: bytes) -> Iterator[tuple[str, str, int]]:
    """Yield the name, SHA-256 and size of each file of a result."""
    try:
        for part in json.loads(manifest)["parts"]:
            for name, checksum in part["checksums"].items():
                if Path(name).name != name or name.startswith("."):
                    raise ValueError(f"it names {excerpt(name)}")
                yield name, str(checksum), int(part["sizes"][name])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MalformedJob(
            f"the manifest of the result cannot be read ({error!s:.200}): check Shoal's version"
        ) from error


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
