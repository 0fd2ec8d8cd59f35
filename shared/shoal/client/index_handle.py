"""The handle of an index, for clients that reach Redis."""

from dataclasses import dataclass
from os import PathLike
from typing import Any

from shoal.client.long_handle import CHANGE_TIMEOUT_S, LongHandle
from shoal.client.source_file import place_of
from shoal.errors import NotReady
from shoal.long_jobs.long_jobs import LongJobs


@dataclass(frozen=True, slots=True)
class IndexHandle:
    """An index by its name. Runners change it; nothing is read here. Thread-safe.

    The methods that return versions are done by a runner, for which they wait at most `CHANGE_TIMEOUT_S`. They raise
    NotReady if none is alive. A version is a map with `version`, `count`, `built_at`, `model`, `source`, `size_bytes`,
    `is_current` and `error`; the newest comes first.
    """

    jobs: LongJobs
    name: str

    def build(
        self,
        source: str | PathLike[str],
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        on_bad: str = "raise",
        publish: bool = True,
        full: bool = False,
        webhook: str | None = None,
        idempotency_key: str | None = None,
    ) -> LongHandle:
        """Submit a build of a new version from a file of documents, or from a URL, and return at once.

        The runner reads the file, which has to be below its roots. Bad rows end the build, or are left out with
        `on_bad="skip"`. Texts that the current version has are not embedded again, unless `full` is true. The new
        version is published, unless `publish` is false.
        """
        arguments: dict[str, Any] = {"name": self.name, "source": place_of(source), "on_bad": on_bad}
        arguments |= {"text_column": text_column, "id_column": id_column, "publish": publish, "full": full}
        once: dict[str, Any] = {"webhook": webhook, "idempotency_key": idempotency_key}
        return LongHandle(self.jobs, self.jobs.submit("build_index", arguments, **once))

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions of the index."""
        return self._change("list")

    def publish(self, version: str) -> list[dict[str, Any]]:
        """Make a version the current one, which searches then read; return the versions."""
        return self._change("publish", version)

    def rollback(self) -> list[dict[str, Any]]:
        """Make the version that was published before the current one current again; return the versions."""
        return self._change("rollback")

    def delete_version(self, version: str) -> list[dict[str, Any]]:
        """Delete a version that is not the current one; return the versions that are left."""
        return self._change("delete", version)

    def _change(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        if not self.jobs.num_runners():
            raise NotReady("no runner of long jobs is alive: start one with `shoal serve` or `shoal jobs`")
        arguments = {"name": self.name, "action": action, "version": version}
        job_id = self.jobs.submit("manage_index", arguments)
        versions: list[dict[str, Any]] = LongHandle(self.jobs, job_id).wait(CHANGE_TIMEOUT_S)["versions"]
        return versions
