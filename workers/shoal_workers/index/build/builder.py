"""The build of a version: the source is read, its texts are embedded, and the version is checked and published."""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.bulk.served_model import ModelInfo
from shoal.contract.languages import LEARNED
from shoal.errors import IndexCorrupt, IndexNotFound, Unsupported
from shoal.process.durable_file import sync_files, sync_folder
from shoal.records.source import Source
from shoal.task_progress import Report
from shoal_workers.index.build.chunks import DOCUMENT, Cutter
from shoal_workers.index.build.document_encoder import DocumentEncoder
from shoal_workers.index.build.merged_changes import IndexChanges, collect_changes
from shoal_workers.index.build.reading import read_source, write_columns
from shoal_workers.index.build.scratch import SCRATCH, BuildState, open_scratch
from shoal_workers.index.build.text_encoding import encode_texts, outputs_of, write_tokens
from shoal_workers.index.build.validation import check_sample
from shoal_workers.index.build.vectors import FormerVersion, model_of, write_vectors
from shoal_workers.index.files.checksums import checksum
from shoal_workers.index.files.manifest import (
    BAD_ROWS,
    CHANGES,
    DOCUMENTS,
    FIELDS,
    FILES,
    IDS,
    LEXICAL,
    MANIFEST,
    TOKEN_FILES,
    Manifest,
)
from shoal_workers.index.index import current_version
from shoal_workers.index.lexical.lexical_file import language_of, write_learned, write_lexical
from shoal_workers.index.lexical.lexical_index import LexicalIndex, read_description
from shoal_workers.index.vectors.quantisation import QuantisedVectors
from shoal_workers.index.versions import changing, current_name, make_current, remove_old

if TYPE_CHECKING:
    from shoal_workers.encoding.reranker import LateReranker


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The result of a build, in plain values.

    The version has `count` rows, which are `num_documents` documents or their chunks. `num_embedded` rows were
    embedded, `num_reused` rows have a vector from the former version, and `num_repeated` rows have the text of an
    earlier row. `num_bad` rows of the source were left out. Changes of `num_changed` ids are folded in; `num_lost`
    other changes cannot be read, or Redis has lost them. `found_share` is the share of sampled rows that a search for
    their texts found. If `is_unchanged`, it is None, and the version is the current one. `fields` has the `kind` of
    each field.
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
    is_unchanged: bool = False
    fields: dict[str, dict[str, str]] = field(default_factory=dict)


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
    changes: IndexChanges | None = None,
    drop_changes_before: float | None = None,
    cutter: Cutter | None = None,
    kinds: Mapping[str, str] | None = None,
    language: str | None = None,
    began_from: str | None = None,
    late: "LateReranker | None" = None,
) -> BuildResult:
    """Build a version of the index in `out`, and make it the current version if the build `publishes`.

    The version is not published if `began_from` is no longer the current version. If the build `reuses`, texts of the
    former version are not embedded again, and a build that would repeat the current version makes no new one. Texts
    that a killed build has embedded are not embedded again either. Old versions are removed until `num_kept` are left.
    With `skips_bad`, bad rows are left out; with a `cutter`, rows are chunks; the model `late` makes their token
    vectors. The current version's changes and the later `changes` are folded in, except changes made before
    `drop_changes_before`. Raises BadDocument, DiskFull, IndexBusy during another build, IndexCorrupt, and the errors of
    `report` and the encoder.
    """
    began_from, language = began_from or current_name(out), _language_for(encoder.model, language)
    former = FormerVersion.find(out, encoder.model, language == LEARNED) if reuses else None
    with open_scratch(out) as folder:
        state = BuildState(folder, report)
        version = _Version(state, source, encoder, cutter, language, late, reuses)
        collect_changes(state, out, changes, drop_changes_before)
        read_source(state, source, skips_bad, cutter)
        ids = {DOCUMENT: "keyword"} if cutter else {}  # as numbers, the ids 1.1 and 1.10 would be equal
        fields = write_columns(state, ids | dict(kinds or {}))
        if reuses and (unchanged := version.find_unchanged(out)):
            shutil.rmtree(folder, ignore_errors=True)
            return replace(unchanged, fields=fields)
        result = version.fill(former, fields)
        return replace(result, is_published=_publish(out, state.version, publishes, num_kept, began_from))


def _language_for(model: ModelInfo, language: str | None) -> str | None:
    """Return the language of the words; a model without vectors needs learned words. Raises Unsupported."""
    if model.dimension or language == LEARNED:
        return language
    if language is not None:
        raise Unsupported(
            f"language is {language}, and {model.name} makes no vectors: its indexes have learned words alone, so "
            "name the language learned"
        )
    return LEARNED


def _publish(out: Path, version: str, publishes: bool, num_kept: int, began_from: str | None) -> bool:
    """Move a version out of the folder of its build, and publish it; return False if it is not published.

    It is not published if `began_from` is no longer the current version, because a later publication or rollback takes
    precedence.
    """
    with changing(out):
        (out / SCRATCH).rename(out / version)
        sync_folder(out)
        for path in (out / version).iterdir():
            if path.name not in (*FILES, *TOKEN_FILES, MANIFEST, BAD_ROWS):
                path.unlink()
        if publishes and current_name(out) == began_from:
            make_current(out, version)
        remove_old(out, version, num_kept)
        return current_name(out) == version


@dataclass(frozen=True, slots=True)
class _Version:
    """The version that a build makes."""

    state: BuildState
    source: Source
    encoder: DocumentEncoder
    cutter: Cutter | None
    language: str | None
    late: "LateReranker | None"
    reuses: bool

    def find_unchanged(self, out: Path) -> BuildResult | None:
        """Return the current version as the result of a build that would only repeat it; None for any other build.

        A version with a damaged file is not returned, because it has to be built again.
        """
        folder, state, model = self.state.folder, self.state, self.encoder.model
        with suppress(IndexNotFound, IndexCorrupt, OSError, ValueError, LookupError):
            version = current_version(out)
            manifest = Manifest.read(version)
            is_alike = (
                model.fingerprint
                and model_of(manifest) == model
                and [manifest.chunk_tokens, manifest.chunk_overlap] == (self.cutter.sizes if self.cutter else [0, 0])
                and manifest.changes_through == state.changes_through
                and manifest.ids_are_positions == state.ids_are_positions
                and manifest.token_digest == (self.late.token_digest if self.late else "")
                and checksum(folder / BAD_ROWS) == checksum(version / BAD_ROWS)
                and read_description(version / LEXICAL)["language"] == language_of(folder, self.language)
            )
            if is_alike:
                manifest.check(folder, (DOCUMENTS, IDS, CHANGES, FIELDS))  # all other files are derived from these
                manifest.check(version, manifest.checksums, partial(state.report, "comparing"))
                result = self._result(0, state.count)
                return replace(result, version=version.name, is_published=True, is_unchanged=True)
        return None

    def fill(self, former: FormerVersion | None, fields: dict[str, dict[str, str]]) -> BuildResult:
        """Write the other files of the version."""
        folder, state, encoder, dimension = self.state.folder, self.state, self.encoder, self.encoder.model.dimension
        language, indexing = self.language, partial(state.report, "indexing words")
        if language != LEARNED:
            write_lexical(folder, state.count, language, indexing)
        outputs = outputs_of(encoder.model, language)
        plan = encode_texts(state, former, encoder, outputs, self.reuses)
        if language == LEARNED:
            write_learned(folder, plan.taken_from, former.words if former else None, indexing)
        if self.late:
            write_tokens(state, former, self.late, self.reuses)
        vectors = write_vectors(folder, plan, dimension, partial(state.report, "copying"))
        width = QuantisedVectors.write(folder, vectors, partial(state.report, "quantising"))
        quantised = QuantisedVectors.open(folder, state.count, dimension, width)
        state.report("validating", 0)
        words = LexicalIndex.open(folder, state.count) if language == LEARNED else None
        found_share = check_sample(state, encoder, outputs, vectors, quantised, words)
        is_embedded = plan.taken_from < 0
        num_embedded = len(np.unique(plan.taken_from[is_embedded]))
        self._write_manifest(width, num_embedded)
        result = self._result(num_embedded, int((~is_embedded).sum()))
        return replace(result, found_share=found_share, fields=fields)

    def _result(self, num_embedded: int, num_reused: int) -> BuildResult:
        state = self.state
        return BuildResult(
            model=self.encoder.model.name,
            num_embedded=num_embedded,
            num_reused=num_reused,
            num_repeated=state.count - num_reused - num_embedded,
            first_bad=state.first_bad,
            found_share=None,
            **state.counts(),
        )

    def _write_manifest(self, quantised_width: int, num_embedded: int) -> None:
        """Write the manifest, and sync all files of the version to the disk."""
        state, folder, checksums = self.state, self.state.folder, {}
        for name in (*FILES, *TOKEN_FILES) if self.late else FILES:
            state.report("publishing")
            checksums[name] = checksum(folder / name)
        model = asdict(self.encoder.model)
        chunk_tokens, chunk_overlap = self.cutter.sizes if self.cutter else (0, 0)
        manifest = Manifest(
            built_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            source=self.source.name,
            model=model.pop("name"),
            quantised_width=quantised_width,
            checksums=checksums,
            num_embedded=num_embedded,
            changes_through=state.changes_through,
            chunk_tokens=chunk_tokens,
            chunk_overlap=chunk_overlap,
            ids_are_positions=state.ids_are_positions,
            token_digest=self.late.token_digest if self.late else "",
            token_width=self.late.model.heads[self.late.output].size if self.late else 0,
            num_tokens=state.num_tokens,
            language=json.loads((folder / LEXICAL).read_text("utf-8"))["language"],
            **model,
            **state.counts(),
        )
        manifest.save(folder)
        sync_files(folder)
