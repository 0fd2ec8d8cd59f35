"""Questions of programs about texts: the same for all clients, whichever way their jobs go."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from shoal.contract.checks import check_known
from shoal.contract.jobs import Job
from shoal.contract.options import OPTION_NAMES, Options
from shoal.contract.replies import Reply
from shoal.operations import Embed, Rerank, Search, job_class
from shoal.operations.search_options import SEARCH_NAMES, SearchOptions
from shoal.process.closing import Closing

#: Vectors of texts, float32 `[texts, dimension]`, or token vectors, `[tokens, dimension]` for each text.
Vectors = NDArray[np.float32] | list[NDArray[np.float32]]


class Questions(Closing):
    """The questions of programs without an event loop: each makes a job, waits for its reply, and reads that."""

    @abstractmethod
    def _call(self, job: Job) -> Reply:
        """Return the reply to the job."""

    @overload
    def embed(self, texts: str | Iterable[str], *, output: Literal["chunks"], **options: Any) -> list[Any]: ...

    @overload
    def embed(self, texts: str | Iterable[str], **options: Any) -> Vectors: ...

    def embed(self, texts: str | Iterable[str], **options: Any) -> Any:
        """Return the vectors of the texts: float32 `[texts, dimension]`, or `[dimension]` for a single str.

        With `output="tokens"`, return a list with one `[tokens, dimension]` array for each text; with
        `output="chunks"`, a list with the list of `Chunk` of each text, or that list alone for a single str.
        """
        job = embed_of(texts, options)
        return vectors_of(texts, self._call(job), job.options)

    def search(
        self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any
    ) -> list[Any]:
        """Return the `k` best documents of each query, best first: a list of hits for each, or one for a single str.

        A hit is a dict with `id`, `score`, `text` and the document's other fields. The options are those of how texts
        are read, and of `SearchOptions`, with `negative` in place of `num_negative`: a list of texts. `vectors` may be
        an array, or arrays. With `fuse` there is one list of hits.
        """
        return hits_of(queries, self.find(queries, k, index, **options), options)

    def find(self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any) -> Reply:
        """Return the reply to a search with the options of `search`: beside `hits` it has what else they ask for.

        `cursors`, `totals` and `facets` have an item for each list of hits.
        """
        return self._call(search_of(queries, options, k, index))

    def rerank(
        self, query: str, texts: Iterable[str], *, raw_scores: bool = False, **options: Any
    ) -> NDArray[np.float32]:
        """Return the score of each text for the query, in the order of the texts: float32 `[texts]`.

        A score is between 0 and 1; with `raw_scores`, it is the reranker's number before the sigmoid. The options are
        truncate and truncation_side. Raises Unsupported where the workers have no reranker.
        """
        return scores_of(self._call(rerank_of(query, texts, raw_scores, options)))


def embed_of(texts: str | Iterable[str], options: Mapping[str, Any]) -> Embed:
    """Return an embed with these options."""
    return Embed(as_list(texts), options_of(options))


def rerank_of(query: str, texts: Iterable[str], raw_scores: bool, options: Mapping[str, Any]) -> Rerank:
    """Return a rerank with these options."""
    return Rerank(as_list(texts), options_of(options), query=query, raw_scores=raw_scores)


def vectors_of(texts: str | Iterable[str], reply: Reply, options: Options) -> Any:
    """Return the vectors of the texts in the reply to an embed; of a single str, its vector."""
    rows = vectors(reply, options)
    return rows[0] if isinstance(texts, str) else rows


def hits_of(queries: str | Iterable[str], reply: Reply, options: Mapping[str, Any]) -> list[Any]:
    """Return the hits of each query in the reply to a search; of a single str, or of all together with `fuse`, one."""
    hits = reply.hits or []
    return hits[0] if isinstance(queries, str) or options.get("fuse") else hits


def scores_of(reply: Reply) -> NDArray[np.float32]:
    """Return the score of each text in the reply to a rerank."""
    assert reply.scores is not None
    return reply.scores


def job_of(op: str, texts: str | Iterable[str], options: Mapping[str, Any], **fields: Any) -> Job:
    """Return a job of any operation; `fields` are the index, the hits and the query, of which it takes its own."""
    timeout_s = fields.pop("timeout_s")
    if op == "search":
        return replace(search_of(texts, options, fields["k"], fields["index"]), timeout_s=timeout_s)
    asked = {name: value for name, value in fields.items() if op == "rerank" and name in ("query", "raw_scores")}
    return job_class(op)(as_list(texts), options_of(options), timeout_s=timeout_s, **asked)


def search_of(queries: str | Iterable[str], options: Mapping[str, Any], k: int, index: str) -> Search:
    """Return a search with these options, which are those of how texts are embedded and of a search.

    `negative` texts follow the others. Raises InvalidRequest for an option that there is not.
    """
    negative = [] if options.get("negative") is None else as_list(options["negative"])
    asked = {name: value for name, value in options.items() if name in SEARCH_NAMES and value is not None}
    if isinstance(given := asked.get("vectors"), list | np.ndarray):
        asked["vectors"] = [vector.tolist() if hasattr(vector, "tolist") else vector for vector in given]
    if isinstance(asked.get("like"), str):
        asked["like"] = [asked["like"]]
    if negative:
        asked["num_negative"] = len(negative)
    parsed = options_of(options, *SEARCH_NAMES, "negative", "k", "index")
    return Search(as_list(queries) + negative, parsed, k=k, index=index, search=SearchOptions.from_map(asked))


def options_of(given: Mapping[str, Any], *others: str) -> Options:
    """Return the options among those given, which may also be `others`. Raises InvalidRequest for an unknown one."""
    check_known("option", given, (*OPTION_NAMES, *others))
    return Options.from_map(given)


def as_list(texts: str | Iterable[str]) -> list[str]:
    """Return the texts as a list: of one for a single str."""
    return [texts] if isinstance(texts, str) else list(texts)


def vectors(reply: Reply, options: Options) -> Any:
    """Return the vectors of a reply to an embed: for each text a row, an array of token vectors, or its chunks."""
    if options.output == "chunks":
        return reply.chunks_by_text()
    if options.output == "tokens":
        return reply.rows_by_text()
    assert reply.vectors is not None
    return reply.vectors
