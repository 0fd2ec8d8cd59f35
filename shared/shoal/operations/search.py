"""Search: the documents of an index that are nearest to queries, vectors or other documents."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from shoal.contract.checks import check_range, check_string
from shoal.contract.jobs import MAX_LANE_TEXTS, MAX_REQUEST_TEXTS, Job
from shoal.errors import InvalidRequest, TooLarge
from shoal.operations.search_options import PLAIN, PLAIN_DENSE, SearchOptions

#: Largest number of hits that a query may ask for.
MAX_K = 1_000

#: Largest number of hits of a job, for all queries together. A worker does nothing else while it reads their documents.
MAX_JOB_HITS = 10_000

#: A client over HTTP splits a list of queries into requests of this number of hits: 8 MB with documents of 1.5 KB.
SPLIT_HITS = 5_000

#: Largest number of rows that a job with search options reads, for all its lists of hits together. Reading them takes
#: about a second, and the worker does nothing else meanwhile.
MAX_JOB_ROWS = 2**27

#: Weight, in texts, of a further pass over all documents for a list of hits. With this weight, a worker takes few such
#: lists at a time, and other jobs do not wait long.
TEXTS_PER_PASS = 4


@dataclass(frozen=True, slots=True)
class Search(Job):
    """A job that searches. It needs no query texts if its options have vectors or documents to search by."""

    index: str = "default"
    k: int = 5
    search: SearchOptions = PLAIN

    op: ClassVar[str] = "search"
    path: ClassVar[str] = "/search"
    own_names: ClassVar[tuple[str, ...]] = ("k", "index")
    answer_name: ClassVar[str] = "hits"
    option_names: ClassVar[tuple[str, ...]] = tuple(field.name for field in fields(SearchOptions))

    @property
    def _takes_texts(self) -> bool:
        return self.search.num_given == 0

    def _check(self) -> None:
        check_string("index", self.index, "the name of an index")
        check_range("k", self.k, 1, MAX_K)
        for n, text in enumerate(self.texts):
            if not text.strip():
                raise InvalidRequest(f"{self.name_of(n)} is empty: there is nothing to search for")
        if self.options.output != "vector" or self.options.dimensions is not None or not self.options.normalize:
            raise InvalidRequest("output, dimensions and normalize do not go with a search: leave them out")
        if self.options.chunk_tokens is not None:
            raise InvalidRequest("chunk_tokens does not go with a search: leave it out")
        num_negative = self.search.num_negative
        if num_negative > len(self.texts) or self.search.num_given + len(self.texts) == num_negative:
            raise InvalidRequest(
                f"num_negative is {num_negative:,} of {len(self.texts):,} texts: add the texts to search for"
            )
        if self.search.cursor is not None and self.num_lists > 1:
            raise InvalidRequest(f"cursor goes with one list of hits, and {self.num_lists:,} are asked for: send one")
        if rerank := self.search.rerank:
            if rerank["top_n"] < self.k:
                raise InvalidRequest(
                    f"rerank.top_n is {rerank['top_n']:,}, and k is {self.k:,}: raise top_n to at least k"
                )
            if self.search.num_given and "query" not in rerank:
                raise InvalidRequest("rerank.query is missing: hits of vectors and documents are scored for a text")

    def _asked(self) -> dict[str, Any]:
        return Job._asked(self) | self.search.to_map()

    @classmethod
    def of_map(cls, values: Mapping[str, Any], put_s: float = 0.0, **own: Any) -> Self:
        """Return the job with these values from the wire. It was put at `put_s`, in Unix seconds."""
        return super(Search, cls).of_map(values, put_s, search=SearchOptions.from_map(values))

    def body(self) -> dict[str, Any]:
        """Return the body of an HTTP request for the same search. The negative texts are in `negative`."""
        num_queries = len(self.texts) - self.search.num_negative
        lists = {"queries": self.texts[:num_queries], "negative": self.texts[num_queries:]}
        asked = {name: value for name, value in self._asked().items() if name != "num_negative"}
        return {name: texts for name, texts in lists.items() if texts} | asked

    def name_of(self, number: int) -> str:
        """Return the name of a query or negative text by its number in the job, for messages."""
        num_queries = max(0, len(self.texts) - self.search.num_negative)
        is_negative = number >= num_queries
        return f"negative[{number - num_queries}]" if is_negative else f"queries[{self.first_text + number}]"

    @property
    def queries(self) -> dict[str, str]:
        """A map from the field name `rerank.query` to the reranker's query; empty if the search names none."""
        query = (self.search.rerank or {}).get("query")
        return {"rerank.query": query} if query else {}

    @property
    def is_one_question(self) -> bool:
        """True if the job must not be split, because the parts together would give other answers."""
        search = self.search
        return search.fuse or search.num_negative > 0 or search.num_given > 0 or search.cursor is not None

    @property
    def is_plain(self) -> bool:
        """True for a search without options except `mode` dense. A worker answers many plain searches together."""
        return self.search in (PLAIN, PLAIN_DENSE)

    # Count

    @property
    def num_lists(self) -> int:
        """The number of lists of hits in the reply."""
        return 1 if self.search.fuse else len(self.texts) - self.search.num_negative + self.search.num_given

    @property
    def hits_per_list(self) -> int:
        """The largest number of hits in a list."""
        return self.k * (self.search.group_size if self.search.group_by != "" else 1)

    @property
    def num_pairs(self) -> int:
        """The largest number of pairs of a query and a hit that the reranker scores."""
        if self.search.rerank is None:
            return 0
        return int(self.num_lists * self.search.rerank["top_n"] * (self.hits_per_list // self.k))

    @property
    def texts_per_request(self) -> int:
        """The largest number of queries in an HTTP request."""
        return min(MAX_REQUEST_TEXTS, max(1, SPLIT_HITS // self.hits_per_list))

    def lane_sizes(self) -> list[int]:
        """Return the weight of each query: 1, plus more for hits, for hits to rerank and for further passes."""
        num_texts = len(self.texts)
        num_more = self.num_pairs // max(1, num_texts) + self._texts_of_hits
        return [1 + num_more + TEXTS_PER_PASS * (self.search.num_passes - 1)] * num_texts

    @property
    def num_lane_texts(self) -> int:
        """The weight of the job in its lane's load, in texts, without the first list's further passes."""
        num_asked = max(1, len(self.texts) + self.search.num_given)
        num_more = self.num_pairs + TEXTS_PER_PASS * (self.num_lists - 1) * (self.search.num_passes - 1)
        return min(MAX_LANE_TEXTS, num_asked + num_more + self.num_lists * self._texts_of_hits)

    @property
    def _texts_of_hits(self) -> int:
        return self.hits_per_list // 100  # with snippets or explanations, 100 hits take as much time as a text

    # Limit

    def check_hits(self, most: int = MAX_JOB_HITS, subject: str = "job") -> None:
        """Raise TooLarge for more than `most` hits. The message names the `subject`, such as "job"."""
        if (num_hits := self.num_lists * self.hits_per_list) > most:
            raise TooLarge(
                f"the {subject} asks for {num_hits:,} hits and may ask for {most:,}: split the list, or lower k"
            )

    def check_sizes(self, max_texts: int) -> None:
        """Raise TooLarge if the job asks for more hits than any job may, or for over `max_texts` hits to rerank."""
        self.check_hits()
        if self.num_pairs > max_texts:
            raise TooLarge(
                f"the job has {self.num_pairs:,} hits to rerank and may have {max_texts:,} (SHOAL_MAX_JOB_TEXTS): "
                "split the list, or lower rerank.top_n"
            )

    def check_rows(self, num_rows: int) -> None:
        """Raise TooLarge if there are too many lists of hits for the `num_rows` rows that match the filter."""
        if not num_rows:
            return
        most = max(1, MAX_JOB_ROWS // (num_rows * self.search.num_passes))
        if self.num_lists > most:
            raise TooLarge(
                f"the job asks for {self.num_lists:,} lists of hits of {num_rows:,} documents, and may ask for "
                f"{most:,} with these options: split the list of queries"
            )
