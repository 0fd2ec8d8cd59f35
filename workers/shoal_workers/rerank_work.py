"""Rerank: the reranker reads each text together with the query."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.operations import Rerank
from shoal_workers.encoding.reranker import sigmoid
from shoal_workers.work import Work


@dataclass(slots=True, eq=False)
class RerankWork(Work):
    """The work of a rerank."""

    job: Rerank

    @property
    def uses_reranker(self) -> bool:
        """True: it scores the texts."""
        return True

    def num_chars(self, number: int) -> int:
        """Return how many characters are tokenized for the text of that number: the query is, with each text."""
        return sum(map(len, self.model_input(number)))

    def model_input(self, number: int) -> tuple[str, str]:
        """Return the query and the text of that number."""
        return self.job.query or "", self.job.texts[number]

    def _result(self) -> dict[str, Any]:
        raw = np.concatenate([entry.vectors[:, 0] for entry in self.entries()])
        return {"scores": raw if self.job.raw_scores else sigmoid(raw)}
