"""Functions that make index changes for tests."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.changes.change import Change
from shoal.records.document import Document


def unit_vectors(num_vectors: int, dimension: int = 8, seed: int = 0) -> NDArray[np.float32]:
    """Return random vectors of length 1, float32 `[num_vectors, dimension]`."""
    vectors = np.random.default_rng(seed).standard_normal((num_vectors, dimension), np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def documents(ids: Iterable[str], fields: Mapping[str, Any] | None = None) -> tuple[Document, ...]:
    """Return a document for each id."""
    return tuple(Document(one, f"text {one}", dict(fields or {})) for one in ids)


def change(
    added: Iterable[str] = (), deleted: Iterable[str] = (), digest: str = "d", made_at: float = 0.0, seed: int = 0
) -> Change:
    """Return a change that adds documents with some ids, and deletes others."""
    new = documents(added)
    return Change(new, unit_vectors(len(new), seed=seed), tuple(deleted), digest, made_at)
