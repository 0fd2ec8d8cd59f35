"""Rerank: texts get scores for a query."""

from dataclasses import dataclass
from typing import ClassVar, Self

from shoal.contract.checks import check_type
from shoal.contract.jobs import Job
from shoal.contract.options import OPTION_DEFAULTS, RERANK_OPTIONS
from shoal.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Rerank(Job):
    """A job that scores its texts for a `query`. Scores are from 0 to 1, or the reranker's own with `raw_scores`."""

    query: str | None = None
    raw_scores: bool = False

    op: ClassVar[str] = "rerank"
    path: ClassVar[str] = "/score"
    own_names: ClassVar[tuple[str, ...]] = ("query", "raw_scores")
    answer_name: ClassVar[str] = "scores"

    def _check(self) -> None:
        check_type("query", self.query, str, "a string")
        check_type("raw_scores", self.raw_scores, bool, "true or false")
        if not str(self.query).strip():
            raise InvalidRequest("query is empty: it takes the text that the texts are scored for")
        for name, default in OPTION_DEFAULTS.items():
            if name not in RERANK_OPTIONS and getattr(self.options, name) != default:
                raise InvalidRequest(f"{name} does not go with a rerank: leave it out")

    def pinned(self, fingerprint: str | None) -> Self:
        """Return the job unchanged, because the reranker that answers it has its own fingerprint."""
        return self

    @property
    def queries(self) -> dict[str, str]:
        """A map from the field name `query` to the query."""
        return {"query": self.query or ""}
