"""Test collections: files in the formats of BEIR and TREC, and bad files."""

import gzip
import json
from pathlib import Path

import pytest

from shoal.errors import BadDocument, InvalidRequest
from shoal.evaluation.collection import Collection, file_of, read_judgements, read_queries, write_source
from shoal.records.source_file import SourceRules

RULES = SourceRules()


def written(folder: Path, name: str, text: str) -> str:
    """Write a file and return its path."""
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def test_judgements_of_both_formats_are_read_and_a_line_without_one_is_named(tmp_path: Path) -> None:
    for text in (
        "query-id\tcorpus-id\tscore\n1\td 1\t2\n1\td2\t0\nq2\td2\t1\n",
        "1\td 1\t2\n\n1\td2\t0\nq2\td2\t1.0\n1\td2\t0",
        "qid\t-\tpid\trel\n1\t0\td 1\t2\r\n1\t0\td2\t0\r\nq2\tQ0\td2\t1\r\n",
    ):
        found = read_judgements(written(tmp_path, "test.tsv", text), RULES)
        assert found == {"1": {"d 1": 2, "d2": 0}, "q2": {"d2": 1}}
    for text, what in {
        "1 0 d1 1\n1 0 d1 2\n": 'qrels.txt, line 2: "d1" has the gain 2 for query "1", and had 1 before',
        "1 0 d1 1\nquery-id corpus-id score\n": "line 2: .* is no judgement",
        "1 0 d1 0.5\n": "line 1: .*no whole number",
        "1 0 d1 1e999\n": "line 1: .*no whole number",
        "1 d1\n": "line 1: .*it has 2 cells",
        "a\0b 0 d1 1\n": "line 1: .*NUL",
    }.items():
        with pytest.raises(BadDocument, match=what):
            read_judgements(written(tmp_path, "qrels.txt", text), RULES)
    with pytest.raises(InvalidRequest, match="no judgements"):
        read_judgements(written(tmp_path, "qrels.txt", "\n \n"), RULES)
    with pytest.raises(InvalidRequest, match="there is no file"):
        read_judgements(str(tmp_path), RULES)


def test_queries_are_read_and_a_bad_one_is_named(tmp_path: Path) -> None:
    for name, text, found in (
        (
            "queries.jsonl",
            '{"_id": "q1", "text": "  storm\\neurope ", "metadata": {}}\n\n{"id": 2, "query": "rain"}\n',
            {"q1": "storm europe", "2": "rain"},
        ),
        (
            "queries.tsv.gz",
            "\ufeff1048585\twhat is paula deen's brother\n2\ta\tb\n",
            {"1048585": "what is paula deen's brother", "2": "a b"},
        ),
    ):
        assert read_queries(written(tmp_path, name, text), RULES) == found
    for text, what in {
        '{"_id": "1", "text": "a"}\n{"_id": "1", "text": "b"}': "line 2: there is another query",
        '{"_id": "1", "text": " "}': "line 1: the query has no text",
        '{"text": "a"}': "line 1: the query has no id",
        '{"_id": "1", "text": ["a"]}': "line 1: the id or the text is no string",
        '{"_id": ' + "[" * 100_000: "line 1: .* is no JSON object",
        "a query without an id": r"line 1: the query has no text: write an id and a text \(a tab between them",
    }.items():
        with pytest.raises(BadDocument, match=what):
            read_queries(written(tmp_path, "queries", text), RULES)
    with pytest.raises(InvalidRequest, match="has no queries"):
        read_queries(written(tmp_path, "queries", "\n\n"), RULES)


def test_a_folder_of_beir_is_read(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    written(tmp_path, "corpus.jsonl.gz", "{}")
    written(tmp_path, "queries.jsonl", "1\ta\n2\tb\n3\tc")
    written(tmp_path, "qrels/dev.tsv", "query-id\tcorpus-id\tscore\n1\td\t1\n2\td\t0\n9\td\t1\n")
    assert file_of(str(tmp_path), "corpus.jsonl") == str(tmp_path / "corpus.jsonl.gz")
    collection = Collection.read(str(tmp_path), "dev", RULES)
    assert collection == Collection({"1": "a"}, {"1": {"d": 1}}, num_left_out=2)
    for qrels, what in (("8 0 d 1", "judges none"), ("1 0 d 0", "no relevant document")):
        written(tmp_path, "qrels/test.tsv", qrels)
        with pytest.raises(InvalidRequest, match=what):
            Collection.read(str(tmp_path), "test", RULES)


def test_a_corpus_becomes_a_source_and_a_line_that_is_no_document_is_named(tmp_path: Path) -> None:
    text = (
        '{"_id": "a", "title": "Storm", "text": "in Europe", "metadata": {}}\n{"_id": "b", "text": "rain"}\n'
        '{"_id": "c", "title": "", "text": ""}\n{"_id": 7, "title": "Only a title", "text": null}\n'
    )
    source = tmp_path / "source.jsonl"
    write_source(written(tmp_path, "corpus.jsonl", text), source, RULES)
    assert [json.loads(line) for line in source.read_text().splitlines()] == [
        {"id": "a", "text": "Storm in Europe", "title": "Storm"},
        {"id": "b", "text": "rain"},
        {"id": "7", "text": "Only a title", "title": "Only a title"},
    ]
    for line in ('{"text": "a"}', "[]", "[" * 100_000, '{"_id": "1", "text": 3}'):
        corpus = written(tmp_path, "corpus.jsonl", f'{{"_id": "a", "text": "b"}}\n{line}\n')
        with pytest.raises(BadDocument, match="line 2"):
            write_source(corpus, source, RULES)
