"""Embedding a file into a folder of vectors."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from shoal.bulk.job_stream import Group, JobStream, Row, groups
from shoal.bulk.part_file import SUFFIXES, PartFile, load_pyarrow
from shoal.bulk.served_model import served_model, wait_for_model
from shoal.bulk.vector_folder import BAD_ROWS, Part, VectorFolder, VectorManifest
from shoal.client.redis.client import Client
from shoal.contract.excerpt import excerpt
from shoal.contract.options import OPTION_NAMES, Options
from shoal.errors import BadDocument, InvalidRequest, Unavailable
from shoal.records.document import BadRow, BadRows, Document
from shoal.records.source import Source
from shoal.records.source_file import SourceRules
from shoal.settings import DEFAULTS, Settings
from shoal.task_progress import Report, TaskProgress

#: Rows of a part, if no other number is asked for: a run that stops repeats less than one, under a minute of most work.
PART_ROWS = 8_192

#: Rows that are skipped from one report to the next.
_SKIPPED_AT_A_TIME = 1_000


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """The arguments of a bulk embedding, all plain values.

    `source` is a file of records, by path or URL, and `out` the folder to write. A part has the vectors of `part_rows`
    rows of the source, without those of bad rows; without a number it has as many as the folder was begun with, and in
    a new one `PART_ROWS`. `options` are fields of `shoal.Options`. Raises InvalidRequest for an argument that cannot
    work.
    """

    source: str
    out: str
    text_column: str | None = None
    id_column: str | None = None
    format: str = "safetensors"
    part_rows: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("source", "out"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise InvalidRequest(f"{name} is {excerpt(value)}: it takes the name of a file or folder")
        for name in ("text_column", "id_column"):
            if not isinstance(value := getattr(self, name), str | None):
                raise InvalidRequest(f"{name} is {excerpt(value)}: it takes the name of a column")
        if self.format not in SUFFIXES:
            raise InvalidRequest(f"format is {excerpt(self.format)}: it takes one of {', '.join(SUFFIXES)}")
        rows = PART_ROWS if self.part_rows is None else self.part_rows
        if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows < 2**31:
            raise InvalidRequest(f"part_rows is {excerpt(rows)}: it takes a whole number from 1")
        if not isinstance(self.options, Mapping):
            raise InvalidRequest(f"options is {excerpt(self.options)}: it takes a map")
        if unknown := sorted(self.options.keys() - set(OPTION_NAMES)):
            raise InvalidRequest(f"there is no option {excerpt(unknown[0])}: there are {', '.join(OPTION_NAMES)}")
        if self.job_options().output != "vector":
            raise InvalidRequest(f"output is {excerpt(self.options['output'])}: a file of vectors takes 'vector'")

    def job_options(self) -> Options:
        """Return the options of the jobs."""
        return Options(**self.options)


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

    Workers, room in the lane and Redis are waited for. `report` is called for every answered job, and about twice a
    second during a wait; an error that it raises ends the run, and the finished parts stay. Raises Unavailable if Redis
    does not answer at the start, FolderBusy, InvalidRequest or ModelMismatch for another source, argument or model
    than in an earlier run, NotReady while workers make different vectors, BadDocument if no row can be embedded, and
    DiskFull.
    """
    if request.format == "parquet":
        load_pyarrow()
    source = Source(
        request.source,
        request.text_column,
        request.id_column,
        reserved=frozenset(),
        max_text_chars=settings.max_text_chars,
        rules=SourceRules.from_settings(settings),
    )
    client.pool.alive()  # raises Unavailable: later, Redis is waited for
    with VectorFolder.open(Path(request.out)) as folder:
        model = wait_for_model(client, report)
        manifest = VectorManifest(
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
        if folder.has_manifest() and (begun := VectorManifest.read(folder.path)).parts:
            if request.part_rows is None:
                manifest = replace(manifest, part_rows=begun.part_rows)
            begun.check_same(manifest, folder.path)
            manifest = begun.without_damaged(folder.path)
        folder.save(manifest)
        with BadRows(folder.path / BAD_ROWS, manifest.num_bad) as bad:
            run = _Run(client, report, source, folder, manifest, bad, manifest.num_rows)
            run.write_parts(request.job_options())
            return run.result(request.out)


@dataclass
class _Run:
    """One run of a bulk embedding, of which `num_rows` are written, or known to be bad."""

    client: Client
    report_to: Report
    source: Source
    folder: VectorFolder
    manifest: VectorManifest
    bad_rows: BadRows
    num_rows: int
    num_read: int = 0

    def write_parts(self, options: Options) -> None:
        """Write the parts that are missing."""
        manifest = self.manifest
        if not manifest.is_complete:
            stream = JobStream(self.client, options, manifest.fingerprint, manifest.dimension, self._report)
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

    def result(self, out: str) -> BulkResult:
        """Return the result of all runs."""
        manifest, bad = self.manifest, self.bad_rows
        return BulkResult(
            out=out,
            rows=manifest.num_rows,
            num_vectors=manifest.num_rows - bad.num,
            num_bad=bad.num,
            first_bad=list(bad.first),
            num_parts=len(manifest.parts),
            model=manifest.model,
            dimension=manifest.dimension,
        )

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
            raise BadDocument(f"{self.source.label.path} has fewer rows than before: write to another folder")

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
                self.bad_rows.add(BadRow(row.number, f"{self.source.label.at(row.number)}: {error.message}"))
            else:
                ids.append(row.id)
            num_documents += 1
        if group.vectors is not None:
            files.write(ids, group.vectors)
        self.num_rows += len(group.rows)

    def _check_unchanged(self) -> None:
        """Raise InvalidRequest or ModelMismatch for another source or model, NotReady if some workers have another."""
        now = replace(self.manifest, source=self.source.fingerprint())
        with suppress(Unavailable):
            if model := served_model(self.client.pool.workers().values()):
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
