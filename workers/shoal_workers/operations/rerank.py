"""Rerank: the reranker reads each text together with the query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.operations import Rerank
from shoal.queue.consumer import Delivery
from shoal_workers.encoding.reranker import Reranker, max_sim, token_vectors
from shoal_workers.index.vectors.token_vectors import restored
from shoal_workers.operations.work import Work

if TYPE_CHECKING:
    from shoal_workers.loop.admission import Served


@dataclass(eq=False)
class PairsWork(Work):
    """The work of a job with pairs of a query and a text, which a reranker scores.

    `pairs` are the numbers of the inputs that have the texts of the pairs. For a late-interaction model, the queries
    are further inputs. `queries` has the number of the query's input for each pair that has no score yet, and `scored`
    has the score of each other pair, as a vector. If an index has the `codes` of a text's token vectors, the text is
    not encoded.
    """

    pairs: range = field(default=range(0), init=False)
    queries: dict[int, int] = field(default_factory=dict, init=False)
    codes: dict[int, NDArray[np.int8]] = field(default_factory=dict, init=False)
    scored: dict[int, NDArray[np.float32]] = field(default_factory=dict, init=False)

    @property
    def reranker(self) -> Reranker:
        """The reranker that scores the pairs."""
        assert isinstance(self.pipeline.encoder, Reranker)
        return self.pipeline.encoder

    def add_pairs(self, pairs: Sequence[tuple[str, str]], codes: Mapping[int, NDArray[np.int8]]) -> None:
        """Add the inputs for the pairs. `codes` has the codes of texts of pairs that need no encoding.

        Queries are encoded first, so that the vectors of texts need not be kept.
        """
        first, reranker = len(self.inputs), self.reranker
        if reranker.output != self.options.output:
            self.options = replace(self.options, output=reranker.output)
        inputs, queries = reranker.inputs_of(pairs)
        self.pairs = range(first, first + len(pairs))
        self.queries = {first + pair: first + query for pair, query in queries.items()}
        self.inputs = [*self.inputs, *inputs]
        self.codes = {first + pair: found for pair, found in codes.items()}
        texts = (number for number in self.pairs if number not in self.codes)
        self.untokenized.extend(dict.fromkeys((*self.queries.values(), *texts)))

    def end_pass(self, seconds: float) -> None:
        """Score the pairs whose query and text are encoded, and free the vectors of these texts."""
        super().end_pass(seconds)
        for number, query in [pair for pair in self.queries.items() if pair[1] in self.encoded]:
            if number in self.codes:
                vectors = restored(self.codes.pop(number))
            elif number in self.encoded:
                vectors = token_vectors(self.encoded.pop(number))
            else:
                continue
            self.scored[number] = max_sim(token_vectors(self.encoded[query]), vectors)
            del self.queries[number]

    def scores(self, *, raw: bool = False) -> NDArray[np.float32]:
        """Return the scores of the pairs, all encoded, or the reranker's `raw` scores."""
        scored = self.scored
        vectors = [scored[n] if n in scored else self.encoded[n].vectors for n in self.pairs]
        found = np.concatenate([vector for vector in vectors if vector is not None])
        return found[:, 0] if raw else self.reranker.scaled(found)

    def _name_of(self, number: int) -> str:
        if self.pairs and number >= self.pairs.stop:
            return "the query"
        return self.job.name_of(number) if number < len(self.job.texts) else "a hit"


@dataclass(eq=False)
class RerankWork(PairsWork):
    """The work of a rerank job, whose pipeline is the reranker's."""

    job: Rerank

    reads_texts: ClassVar[bool] = False

    @classmethod
    def of_job(cls, delivery: Delivery, job: Rerank, served: "Served") -> Work:
        """Return the work of a job, for the reranker."""
        work = cls(delivery, job, served.reranker(), now=served.now)
        work.prompt = work.reranker.prefix
        work.add_pairs([(job.query or "", text) for text in job.texts], {})
        return work

    def _result(self) -> dict[str, Any]:
        return super()._result() | {"scores": self.scores(raw=self.job.raw_scores)}
