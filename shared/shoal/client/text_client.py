"""The methods of a client that embed, search, rerank and tokenize texts. Every client has them."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from shoal.contract.checks import check_known
from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import Job
from shoal.contract.options import OPTION_NAMES, Options
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest
from shoal.operations import Embed, Rerank, Search, job_class
from shoal.operations.search_options import SEARCH_NAMES, SearchOptions
from shoal.process.closing import Closing

#: Vectors of texts, float32 `[texts, dimension]`, or a list with the token vectors of each text, `[tokens, dimension]`.
Vectors = NDArray[np.float32] | list[NDArray[np.float32]]

#: The outputs that are not `Vectors`.
OtherOutput = Literal["chunks", "sparse"] | list[str]


class TextClient(Closing):
    """A client for programs without an event loop. Each method makes a job, waits for the reply and reads it."""

    @overload
    def embed(self, texts: str | Iterable[str], *, output: OtherOutput, **options: Any) -> Any: ...

    @overload
    def embed(self, texts: str | Iterable[str], **options: Any) -> Vectors: ...

    def embed(self, texts: str | Iterable[str], **options: Any) -> Any:
        """Return the vectors of the texts: float32 `[texts, dimension]`, or `[dimension]` for a single str.

        With another `output`, return a list with an item for each text: an array `[tokens, dimension]` for "tokens", a
        list of `Chunk` for "chunks", a `SparseVector` for "sparse", an array `[vectors, dimension]` for "multivector".
        For a single str, return only its item. With a list of outputs, return a dict with such a result for each.
        """
        job = Embed(as_list(texts), options_of(options))
        reply = self._call(job)
        return by_text(reply, job.options)[0] if isinstance(texts, str) else vectors(reply, job.options)

    def search(
        self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any
    ) -> list[Any]:
        """Return the `k` best documents for each query, best first, as a list of lists of hits.

        For a single str, or with `fuse`, return one list of hits. A hit is a dict with `id`, `score`, `text` and the
        document's other fields. The options are the fields of `Options` and of `SearchOptions`, but with `negative`, a
        list of texts, in place of `num_negative`. `vectors` may be an array or a list of arrays.
        """
        return hits_of(queries, self.find(queries, k, index, **options), options)

    def find(self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any) -> Reply:
        """Return the reply to a search. Its `cursors`, `totals` and `facets` have an item for each list of hits."""
        return self._call(search_of(queries, options, k, index))

    def rerank(
        self, query: str, texts: Iterable[str], *, raw_scores: bool = False, **options: Any
    ) -> NDArray[np.float32]:
        """Return the score of each text for the query, in the order of the texts, float32 `[texts]`.

        A score is between 0 and 1. With `raw_scores`, it is the reranker's own number. The options are `truncate` and
        `truncation_side`. Raises Unsupported if the workers have no reranker.
        """
        scores = self._call(Rerank(as_list(texts), options_of(options), query=query, raw_scores=raw_scores)).scores
        assert scores is not None
        return scores

    def submit(
        self,
        op: str,
        texts: str | Iterable[str],
        *,
        lane: str = "interactive",
        k: int = 5,
        index: str = "default",
        query: str | None = None,
        raw_scores: bool = False,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> "Handle":
        """Put a job and return at once. Any program that knows the job's id can fetch the result until it expires.

        All texts stay in one job. A job that waits for more than `timeout_s` is not computed. If the same job was
        submitted with the same `idempotency_key` within a day, the first job's handle is returned.
        """
        job = job_of(op, texts, options, k=k, index=index, query=query, raw_scores=raw_scores, timeout_s=timeout_s)
        return Handle(self, self.put(job, lane, idempotency_key))

    def job(self, job_id: str) -> "Handle":
        """Return the handle of a job that was submitted earlier, perhaps by another program."""
        return Handle(self, job_id)

    @abstractmethod
    def put(self, job: Job, lane: str = "interactive", idempotency_key: str | None = None) -> str:
        """Put a job as `submit` does; return its id, or the id of the first job that was put with the key.

        Raises Overloaded, TooLarge for too many hits, and InvalidRequest if the key belongs to a
        different job or if the job's deadline is too far away.
        """

    @abstractmethod
    def _call(self, job: Job) -> Reply:
        """Return the reply to the job."""

    @abstractmethod
    def _result(self, job_id: str, timeout_s: float | None) -> Reply: ...

    @abstractmethod
    def _status(self, job_id: str) -> str: ...

    @abstractmethod
    def _cancel(self, job_id: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Handle:
    """A submitted job."""

    client: TextClient
    id: str

    def result(self, timeout_s: float | None = None) -> Reply:
        """Wait for the job's reply and return it. Raises the job's error, Timeout, or UnknownJob if it expired."""
        return self.client._result(self.id, timeout_s)

    def status(self) -> str:
        """Return one of queued, running, done, failed, cancelled and expired."""
        return self.client._status(self.id)

    def cancel(self) -> str:
        """Cancel the job if it is not answered yet; return its status."""
        return self.client._cancel(self.id)


def job_of(op: str, texts: str | Iterable[str], options: Mapping[str, Any], **fields: Any) -> Job:
    """Return a job of the operation `op`. `fields` has all arguments of `submit`; `op` may ignore some."""
    timeout_s = fields.pop("timeout_s")
    if op == "search":
        return replace(search_of(texts, options, fields["k"], fields["index"]), timeout_s=timeout_s)
    asked = {name: value for name, value in fields.items() if op == "rerank" and name in ("query", "raw_scores")}
    return job_class(op)(as_list(texts), options_of(options), timeout_s=timeout_s, **asked)


def search_of(queries: str | Iterable[str], options: Mapping[str, Any], k: int, index: str) -> Search:
    """Return a search with these options; raise InvalidRequest for an unknown option."""
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
    """Return the text options in `given`; raise InvalidRequest for an unknown option that is not in `others`."""
    check_known("option", given, (*OPTION_NAMES, *others))
    return Options.from_map(given)


def as_list(texts: str | Iterable[str]) -> list[str]:
    """Return the texts as a list. A single str becomes a list of one text."""
    return [texts] if isinstance(texts, str) else list(texts)


def vectors(reply: Reply, options: Options) -> Any:
    """Return the output in an embed's reply, with an item for each text; for several outputs, a dict by output."""
    if isinstance(options.output, str):
        return reply.output_of(options.output)
    return {word: reply.output_of(word) for word in options.outputs}


def by_text(reply: Reply, options: Options) -> Any:
    """Return the item of each text in an embed's reply; for a list of outputs, a dict with an item for each output."""
    found = vectors(reply, options)
    if isinstance(found, dict):
        return [dict(zip(found, items, strict=True)) for items in zip(*found.values(), strict=True)]
    return found


def hits_of(queries: str | Iterable[str], reply: Reply, options: Mapping[str, Any]) -> list[Any]:
    """Return a list of hits for each query, or one list for a single str or with `fuse`."""
    hits = reply.hits or []
    return hits[0] if isinstance(queries, str) or options.get("fuse") else hits


def check_key(idempotency_key: str) -> str:
    """Return `idempotency_key`; raise InvalidRequest if it is not 1 to 255 printable characters."""
    if not (0 < len(idempotency_key) <= 255 and idempotency_key.isprintable()):
        raise InvalidRequest(
            f"the idempotency key is {excerpt(idempotency_key)}: it takes 1 to 255 printable characters, such as a UUID"
        )
    return idempotency_key
