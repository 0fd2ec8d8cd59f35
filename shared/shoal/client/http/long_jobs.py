"""Long jobs and indexes over HTTP, with uploads of sources and downloads of results."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from hashlib import file_digest
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode
from uuid import uuid4

from shoal.changes.change import BYTES_OF_A_VALUE, MAX_CHANGE_IDS, MAX_CHANGES
from shoal.client.job_source import File, ServerFile, place_of
from shoal.client.long_job_handles import CHANGE_TIMEOUT_S, IndexHandle, LongHandle
from shoal.client.splitting import noting_num_written
from shoal.client.text_client import check_key
from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import bounded_groups
from shoal.contract.keys import NAME, NAME_RULE
from shoal.errors import FileError, InvalidRequest, MalformedJob, NotReady, UnknownJob
from shoal.long_jobs.status import STATUSES, LongJobStatus
from shoal.records.given_document import Given, documents_of, ids_of
from shoal.settings import DEFAULTS
from shoal.task_progress import TaskProgress

if TYPE_CHECKING:
    from shoal.client.http.client import HttpClient

#: Slowest upload or download, in bytes a second. A transfer may take `timeout_s` plus the time for its bytes.
MIN_BYTES_PER_S = 2**20

#: Largest number of documents in one request, and their largest size in bytes, vectors excluded. The API accepts such a
#: request if vectors have at most 4,096 numbers.
MAX_REQUEST_DOCUMENTS, MAX_REQUEST_BYTES = 32, 2**19 - 4_096

#: The file of a result that names its other files, and the file with the bad rows.
_MANIFEST, _BAD_ROWS = "manifest.json", "bad-rows.jsonl"


class HttpLongJobs:
    """The calls of an API for long jobs. Each call blocks its thread until the API answers. Thread-safe."""

    def __init__(self, client: "HttpClient"):
        self.client = client

    def status(self, job_id: str) -> LongJobStatus:
        """Return the state of a long job; raise UnknownJob if there is no such job."""
        answer = self.client.ask("GET", job_path(job_id))
        values = answer.values()
        if "kind" not in values:
            raise UnknownJob(f"job {excerpt(job_id)} is no long job: `HttpClient.job` has its result")
        known = {item.name: values[item.name] for item in fields(LongJobStatus) if item.name in values}
        try:
            status = LongJobStatus(**known | {"progress": TaskProgress.from_map(values.get("progress"))})
            if status.status not in STATUSES:
                raise ValueError(f"its status is {excerpt(status.status)}")
        except (TypeError, ValueError) as error:
            raise MalformedJob(
                f"the answer of {answer.source} is no long job ({error}): check Shoal's version"
            ) from error
        return status

    def cancel(self, job_id: str) -> str:
        """Stop a job; return its status."""
        return self.client.ask("POST", f"{job_path(job_id)}/cancel").text("status")

    def retry(self, job_id: str) -> str:
        """Let a failed or cancelled job continue; return its status."""
        return self.client.ask("POST", f"{job_path(job_id)}/retry").text("status")

    def delete(self, job_id: str) -> None:
        """Delete a job with its files; raise JobNotEnded if it has not ended."""
        self.status(job_id)  # raises UnknownJob for a job of the queue, which DELETE would cancel
        with suppress(UnknownJob):  # the job is already deleted if the answer to a first attempt was lost
            self.client.ask("DELETE", job_path(job_id))

    def submit(self, path: str, source: File, options: Mapping[str, Any], key: str | None) -> str:
        """Submit a job and return its id. The source is uploaded unless it is a `ServerFile`. Raises InvalidText."""
        headers, place = once(key), place_of(source)
        given = {name: value for name, value in options.items() if value is not None}
        body = wire.pack(given | {"source": place})
        if isinstance(source, ServerFile):
            return self.client.ask("POST", path, body=body, headers=headers).text("id")
        if not (file := Path(place)).is_file():
            raise InvalidRequest(f"there is no file {file}: check its name")
        headers["Content-Type"] = "application/octet-stream"
        values = {name: json.dumps(value) if isinstance(value, bool) else value for name, value in given.items()}
        target = f"{path}?{urlencode({'name': file.name} | values, doseq=True)}"
        until = self.client.until(file.stat().st_size / MIN_BYTES_PER_S)
        with file.open("rb") as content:
            return self.client.ask("POST", target, until, body=content, headers=headers).text("id")


class HttpLongHandle(LongHandle):
    """A long job that was submitted over HTTP, whose result can be downloaded."""

    jobs: HttpLongJobs

    def save(self, folder: str | PathLike[str]) -> Path:
        """Download the vectors of a finished bulk job and their manifest into the folder; return the folder.

        Existing files with the right checksum are kept, so a second call continues an interrupted download. Raises
        FileError for a file with a wrong checksum, and the API's error for a job that is not done.
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
        """Download a file of the result under a temporary name; return its path."""
        scratch, client = folder / f".{name}", self.jobs.client
        until = client.until(size / MIN_BYTES_PER_S)
        with scratch.open("wb") as file:
            client.ask("GET", f"{job_path(self.id)}/files/{quote(name)}", until, sink=file)
        return scratch


class HttpIndexHandle(IndexHandle):
    """An index by its name, over HTTP."""

    jobs: HttpLongJobs

    def add(self, documents: Iterable[Given]) -> int:
        found = documents_of(documents, MAX_CHANGES, DEFAULTS.max_text_chars)
        given = [{"id": document.id, "text": document.text, **document.fields} for document in found]
        return self._write("POST", "documents", given, MAX_REQUEST_DOCUMENTS)

    def delete(self, ids: Iterable[str]) -> int:
        return self._write("DELETE", "ids", ids_of(ids, MAX_CHANGES), MAX_CHANGE_IDS)

    def _write(self, method: str, field: str, items: Sequence[Any], max_num: int) -> int:
        """Send documents or ids in groups; return their number. Each group makes one change."""
        num = 0
        # The bytes of the items in a change, without their vectors.
        sizes = [max(len(wire.pack({field: item})), BYTES_OF_A_VALUE * wire.num_values([item])) for item in items]
        for group in bounded_groups(items, sizes, max_num, MAX_REQUEST_BYTES):
            with noting_num_written(num):
                self.jobs.client.ask(method, f"{self._path()}/documents", body=wire.pack({field: group}))
            num += len(group)
        return num

    def _build(self, source: File, options: dict[str, Any]) -> str:
        key = options.pop("idempotency_key", None)
        return self.jobs.submit(f"{self._path()}/builds", source, options, key)

    def _manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        method, path, body = {
            "list": ("GET", "versions", None),
            "publish": ("POST", "publish", wire.pack({"version": version})),
            "rollback": ("POST", "rollback", None),
            "delete": ("DELETE", f"versions/{quote(version or '', safe='')}", None),
        }[action]
        client = self.jobs.client
        path, until = f"{self._path()}/{path}", client.until(CHANGE_TIMEOUT_S)
        answer = client.ask(method, path, until, body=body, headers=once(None))  # a rollback sent twice goes back once
        values = answer.values()
        if answer.status == 202:  # not done yet; the answer has a note if no runner is alive
            job_id, note = answer.text("id"), values.get("note")
            if note and self.jobs.cancel(job_id) == "cancelled":
                raise NotReady(str(note))
            values = LongHandle(self.jobs, job_id).wait(CHANGE_TIMEOUT_S)
        versions = values.get("versions")
        if not isinstance(versions, list):
            raise MalformedJob(f"the answer of {answer.source} has no versions: check Shoal's version")
        return versions

    def _path(self) -> str:
        if not _is_path_part(self.name):
            raise InvalidRequest(f"the index is {excerpt(self.name)}: it takes {NAME_RULE}, and not dots alone")
        return f"/v1/indexes/{self.name}"


def job_path(job_id: str) -> str:
    """Return the URL path of a job; raise UnknownJob for a string that cannot be a job's id."""
    if not _is_path_part(job_id):
        raise UnknownJob(f"no job {excerpt(job_id)}: ids of jobs have letters and digits")
    return f"/v1/jobs/{job_id}"


def _is_path_part(name: str) -> bool:
    """Return True if the name can be one part of a URL path: it has no slash or query, and is not dots alone."""
    return bool(NAME.fullmatch(name) and name.strip("."))


def once(key: str | None) -> dict[str, str]:
    """Return the header with the idempotency key. Without `key` it is random, because an attempt may be repeated."""
    if key is not None and not (check_key(key).isascii() and key == key.strip()):
        raise InvalidRequest(f"the idempotency key is {excerpt(key)}: over HTTP it takes ASCII, no space around it")
    return {"Idempotency-Key": key or uuid4().hex}


def _files_of(manifest: bytes) -> Iterator[tuple[str, str, int]]:
    """Yield the name, SHA-256 and size in bytes of each file in the manifest of a result."""
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
