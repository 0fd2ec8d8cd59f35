"""The handle of an index, for clients that reach the API and not Redis."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any
from urllib.parse import quote

from shoal import wire
from shoal.client.http_long_jobs import HttpLongHandle, HttpLongJobs
from shoal.client.long_handle import CHANGE_TIMEOUT_S
from shoal.client.source_file import Item
from shoal.errors import MalformedJob


@dataclass(frozen=True, slots=True)
class HttpIndexHandle:
    """An index by its name, whose versions are changed through an API. Thread-safe.

    A version is a map with `version`, `count`, `built_at`, `model`, `source`, `size_bytes`, `is_current` and `error`;
    the newest comes first.
    """

    jobs: HttpLongJobs
    name: str

    def build(
        self,
        source: "str | PathLike[str] | Iterable[Item]",
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        on_bad: str = "raise",
        publish: bool = True,
        full: bool = False,
        webhook: str | None = None,
        idempotency_key: str | None = None,
    ) -> HttpLongHandle:
        """Submit a build of a new version from a file, which is uploaded, or from a URL, and return at once.

        `source` may also be documents, as dicts. The other arguments are those of `IndexHandle.build`.
        """
        fields = {"text_column": text_column, "id_column": id_column, "on_bad": on_bad, "publish": publish}
        fields |= {"full": full, "webhook": webhook}
        return self.jobs.submit(f"{self._path()}/builds", source, fields, idempotency_key)

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions of the index."""
        return self._change("GET", "versions")

    def publish(self, version: str) -> list[dict[str, Any]]:
        """Make a version the current one, which searches then read; return the versions."""
        return self._change("POST", "publish", {"version": version})

    def rollback(self) -> list[dict[str, Any]]:
        """Make the version that was published before the current one current again; return the versions."""
        return self._change("POST", "rollback")

    def delete_version(self, version: str) -> list[dict[str, Any]]:
        """Delete a version that is not the current one; return the versions that are left."""
        return self._change("DELETE", f"versions/{quote(version, safe='')}")

    def _change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        packed = wire.pack(dict(body)) if body else None
        until = self.jobs.client.until(CHANGE_TIMEOUT_S)
        values = self.jobs.client.ask(method, f"{self._path()}/{path}", until, body=packed).values()
        versions = values.get("versions")
        if not isinstance(versions, list):
            raise MalformedJob("the answer has no versions: check Shoal's version")
        return versions

    def _path(self) -> str:
        return f"/v1/indexes/{quote(self.name, safe='')}"
