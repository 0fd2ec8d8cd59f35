"""Rerank: the reranker reads each text together with the query."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.cache.entry import Entry
from shoal.operations import Rerank
from shoal.queue.delivery import Delivery
from shoal_workers.encoding.reranker import sigmoid
from shoal_workers.operations.work import Work

if TYPE_CHECKING:
    from shoal_workers.operations.served import Served


@dataclass(slots=True, eq=False)
class RerankWork(Work):
    """The work of a rerank. Its pipeline is the reranker's."""

    job: Rerank

    is_cacheable: ClassVar[bool] = False

    @classmethod
    def admit(cls, delivery: Delivery, job: Rerank, served: "Served") -> Work:
        """Return the work of a job, for the reranker."""
        reranker = served.reranker(job.reranker)
        ((_, before),) = reranker.encoder.model.formed([("", "")])
        return cls(delivery, job, reranker, before, served.now)

    def _first_inputs(self) -> Sequence[tuple[str, str]]:
        return [(self.job.query or "", text) for text in self.job.texts]

    def _own_result(self, entries: Sequence[Entry]) -> dict[str, Any]:
        raw = np.concatenate([entry.vectors[:, 0] for entry in entries])
        return {"scores": raw if self.job.raw_scores else sigmoid(raw)}
