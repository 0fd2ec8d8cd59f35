"""The right answers, computed beforehand by the workers' own encoder and index in this process."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaos_run.cases import POISON, Case
from shoal.contract.options import QUERY_PROMPTS, Options
from shoal.contract.replies import Reply
from shoal.contract.vectors import cut_and_normalise
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index

#: Least cosine of a correct vector to the expected vector.
MIN_COSINE = 0.9999

#: Number of hits in an answer, and of further expected hits, because nearly equal hits may come in either order.
K, SPARE = 5, 3

#: Largest error of the score of a correct hit.
MAX_SCORE_ERROR = 1e-3

#: The allowed error of each odd case. A large reply may be too large, or the link of its worker too slow.
RIGHT_ERRORS = {name: name for name in ("expired", "cancelled")}
RIGHT_ERRORS |= {"unreadable": "malformed_job", "large reply": "too_large"}

#: Number of texts whose vectors must differ.
NUM_DIFFERENT = 500

Vectors = NDArray[np.float32]


class Answers:
    """The right vector or the right hits of each text.

    Raises SystemExit if the model's vectors of different texts are too similar to find a mix-up.
    """

    def __init__(self, encoder: Encoder, index: Index, cases: Sequence[Case]):
        self._vectors: dict[tuple[str, str], Vectors] = {}
        self._hits: dict[str, list[dict[str, Any]]] = {}
        if texts := _texts(cases, "embed"):
            vectors = encoder.embed(texts, Options(), encoder.prompt(Options()))
            self._vectors = {("vector", text): row[None] for text, row in zip(texts, vectors, strict=True)}
            some = vectors[:NUM_DIFFERENT]
            if (highest := np.triu(some @ some.T, 1).max()) > MIN_COSINE:
                raise SystemExit(f"this model cannot tell the texts apart (cosine {highest:.6f}): name another")
        for text in _texts(cases, "embed", "tokens"):
            options = Options(output="tokens")
            (encoded,) = encoder.encoded([text], options, encoder.prompt(options))
            self._vectors["tokens", text] = cut_and_normalise([np.asarray(encoded.vectors)], options)
        if texts := _texts(cases, "search"):
            queries = encoder.embed(texts, Options(), encoder.prompt(Options(), QUERY_PROMPTS))
            self._hits = dict(zip(texts, index.search(queries, K + SPARE), strict=True))

    def wrong(self, case: Case, found: Any) -> str:
        """Return the fault in the vectors of each text or token, or in the hits of each query; empty if none."""
        if case.kind in (*POISON, "expired", "unreadable"):
            return f"answered, although it is {case.kind}"
        if case.op == "embed":
            vectors = np.concatenate([np.atleast_2d(np.asarray(rows, np.float32)) for rows in found])
            known = np.concatenate([self._vectors[case.output, text] for text in case.texts])
            if vectors.shape != known.shape:
                return f"vectors {vectors.shape} in place of {known.shape}"
            lowest = ((vectors * known).sum(1) / np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)).min()
            return "" if lowest > MIN_COSINE else f"cosine {lowest:.5f} to the right vector"
        if len(found) != len(case.texts):
            return f"hits of {len(found)} queries in place of {len(case.texts)}"
        return next(filter(None, map(self._wrong_hits, case.texts, found)), "")

    def wrong_reply(self, case: Case, reply: Reply) -> str:
        """Return the fault in a reply; empty if there is none."""
        if reply.error:
            return "" if is_right_error(case, reply.error.code) else f"{reply.error.code}: {reply.error}"
        return self.wrong(case, content(reply))

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


def _texts(cases: Sequence[Case], op: str, output: str = "vector") -> list[str]:
    chosen = [case for case in cases if (case.op, case.output) == (op, output)]
    return list(dict.fromkeys(text for case in chosen for text in case.texts))


def content(reply: Reply) -> Any:
    """Return the vectors or the hits of a reply without an error."""
    return reply.vectors if reply.hits is None else reply.hits


def is_right_error(case: Case, code: str) -> bool:
    """Return True if the case may be answered with this error code."""
    return code == ("poisoned" if case.kind in POISON else RIGHT_ERRORS.get(case.kind, ""))
