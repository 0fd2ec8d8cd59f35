"""Long jobs over HTTP: their calls, and the uploads of their sources."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import uuid4

from shoal.client.http.handle import job_path
from shoal.client.item_file import ItemFile
from shoal.client.source_file import File, Item, ServerFile, place_of
from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, MalformedJob, UnknownJob
from shoal.long_jobs.status import STATUSES, LongJobStatus, Progress

if TYPE_CHECKING:
    from shoal.client.http.answer import Answer
    from shoal.client.http.client import HttpClient

#: Bytes of a file that are sent at a time.
PIECE_BYTES = 2**16

#: Least bytes a second of an upload or download: a file of n bytes gets n / MIN_BYTES_PER_S beside `timeout_s`.
MIN_BYTES_PER_S = 2**20


class HttpLongJobs:
    """The calls for long jobs through an API; each blocks the thread until it is answered. Thread-safe."""

    def __init__(self, client: "HttpClient"):
        self.client = client

    def status(self, job_id: str) -> LongJobStatus:
        """Return the state of a job; raise UnknownJob if there is none."""
        return _status_of(job_id, self.client.ask("GET", job_path(job_id)))

    def pause(self, job_id: str) -> str:
        """Stop a job for a while; return its status."""
        return self.client.ask("POST", f"{job_path(job_id)}/pause").text("status")

    def resume(self, job_id: str) -> str:
        """Let a paused job go on; return its status."""
        return self.client.ask("POST", f"{job_path(job_id)}/resume").text("status")

    def cancel(self, job_id: str) -> str:
        """End a job for good; return its status."""
        return self.client.ask("POST", f"{job_path(job_id)}/cancel").text("status")

    def delete(self, job_id: str) -> None:
        """Forget a job that has ended, with its files; raise JobNotEnded for one that has not."""
        self.status(job_id)  # raises UnknownJob for a job that is no long one, which would be cancelled
        with suppress(UnknownJob):  # where the answer to a first attempt was lost, it is deleted
            self.client.ask("DELETE", job_path(job_id))

    def submit(self, path: str, source: File | Iterable[Item], fields: Mapping[str, Any], key: str | None) -> str:
        """Submit a job with its source, and return its id.

        A URL and a file of the server are named; another file is uploaded, and so is one that is made of texts.
        """
        headers = {"Idempotency-Key": key or uuid4().hex}
        given = {name: value for name, value in fields.items() if value is not None}
        if isinstance(source, ServerFile) or (isinstance(source, str) and "://" in source):
            body = wire.pack({"source": place_of(source)} | given)
            return self.client.ask("POST", path, body=body, headers=headers).text("id")
        with _as_file(source) as file:
            return self._upload(path, file, given, headers).text("id")

    def _upload(self, path: str, file: Path, fields: Mapping[str, Any], headers: dict[str, str]) -> "Answer":
        size = file.stat().st_size
        headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        values = {name: json.dumps(value) if isinstance(value, bool) else value for name, value in fields.items()}
        query = urlencode({"name": file.name} | values)
        until = self.client.until(size / MIN_BYTES_PER_S)
        return self.client.ask("POST", f"{path}?{query}", until, body=_Pieces(file), headers=headers)


class _Pieces:
    """The bytes of a file, from its beginning for each attempt to send it."""

    def __init__(self, path: Path):
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece


@contextmanager
def _as_file(source: str | PathLike[str] | Iterable[Item]) -> Iterator[Path]:
    """Yield the path of the source; texts are written into a file that is deleted at the end."""
    if isinstance(source, str | PathLike):
        path = Path(fspath(source))
        if not path.is_file():
            raise InvalidRequest(f"there is no file {path}: give the path of a file, a URL, or texts in a list")
        yield path
        return
    with TemporaryDirectory(prefix="shoal-") as folder, ItemFile(Path(folder) / "texts.jsonl") as file:
        file.write(source)
        yield file.path


def _status_of(job_id: str, answer: "Answer") -> LongJobStatus:
    values = answer.values()
    if "kind" not in values:
        raise UnknownJob(f"job {excerpt(job_id)} is no long job: `HttpClient.job` has its result")
    status, error = answer.text("status"), values.get("error")
    if status not in STATUSES:
        raise MalformedJob(f"the answer of {answer.source} has the status {excerpt(status)}: check Shoal's version")
    return LongJobStatus(
        id=answer.text("id"),
        kind=answer.text("kind"),
        status=status,
        arguments=values.get("arguments") or {},
        submitted_at=_time(values.get("submitted_at")) or 0.0,
        started_at=_time(values.get("started_at")),
        ended_at=_time(values.get("ended_at")),
        progress=Progress.from_map(values.get("progress")),
        result=values.get("result"),
        error={name: str(error.get(name)) for name in ("code", "message")} if isinstance(error, dict) else None,
        worker=str(values.get("worker") or ""),
        webhook=webhook if isinstance(webhook := values.get("webhook"), dict) else None,
    )


def _time(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
