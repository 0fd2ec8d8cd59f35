"""The long jobs of indexes, from their arguments to their results, which are plain values."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from shoal.errors import InvalidRequest
from shoal.excerpt import excerpt
from shoal.long_task import Report
from shoal.records.source import Source
from shoal.settings import DEFAULTS, Settings
from shoal_workers.index.builder import BuildResult, build
from shoal_workers.index.document_encoder import DocumentEncoder
from shoal_workers.index.versions import delete, list_versions, publish, rollback

#: What can be done with the versions of an index.
Action = Literal["list", "publish", "rollback", "delete"]

#: Names of indexes in the folder of indexes: none leads to another folder.
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class BuildIndex:
    """A build of a version of the index `name`.

    With `on_bad` "skip", bad rows of the source are left out. `full` embeds all texts anew, also those that the version
    before has. Raises InvalidRequest for a value that a field does not take.
    """

    name: str
    source: str
    text_column: str | None = None
    id_column: str | None = None
    on_bad: str = "raise"
    publish: bool = True
    full: bool = False

    def __post_init__(self) -> None:
        _check_kinds(self, ("name", "source", "on_bad"), str)
        _check_kinds(self, ("text_column", "id_column"), (str, type(None)))
        _check_kinds(self, ("publish", "full"), bool)
        if self.on_bad not in ("raise", "skip"):
            raise InvalidRequest(f"on_bad is {excerpt(self.on_bad)}: it takes raise or skip")

    def open_source(self, settings: Settings = DEFAULTS) -> Source:
        """Return the source of the documents. Raises InvalidRequest if it cannot be one."""
        return Source(
            self.source,
            self.text_column,
            self.id_column,
            max_text_chars=settings.max_text_chars,
            private_hosts=settings.private_host_names(),
        )


@dataclass(frozen=True, slots=True)
class ManageIndex:
    """An action on the versions of the index `name`; `version` is the one to publish or to delete.

    Raises InvalidRequest for a value that a field does not take.
    """

    name: str
    action: str
    version: str | None = None

    def __post_init__(self) -> None:
        _check_kinds(self, ("name", "action"), str)
        _check_kinds(self, ("version",), (str, type(None)))
        if self.action not in get_args(Action):
            raise InvalidRequest(f"action is {excerpt(self.action)}: it takes one of {', '.join(get_args(Action))}")
        if (self.version is not None) != (self.action in ("publish", "delete")):
            raise InvalidRequest(f"version is {excerpt(self.version)}: publish and delete take one, other actions none")


def where_is(settings: Settings, name: str) -> Path:
    """Return the folder of an index: the one that the settings name, else the one in their folder of indexes.

    Raises InvalidRequest for what is no name.
    """
    if folder := settings.index_folders().get(name):
        return folder
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"the index is called {excerpt(name)}: a name takes 1 to 100 letters, digits, '-', '_' or '.', "
            "of which '.' is not the first"
        )
    return settings.index_home_folder / name


def build_index(
    request: BuildIndex,
    folder: Path,
    encoder: DocumentEncoder,
    report: Report,
    *,
    settings: Settings = DEFAULTS,
    resume_key: str = "",
) -> BuildResult:
    """Build a version of the index in `folder`; `builder.build` says how, and what it raises.

    Of the settings count `kept_versions`, `max_text_chars` and `private_hosts`.
    """
    return build(
        request.open_source(settings),
        folder,
        encoder,
        report,
        publishes=request.publish,
        reuses=not request.full,
        skips_bad=request.on_bad == "skip",
        num_kept=settings.kept_versions,
        key=resume_key,
    )


def manage_index(request: ManageIndex, folder: Path, pool_digest: str | None, key: str = "") -> dict[str, Any]:
    """Do the action on the index in `folder`, and return its versions afterwards, the one that was built last first.

    `pool_digest` is the digest of the model that the pool serves, or None if it serves none. A rollback with the same
    `key`, unless that is empty, is done once. Raises IndexNotFound,
    InvalidRequest for a delete of the current version and a rollback from the first one, IndexMismatch for a version of
    another model than the pool's, and IndexCorrupt. The current version then stays.
    """
    if request.action == "rollback":
        rollback(folder, pool_digest, key)
    elif request.version is not None:
        if request.action == "publish":
            publish(folder, request.version, pool_digest)
        else:
            delete(folder, request.version)
    versions = [version.to_map() for version in list_versions(folder)]
    current = next((version["version"] for version in versions if version["is_current"]), None)
    return {"name": request.name, "current": current, "versions": versions}


def _check_kinds(request: Any, names: tuple[str, ...], kinds: type | tuple[type, ...]) -> None:
    for name in names:
        if not isinstance(value := getattr(request, name), kinds):
            raise InvalidRequest(f"{name} is {excerpt(value)}: it is of the wrong type")
