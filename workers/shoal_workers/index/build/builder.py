"""Building a version of an index from a source of documents."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from shoal.errors import DiskFull
from shoal.long_task import Report, TaskProgress
from shoal.records.folder import ReadFiles
from shoal.records.source import Source
from shoal_workers.index.build.cells import write_cells
from shoal_workers.index.build.chunks import Cutter
from shoal_workers.index.build.document_encoder import DocumentEncoder, ModelInfo
from shoal_workers.index.build.duplicates import write_near_duplicates
from shoal_workers.index.build.folding import IndexChanges, collect_changes
from shoal_workers.index.build.former_version import FormerVersion, find_former_version, find_unchanged
from shoal_workers.index.build.reading import read_source, write_columns
from shoal_workers.index.build.scratch import SCRATCH, STATE, BuildState, drop_scratch, open_scratch
from shoal_workers.index.build.validation import check_retrieval
from shoal_workers.index.build.vectors import EMBEDDED, VectorPlan, embed_texts, write_vectors
from shoal_workers.index.files.durable_file import replace_file, sync_files, sync_folder
from shoal_workers.index.files.hash_table import HashTable
from shoal_workers.index.files.manifest import (
    CELL_FILES,
    FILES,
    HASHES,
    LAYOUT,
    MANIFEST,
    NEAR_DUPLICATES,
    READ_FILES,
    Manifest,
    checksum,
)
from shoal_workers.index.lexical.lexical_file import write_lexical
from shoal_workers.index.map.map_axes import write_map
from shoal_workers.index.vectors.quantisation import QuantisedVectors
from shoal_workers.index.versions import changing, current_name, make_current, remove_old, was_published

#: The file in the folder of a version with the key of its build, if it had one, and the result.
BUILD = "build.json"


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The result of a build, in plain values.

    The version has `count` rows, which are `num_documents` documents or their chunks. Of these rows, `num_embedded`
    have texts that were embedded, `num_reused` have a vector of the version that was built last before, and
    `num_repeated` have the text of an earlier row. `num_bad` rows of the source were left out, and `num_changed`
    ids were added, replaced or deleted by changes of the index; if `num_lost` is not 0, others could not be read or
    are in Redis no more. `num_duplicates` documents have the words of an earlier one, and the vectors of
    `num_near_duplicates` rows are nearly those of an earlier one. `found_share` is the part of a sample of rows that
    were found by their own texts. If it `is_unchanged`, the version is the current one, as the build would only have
    repeated it: nothing was embedded, and no sample was searched for. `fields` has the `kind` of each field, and where
    one value made keywords of a field, that value as `odd`, its `document` and the kind of the `others`.
    """

    version: str
    model: str
    count: int
    num_embedded: int
    num_reused: int
    num_repeated: int
    num_bad: int
    first_bad: tuple[str, ...]
    num_changed: int
    found_share: float | None
    is_published: bool = False
    num_lost: int = 0
    num_documents: int = 0
    num_duplicates: int = 0
    num_near_duplicates: int = 0
    is_unchanged: bool = False
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)


def build(
    source: Source,
    out: Path,
    encoder: DocumentEncoder,
    report: Report = lambda _: None,
    *,
    skips_bad: bool = False,
    publishes: bool = True,
    reuses: bool = True,
    num_kept: int = 3,
    key: str = "",
    changes: IndexChanges | None = None,
    drop_changes_before: float | None = None,
    cutter: Cutter | None = None,
    kinds: Mapping[str, str] | None = None,
    language: str | None = None,
    approximate: bool = False,
) -> BuildResult:
    """Build a version of the index in `out`, `approximate` or exact, and make it the current one if it `publishes`.

    It is not published if another version became the current one while it was built, as by a rollback. Where it
    `reuses`, texts that the version built last has are not embedded again, and a build that would only repeat the
    current version leaves that. A build that was interrupted goes on when it is started again with the same arguments,
    of which `key` is any word; if a version was built with the same key, which is not empty, it is that one. `num_kept`
    versions stay. With `skips_bad`, bad rows are left out; with a `cutter`, rows are chunks. Other kinds are found.

    The version has all changes of the current version, and those of the index since, which `changes` has; without it,
    these are left to later builds. Those made before `drop_changes_before`, in Unix seconds, are forgotten. Redis keeps
    those that the version has until `changes.forget_folded` is called.
    Raises BadDocument, DiskFull, IndexBusy while another build of the index runs, IndexCorrupt for a version that fails
    its validation, what `report` raises, and the errors of the encoder. The current version then stays.
    """
    began_from = current_name(out)
    if built := _built_before(out, key):
        return replace(built, is_published=_publish(out, built.version, publishes, num_kept, began_from))
    former = find_former_version(out, encoder.model) if reuses else None
    arguments = _arguments_of(source, encoder.model, former, skips_bad)
    arguments |= {"drop_changes_before": drop_changes_before, "key": key, "kinds": dict(kinds or {})}
    arguments |= {"language": language, "approximate": approximate, "chunks": cutter.sizes if cutter else None}
    with _disk_full(out), open_scratch(out, arguments) as (folder, state):
        if not state.count:
            collect_changes(folder, state, out, changes, drop_changes_before)
            read_source(folder, state, source, skips_bad, report, cutter, _read_before(out, source, reuses))
        fields = write_columns(folder, state, kinds or {}, report)
        version = _Version(folder, state, source.name, encoder, report, fields)
        if reuses and (unchanged := version.leave_unchanged(out)):
            return unchanged
        result = version.fill(former)
        return replace(result, is_published=_publish(out, state.version, publishes, num_kept, began_from))


def _arguments_of(source: Source, model: ModelInfo, former: FormerVersion | None, skips_bad: bool) -> dict[str, Any]:
    """Return what a build must have in common with an interrupted one to go on with it."""
    return {
        "layout": LAYOUT,
        "source": source.label.path,
        "columns": [source.text_column, source.id_column],
        "skips_bad": skips_bad,
        "fingerprint": source.fingerprint(),
        "model": asdict(model),
        "former": former.name if former else None,
    }


def _read_before(out: Path, source: Source, reuses: bool) -> ReadFiles | None:
    """Return what the build before has read of a folder; nothing of it, if all is to be read; None for a file."""
    if not source.is_folder:
        return None
    read_files = ReadFiles(out / READ_FILES)
    if not reuses:
        read_files.forget()
    return read_files


def _publish(out: Path, version: str, publishes: bool, num_kept: int, began_from: str | None) -> bool:
    """Move a version out of the folder of its build, and publish it, where that is not done yet.

    Return False if it is not published: it was not to be, or `began_from` is the current version no more, as somebody
    went back or published another one meanwhile, who has the last word.
    """
    with changing(out):
        if not (out / version).exists():
            (out / SCRATCH).rename(out / version)
            sync_folder(out)
        (out / version / STATE).unlink(missing_ok=True)
        is_published = publishes and (was_published(out, version) or current_name(out) == began_from)
        if is_published and not was_published(out, version):
            make_current(out, version)
        remove_old(out, version, num_kept)
    return is_published


def _built_before(out: Path, key: str) -> BuildResult | None:
    """Return the result of the build with the key, if it has ended and its version is still there.

    The job that a build is of can be tried again after that, if its process is killed before it has told.
    """
    for path in out.glob(f"[!.]*/{BUILD}") if key else ():
        with suppress(OSError, ValueError, LookupError, TypeError):
            values = json.loads(path.read_text("utf-8"))
            if values["key"] == key and (path.parent / MANIFEST).is_file():
                return BuildResult(**{**values["result"], "first_bad": tuple(values["result"]["first_bad"])})
    return None


@dataclass(frozen=True, slots=True)
class _Version:
    """The version that is built in `folder` from a source of that name, once its documents and columns are there."""

    folder: Path
    state: BuildState
    source: str
    encoder: DocumentEncoder
    report: Report
    fields: dict[str, dict[str, Any]]

    def leave_unchanged(self, out: Path) -> BuildResult | None:
        """End a build that would only repeat the current version: return its result; None for any other build."""
        going_on = partial(self._tell, "comparing")
        found = find_unchanged(out, self.folder, self.state, self.encoder.model, going_on)
        if found is None:
            return None
        version, manifest = found
        drop_scratch(self.folder)
        with (version / NEAR_DUPLICATES).open("rb") as file:
            num_near = sum(1 for _ in file)
        result = self._result(0, self.state.count, num_near)
        return replace(result, version=version.name, model=manifest.model, is_published=True, is_unchanged=True)

    def fill(self, former: FormerVersion | None) -> BuildResult:
        """Write the files of the version beside its documents, from where an interrupted build has come to."""
        folder, state, encoder, model = self.folder, self.state, self.encoder, self.encoder.model
        write_lexical(folder, state.count, state.arguments["language"], partial(self._tell, "indexing words"))
        plan = VectorPlan.make(HashTable.open(folder, HASHES, state.count), former)
        _check_room(folder, state.count, len(plan.new_rows), model.dimension)
        embed_texts(folder, state, plan, encoder, self.report)
        vectors = write_vectors(folder, plan, model.dimension, former, partial(self._tell, "copying"))
        width = QuantisedVectors.write(folder, vectors, partial(self._tell, "quantising"))
        quantised = QuantisedVectors.open(folder, state.count, model.dimension, width)
        write_map(folder, vectors, partial(self._tell, "mapping"))
        telling = partial(self._tell, "finding near duplicates")
        num_near = write_near_duplicates(folder, vectors, quantised.codes, telling)
        cells = {}
        if state.arguments["approximate"]:
            cells = write_cells(folder, vectors, quantised, partial(self._tell, "comparing"))
        checked = partial(self._tell, "validating")
        found_share = check_retrieval(folder, state.version, vectors, quantised, encoder, self._tell, checked)
        self._write_manifest(width, len(plan.new_rows), cells)
        result = self._result(len(plan.new_rows), int((plan.taken_from >= 0).sum()), num_near)
        result = replace(result, model=model.name, found_share=found_share)
        if key := state.arguments["key"]:
            replace_file(folder / BUILD, json.dumps({"key": key, "result": asdict(result)}))
        (folder / EMBEDDED).unlink(missing_ok=True)
        return result

    def _tell(self, step: str, fraction: float = 1.0) -> None:
        """Report the part of a step that is done."""
        self.report(TaskProgress(self.state.num_rows, self.state.num_bad, self.state.first_bad, fraction, step))

    def _result(self, num_embedded: int, num_reused: int, num_near_duplicates: int) -> BuildResult:
        """Return the result of a build, without its model."""
        state = self.state
        return BuildResult(
            version=state.version,
            model="",
            count=state.count,
            num_embedded=num_embedded,
            num_reused=num_reused,
            num_repeated=state.count - num_reused - num_embedded,
            num_bad=state.num_bad,
            first_bad=state.first_bad,
            num_changed=state.num_changed,
            found_share=None,
            num_lost=state.num_lost,
            num_documents=state.num_documents,
            num_duplicates=state.num_duplicates,
            num_near_duplicates=num_near_duplicates,
            fields=self.fields,
        )

    def _write_manifest(self, quantised_width: int, num_embedded: int, cells: dict[str, Any]) -> None:
        """Write the manifest and make all files of the version safe on the disk."""
        state, model = self.state, self.encoder.model
        checksums, (chunk_tokens, chunk_overlap) = {}, state.arguments["chunks"] or (0, 0)
        for name in FILES + (CELL_FILES if cells else ()):
            self._tell("publishing")
            checksums[name] = checksum(self.folder / name)
        manifest = Manifest(
            version=state.version,
            built_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            source=self.source,
            model=model.name,
            digest=model.digest,
            pooling=model.pooling,
            dimension=model.dimension,
            count=state.count,
            quantised_width=quantised_width,
            checksums=checksums,
            prompt=model.prompt,
            num_embedded=num_embedded,
            num_bad=state.num_bad,
            num_changed=state.num_changed,
            num_lost=state.num_lost,
            changes_through=state.changes_through,
            fingerprint=model.fingerprint,
            chunk_tokens=chunk_tokens,
            chunk_overlap=chunk_overlap,
            num_documents=state.num_documents,
            ids_are_positions=state.ids_are_positions,
            **cells,
        )
        manifest.save(self.folder)
        sync_files(self.folder)


def _check_room(folder: Path, count: int, num_new: int, dimension: int) -> None:
    """Raise DiskFull if there is certainly no room for the vectors that are to be written, before any is embedded."""
    needed = 4 * dimension * (count + (num_new if num_new < count else 0))
    if needed > (free := shutil.disk_usage(folder).free):
        raise DiskFull(
            f"the vectors of {count:,} documents take {needed:,} bytes, and {folder.parent} has {free:,} free: "
            "free some space; an index there is unchanged"
        )


@contextmanager
def _disk_full(out: Path) -> Iterator[None]:
    """Turn the errors of a full disk into DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in DiskFull.ERRNOS:
            raise
        raise DiskFull(
            f"no room to build an index in {out} ({error.strerror}): free some space and start the build again, which "
            "then goes on; an index there is unchanged"
        ) from error
