"""Test collections in BEIR's format: queries, and the gains of documents for them."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, InvalidRequest
from shoal.records.line_records import COMPRESSED_ENDINGS
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
        """Read `queries.jsonl` and `qrels/SPLIT.tsv` of a folder, packed or not.

        Raises BadDocument for a bad line, and InvalidRequest if a file is missing or no query has a relevant document.
        """
        asked, qrels = _file_of(folder, "queries.jsonl"), _file_of(folder, f"qrels/{split}.tsv")
        queries = {query.id: query.text for query in Source(asked, "text", reserved=frozenset())}
        judgements: dict[str, dict[str, int]] = defaultdict(dict)
        for line in Source(qrels, "corpus-id", "query-id", reserved=frozenset()):
            try:
                judgements[line.id][line.text] = int(line.fields["score"])
            except (KeyError, ValueError):
                raise BadDocument(
                    f"{qrels}, line {line.number}: the score is {excerpt(line.fields.get('score', ''))}: it takes a "
                    "whole number"
                ) from None
        judged = {name: text for name, text in queries.items() if max(judgements[name].values(), default=0) > 0}
        if not judged:
            raise InvalidRequest(
                f"{qrels} has no relevant document for a query of {asked}: give files that belong together"
            )
        return cls(judged, {name: judgements[name] for name in judged}, len(queries) - len(judged))


def _file_of(folder: str, name: str) -> str:
    """Return the path of a file in a folder. If the folder has only a packed file, return the path of that file."""
    paths = [Path(folder, name + ending) for ending in ("", *COMPRESSED_ENDINGS)]
    return str(next((path for path in paths if path.is_file()), paths[0]))
