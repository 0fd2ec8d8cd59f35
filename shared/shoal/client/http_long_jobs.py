"""Long jobs over HTTP: their calls, the uploads of their sources, and the downloads of their results."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode
from uuid import uuid4

from shoal import wire
from shoal.client.long_handle import LongHandle
from shoal.client.source_file import Item, write_items
from shoal.errors import FileError, InvalidRequest, MalformedJob, UnknownJob
from shoal.excerpt import excerpt
from shoal.keys import NAME
from shoal.long_jobs.status import STATUSES, LongJobStatus, Progress

if TYPE_CHECKING:
    from shoal.client.http_client import HttpClient
    from shoal.client.http_session import Answer

#: Bytes of a file that are sent or hashed at a time.
PIECE_BYTES = 2**16

#: Least bytes a second of an upload or download: a file of n bytes gets n / MIN_BYTES_PER_S beside `timeout_s`.
MIN_BYTES_PER_S = 2**20

#: The file of a result that names the others, and the one with the rows that were left out.
_MANIFEST, _BAD_ROWS = "manifest.json", "bad-rows.jsonl"


class HttpLongJobs:
    """The calls for long jobs through an API. Thread-safe."""

    def __init__(self, client: "HttpClient"):
        self.client = client

    def status(self, job_id: str) -> LongJobStatus:
        """Return the state of a job; raise UnknownJob if there is none."""
        return _status_of(job_id, self.client.ask("GET", _path(job_id)))

    def pause(self, job_id: str) -> str:
        """Stop a job for a while; return its status."""
        return _word(self.client.ask("POST", f"{_path(job_id)}/pause"), "status")

    def resume(self, job_id: str) -> str:
        """Let a paused job go on; return its status."""
        return _word(self.client.ask("POST", f"{_path(job_id)}/resume"), "status")

    def cancel(self, job_id: str) -> str:
        """End a job for good; return its status."""
        return _word(self.client.ask("DELETE", _path(job_id)), "status")

    def submit(
        self, path: str, source: "str | PathLike[str] | Iterable[Item]", fields: Mapping[str, Any], key: str | None
    ) -> "HttpLongHandle":
        """Submit a job with its source: a URL is named, a file is uploaded, and so is one that is made of texts."""
        headers = {"Idempotency-Key": key or uuid4().hex}
        given = {name: value for name, value in fields.items() if value is not None}
        if isinstance(source, str) and "://" in source:
            answer = self.client.ask("POST", path, body=wire.pack({"source": source} | given), headers=headers)
        else:
            with _as_file(source) as file:
                answer = self._upload(path, file, given, headers)
        return HttpLongHandle(self, _word(answer, "id"))

    def _upload(self, path: str, file: Path, fields: Mapping[str, Any], headers: dict[str, str]) -> "Answer":
        size = file.stat().st_size
        headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        values = {name: json.dumps(value) if isinstance(value, bool) else value for name, value in fields.items()}
        query = urlencode({"name": file.name} | values)
        until = self.client.until(size / MIN_BYTES_PER_S)
        return self.client.ask("POST", f"{path}?{query}", until, body=_Pieces(file), headers=headers)


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
        scratch = folder / f".{name}"
        until = self.jobs.client.until(size / MIN_BYTES_PER_S)
        with scratch.open("wb") as file:
            self.jobs.client.ask("GET", f"{_path(self.id)}/files/{quote(name)}", until, sink=file)
        return scratch


class _Pieces:
    """The bytes of a file, from its beginning for each attempt to send it."""

    def __init__(self, path: Path):
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece


@contextmanager
def _as_file(source: "str | PathLike[str] | Iterable[Item]") -> Iterator[Path]:
    """Yield the path of the source; texts are written into a file that is deleted at the end."""
    if isinstance(source, str | PathLike):
        path = Path(fspath(source))
        if not path.is_file():
            raise InvalidRequest(f"there is no file {path}: give the path of a file, a URL, or texts in a list")
        yield path
        return
    with TemporaryDirectory(prefix="shoal-") as folder:
        write_items(path := Path(folder) / "texts.jsonl", source)
        yield path


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
    digest = sha256()
    for piece in _Pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def _status_of(job_id: str, answer: "Answer") -> LongJobStatus:
    values = answer.values()
    if "kind" not in values:
        raise UnknownJob(f"job {excerpt(job_id)} is no long job: `HttpClient.job` has its result")
    status, error = _word(answer, "status"), values.get("error")
    if status not in STATUSES:
        raise MalformedJob(f"the answer of {answer.source} has the status {excerpt(status)}: check Shoal's version")
    return LongJobStatus(
        id=_word(answer, "id"),
        kind=_word(answer, "kind"),
        status=status,
        arguments=values.get("arguments") or {},
        submitted_at=_time(values.get("submitted_at")) or 0.0,
        started_at=_time(values.get("started_at")),
        ended_at=_time(values.get("ended_at")),
        progress=Progress.from_map(values.get("progress")),
        result=values.get("result"),
        error={name: str(error.get(name)) for name in ("code", "message")} if isinstance(error, dict) else None,
        worker=str(values.get("worker") or ""),
    )


def _time(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _path(job_id: str) -> str:
    if not NAME.fullmatch(job_id) or not job_id.strip("."):
        raise UnknownJob(f"no job {excerpt(job_id)}: ids of jobs have letters and digits")
    return f"/v1/jobs/{job_id}"


def _word(answer: "Answer", name: str) -> str:
    value = answer.values().get(name)
    if not isinstance(value, str):
        raise MalformedJob(f"the answer of {answer.source} has no {name}: check Shoal's version")
    return value
