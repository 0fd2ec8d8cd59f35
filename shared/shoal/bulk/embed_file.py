"""Embedding a file of records into a folder of vectors."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from shoal.bulk.job_stream import Group, JobStream, Row, groups
from shoal.bulk.part_file import SUFFIXES, load_pyarrow
from shoal.bulk.served_model import served_model, wait_for_model
from shoal.bulk.vector_folder import BAD_ROWS, Part, VectorFolder, VectorManifest
from shoal.client.redis.client import Client
from shoal.contract.checks import check_known, check_range, check_type
from shoal.contract.excerpt import excerpt
from shoal.contract.options import OPTION_NAMES, Options
from shoal.errors import BadDocument, InvalidRequest, Unavailable
from shoal.records.document import BadRow, BadRows, Document
from shoal.records.source import Source
from shoal.records.source_file import SourceRules
from shoal.settings import DEFAULTS, Settings
from shoal.task_progress import Report, TaskProgress

#: Default number of rows of a part. A run that was stopped repeats at most one part, usually under a minute of work.
PART_ROWS = 8_192

#: Largest number of rows of a part, which is in memory until it is written: 200 MB with 384 dimensions.
MAX_PART_ROWS = 131_072

#: Number of skipped rows between two reports of progress.
_SKIPPED_AT_A_TIME = 1_000


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """The arguments of a bulk embedding, all plain values.

    A part has the vectors of the good rows among `part_rows` rows of the `source`. If `part_rows` is None, a new folder
    has `PART_ROWS` rows in a part, and a folder that was begun keeps its number. `options` are fields of
    `shoal.Options`. Raises InvalidRequest for an argument that cannot work.
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
            if (value := getattr(self, name)) is not None:
                check_type(name, value, str, "the name of a column")
        if self.format not in [*SUFFIXES]:  # compared in a list, because an unhashable format would raise TypeError
            raise InvalidRequest(f"format is {excerpt(self.format)}: it takes one of {', '.join(SUFFIXES)}")
        if self.part_rows is not None:
            check_range("part_rows", self.part_rows, 1, MAX_PART_ROWS)
        check_type("options", self.options, Mapping, "a map")
        check_known("option", self.options, OPTION_NAMES)
        if self.job_options().output != "vector":
            raise InvalidRequest(f"output is {excerpt(self.options['output'])}: a file of vectors takes 'vector'")

    def job_options(self) -> Options:
        """Return the options of the jobs."""
        return Options(**self.options)


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result of a bulk embedding: the folder, numbers of rows, messages of the first bad rows, and the model."""

    out: str
    rows: int
    num_vectors: int
    num_bad: int
    first_bad: list[str]
    num_parts: int
    model: str
    dimension: int


def embed_file(request: BulkRequest, client: Client, report: Report, settings: Settings = DEFAULTS) -> BulkResult:
    """Embed a file into a folder, or continue an earlier run with the same request.

    The call waits for workers, for room in the lane, and for Redis. `report` is called for every answered job, and
    about twice a second during a wait. It may raise an error, which ends the run; the finished parts stay. Raises
    Unavailable if Redis does not answer at the start; InvalidRequest or ModelMismatch if the source, an argument or the
    model differs from the earlier run; NotReady; BadDocument if no row can be embedded; FolderBusy; and OSError.
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
    client.pool.alive()  # raises Unavailable now, but later this run waits for Redis
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
    """One run of a bulk embedding. `num_rows` counts the rows of the source that are written or known to be bad."""

    client: Client
    report_to: Report
    source: Source
    folder: VectorFolder
    manifest: VectorManifest
    bad_rows: BadRows
    num_rows: int
    num_read: int = 0

    def write_parts(self, options: Options) -> None:
        """Write the missing parts."""
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
        """Return the result of this run and of the earlier runs that it continued."""
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
        """Yield the rows of the source that follow the rows of finished parts."""
        for row in self.source.rows(self._report_reading):
            self.num_read += 1
            if self.num_read > self.manifest.num_rows:
                # Fields are left out, because no vector depends on them, and large fields would fill the memory.
                yield Document(row.id, row.text, {}, row.number) if isinstance(row, Document) else row
            elif self.num_read % _SKIPPED_AT_A_TIME == 1:
                self._report_reading()
        if self.num_read < self.manifest.num_rows:
            raise BadDocument(f"{self.source.label.path} has fewer rows than before: write to another folder")

    def _write_part(self, answered: Iterator[Group]) -> Part | None:
        """Write the next part and return it, or return None if no rows are left."""
        if (first := next(answered, None)) is None:
            return None
        manifest, first_row, num_bad = self.manifest, self.num_rows, self.bad_rows.num
        ids, vectors = list[str](), [np.empty((0, manifest.dimension), np.float32)]
        for group in chain([first], answered):
            ids += self._good_ids(group)
            if group.vectors is not None:
                vectors.append(group.vectors)
            self.num_rows += len(group.rows)
            self._report("embedding")
            if self.num_rows - first_row == manifest.part_rows:
                break
        self.bad_rows.sync()
        written = self.folder.write_part(len(manifest.parts), manifest.format, ids, np.concatenate(vectors))
        return Part(first_row, self.num_rows - first_row, self.bad_rows.num - num_bad, *written)

    def _good_ids(self, group: Group) -> list[str]:
        """Return the ids of the group's rows with a vector, and record the other rows as bad."""
        ids, num_documents = [], 0
        for row in group.rows:
            if isinstance(row, BadRow):
                self.bad_rows.add(row)
                continue
            if error := group.errors.get(num_documents):
                self.bad_rows.add(BadRow(row.number, f"{self.source.where(row.number, row.id)}: {error.message}"))
            else:
                ids.append(row.id)
            num_documents += 1
        return ids

    def _check_unchanged(self) -> None:
        """Raise InvalidRequest for a changed source, ModelMismatch for a changed model, NotReady if workers differ."""
        now = replace(self.manifest, source=self.source.fingerprint())
        with suppress(Unavailable):
            if model := served_model(self.client.pool.workers().values()):
                now = replace(now, model=model.name, digest=model.digest, fingerprint=model.fingerprint)
        self.manifest.check_same(now, self.folder.path)

    def _save(self, **changes: Any) -> None:
        self.manifest = replace(self.manifest, **changes)
        self.folder.save(self.manifest)

    def _report_reading(self) -> None:
        """Report the step "reading" while the rows of finished parts are skipped, and "embedding" afterwards."""
        self._report("reading" if self.num_read <= self.manifest.num_rows else "embedding")

    def _report(self, step: str, fraction: float | None = None) -> None:
        shown, bad = fraction or self.source.fraction, self.bad_rows
        if shown and self.num_rows < self.num_read:  # some rows were read and are not answered yet
            shown *= self.num_rows / self.num_read
        self.report_to(TaskProgress(self.num_rows, bad.num, bad.first, shown, step))
