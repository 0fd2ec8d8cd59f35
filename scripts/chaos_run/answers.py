"""The right answers, computed beforehand by the workers' own encoder and index in this process."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaos_run.cases import POISON, Case
from shoal.jobs import Options
from shoal.replies import Reply
from shoal_workers.encoding.encoder import QUERY_PROMPTS, Encoder
from shoal_workers.index.index import Index

#: Least cosine of a right vector to the known one.
MIN_COSINE = 0.9999

#: Hits that are asked for, and how many more are known: of nearly equal ones either may come first.
K, SPARE = 5, 3

#: How far the score of a right hit may be off.
MAX_SCORE_ERROR = 1e-3

Vectors = NDArray[np.float32]


class Answers:
    """The vector or the hits that each text must have."""

    def __init__(self, encoder: Encoder, index: Index, cases: Iterable[Case]):
        self._vectors: dict[str, Vectors] = {}
        self._hits: dict[str, list[dict[str, Any]]] = {}
        cases = list(cases)
        embedded = list(dict.fromkeys(text for case in cases if case.op == "embed" for text in case.texts))
        searched = list(dict.fromkeys(text for case in cases if case.op == "search" for text in case.texts))
        if embedded:
            self._vectors = dict(
                zip(embedded, encoder.embed(embedded, Options(), encoder.prompt(Options())), strict=True)
            )
        if searched:
            queries = encoder.embed(searched, Options(), encoder.prompt(Options(), QUERY_PROMPTS))
            self._hits = dict(zip(searched, index.search(queries, K + SPARE), strict=True))
        self._check_that_they_differ(list(self._vectors.values())[:500])

    def wrong(self, case: Case, found: Any) -> str:
        """Return what is wrong with vectors `[texts, dimension]` or with the hits of each query, or nothing."""
        if case.kind in (*POISON, "expired"):
            return f"answered, although it is {case.kind}"
        return self._wrong_of_queries(case, found) if case.op == "search" else self._wrong_vectors(case, found)

    def wrong_reply(self, case: Case, reply: Reply) -> str:
        """Return what is wrong with a reply that is no error, or nothing."""
        return self.wrong(case, reply.vectors if reply.hits is None else reply.hits)

    def _wrong_vectors(self, case: Case, found: Any) -> str:
        known = np.stack([self._vectors[text] for text in case.texts])
        vectors = np.asarray(found, np.float32)
        if vectors.shape != known.shape:
            return f"vectors {vectors.shape} in place of {known.shape}"
        cosines = (vectors * known).sum(1) / np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
        return "" if cosines.min() > MIN_COSINE else f"cosine {cosines.min():.5f} to the right vector"

    def _wrong_of_queries(self, case: Case, found: Sequence[Sequence[dict[str, Any]]]) -> str:
        if len(found) != len(case.texts):
            return f"hits of {len(found)} queries in place of {len(case.texts)}"
        return next(filter(None, map(self._wrong_hits, case.texts, found)), "")

    def _wrong_hits(self, text: str, found: Sequence[dict[str, Any]]) -> str:
        known = self._hits[text]
        scores = {hit["id"]: hit["score"] for hit in known}
        if len(found) != K or len({hit["id"] for hit in found}) != K:
            return f"{len(found)} hits in place of {K}"
        for hit, right in zip(found, known, strict=False):
            errors = abs(hit["score"] - right["score"]), abs(hit["score"] - scores.get(hit["id"], 9))
            if max(errors) > MAX_SCORE_ERROR:
                return f"hit {hit['id']} with {hit['score']:.4f} in place of {right['id']} with {right['score']:.4f}"
        return ""

    def _check_that_they_differ(self, vectors: Sequence[Vectors]) -> None:
        """Raise SystemExit if an answer to something else could pass for the right one."""
        if len(vectors) > 1:
            cosines = np.stack(vectors) @ np.stack(vectors).T
            np.fill_diagonal(cosines, 0)
            if cosines.max() > MIN_COSINE:
                raise SystemExit(f"this model cannot tell the texts apart (cosine {cosines.max():.6f}): name another")


def is_right_error(case: Case, code: str) -> bool:
    """Return True if such a case may be answered with the error."""
    return code == ("poisoned" if case.kind in POISON else case.kind if case.kind in ("expired", "cancelled") else "")
