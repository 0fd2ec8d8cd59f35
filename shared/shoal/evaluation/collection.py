"""A test collection: queries, and judgements of the documents that are relevant for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from shoal.errors import InvalidRequest
from shoal.evaluation.formats import read_judgements, read_queries
from shoal.records.source_rules import SourceRules


class Files(NamedTuple):
    """The files of a test collection. `corpus` is None where only an index has the documents."""

    queries: str
    qrels: str
    corpus: str | None = None

    @classmethod
    def of(
        cls, folder: str | None, corpus: str | None, queries: str | None, qrels: str | None, split: str = "test"
    ) -> Self:
        """Return the files that are named, and those of a folder of BEIR, packed or not, for the others.

        `split` is the part of its judgements. Raises InvalidRequest if one is missing.
        """
        if folder:
            corpus = corpus or _file(folder, "corpus.jsonl")
            queries = queries or _file(folder, "queries.jsonl") or str(Path(folder, "queries.jsonl"))
            qrels = qrels or _file(folder, f"qrels/{split}.tsv") or str(Path(folder, "qrels", f"{split}.tsv"))
        if not queries or not qrels:
            raise InvalidRequest(
                f"the {'judgements' if queries else 'queries'} are missing: name a folder of BEIR, or files with "
                "--queries and --qrels"
            )
        return cls(queries, qrels, corpus)


@dataclass(frozen=True, slots=True)
class Collection:
    """The queries that have a relevant document, and the gain of each judged document, by the ids of the queries.

    A gain of 0 or less says that a document is not relevant. The `num_left_out` queries without any relevant document
    are left out: no order of hits is better than another.
    """

    queries: Mapping[str, str]
    judgements: Mapping[str, Mapping[str, int]]
    num_left_out: int = 0

    @classmethod
    def read(cls, files: Files, rules: SourceRules, topic_field: str | None = None) -> Self:
        """Read the queries and the judgements.

        Raises InvalidRequest if they do not belong together, and what reading them raises.
        """
        queries, judgements = read_queries(files.queries, rules, topic_field), read_judgements(files.qrels, rules)
        if not judgements.keys() & queries.keys():
            raise InvalidRequest(
                f"{files.qrels} judges none of the queries of {files.queries}: give files of one collection"
            )
        judged = {name: text for name, text in queries.items() if max(judgements.get(name, {}).values(), default=0) > 0}
        if not judged:
            raise InvalidRequest(f"{files.qrels} calls no document relevant for a query of {files.queries}")
        return cls(judged, {name: judgements[name] for name in judged}, len(queries) - len(judged))


def _file(folder: str, name: str) -> str | None:
    paths = (Path(folder, name + ending) for ending in ("", ".gz", ".zst"))
    return next((str(path) for path in paths if path.is_file()), None)
