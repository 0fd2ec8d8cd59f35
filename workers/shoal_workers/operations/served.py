"""The models and indexes that a worker serves, and the table of its operations."""

from collections.abc import Callable, Mapping, Sequence

from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import Job
from shoal.contract.model_names import is_among, names_of
from shoal.contract.replies import other_fingerprint
from shoal.errors import Unsupported
from shoal.operations import Decode, Embed, Rerank, Search, Tokenize
from shoal.queue.consumer import Delivery
from shoal_workers.encoding.encoder import Pipeline
from shoal_workers.index.index import Index
from shoal_workers.operations.embed import EmbedWork
from shoal_workers.operations.rerank import RerankWork
from shoal_workers.operations.search import Searcher, SearchWork
from shoal_workers.operations.tokenize import TokenizerWork
from shoal_workers.operations.work import Work
from shoal_workers.process.watchdog import Activity

#: The class of work for the jobs of each operation, by the operation's name.
WORKS: dict[str, type[Work]] = {
    Embed.op: EmbedWork,
    Search.op: SearchWork,
    Rerank.op: RerankWork,
    Tokenize.op: TokenizerWork,
    Decode.op: TokenizerWork,
}


class Served:
    """The models and indexes of a worker. `now` returns Redis's time in Unix seconds.

    `reranks` is the pipeline of the reranker, and `aliases` are further names for the reranker.
    """

    def __init__(
        self,
        embeds: Pipeline,
        reranks: Pipeline | None,
        aliases: Sequence[str],
        indexes: Mapping[str, Index],
        activity: Activity,
        now: Callable[[], float],
    ):
        self.embeds = embeds
        self.searcher = Searcher(indexes, activity)
        self.now = now
        self._reranks, self._aliases = reranks, aliases

    def admit(self, delivery: Delivery, job: Job) -> Work:
        """Return the work of a job; raise a ShoalError if this worker cannot serve the job."""
        pipeline = self._reranks if isinstance(job, Rerank) else self.embeds
        if pipeline and job.fingerprint not in (None, "", pipeline.made_by["fingerprint"]):
            raise other_fingerprint(job.fingerprint, **pipeline.made_by)
        self.embeds.encoder.check(job.options)
        return WORKS[job.op].admit(delivery, job, self)

    def reranker(self, wanted: str | None) -> Pipeline:
        """Return the reranker's pipeline; raise Unsupported if there is none, or if `wanted` is another name."""
        if self._reranks is None:
            raise Unsupported("this worker has no reranker: set SHOAL_RERANKER to a cross-encoder, on all workers")
        name = self._reranks.encoder.model.name
        if wanted is not None and not is_among(wanted, (*names_of(name), *self._aliases)):
            raise Unsupported(f"rerank.model is {excerpt(wanted)}, and this pool has {name}: name it, or leave it out")
        return self._reranks
