"""Test collections in BEIR's format: queries with judgements of documents. Judgements may have TREC's format."""

import json
import os.path
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Self

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, InvalidRequest
from shoal.process.allowed_path import local_path
from shoal.records.document import SourceLabel
from shoal.records.line_records import PACKED_ENDING, read_lines
from shoal.records.source_file import SourceRules, open_file

#: Names of the fields that may have a query's id and text in a line of JSON, in order of preference.
_IDS, _TEXTS = ("_id", "id", "query_id"), ("text", "query", "title")

_GAIN = re.compile(r"[-+]?\d{1,9}(\.0*)?")


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
    def read(cls, folder: str, split: str, rules: SourceRules) -> Self:
        """Read `queries.jsonl` and `qrels/SPLIT.tsv` of a folder in BEIR's format.

        Raises InvalidRequest if they do not belong together, and the errors of `read_queries` and `read_judgements`.
        """
        asked, qrels = file_of(folder, "queries.jsonl"), file_of(folder, f"qrels/{split}.tsv")
        queries, judgements = read_queries(asked, rules), read_judgements(qrels, rules)
        if not judgements.keys() & queries.keys():
            raise InvalidRequest(f"{qrels} judges none of the queries of {asked}: give files of one collection")
        judged = {name: text for name, text in queries.items() if max(judgements.get(name, {}).values(), default=0) > 0}
        if not judged:
            raise InvalidRequest(f"{qrels} has no relevant document for any query of {asked}")
        return cls(judged, {name: judgements[name] for name in judged}, len(queries) - len(judged))


def file_of(folder: str, name: str) -> str:
    """Return the path of a file in a folder. If the folder has only a packed file, return the path of that file."""
    paths = [Path(folder, name + ending) for ending in ("", PACKED_ENDING)]
    return str(next((path for path in paths if path.is_file()), paths[0]))


def lines_of(path: str, rules: SourceRules) -> Generator[tuple[str, str]]:
    """Yield the position, for messages, and the text of each line of a UTF-8 file, except blank lines.

    Raises InvalidRequest if the file does not exist, BadDocument for a line that is too long or not UTF-8, and the
    errors of `open_file`.
    """
    path = local_path(path)
    if not os.path.isfile(path):
        raise InvalidRequest(f"there is no file {path}: name the folder that has it")
    label = SourceLabel(path, "line")
    with open_file(path, rules) as file, closing(read_lines(file, label)) as lines:
        for number, text, error in lines:
            if error:
                raise error
            if text.strip():
                yield label.at(number), text.rstrip("\r\n")


def read_queries(path: str, rules: SourceRules) -> dict[str, str]:
    """Return the texts of the queries in a file, by the queries' ids.

    If the file begins with `{`, each line is a JSON object with `_id` and `text`, else an id, a tab and a text. Raises
    BadDocument for a bad query or a second query with the same id, and the errors of `lines_of`.
    """
    lines, queries = [*lines_of(path, rules)], dict[str, str]()
    are_objects = bool(lines) and lines[0][1].lstrip().startswith("{")
    for where, line in lines:
        if are_objects:
            values = _object(where, line)
            name, text = _value_of(where, values, _IDS, str | int), _value_of(where, values, _TEXTS)
        else:
            name, text = map(str.strip, line.partition("\t")[::2])
        if not name or not text:
            what = "text" if name else "id"
            raise BadDocument(
                f"{where}: the query has no {what}: write an id and a text (a tab between them, in a table)"
            )
        if name in queries:
            raise BadDocument(f"{where}: there is another query {excerpt(name)}: ids must differ")
        queries[name] = " ".join(text.split())
    if not queries:
        raise InvalidRequest(f"{path} has no queries: give a file of BEIR, or lines of id, tab, text")
    return queries


def read_judgements(path: str, rules: SourceRules) -> dict[str, dict[str, int]]:
    """Return the gains of judged documents from a file in BEIR's or TREC's format: a map by query id, then document id.

    Raises BadDocument for a line that is not a judgement or contradicts an earlier line, and the errors of `lines_of`.
    """
    judgements: dict[str, dict[str, int]] = {}
    for number, (where, line) in enumerate([*lines_of(path, rules)]):
        cells = [cell.strip() for cell in (line.split("\t") if "\t" in line else line.split())]
        fault = f"it has {len(cells)} cells" if len(cells) not in (3, 4) else ""  # BEIR has 3 cells, TREC has 4
        if not fault and not _GAIN.fullmatch(cells[-1]):
            fault = f"its gain {cells[-1]:.30} is no whole number"
        if fault and number == 0 and cells[0].lower().startswith(("query", "qid")):
            continue  # the header
        if fault:
            raise BadDocument(
                f"{where}: {excerpt(line)} is no judgement ({fault}): it takes query-id, corpus-id, score (BEIR) or "
                "query-id, iteration, document-id, relevance (TREC)"
            )
        query, document, gain = cells[0], cells[-2], int(float(cells[-1]))
        former = judgements.setdefault(query, {}).setdefault(document, gain)
        if former != gain:
            raise BadDocument(
                f"{where}: {excerpt(document)} has the gain {gain} for query {excerpt(query)}, and had {former} "
                "before: leave one of the lines out"
            )
    if not judgements:
        raise InvalidRequest(f"{path} has no judgements: give a file of BEIR or TREC with a line for each")
    return judgements


def write_source(corpus: str, source: Path, rules: SourceRules) -> None:
    """Write the documents of a BEIR corpus into a file for `shoal index build`.

    The new text of a document is its title and its text, as in BEIR's own evaluations. Documents without title and text
    are left out. Raises BadDocument for a line that is not a document, and the errors of `lines_of`.
    """
    with source.open("w", encoding="utf-8") as file, closing(lines_of(corpus, rules)) as lines:
        for where, line in lines:
            values = _object(where, line)
            document = _value_of(where, values, _IDS, str | int)
            title, text = (_value_of(where, values, [name]) for name in ("title", "text"))
            if not document:
                raise BadDocument(f"{where}: the document has no id: fill it in")
            if title or text:
                about = {"id": document, "text": f"{title} {text}".strip()} | ({"title": title} if title else {})
                file.write(json.dumps(about) + "\n")


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadDocument(f"{where}: {excerpt(line)} is no JSON object: write one with _id and text") from error


def _value_of(where: str, values: Mapping[str, Any], names: Sequence[str], kind: type | UnionType = str) -> str:
    """Return the value of the first name that has one, or "". Raises BadDocument for a value of another kind."""
    value = next((values[name] for name in names if values.get(name) is not None), "")
    if not isinstance(value, kind):
        raise BadDocument(f"{where}: the id or the text is no string: write an object with _id and text")
    return str(value).strip()
