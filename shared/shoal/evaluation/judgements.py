"""Judgements of relevance (qrels): the gain of a document for a query, as people judged it."""

import math
from collections.abc import Iterable, Mapping
from contextlib import closing

from shoal.errors import BadDocument, InvalidRequest
from shoal.evaluation.text_file import Lines, lines_of, place_of
from shoal.excerpt import excerpt
from shoal.records.record import Place
from shoal.records.source_rules import SourceRules

#: The gain of each judged document by its id, by the id of the query. A gain of 0 or less: it is not relevant.
Judgements = Mapping[str, Mapping[str, int]]

#: Cells of a line: of BEIR, which are the ids of the query and of the document and the gain, and of TREC, which has an
#: iteration after the id of the query.
_BEIR_CELLS, _TREC_CELLS = 3, 4


def read_judgements(path: str, rules: SourceRules) -> dict[str, dict[str, int]]:
    """Return the judgements of a file in the format of BEIR or of TREC.

    Raises BadDocument for a line that is none, or that contradicts an earlier one, and what `lines_of` raises.
    """
    judgements: dict[str, dict[str, int]] = {}
    place = place_of(path)
    with closing(lines_of(path, rules)) as lines:
        for number, (query, document, gain) in _rows(lines, place):
            of_query = judgements.setdefault(query, {})
            if of_query.setdefault(document, gain) != gain:
                former = of_query[document]
                raise BadDocument(
                    f"{place.at(number)}: {excerpt(document)} has the gain {gain} for query {excerpt(query)}, and had "
                    f"{former} before: leave one of the lines out"
                )
    if not judgements:
        raise InvalidRequest(f"{place.path} has no judgements: give a file of BEIR or TREC with a line for each")
    return judgements


def relevant(judgements: Mapping[str, int]) -> set[str]:
    """Return the ids of the documents that are relevant for a query."""
    return {document for document, gain in judgements.items() if gain > 0}


def _rows(lines: Lines, place: Place) -> Iterable[tuple[int, tuple[str, str, int]]]:
    is_first = True
    for number, line in lines:
        cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
        try:
            yield number, _row(cells)
        except ValueError as error:
            if not (is_first and cells[0].lower().startswith("query")):  # else it is the header of BEIR
                raise BadDocument(
                    f"{place.at(number)}: {excerpt(line)} is no judgement ({error}): it takes query-id, corpus-id, "
                    "score (BEIR) or query-id, iteration, document-id, relevance (TREC)"
                ) from error
        is_first = False


def _row(cells: list[str]) -> tuple[str, str, int]:
    if len(cells) not in (_BEIR_CELLS, _TREC_CELLS):
        raise ValueError(f"it has {len(cells)} cells")
    try:
        gain = float(cells[-1])
    except ValueError:
        gain = math.nan
    if not gain.is_integer() or abs(gain) >= 2**31:
        raise ValueError(f"its gain {cells[-1]:.30} is no whole number")
    return cells[0], cells[-2], int(gain)
