"""Evaluations: collections, measures, settings, the command `shoal eval`, and the tuning in docs/search.md."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import PATIENCE_S, WORDS
from page import read

from shoal import Client
from shoal.cli.main import main
from shoal.errors import BadDocument, InvalidRequest
from shoal.evaluation.collection import Collection
from shoal.evaluation.evaluation import NUM_RESAMPLES, Evaluation, measures, probability, table
from shoal.evaluation.run import Setting, run

pytest_plugins = ["cli_fixtures"]

#: The texts of the documents in the tests' index. Their ids are their positions here.
PAIRS = [f"{first} {second}" for first in WORDS for second in WORDS]

#: The gains of the hits of a query, and of all its judged documents.
GAINS, JUDGED = [3, 2, 3, 0, 1, 2], [3, 3, 3, 2, 2, 2, 1, 0, -1]

HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A BEIR folder with three queries for the tests' index. For q3, another document than its text is relevant."""
    (tmp_path / "qrels").mkdir()
    chosen = {"q1": PAIRS[1], "q2": PAIRS[12], "q3": PAIRS[33]}
    lines = [json.dumps({"_id": name, "text": text, "metadata": {}}) for name, text in chosen.items()]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines))
    (tmp_path / "qrels" / "test.tsv").write_text(f"{HEADER}q1\t1\t1\nq2\t12\t1\nq3\t63\t1\n")
    return tmp_path


def test_a_folder_of_beir_is_read_and_a_bad_line_is_named(beir: Path) -> None:
    qrels, queries = beir / "qrels" / "dev.tsv", beir / "queries.jsonl"
    qrels.write_text(f"{HEADER}q1\td 1\t2\r\nq1\td2\t0\r\nq2\td\t0\r\n9\td\t1\r\n")
    wanted = Collection({"q1": PAIRS[1]}, {"q1": {"d 1": 2, "d2": 0}}, num_left_out=2)
    assert Collection.read(str(beir), "dev") == wanted
    for text, error, what in (
        (f"{HEADER}q1\td\t0\n", InvalidRequest, "no relevant document for a query"),
        (f"{HEADER}q1\td\t1\nq1\td\t0.5\n", BadDocument, 'line 3: the score is "0.5": it takes a whole number'),
        ("query-id\tcorpus-id\nq1\td\n", BadDocument, 'line 2: the score is "": it takes'),
        ("q1 0 d 1\n" * 2, InvalidRequest, 'no column is called "corpus-id"'),
    ):
        qrels.write_text(text)
        with pytest.raises(error, match=what):
            Collection.read(str(beir), "dev")
    queries.write_text('{"_id": "q1", "text": " "}')
    with pytest.raises(BadDocument, match="line 1: the text"):
        Collection.read(str(beir), "test")
    with pytest.raises(InvalidRequest, match=r"there is no file .*queries.jsonl"):
        Collection.read("x", "test")


def test_measures_by_hand() -> None:
    found = 3 + 2 / math.log2(3) + 3 / 2 + 1 / math.log2(6) + 2 / math.log2(7)
    best = 3 + 3 / math.log2(3) + 3 / 2 + 2 / math.log2(5) + 2 / math.log2(6) + 2 / math.log2(7)
    precision = (1 + 1 + 1 + 4 / 5 + 5 / 6) / 7
    expected = {"nDCG@6": found / best, "recall@6": 5 / 7, "MRR@6": 1, "MAP@6": precision}
    assert measures(GAINS, JUDGED, 6, 6) == pytest.approx(expected)
    expected = {"nDCG@1": 1, "recall@3": 3 / 7, "MRR@1": 1, "MAP@3": 3 / 7}
    assert measures([3, 2, 3, 1], JUDGED, 1, 3) == pytest.approx(expected)
    assert measures(GAINS, JUDGED, 100, 100)["nDCG@100"] == pytest.approx(found / (best + 1 / 3))
    assert [measures([0, -1, 2, 3], JUDGED, k, 10)[f"MRR@{k}"] for k in (2, 10)] == [0, 1 / 3]
    assert measures([], [1], 10, 100) == {"nDCG@10": 0, "recall@100": 0, "MRR@10": 0, "MAP@100": 0}


def test_p_is_the_share_of_sign_changes_with_a_difference_as_large() -> None:
    deltas = np.array([0.1, 0.4, -0.2, 0.5, 0.3, 0.0])
    sums = [abs(sum(s * d for s, d in zip(signs, deltas, strict=True))) for signs in product((1, -1), repeat=6)]
    expected = sum(each >= abs(deltas.sum()) - 1e-9 for each in sums) / len(sums)
    assert probability(deltas) == probability(-deltas) == pytest.approx(expected, abs=0.02)
    assert probability(np.full(100, 0.01)) == 1 / (NUM_RESAMPLES + 1)
    assert probability(np.zeros(100)) == 1.0


def test_a_setting_is_written_in_words_and_a_wrong_word_is_named() -> None:
    condition = {"and": [{"news": "a=b"}, {"year": {"gte": 2001}}]}
    settings: dict[str, dict[str, Any]] = {
        "mode=hybrid alpha=0.6": {"mode": "hybrid", "alpha": 0.6},
        "rerank.top_n=50 truncate=false": {"rerank": {"top_n": 50}, "truncate": False},
        f"filter={json.dumps(condition, separators=(',', ':'))} mode=dense": {"filter": condition, "mode": "dense"},
        "mode=": {"mode": ""},
    }
    for text, options in settings.items():
        assert Setting.parse(f" {text.replace(' mode', '   mode')} ") == Setting(text, options)
    assert Setting.parse("") == Setting("defaults", {})
    for text, what in {
        "hybrid alpha=1": 'unknown option "hybrid"',
        "k=5": 'unknown option "k"',
        "like=a": 'unknown option "like"',
        "rerank=5 rerank.top_n=5": 'the setting has "rerank" twice',
        "flter=" + "[" * 100_000: 'unknown option "flter": did you mean filter',
    }.items():
        with pytest.raises(InvalidRequest, match=what):
            Setting.parse(text)


def test_a_call_has_several_queries_and_few_with_a_reranker() -> None:
    asked: list[tuple[int, int, dict[str, Any]]] = []

    def search(queries: Sequence[str], k: int, **options: Any) -> list[list[dict[str, Any]]]:
        asked.append((len(queries), k, options))
        return [[{"id": f"d{rank}"} for rank in range(k)] for _ in queries]

    names = [f"q{n}" for n in range(40)]
    collection = Collection(dict.fromkeys(names, "storm"), {key: {"d3": 1} for key in names})
    run(search, collection, Setting.parse("mode=dense"), 100)
    assert asked == [(32, 100, {"mode": "dense"}), (8, 100, {"mode": "dense"})]
    asked.clear()
    run(search, collection, Setting.parse("rerank.top_n=5"), 10)
    assert {each[:2] for each in asked} == {(4, 5)}  # a search refuses a k over top_n
    with pytest.raises(InvalidRequest, match=r'no hit of any query is judged \(the first hit is "d0"\)'):
        run(search, collection, Setting(""), 3)
    nothing = run(lambda queries, *_, **__: [[] for _ in queries], collection, Setting.parse("mode=lexical"), 3)
    assert nothing == {key: [] for key in names}  # no query has a word of a document


def test_a_document_appears_once_and_the_own_document_of_a_query_may_be_left_out() -> None:
    hits = [{"id": "a"}, {"id": "b"}, {"id": "a"}, {"id": "c"}]  # the chunks of a document have its id
    collection = Collection({"a": "storm"}, {"a": {"b": 1}})
    assert run(lambda *_: [hits], collection, Setting(""), 10) == {"a": ["a", "b", "c"]}
    assert run(lambda *_: [hits], collection, Setting(""), 2) == {"a": ["a", "b"]}
    assert run(lambda _, k: [hits[:k]], collection, Setting(""), 1, leave_out_own=True) == {"a": ["b"]}


def test_a_setting_is_compared_with_the_first_one_and_the_table_shows_measures_times_100() -> None:
    names = [f"q{n}" for n in range(40)]
    collection = Collection(dict.fromkeys(names, "storm"), {key: {"d": 1} for key in names}, num_left_out=1_000)
    rankings = [{key: [*(f"x{n}" for n in range(rank - 1)), "d"] for key in names} for rank in (2, 1, 2)]
    settings = [Setting(f"rank={rank}") for rank in (2, 1, 2)]
    assert table(Evaluation.of(collection, settings, rankings, 10, 100)).splitlines() == [
        "40 queries (1,000 without a relevant document left out); means x 100:",
        "",
        "| setting | nDCG@10 | recall@100 | MRR@10 | MAP@100 | difference | p |",
        "|---|---|---|---|---|---|---|",
        "| rank=2 | 63.1 | 100.0 | 50.0 | 50.0 | +0.0 | 1.000 |",
        "| rank=1 | 100.0 | 100.0 | 100.0 | 100.0 | +36.9 | < 0.001 |",
        "| rank=2 | 63.1 | 100.0 | 50.0 | 50.0 | +0.0 | 1.000 |",
    ]


@pytest.mark.usefixtures("serving")
def test_eval_measures_the_service_with_each_setting(shoal: CliRunner, beir: Path, client: Client) -> None:
    out = beir / "out.json"
    words = ["eval", str(beir), "-k", "5", "--depth", "64", "--json", str(out), "--setting"]
    assert "unknown_index" in shoal.invoke(main, [*words, "", "--index", "other"]).stderr
    assert not out.exists()
    done = shoal.invoke(main, [*words, "mode=dense", "--setting", "truncation_side=left"])
    assert done.exit_code == 0, done.output
    assert re.search(r"\| truncation_side=left .* \+0.0 \| 1.000 \|$", done.stdout)
    found = json.loads(out.read_text())["settings"][0]
    hits = client.search([PAIRS[1], PAIRS[12], PAIRS[33]], k=64)
    ranks = [[hit["id"] for hit in of].index(wanted) for of, wanted in zip(hits, ("1", "12", "63"), strict=True)]
    expected = [1 / np.log2(rank + 2) if rank < 5 else 0.0 for rank in ranks]
    assert list(found["values"]["nDCG@5"].values()) == pytest.approx(expected)
    assert found["measures"]["nDCG@5"] == pytest.approx(np.mean(expected))
    assert found["values"].keys() == found["measures"].keys()
    assert "--depth is 5, less than -k, 10" in shoal.invoke(main, ["eval", "x", "--depth", "5"]).stderr
    own, second = (hit["id"] for hit in hits[0][:2])
    (beir / "queries.jsonl").write_text(json.dumps({"_id": own, "text": PAIRS[1]}))
    (beir / "qrels" / "dev.tsv").write_text(f"{HEADER}{own}\t{second}\t1\n")
    words = ["eval", str(beir), "--split", "dev", "--leave-out-own", "--json", str(out)]
    assert shoal.invoke(main, words).exit_code == 0
    assert json.loads(out.read_text())["settings"][0]["values"]["MRR@10"] == {own: 1.0}


@pytest.mark.usefixtures("serving")
def test_the_page_tunes_a_search(shoal: CliRunner, beir: Path) -> None:
    """The first command tries the modes, the program names the best one, and the second command reranks it."""
    page = read("docs/search.md").split("### Tune")[1]
    modes, rerank = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    environment = os.environ | {name: str(value) for name, value in shoal.env.items()}

    def output(*words: str) -> str:
        return subprocess.check_output(words, cwd=beir, env=environment, text=True, timeout=PATIENCE_S)

    modes = modes.replace("my-collection --index mine", ".")
    output("bash", "-ec", f'shoal() {{ "{sys.executable}" -m shoal "$@"; }}\n{modes}')
    found = json.loads((beir / "tuning.json").read_text())["settings"]
    alphas = [f"mode=hybrid alpha=0.{n}" for n in range(1, 10)]
    assert [each["setting"] for each in found] == ["mode=dense", "mode=lexical", *alphas]
    best = max(found, key=lambda each: each["measures"]["nDCG@10"])
    said = output(sys.executable, "-c", program)
    assert f"best: {best['setting']}: {100 * best['measures']['nDCG@10']:.1f}, expected: " in said
    assert json.dumps(best["options"]) in said
    words = output("bash", "-ec", f"shoal() {{ printf '%s\\n' \"$@\"; }}\n{rerank}").splitlines()
    settings = [Setting.parse(word.removeprefix("--setting=")) for word in words if word.startswith("--setting=")]
    assert [each.options.get("rerank") for each in settings] == [None, *({"top_n": n} for n in (10, 20, 50)), None]
