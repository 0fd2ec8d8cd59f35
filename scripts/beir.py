"""Write test collections made of the test data as folders of BEIR's format, for `shoal eval`."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click
from stack import DATA, datasets

#: Least characters of a passage, which ends at the end of a paragraph.
MIN_PASSAGE_CHARS = 400

#: Score of two sentences in STS from which one is a relevant answer to the other; the gain is what is above it, plus 1.
MIN_STS_SCORE = 3.0


class Set(NamedTuple):
    """Documents and queries by their ids, and the gains of documents for each query."""

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    gains: Mapping[str, Mapping[str, int]]


def cranfield() -> Set:
    """Return the abstracts and questions of the Cranfield experiments."""
    documents, queries, gains = datasets().cranfield()
    return Set({name: text for name, text in documents.items() if text}, queries, gains)


def covid_qa() -> Set:
    """Return the passages of articles, and questions; a passage is relevant if it has a part of the answer."""
    articles = json.loads((DATA / "covid_qa" / "200423_covidQA.json").read_text("utf-8"))["data"]
    documents: dict[str, str] = {}
    queries: dict[str, str] = {}
    gains: dict[str, dict[str, int]] = {}
    for number, article in enumerate(paragraph for each in articles for paragraph in each["paragraphs"]):
        spans = list(passages(article["context"]))
        documents |= {f"{number}-{n}": article["context"][start:stop] for n, (start, stop) in enumerate(spans)}
        for question in article["qas"]:
            answers = [(each["answer_start"], each["answer_start"] + len(each["text"])) for each in question["answers"]]
            queries[str(question["id"])] = question["question"]
            gains[str(question["id"])] = {
                f"{number}-{n}": 1
                for n, (start, stop) in enumerate(spans)
                if any(begin < stop and end > start for begin, end in answers)
            }
    return Set(documents, queries, gains)


def stsb() -> Set:
    """Return sentences of STS-B dev: those on the left are queries, and those on the right documents."""
    pairs = datasets().stsb_dev()
    documents = {text: f"d{n}" for n, text in enumerate(dict.fromkeys(right for _, right, _ in pairs))}
    queries = {text: f"q{n}" for n, text in enumerate(dict.fromkeys(left for left, _, _ in pairs))}
    gains: dict[str, dict[str, int]] = {}
    for left, right, score in pairs:
        if score >= MIN_STS_SCORE:
            gains.setdefault(queries[left], {})[documents[right]] = int(score - MIN_STS_SCORE) + 1
    return Set({name: text for text, name in documents.items()}, {name: text for text, name in queries.items()}, gains)


SETS: dict[str, Callable[[], Set]] = {"cranfield": cranfield, "covid_qa": covid_qa, "stsb": stsb}


def passages(text: str) -> Iterator[tuple[int, int]]:
    """Yield the beginning and end of each passage: paragraphs, joined until they have `MIN_PASSAGE_CHARS`."""
    start = 0
    for gap in re.finditer(r"\n\n|\Z", text):
        if gap.end() - start >= MIN_PASSAGE_CHARS or (gap.end() == len(text) > start):
            if text[start : gap.end()].strip():
                yield start, gap.end()
            start = gap.end()


def write(found: Set, folder: Path) -> None:
    """Write the collection into a folder."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, texts in (("corpus", found.documents), ("queries", found.queries)):
        lines = (json.dumps({"_id": text_id, "text": text}) for text_id, text in texts.items())
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    rows = [f"{query}\t{document}\t{gain}" for query, of in found.gains.items() for document, gain in of.items()]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows, ""]), "utf-8")


@click.command()
@click.argument("name", type=click.Choice(list(SETS)))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def main(name: str, folder: Path) -> None:
    """Write the collection NAME into FOLDER."""
    found = SETS[name]()
    write(found, folder)
    num = sum(map(len, found.gains.values()))
    click.echo(f"{folder}: {len(found.documents):,} documents, {len(found.queries):,} queries, {num:,} judgements")


if __name__ == "__main__":
    main()
