"""Embedding a file into a folder of vectors: the task, and its result."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from shoal.bulk.bad_rows import KeptBadRows
from shoal.bulk.job_stream import WAITING_EVERY_S, Group, JobStream, Row, groups
from shoal.bulk.manifest import Manifest, Part
from shoal.bulk.output_folder import OutputFolder
from shoal.bulk.part_file import SUFFIXES, PartFile, check_format
from shoal.client.client import Client
from shoal.errors import BadDocument, InvalidRequest, NotReady, Unavailable
from shoal.excerpt import excerpt
from shoal.jobs import OPTION_NAMES, Options
from shoal.long_task import Report, TaskProgress
from shoal.records.document import BadRow, Document
from shoal.records.source import Source
from shoal.settings import DEFAULTS, Settings

#: Rows that are skipped from one report to the next.
_SKIPPED_AT_A_TIME = 1_000


@dataclass(frozen=True, slots=True)
class EmbedFile:
    """The arguments of a bulk embedding, all plain values.

    `source` is a file of records, by path or URL, and `out` the folder to write. A part has the vectors of `part_rows`
    rows of the source, without those of bad rows. `options` are fields of `shoal.Options`. Raises InvalidRequest for an
    argument that cannot work.
    """

    source: str
    out: str
    text_column: str | None = None
    id_column: str | None = None
    format: str = "safetensors"
    part_rows: int = 65_536
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
        if isinstance(self.part_rows, bool) or not isinstance(self.part_rows, int) or not 1 <= self.part_rows < 2**31:
            raise InvalidRequest(f"part_rows is {excerpt(self.part_rows)}: it takes a whole number from 1")
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


def embed_file(request: EmbedFile, client: Client, report: Report, settings: Settings = DEFAULTS) -> BulkResult:
    """Embed a file into a folder, or go on where an earlier run with the same request has ended.

    Waits for workers, for room in the lane, and for Redis if it goes away meanwhile. `report` is called for every
    answered job, and about twice a second while it waits; an error that it raises ends the run, and the finished parts
    stay. Bad rows are left out and listed in `bad-rows.jsonl`. Of the settings count `max_text_chars`, over which a row
    is bad, and `private_hosts`. Raises Unavailable if Redis does not answer at the start, FolderBusy while another
    process writes the folder, InvalidRequest if the source or the arguments are others than those of an earlier run,
    ModelMismatch if the model is, NotReady while workers have different models, BadDocument if no row could be embedded
    or the source cannot be read to its end, and DiskFull.
    """
    check_format(request.format)
    columns = request.text_column, request.id_column
    source = Source(
        request.source,
        *columns,
        reserved=frozenset(),
        max_text_chars=settings.max_text_chars,
        private_hosts=settings.private_host_names(),
    )
    client.pool.alive()  # raises Unavailable: later, Redis is waited for
    with OutputFolder.open(Path(request.out)) as folder:
        manifest = _manifest(request, source, _model_of_pool(client, report))
        served = manifest.model
        if folder.has_manifest() and (begun := Manifest.read(folder.path)).parts:
            begun.check_same(manifest, folder.path)
            manifest = begun.without_damaged(folder.path)
        folder.save(manifest)
        with KeptBadRows(folder.path, manifest.num_bad) as bad_rows:
            return _Run(request, client, report, source, folder, manifest, served, bad_rows).finish()


def _manifest(request: EmbedFile, source: Source, model: Mapping[str, Any]) -> Manifest:
    """Return the manifest of a folder that is begun now."""
    return Manifest(
        source=source.fingerprint(),
        text_column=request.text_column,
        id_column=request.id_column,
        format=request.format,
        part_rows=request.part_rows,
        options=dict(sorted(request.options.items())),
        model=model["model"],
        digest=model["digest"],
        dimension=request.job_options().dimensions or model["dimension"],
    )


class _Run:
    """One run of a bulk embedding."""

    def __init__(
        self,
        request: EmbedFile,
        client: Client,
        report: Report,
        source: Source,
        folder: OutputFolder,
        manifest: Manifest,
        served: str,
        bad_rows: KeptBadRows,
    ):
        self._request = request
        self._client = client
        self._report_to = report
        self._source = source
        self._folder = folder
        self._manifest = manifest
        self._served = served  # the name that the workers give the model; the manifest keeps that of the first run
        self._bad_rows = bad_rows
        self._num_rows = manifest.num_rows  # that are written, or known to be bad
        self._num_read = 0

    def finish(self) -> BulkResult:
        """Write the parts that are missing, and return the result."""
        manifest, options = self._manifest, self._request.job_options()
        if not manifest.is_complete:
            stream = JobStream(self._client, options, self._served, manifest.dimension, self._report)
            with (
                closing(self._rows_left()) as rows,
                closing(stream.embed(groups(rows, manifest.part_rows, options))) as answered,
            ):
                while part := self._write_part(answered):
                    self._check_unchanged()
                    self._save(parts=(*self._manifest.parts, part))
            self._check_unchanged()
            if self._num_rows and self._num_rows == self._bad_rows.num:
                raise BadDocument(
                    f"none of the {self._num_rows:,} rows can be embedded; the first: {self._bad_rows.first[0]}"
                )
            self._save(is_complete=True)
        self._report("done", 1.0)
        return self._result()

    def _rows_left(self) -> Generator[Row, None, None]:
        """Yield the rows of the source after those of finished parts."""
        for row in self._source.rows():
            self._num_read += 1
            if self._num_read > self._manifest.num_rows:
                # Without its fields, which no vector needs: a window of rows with large ones would fill the memory.
                yield Document(row.id, row.text, {}, row.number) if isinstance(row, Document) else row
            elif self._num_read % _SKIPPED_AT_A_TIME == 1:
                self._report("reading")
        if self._num_read < self._manifest.num_rows:
            raise BadDocument(f"{self._request.source} has fewer rows than before: write to another folder")

    def _write_part(self, answered: Iterator[Group]) -> Part | None:
        """Write the next part and return it; None if there are no rows left."""
        if (first := next(answered, None)) is None:
            return None
        manifest, first_row, num_bad = self._manifest, self._num_rows, self._bad_rows.num
        with self._folder.part(len(manifest.parts), manifest.format, manifest.dimension) as files:
            for group in chain([first], answered):
                self._write(group, files)
                self._report("embedding")
                if self._num_rows - first_row == manifest.part_rows:
                    break
            self._bad_rows.sync()
            checksums, sizes = self._folder.finish_part(files)
        return Part(first_row, self._num_rows - first_row, self._bad_rows.num - num_bad, checksums, sizes)

    def _write(self, group: Group, files: PartFile) -> None:
        ids, num_documents = [], 0
        for row in group.rows:
            if isinstance(row, BadRow):
                self._bad_rows.add(row)
                continue
            if error := group.errors.get(num_documents):
                self._bad_rows.add(BadRow(row.number, f"{self._source.place.at(row.number)}: {error.message}"))
            else:
                ids.append(row.id)
            num_documents += 1
        if group.vectors is not None:
            files.write(ids, group.vectors)
        self._num_rows += len(group.rows)

    def _check_unchanged(self) -> None:
        """Raise InvalidRequest or ModelMismatch if the source or the model is another than at the start.

        Raises NotReady if only some workers have another model: the part is then made again.
        """
        now, workers = replace(self._manifest, source=self._source.fingerprint()), []
        with suppress(Unavailable):
            workers = _workers_with_model(self._client)
        _check_one_model(workers)
        self._manifest.check_same(now, self._folder.path)
        for about in workers:
            self._manifest.check_same(replace(now, model=about["model"], digest=about["digest"]), self._folder.path)

    def _save(self, **changes: Any) -> None:
        self._manifest = replace(self._manifest, **changes)
        self._folder.save(self._manifest)

    def _report(self, step: str, fraction: float | None = None) -> None:
        shown, bad = fraction or self._source.fraction, self._bad_rows
        if shown and self._num_rows < self._num_read:  # read, and not answered yet
            shown *= self._num_rows / self._num_read
        self._report_to(TaskProgress(self._num_rows, bad.num, bad.first, shown, step))

    def _result(self) -> BulkResult:
        manifest, bad = self._manifest, self._bad_rows
        return BulkResult(
            out=self._request.out,
            rows=manifest.num_rows,
            num_vectors=manifest.num_rows - bad.num,
            num_bad=bad.num,
            first_bad=list(bad.first),
            num_parts=len(manifest.parts),
            model=manifest.model,
            dimension=manifest.dimension,
        )


def _model_of_pool(client: Client, report: Report) -> dict[str, Any]:
    """Return the heartbeat of a worker, once there is one. Raises NotReady if workers have different models."""
    while True:
        reason = "waiting for a worker"
        try:
            found = _workers_with_model(client)
        except Unavailable:
            found, reason = [], "waiting for Redis"
        _check_one_model(found)
        if found:
            return found[0]
        report(TaskProgress(step=reason))
        time.sleep(WAITING_EVERY_S)


def _check_one_model(workers: Sequence[Mapping[str, Any]]) -> None:
    if len({about["digest"] for about in workers}) > 1:
        names = ", ".join(sorted({about["model"] for about in workers}))
        raise NotReady(f"the workers of the pool have different models ({names}): let all serve one")


def _workers_with_model(client: Client) -> list[dict[str, Any]]:
    """Return the heartbeats of the living workers that tell their model."""
    kinds = {"model": str, "digest": str, "dimension": int}
    beats = client.pool.first_heartbeats().values()
    return [about for about in beats if all(isinstance(about.get(name), kind) for name, kind in kinds.items())]
