"""The documents of a test collection, as a source from which an index is built."""

import json
from contextlib import closing
from pathlib import Path

from shoal.errors import BadDocument, InvalidRequest
from shoal.evaluation.text_file import lines_of, place_of
from shoal.excerpt import excerpt
from shoal.records.source_rules import SourceRules


def write_source(corpus: str, source: Path, rules: SourceRules) -> int:
    """Write the documents of a corpus of BEIR into a file for `shoal index build`, and return their number.

    The text of a document is its title and its text, as BEIR's own models read it. Documents without either are left
    out. Raises BadDocument for a line that is none, and what `lines_of` raises.
    """
    place, num_documents = place_of(corpus), 0
    with source.open("w", encoding="utf-8") as file, closing(lines_of(corpus, rules)) as lines:
        for number, line in lines:
            document = _document(line, place.at(number))
            if document["text"]:
                file.write(json.dumps(document) + "\n")
                num_documents += 1
    if not num_documents:
        raise InvalidRequest(f"{place.path} has no documents: give a file of JSON lines with _id, title and text")
    return num_documents


def _document(line: str, where: str) -> dict[str, str]:
    try:
        values = dict(json.loads(line))
        document_id = str(values.get("_id") or values["id"]).strip()
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadDocument(f"{where}: {excerpt(line)} is no document: write a JSON object with _id and text") from error
    title, text = (values.get(name) or "" for name in ("title", "text"))
    if not document_id or not isinstance(title, str) or not isinstance(text, str):
        raise BadDocument(f"{where}: the id, the title or the text is no string: write an object with _id and text")
    return {"id": document_id, "text": f"{title} {text}".strip(), **({"title": title} if title else {})}
