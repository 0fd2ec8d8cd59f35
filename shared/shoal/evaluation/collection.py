"""A test collection: queries, and judgements of the documents that are relevant for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shoal.errors import InvalidRequest
from shoal.evaluation.judgements import Judgements, read_judgements, relevant
from shoal.evaluation.queries import read_queries
from shoal.records.source_rules import SourceRules

#: The files of a folder of BEIR. Those of the judgements are in a folder of their own, one for each part of them.
CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a test collection. `corpus` is None where only an index has the documents."""

    queries: str
    qrels: str
    corpus: str | None = None

    @classmethod
    def of(
        cls, folder: str | None, corpus: str | None, queries: str | None, qrels: str | None, split: str = "test"
    ) -> Self:
        """Return the files that are named, and those of a folder of BEIR for the others.

        `split` is the part of its judgements. Raises InvalidRequest if one is missing.
        """
        if folder is not None:
            corpus = corpus or _file(folder, CORPUS)
            queries = queries or _file(folder, QUERIES) or str(Path(folder, QUERIES))
            qrels = qrels or str(Path(folder, QRELS, f"{split}.tsv"))
        if queries is None or qrels is None:
            what = "queries" if queries is None else "judgements"
            raise InvalidRequest(f"the {what} are missing: name a folder of BEIR, or files with --queries and --qrels")
        return cls(queries, qrels, corpus)


@dataclass(frozen=True, slots=True)
class Collection:
    """The queries that have a relevant document, and the judgements of each, by the ids of the queries.

    The `num_left_out` queries without any relevant document are left out: no order of hits is better than another.
    """

    queries: Mapping[str, str]
    judgements: Judgements
    num_left_out: int = 0

    @classmethod
    def read(cls, files: Files, rules: SourceRules, topic_field: str | None = None) -> Self:
        """Read the queries and the judgements.

        Raises InvalidRequest if they do not belong together, and what reading them raises.
        """
        queries = read_queries(files.queries, rules, topic_field)
        judgements = read_judgements(files.qrels, rules)
        if not judgements.keys() & queries.keys():
            raise InvalidRequest(
                f"{files.qrels} judges none of the queries of {files.queries}: give files of one collection"
            )
        judged = {name: text for name, text in queries.items() if relevant(judgements.get(name, {}))}
        if not judged:
            raise InvalidRequest(f"{files.qrels} calls no document relevant for a query of {files.queries}")
        return cls(judged, {name: judgements[name] for name in judged}, len(queries) - len(judged))


def _file(folder: str, name: str) -> str | None:
    """Return the path of a file in the folder, packed or not; None if there is none."""
    found = [path for ending in ("", ".gz", ".zst") if (path := Path(folder, name + ending)).is_file()]
    return str(found[0]) if found else None
