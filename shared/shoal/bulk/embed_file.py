"""Embedding a file into a folder of vectors."""

from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from shoal.bulk.bulk_request import PART_ROWS, BulkRequest
from shoal.bulk.group import Group, Row, groups
from shoal.bulk.job_stream import JobStream
from shoal.bulk.manifest import BAD_ROWS, Manifest, Part
from shoal.bulk.output_folder import OutputFolder
from shoal.bulk.part_file import PartFile, check_format
from shoal.bulk.served_model import ServedModel, served_model, wait_for_model
from shoal.client.redis.client import Client
from shoal.errors import BadDocument, Unavailable
from shoal.long_task import Report, TaskProgress
from shoal.records.bad_rows import BadRows
from shoal.records.document import BadRow, Document
from shoal.records.source import Source
from shoal.records.source_rules import SourceRules
from shoal.settings import DEFAULTS, Settings

#: Rows that are skipped from one report to the next.
_SKIPPED_AT_A_TIME = 1_000


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result of a bulk embedding: rows of the source, vectors, bad rows with the first messages, and parts."""

    out: str
    rows: int
    num_vectors: int
    num_bad: int
    first_bad: list[str]
    num_parts: int
    model: str
    dimension: int


def embed_file(request: BulkRequest, client: Client, report: Report, settings: Settings = DEFAULTS) -> BulkResult:
    """Embed a file into a folder, or go on where an earlier run with the same request has ended.

    Waits for workers, for room in the lane, and for Redis if it goes away meanwhile. `report` is called for every
    answered job, and about twice a second while it waits; an error that it raises ends the run, and the finished parts
    stay. Bad rows are left out and listed in `bad-rows.jsonl`. Of the settings count `max_text_chars`, over which a row
    is bad, `private_hosts` and `roots`. Raises Unavailable if Redis does not answer at the start, FolderBusy while
    another process writes the folder, InvalidRequest if the source or the arguments are others than those of an earlier
    run, ModelMismatch if the model or its settings are, NotReady while workers make different vectors, BadDocument if
    no row could be embedded or the source cannot be read to its end, and DiskFull.
    """
    check_format(request.format)
    columns = request.text_column, request.id_column
    source = Source(
        request.source,
        *columns,
        reserved=frozenset(),
        max_text_chars=settings.max_text_chars,
        rules=SourceRules.from_settings(settings),
    )
    client.pool.alive()  # raises Unavailable: later, Redis is waited for
    with OutputFolder.open(Path(request.out)) as folder:
        manifest = _manifest(request, source, wait_for_model(client, report))
        served = manifest.model
        if folder.has_manifest() and (begun := Manifest.read(folder.path)).parts:
            if request.part_rows is None:
                manifest = replace(manifest, part_rows=begun.part_rows)
            begun.check_same(manifest, folder.path)
            manifest = begun.without_damaged(folder.path)
        folder.save(manifest)
        with BadRows(folder.path / BAD_ROWS, manifest.num_bad) as bad_rows:
            return _Run(request, client, report, source, folder, manifest, served, bad_rows, manifest.num_rows).finish()


def _manifest(request: BulkRequest, source: Source, model: ServedModel) -> Manifest:
    """Return the manifest of a folder that is begun now."""
    return Manifest(
        source=source.fingerprint(),
        text_column=request.text_column,
        id_column=request.id_column,
        format=request.format,
        part_rows=request.part_rows or PART_ROWS,
        options=dict(sorted(request.options.items())),
        model=model.name,
        digest=model.digest,
        fingerprint=model.fingerprint,
        dimension=request.job_options().dimensions or model.dimension,
    )


@dataclass
class _Run:
    """One run of a bulk embedding.

    `served` is the name that the workers give the model; the manifest keeps the one of the first run. `num_rows` are
    written, or known to be bad.
    """

    request: BulkRequest
    client: Client
    report_to: Report
    source: Source
    folder: OutputFolder
    manifest: Manifest
    served: str
    bad_rows: BadRows
    num_rows: int
    num_read: int = 0

    def finish(self) -> BulkResult:
        """Write the parts that are missing, and return the result."""
        manifest, options = self.manifest, self.request.job_options()
        if not manifest.is_complete:
            stream = JobStream(self.client, options, self.served, manifest.dimension, self._report)
            with (
                closing(self._rows_left()) as rows,
                closing(stream.embed(groups(rows, manifest.part_rows, options))) as answered,
            ):
                while part := self._write_part(answered):
                    self._check_unchanged()
                    self._save(parts=(*self.manifest.parts, part))
            self._check_unchanged()
            if self.num_rows and self.num_rows == self.bad_rows.num:
                raise BadDocument(
                    f"none of the {self.num_rows:,} rows can be embedded; the first: {self.bad_rows.first[0]}"
                )
            self._save(is_complete=True)
        self._report("done", 1.0)
        return self._result()

    def _rows_left(self) -> Generator[Row, None, None]:
        """Yield the rows of the source after those of finished parts."""
        for row in self.source.rows(self._report_reading):
            self.num_read += 1
            if self.num_read > self.manifest.num_rows:
                # Without its fields, which no vector needs: a window of rows with large ones would fill the memory.
                yield Document(row.id, row.text, {}, row.number) if isinstance(row, Document) else row
            elif self.num_read % _SKIPPED_AT_A_TIME == 1:
                self._report_reading()
        if self.num_read < self.manifest.num_rows:
            raise BadDocument(f"{self.request.source} has fewer rows than before: write to another folder")

    def _write_part(self, answered: Iterator[Group]) -> Part | None:
        """Write the next part and return it; None if there are no rows left."""
        if (first := next(answered, None)) is None:
            return None
        manifest, first_row, num_bad = self.manifest, self.num_rows, self.bad_rows.num
        with self.folder.part(len(manifest.parts), manifest.format, manifest.dimension) as files:
            for group in chain([first], answered):
                self._write(group, files)
                self._report("embedding")
                if self.num_rows - first_row == manifest.part_rows:
                    break
            self.bad_rows.sync()
            checksums, sizes = self.folder.finish_part(files)
        return Part(first_row, self.num_rows - first_row, self.bad_rows.num - num_bad, checksums, sizes)

    def _write(self, group: Group, files: PartFile) -> None:
        ids, num_documents = [], 0
        for row in group.rows:
            if isinstance(row, BadRow):
                self.bad_rows.add(row)
                continue
            if error := group.errors.get(num_documents):
                self.bad_rows.add(BadRow(row.number, f"{self.source.place.at(row.number)}: {error.message}"))
            else:
                ids.append(row.id)
            num_documents += 1
        if group.vectors is not None:
            files.write(ids, group.vectors)
        self.num_rows += len(group.rows)

    def _check_unchanged(self) -> None:
        """Raise InvalidRequest or ModelMismatch if the source or the model is another than at the start.

        Raises NotReady if only some workers have another model: the part is then made again.
        """
        now = replace(self.manifest, source=self.source.fingerprint())
        with suppress(Unavailable):
            if model := served_model(self.client):
                now = replace(now, model=model.name, digest=model.digest, fingerprint=model.fingerprint)
        self.manifest.check_same(now, self.folder.path)

    def _save(self, **changes: Any) -> None:
        self.manifest = replace(self.manifest, **changes)
        self.folder.save(self.manifest)

    def _report_reading(self) -> None:
        """Report a step of its own while rows of finished parts are skipped, as they take no time of an embedding."""
        self._report("reading" if self.num_read <= self.manifest.num_rows else "embedding")

    def _report(self, step: str, fraction: float | None = None) -> None:
        shown, bad = fraction or self.source.fraction, self.bad_rows
        if shown and self.num_rows < self.num_read:  # read, and not answered yet
            shown *= self.num_rows / self.num_read
        self.report_to(TaskProgress(self.num_rows, bad.num, bad.first, shown, step))

    def _result(self) -> BulkResult:
        manifest, bad = self.manifest, self.bad_rows
        return BulkResult(
            out=self.request.out,
            rows=manifest.num_rows,
            num_vectors=manifest.num_rows - bad.num,
            num_bad=bad.num,
            first_bad=list(bad.first),
            num_parts=len(manifest.parts),
            model=manifest.model,
            dimension=manifest.dimension,
        )
