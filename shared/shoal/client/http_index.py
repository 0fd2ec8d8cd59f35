"""The index of a client that reaches the API and not Redis."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from shoal import wire
from shoal.client.http_long_jobs import HttpLongJobs
from shoal.client.index_handle import CHANGE_TIMEOUT_S, BuildOptions
from shoal.client.source_file import File, Items
from shoal.errors import MalformedJob, NotReady


@dataclass(frozen=True, slots=True)
class HttpIndex:
    """The calls for an index by its name; each blocks the thread until it is answered."""

    name: str
    jobs: HttpLongJobs

    async def build(self, source: File | Items, options: BuildOptions) -> str:
        """Submit a build, with its file if that is to be uploaded; return the id of the job."""
        fields: dict[str, Any] = {**options}
        key = fields.pop("idempotency_key", None)
        return await self.jobs.submit(f"{self._path()}/builds", source, fields, key)

    async def manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
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
            values = await self._wait(answer.text("id"), values.get("note"))
        versions = values.get("versions")
        if not isinstance(versions, list):
            raise MalformedJob(f"the answer of {answer.source} has no versions: check Shoal's version")
        return versions

    async def _wait(self, job_id: str, note: object) -> dict[str, Any]:
        """Return the result of a change that is not done yet; cancel one that waits for a runner, as the note says."""
        if note and await self.jobs.cancel(job_id) == "cancelled":
            raise NotReady(str(note))
        result: dict[str, Any] = await self.jobs.wait(job_id, CHANGE_TIMEOUT_S)
        return result

    def _path(self) -> str:
        return f"/v1/indexes/{quote(self.name, safe='')}"
