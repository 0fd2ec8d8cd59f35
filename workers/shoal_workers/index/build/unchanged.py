"""The version that a build would only repeat: the current one, if the documents and all that is made of them agree."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.errors import IndexCorrupt, IndexNotFound
from shoal_workers.index.build.document_encoder import ModelInfo
from shoal_workers.index.build.former_version import model_of
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.files.manifest import (
    BAD_ROWS,
    CHANGES,
    DOCUMENTS,
    FIELDS,
    IDS,
    LAYOUT,
    LEXICAL,
    Manifest,
    checksum,
)
from shoal_workers.index.index import current_version
from shoal_workers.index.lexical.lexical_file import language_of

#: Files of which all others are made, once the model and what the manifest says are the same.
_DECIDING = (DOCUMENTS, IDS, CHANGES, FIELDS)


def find_unchanged(
    out: Path, folder: Path, state: BuildState, model: ModelInfo, going_on: Callable[[], object]
) -> tuple[Path, Manifest] | None:
    """Return the current version of the index in `out` if the build in `folder`, with its columns, would repeat it.

    A version with a damaged file is not returned: it has to be built again. `going_on` is called for each file.
    """
    with suppress(IndexNotFound, IndexCorrupt, OSError, ValueError, LookupError):
        version = current_version(out)
        manifest = Manifest.read(version)
        if not _is_alike(manifest, state, model) or checksum(folder / BAD_ROWS) != checksum(version / BAD_ROWS):
            return None
        if any(checksum(folder / name) != manifest.checksums[name] for name in _DECIDING):
            return None
        language = language_of(folder, state.arguments["language"])
        if json.loads((version / LEXICAL).read_text("utf-8"))["language"] != language:
            return None
        for name in manifest.files:
            going_on()
            if checksum(version / name) != manifest.checksums[name]:
                return None
        return version, manifest
    return None


def _is_alike(manifest: Manifest, state: BuildState, model: ModelInfo) -> bool:
    """Return True for a version of the model, with the arguments of a build and the changes that it folds in."""
    chunks = tuple(state.arguments["chunks"] or (0, 0))
    return (
        manifest.layout == LAYOUT
        and bool(model.fingerprint)
        and model_of(manifest) == model
        and (manifest.chunk_tokens, manifest.chunk_overlap) == chunks
        and bool(manifest.num_cells) == state.arguments["approximate"]
        and manifest.changes_through == state.changes_through
        and manifest.ids_are_positions == state.ids_are_positions
    )
