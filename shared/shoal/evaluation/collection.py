"""Test collections in BEIR's format: queries, and the gains of documents for them."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, InvalidRequest
from shoal.records.source import Source


@dataclass(frozen=True, slots=True)
class Collection:
    """The texts of queries with a relevant document, and the gains of judged documents, both by the queries' ids.

    A gain of 0 or less means that a document is not relevant. `num_left_out` queries have no relevant document. They
    are left out, because no order of hits is better for them than another.
    """

    queries: Mapping[str, str]
    judgements: Mapping[str, Mapping[str, int]]
    num_left_out: int = 0

    @classmethod
    def read(cls, folder: str, split: str) -> Self:
        """Read `queries.jsonl` and `qrels/SPLIT.tsv` of a folder.

        Raises BadDocument for a bad line, and InvalidRequest if a file is missing or no query has a relevant document.
        """
        asked, qrels = f"{folder}/queries.jsonl", f"{folder}/qrels/{split}.tsv"
        queries = {query.id: query.text for query in Source(asked, "text", reserved=frozenset())}
        judgements: dict[str, dict[str, int]] = defaultdict(dict)
        for line in Source(qrels, "corpus-id", "query-id", reserved=frozenset()):
            score = line.fields.get("score", "")
            if not re.fullmatch("-?[0-9]{1,9}", score):
                raise BadDocument(
                    f"{qrels}, line {line.number}: the score is {excerpt(score)}: it takes a whole number"
                )
            judgements[line.id][line.text] = int(score)
        judged = {name: text for name, text in queries.items() if max(judgements[name].values(), default=0) > 0}
        if not judged:
            raise InvalidRequest(
                f"{qrels} has no relevant document for a query of {asked}: give files that belong together"
            )
        return cls(judged, {name: judgements[name] for name in judged}, len(queries) - len(judged))
