"""Queries of a test collection: a line each (BEIR, or a table of two columns), or topics of TREC."""

import html
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain

from shoal.errors import BadDocument, InvalidRequest, TooLarge
from shoal.evaluation.text_file import Lines, lines_of, place_of
from shoal.excerpt import excerpt
from shoal.records.record import Place
from shoal.records.source_rules import SourceRules

#: Most characters of a file of topics, which is read as a whole.
MAX_TOPIC_CHARS = 2**26

#: Names of the id and of the text in a line of JSON, in order of preference.
_IDS, _TEXTS = ("_id", "id", "query_id"), ("text", "query", "title")

#: The fields of a topic that may be its query, in order of preference.
_TOPIC_FIELDS = ("title", "query")

_TOPIC = re.compile(r"<(top|topic)\b([^>]*)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"""\bnumber\s*=\s*["']([^"']*)["']""")
_NUM_FIELD = re.compile(r"<num>([^<]*)", re.IGNORECASE)

#: What TREC puts before the content of a field.
_LABEL = re.compile(r"^\s*(?:Number|Topic|Description|Narrative)\s*:\s*")


def read_queries(path: str, rules: SourceRules, topic_field: str | None = None) -> dict[str, str]:
    """Return the texts of the queries in a file by their ids.

    The first character tells the format: `{` for a JSON object a line with `_id` and `text`, `<` for topics of TREC,
    of which `topic_field` is taken (by default `title`, else `query`), else an id and a text with a tab between them.
    Raises BadDocument for what is no query or has the id of another one, and what `lines_of` raises.
    """
    place, queries = place_of(path), dict[str, str]()
    with closing(lines_of(path, rules)) as lines:
        for number, query_id, text in _read(lines, place, topic_field):
            if not query_id or not text.strip():
                raise BadDocument(f"{place.at(number)}: the query has no {'text' if query_id else 'id'}: fill it in")
            if query_id in queries:
                raise BadDocument(f"{place.at(number)}: there is another query {excerpt(query_id)}: ids must differ")
            queries[query_id] = " ".join(text.split())
    if not queries:
        raise InvalidRequest(f"{place.path} has no queries: give a file of BEIR or TREC, or lines of id, tab, text")
    return queries


def _read(lines: Lines, place: Place, topic_field: str | None) -> Iterator[tuple[int, str, str]]:
    first = next(lines, None)
    if first is None:
        return
    all_lines = chain([first], lines)
    kind = first[1].lstrip()[0]
    if kind == "<":
        yield from _topics(all_lines, place, topic_field)
        return
    for number, line in all_lines:
        yield (number, *(_of_json(line, place.at(number)) if kind == "{" else _of_table(line, place.at(number))))


def _of_json(line: str, where: str) -> tuple[str, str]:
    try:
        values = dict(json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadDocument(f"{where}: {excerpt(line)} is no JSON object: write one with _id and text") from error
    found = [next((values[name] for name in names if name in values), "") for names in (_IDS, _TEXTS)]
    if not all(isinstance(value, str | int) for value in found):
        raise BadDocument(f"{where}: the id or the text is no string: write an object with _id and text")
    return str(found[0]).strip(), str(found[1])


def _of_table(line: str, where: str) -> tuple[str, str]:
    query_id, tab, text = line.partition("\t")
    if not tab:
        raise BadDocument(f"{where}: {excerpt(line)} has no tab: write the id, a tab and the text of a query")
    return query_id.strip(), text


def _topics(lines: Iterable[tuple[int, str]], place: Place, field: str | None) -> Iterator[tuple[int, str, str]]:
    parts, num_chars = [], 0
    for number, line in lines:
        num_chars += len(line) + 1
        if num_chars > MAX_TOPIC_CHARS:
            raise TooLarge(f"{place.at(number)}: over {MAX_TOPIC_CHARS:,} characters of topics: is it the right file?")
        parts.append(line)
    for n, topic in enumerate(_TOPIC.finditer("\n".join(parts)), 1):
        attributes, body = topic[2], topic[3]
        number_of = _NUMBER.search(attributes) or _NUM_FIELD.search(body)
        found = [text for name in ((field,) if field else _TOPIC_FIELDS) if (text := _field(body, name))]
        if not found:
            raise BadDocument(f"{place.path}, topic {n}: it has no {field or 'title or query'}: name another field")
        yield n, _plain(number_of[1]) if number_of else "", found[0]


def _field(body: str, name: str) -> str:
    found = re.search(rf"<{re.escape(name)}>([^<]*)", body, re.IGNORECASE)
    return _plain(found[1]) if found else ""


def _plain(text: str) -> str:
    return " ".join(html.unescape(_LABEL.sub("", text)).split())
