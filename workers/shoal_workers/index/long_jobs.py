"""The long jobs of indexes: their arguments, and the functions that run them and return results as plain values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from shoal.changes.change_log import ChangeLog
from shoal.client.redis.client import Client
from shoal.contract.excerpt import excerpt
from shoal.contract.keys import NAME
from shoal.contract.languages import LANGUAGES
from shoal.contract.options import Options
from shoal.errors import InvalidRequest
from shoal.records.source import Source
from shoal.records.source_file import SourceRules
from shoal.settings import DEFAULTS, Settings
from shoal.task_progress import Report
from shoal_workers.index.build.builder import BuildResult, build
from shoal_workers.index.build.chunks import Cutter
from shoal_workers.index.build.document_encoder import DocumentEncoder
from shoal_workers.index.build.merged_changes import IndexChanges
from shoal_workers.index.build.migration import VersionDocuments
from shoal_workers.index.files.field_kinds import KINDS
from shoal_workers.index.files.field_values import MAX_COLUMNS, OTHER_FIELDS
from shoal_workers.index.index import FOLDER_NAME, current_version
from shoal_workers.index.versions import delete, list_versions, publish, rollback
from shoal_workers.model.model import Model
from shoal_workers.process import processors

if TYPE_CHECKING:
    from shoal_workers.encoding.reranker import LateReranker

#: The actions of `ManageIndex`.
ACTIONS = ("list", "publish", "rollback", "delete")


@dataclass(frozen=True, slots=True)
class BuildIndex:
    """A build of a version of the index `name`.

    With `on_bad` "skip", bad rows of the source are left out. `full` embeds all texts anew. Changes of the index that
    were made before `drop_changes_before`, in Unix seconds, are forgotten. With `chunk_tokens`, each row is a chunk of
    at most that many tokens, and neighbouring chunks share at most `chunk_overlap` tokens. `field_kinds` give the kinds
    of fields, as in "year=number". Without a `language`, the build detects the language of the documents' words. Raises
    InvalidRequest for a value that a field does not accept.
    """

    name: str
    source: str
    text_column: str | None = None
    id_column: str | None = None
    on_bad: str = "raise"
    publish: bool = True
    full: bool = False
    drop_changes_before: float | None = None
    language: str | None = None
    chunk_tokens: int | None = None
    chunk_overlap: int = 0
    field_kinds: Sequence[str] = ()
    token_vectors: bool = False

    is_migration: ClassVar[bool] = False  #: True if the source is the current version of the index

    def __post_init__(self) -> None:
        _check_types(self, ("name", "source", "on_bad"), str)
        _check_types(self, ("text_column", "id_column"), (str, type(None)))
        _check_types(self, ("publish", "full", "token_vectors"), bool)
        before = self.drop_changes_before
        if before is not None and (type(before) not in (int, float) or not math.isfinite(before)):
            raise InvalidRequest(f"drop_changes_before is {excerpt(before)}: it takes a time in Unix seconds")
        if self.on_bad not in ("raise", "skip"):
            raise InvalidRequest(f"on_bad is {excerpt(self.on_bad)}: it takes raise or skip")
        if self.language is not None and self.language not in LANGUAGES:
            raise InvalidRequest(f"language is {excerpt(self.language)}: it takes one of {', '.join(LANGUAGES)}")
        self.options()
        self.kinds()

    def options(self) -> Options:
        """Return the options for cutting documents into chunks."""
        return Options(chunk_tokens=self.chunk_tokens, chunk_overlap=self.chunk_overlap)

    def kinds(self) -> dict[str, str]:
        """Return the kinds in `field_kinds`, keyed by field name."""
        if not isinstance(self.field_kinds, list | tuple) or len(self.field_kinds) > MAX_COLUMNS:
            raise InvalidRequest(f"field_kinds is {excerpt(self.field_kinds)}: it takes a list such as year=number")
        kinds = {}
        for value in self.field_kinds:
            name, _, kind = value.rpartition("=") if isinstance(value, str) else ("", "", "")
            if not name or kind not in KINDS or name in OTHER_FIELDS:
                raise InvalidRequest(
                    f"field_kinds has {excerpt(value)}: it takes NAME=KIND, KIND one of {', '.join(KINDS)}"
                )
            kinds[name] = kind
        return kinds

    def open_source(self, settings: Settings) -> Source:
        """Return the source of the documents. Raises InvalidRequest if it cannot be a source."""
        return Source(
            self.source,
            self.text_column,
            self.id_column,
            max_text_chars=settings.max_text_chars,
            rules=SourceRules.from_settings(settings),
        )


class MigrateIndex(BuildIndex):
    """A build from the documents in the current version of the index. The folder of that version is the source."""

    is_migration: ClassVar[bool] = True

    @classmethod
    def of(cls, name: str, folder: Path, publish: bool, language: str | None = None) -> Self:
        """Return the migration of the index in `folder`; without a `language`, the language of the words is kept."""
        version = current_version(folder)
        arguments = VersionDocuments(version).build_arguments()
        return cls(name, str(version), publish=publish, **arguments | ({"language": language} if language else {}))

    def open_source(self, settings: Settings) -> Source:
        """Return the documents of the current version as a source."""
        return VersionDocuments(Path(self.source))


@dataclass(frozen=True, slots=True)
class ManageIndex:
    """An action on the index `name`; `version` is the version to publish or delete. Raises InvalidRequest."""

    name: str
    action: str
    version: str | None = None

    def __post_init__(self) -> None:
        _check_types(self, ("name", "action"), str)
        _check_types(self, ("version",), (str, type(None)))
        if self.action not in ACTIONS:
            raise InvalidRequest(f"action is {excerpt(self.action)}: it takes one of {', '.join(ACTIONS)}")
        if (self.version is not None) != (self.action in ("publish", "delete")):
            raise InvalidRequest(f"version is {excerpt(self.version)}: publish and delete take one, other actions none")


def where_is(settings: Settings, name: str) -> Path:
    """Return the folder of an index: the one in the settings, or one in `index_home`. Raises InvalidRequest."""
    if folder := settings.index_folders().get(name):
        return folder
    if not FOLDER_NAME.fullmatch(name):
        raise InvalidRequest(
            f"the index is called {excerpt(name)}: a name takes 1 to 100 letters, digits, '-', '_' or '.', "
            "and does not begin with '.'"
        )
    return settings.index_home_folder / name


def name_of(settings: Settings, folder: Path) -> str | None:
    """Return the name for which `where_is` returns this folder; None if there is no such name."""
    folder, named = folder.resolve(), settings.index_folders()
    for name, other in named.items():
        if other.resolve() == folder:
            return name
    is_at_home = folder.parent == settings.index_home_folder.resolve() and folder.name not in named
    return folder.name if is_at_home and FOLDER_NAME.fullmatch(folder.name) else None


def changes_of(name: str | None, client: Client) -> IndexChanges | None:
    """Return the changes of the index `name` in Redis; None if no worker can serve an index under this name."""
    if name is None or not NAME.fullmatch(name):
        return None
    return IndexChanges(ChangeLog(client.broker, client.keys), name)


def build_index(
    request: BuildIndex,
    folder: Path,
    encoder: DocumentEncoder,
    report: Report,
    *,
    settings: Settings = DEFAULTS,
    changes: IndexChanges | None = None,
) -> BuildResult:
    """Build a version of the index in `folder`. `builder.build` describes the steps and the errors."""
    return build(
        request.open_source(settings),
        folder,
        encoder,
        report,
        publishes=request.publish,
        reuses=not request.full,
        skips_bad=request.on_bad == "skip",
        num_kept=settings.kept_versions,
        changes=changes,
        drop_changes_before=request.drop_changes_before,
        kinds=request.kinds(),
        language=request.language,
        cutter=Cutter.open(settings.home_folder, encoder.model, request.options()),
        began_from=Path(request.source).name if request.is_migration else None,
        late=_open_late(settings) if request.token_vectors else None,
    )


def _open_late(settings: Settings) -> "LateReranker":
    """Return the settings' late-interaction model. Raises InvalidRequest if they name none."""
    from shoal_workers.encoding.reranker import LateReranker  # imported here: other long jobs need no reranker
    from shoal_workers.model.prepare import prepare_if_needed

    if settings.reranker:
        folder = prepare_if_needed(settings.home_folder, settings.reranker)
        if LateReranker.output in Model.open(folder).outputs:
            threads = settings.threads or processors.threads_for(1, processors.available())
            return LateReranker.open(folder, settings.engine, settings.precision, threads)
    raise InvalidRequest(
        f"token vectors are requested, but SHOAL_RERANKER is {excerpt(settings.reranker)}: set it to the "
        "workers' reranker, a late-interaction model (ColBERT)"
    )


def manage_index(request: ManageIndex, folder: Path, pool_digest: str | None, key: str = "") -> dict[str, Any]:
    """Run the action on the index in `folder`, and return its versions afterwards, the newest first.

    `pool_digest` is the digest of the model that the pool serves, or None if it serves none. Two rollbacks with the
    same `key` count as one; an empty key is ignored. Raises IndexNotFound, InvalidRequest for deleting the current
    version or rolling back from the first one, IndexMismatch for a version that was not built with the pool's model,
    and IndexCorrupt.
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


def _check_types(request: Any, names: tuple[str, ...], types: type | tuple[type, ...]) -> None:
    for name in names:
        if not isinstance(value := getattr(request, name), types):
            raise InvalidRequest(f"{name} is {excerpt(value)}: it is of the wrong type")
