"""The index of a client that reaches the API and not Redis."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from shoal.changes.change import BYTES_OF_A_VALUE, MAX_CHANGE_IDS, MAX_CHANGES
from shoal.client.grouping import bounded_groups, telling_how_many
from shoal.client.http.long_jobs import HttpLongJobs
from shoal.client.index_handle import CHANGE_TIMEOUT_S, BuildOptions
from shoal.client.long_handle import LongHandle
from shoal.client.source_file import File, Item
from shoal.contract import wire
from shoal.errors import MalformedJob, NotReady
from shoal.records.given_document import Given, documents_of, ids_of
from shoal.settings import DEFAULTS

#: Most documents, and bytes as which they count in a change, in one request: with vectors of up to 4,096 numbers, the
#: API takes as much.
MAX_REQUEST_DOCUMENTS, MAX_REQUEST_BYTES = 32, 2**19 - 4_096


@dataclass(frozen=True, slots=True)
class HttpIndex:
    """The calls for an index by its name; each blocks the thread until it is answered."""

    name: str
    jobs: HttpLongJobs

    def add(self, documents: Iterable[Given]) -> int:
        """Add documents, at most 32 in one step; return their number."""
        found = documents_of(documents, MAX_CHANGES, DEFAULTS.max_text_chars)
        given = [{"id": document.id, "text": document.text, **document.fields} for document in found]
        return self._write("POST", "documents", given, MAX_REQUEST_DOCUMENTS)

    def delete(self, ids: Iterable[str]) -> int:
        """Delete the documents with these ids; return the number of ids."""
        return self._write("DELETE", "ids", ids_of(ids, MAX_CHANGES), MAX_CHANGE_IDS)

    def build(self, source: File | Iterable[Item], options: BuildOptions) -> str:
        """Submit a build, with its file if that is to be uploaded; return the id of the job."""
        fields: dict[str, Any] = {**options}
        key = fields.pop("idempotency_key", None)
        return self.jobs.submit(f"{self._path()}/builds", source, fields, key)

    def manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        """Let a runner do the action; return the versions after it."""
        method, path, body = {
            "list": ("GET", "versions", None),
            "publish": ("POST", "publish", wire.pack({"version": version})),
            "rollback": ("POST", "rollback", None),
            "delete": ("DELETE", f"versions/{quote(version or '', safe='')}", None),
        }[action]
        client = self.jobs.client
        answer = client.ask(method, f"{self._path()}/{path}", client.until(CHANGE_TIMEOUT_S), body=body)
        values = answer.values()
        if answer.status == 202:
            values = self._wait(answer.text("id"), values.get("note"))
        versions = values.get("versions")
        if not isinstance(versions, list):
            raise MalformedJob(f"the answer of {answer.source} has no versions: check Shoal's version")
        return versions

    def _write(self, method: str, field: str, items: Sequence[Any], max_num: int) -> int:
        num, sizes = 0, [_size(field, item) for item in items]
        for group in bounded_groups(items, sizes, max_num, MAX_REQUEST_BYTES):
            with telling_how_many(num):
                self.jobs.client.ask(method, f"{self._path()}/documents", body=wire.pack({field: group}))
            num += len(group)
        return num

    def _wait(self, job_id: str, note: object) -> dict[str, Any]:
        """Return the result of a change that is not done yet; cancel one that waits for a runner, as the note says."""
        if note and self.jobs.cancel(job_id) == "cancelled":
            raise NotReady(str(note))
        return LongHandle(self.jobs, job_id).wait(CHANGE_TIMEOUT_S)

    def _path(self) -> str:
        return f"/v1/indexes/{quote(self.name, safe='')}"


def _size(field: str, item: Any) -> int:
    """Return the bytes as which a document without its vector, or an id, counts in a change."""
    return max(len(wire.pack({field: item})), BYTES_OF_A_VALUE * wire.num_values([item]))
