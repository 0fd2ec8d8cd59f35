"""Rerank: the reranker reads each text together with the query."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.operations import Rerank
from shoal.queue.delivery import Delivery
from shoal_workers.encoding.reranker import sigmoid
from shoal_workers.operations.work import Work

if TYPE_CHECKING:
    from shoal_workers.operations.served import Served


@dataclass(slots=True, eq=False)
class RerankWork(Work):
    """The work of a rerank, whose pipeline is that of the reranker."""

    job: Rerank

    @classmethod
    def admit(cls, delivery: Delivery, job: Rerank, served: "Served") -> Work:
        """Return the work of a job, for the reranker."""
        return cls(delivery, job, served.reranker(job.reranker), now=served.now)

    @property
    def is_cacheable(self) -> bool:
        """False: the cache has vectors of texts alone."""
        return False

    def num_chars(self, number: int) -> int:
        """Return how many characters are tokenized for the text of that number: the query is, with each text."""
        return sum(map(len, self.model_input(number)))

    def model_input(self, number: int) -> tuple[str, str]:
        """Return the query and the text of that number."""
        return self.job.query or "", self.job.texts[number]

    def _subject(self, number: int) -> str:
        return f"{self.job.name_of(number)} and the query have"

    def _result(self) -> dict[str, Any]:
        raw = np.concatenate([entry.vectors[:, 0] for entry in self.entries()])
        return {"scores": raw if self.job.raw_scores else sigmoid(raw)}
