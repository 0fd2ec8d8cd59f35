"""Evaluations: measures, settings, runs, tables, the command `shoal eval`, and the tuning in docs/search.md."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api_stub import MakeApp
from click.testing import CliRunner
from conftest import PATIENCE_S, WORDS
from http_servers import Listen
from page import read

from shoal import Client
from shoal.cli.main import main
from shoal.errors import InvalidRequest
from shoal.evaluation.collection import Collection
from shoal.evaluation.evaluation import (
    NUM_RESAMPLES,
    Difference,
    Evaluation,
    Interval,
    Values,
    differences,
    interval,
    measures,
    tables,
)
from shoal.evaluation.run import NUM_ROUNDS, Setting, Times, run, times
from shoal_api.access import api_keys
from shoal_workers.build_command import build

pytest_plugins = ["api_fixtures", "cli_fixtures", "http_fixtures"]

#: The texts of the documents in the tests' index. Their ids are their positions here.
PAIRS = [f"{first} {second}" for first in WORDS for second in WORDS]


#: The gains of the hits of a query, and of all its judged documents.
GAINS, JUDGED = [3, 2, 3, 0, 1, 2], [3, 3, 3, 2, 2, 2, 1, 0, -1]


def collection_of(num_queries: int, num_documents: int = 20) -> Collection:
    """Return a collection in which each query has one relevant document."""
    queries = {f"q{n}": f"query {n}" for n in range(num_queries)}
    return Collection(queries, {f"q{n}": {f"d{n % num_documents}": 1} for n in range(num_queries)})


def evaluation_of(*ranks: int, times: Sequence[Times | None] = ()) -> Evaluation:
    """Return the evaluation of settings that each find the relevant document at one of these ranks, from 1."""
    collection, rankings = collection_of(40), []
    for rank in ranks:
        others = [f"x{n}" for n in range(rank - 1)]
        rankings.append({name: [*others, *collection.judgements[name]] for name in collection.queries})
    settings = [Setting(f"rank={rank}") for rank in ranks]
    return Evaluation.of(collection, settings, rankings, times or [None] * len(ranks), 10, 100)


def difference(values: Values, others: Values) -> Difference:
    """Return the difference between a setting with `values` and a first setting with `others`."""
    (found,) = differences(["first", "second"], [others, values])
    assert found.setting == "second"
    return found


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


def test_an_interval_has_about_two_standard_errors_on_each_side() -> None:
    values = np.random.default_rng(1).random(400)
    error = values.std() / math.sqrt(len(values))
    found = interval(values)
    assert found == interval(values.copy())
    assert found.mean == pytest.approx(values.mean())
    assert (found.high - found.mean, found.mean - found.low) == pytest.approx((1.96 * error, 1.96 * error), rel=0.05)


def test_p_is_the_share_of_sign_changes_with_a_difference_as_large() -> None:
    values, others = np.array([0.5, 0.9, 0.4, 0.8, 0.7, 0.6]), np.array([0.4, 0.5, 0.6, 0.3, 0.4, 0.6])
    deltas = values - others
    sums = [abs(sum(s * d for s, d in zip(signs, deltas, strict=True))) for signs in product((1, -1), repeat=6)]
    found = difference(values, others)
    assert found.p == pytest.approx(sum(each >= abs(deltas.sum()) - 1e-9 for each in sums) / len(sums), abs=0.02)
    assert (found.num_better, found.num_worse, found.num_equal) == (4, 1, 1)
    assert found.interval.mean == pytest.approx(deltas.mean())
    others = np.random.default_rng(3).random(100)  # the queries differ much more than the settings
    assert difference(others + 0.01, others).p == 1 / (NUM_RESAMPLES + 1)
    found = difference(others * (1 + 1e-15), others)  # a rounding error is not a difference
    assert (found.p, found.num_equal, found.interval) == (1.0, 100, Interval(0.0, 0.0, 0.0))


def test_several_differences_are_adjusted_by_holm() -> None:
    rng = np.random.default_rng(6)
    found = differences("abcd", [rng.random(30) + shift for shift in (0, 0.12, 0.2, 0.16)])
    low, middle, high = sorted(each.p for each in found)
    assert low < middle < high < 0.3
    adjusted = [3 * low, max(3 * low, 2 * middle), max(2 * middle, high)]
    assert sorted((each.p, each.p_of_all) for each in found) == [*zip((low, middle, high), adjusted, strict=True)]


def test_a_setting_is_written_in_words_and_a_wrong_word_is_named() -> None:
    found = {"and": [{"news": "a=b c"}, {"year": {"gte": 2001}}]}
    settings: dict[str, dict[str, Any]] = {
        "mode=hybrid alpha=0.6": {"mode": "hybrid", "alpha": 0.6},
        "rerank.top_n=50 truncate=false": {"rerank": {"top_n": 50}, "truncate": False},
        f"filter={json.dumps(found)} mode=dense": {"filter": found, "mode": "dense"},
    }
    for text, options in settings.items():
        assert Setting.parse(f" {text.replace(' mode', '   mode')} ") == Setting(text, options)
    assert Setting.parse("") == Setting("defaults", {})
    for text, what in {
        "hybrid alpha=1": '"hybrid": write NAME=VALUE',
        "k=5": '"k": it takes options of a search',
        "like=a": '"like": it takes',
        "mode=dense mode=hybrid": '"mode" twice',
        "rerank=5 rerank.top_n=5": '"rerank.top_n" twice',
        "filter=" + "[" * 100_000: "its value is no JSON",
        "mode=": "its value is no JSON",
    }.items():
        with pytest.raises(InvalidRequest, match=what):
            Setting.parse(text)


class FakeSearch:
    """A search that finds the documents dN, dN+1 … for `query N`, and notes its calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, dict[str, Any]]] = []

    def __call__(self, queries: Sequence[str], k: int, **options: Any) -> list[list[dict[str, Any]]]:
        self.asked.append((len(queries), k, options))
        numbers = [int(query.split()[1]) for query in queries]
        return [[{"id": f"d{n + rank}", "score": 1.0, "of": f"x{n}"} for rank in range(k)] for n in numbers]


def test_a_call_has_several_queries_and_few_with_a_reranker() -> None:
    search, settings = FakeSearch(), [Setting.parse("mode=dense"), Setting.parse("rerank.top_n=5")]
    run(search, collection_of(40), settings[0], 100)
    run(search, collection_of(40), settings[1], 10)
    assert search.asked[:2] == [(32, 100, {"mode": "dense"}), (8, 100, {"mode": "dense"})]
    assert {each[:2] for each in search.asked[2:]} == {(4, 5)}  # a search refuses a k over top_n
    search.asked.clear()
    found = times(search, ["query 0", "query 1"], settings, 10)  # the settings take turns with single searches
    assert [each[:2] for each in search.asked] == [(1, 10), (1, 5)] * 2 * (NUM_ROUNDS + 1)
    assert all(0 <= each.p50_ms <= each.p90_ms for each in found)


def test_a_document_appears_once_and_the_own_document_of_a_query_may_be_left_out() -> None:
    hits = [{"id": "a"}, {"id": "b"}, {"id": "a"}, {"id": "c"}]  # the chunks of a document have its id
    collection = Collection({"c": "query 0"}, {"c": {"b": 1}})
    assert run(lambda *_: [hits], collection, Setting(""), 10) == {"c": ["a", "b", "c"]}
    assert run(lambda *_: [hits], collection, Setting(""), 2) == {"c": ["a", "b"]}
    of_first = Collection({"a": "query 0"}, {"a": {"b": 1}})
    assert run(lambda _, k: [hits[:k]], of_first, Setting(""), 1, leave_out_own=True) == {"a": ["b"]}
    assert run(FakeSearch(), Collection({"q": "query 7"}, {"q": {"x7": 1}}), Setting(""), 10, "of") == {"q": ["x7"]}
    with pytest.raises(InvalidRequest, match=r'no hit of any query is judged \(the first hit is "d0"\)'):
        run(FakeSearch(), collection, Setting(""), 10)
    with pytest.raises(InvalidRequest, match='a hit has no field "pmid"'):
        run(FakeSearch(), collection, Setting(""), 10, "pmid")


def test_a_setting_is_compared_with_the_first_one_and_tables_show_measures_times_100() -> None:
    better, equal = evaluation_of(2, 1, 2).differences
    assert better.interval.mean == pytest.approx(1 - 1 / np.log2(3))
    assert (better.num_better, equal.num_equal) == (40, 40)
    assert better.p < 0.001 < equal.p == 1.0
    assert (better.p_of_all, equal.p_of_all) == pytest.approx((2 * better.p, 1.0))
    lines = tables(evaluation_of(2, 1, times=[Times(1.25, 2.5), Times(30, 40)])).splitlines()
    assert lines[0] == "40 queries; means x 100, with intervals of 95%:"
    assert lines[2] == "| setting | nDCG@10 | recall@100 | MRR@10 | MAP@100 | p50 ms | p90 ms |"
    one, half = "100.0 (100.0 to 100.0)", "50.0 (50.0 to 50.0)"
    assert lines[4] == f"| rank=2 | 63.1 (63.1 to 63.1) | {one} | {half} | {half} | 1.25 | 2.50 |"
    assert "against" not in tables(evaluation_of(1))
    assert lines[-1] == "| rank=1 | +36.9 (+36.9 to +36.9) | < 0.001 | < 0.001 | 40 | 0 | 0 |"
    known = replace(evaluation_of(2, 1), differences=[replace(better, p=0.001, p_of_all=0.0004)])
    assert "| 0.001 | < 0.001 |" in tables(known)


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A BEIR folder with the documents of the tests' index, and three queries. For q3, another document is relevant."""
    (tmp_path / "qrels").mkdir()
    chosen = {"q1": PAIRS[1], "q2": PAIRS[12], "q3": PAIRS[33]}
    lines = {
        "corpus.jsonl": [{"_id": str(n), "text": text} for n, text in enumerate(PAIRS)],
        "queries.jsonl": [{"_id": name, "text": text} for name, text in chosen.items()],
    }
    for name, values in lines.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, values)))
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\t1\t1\nq2\t12\t1\nq3\t63\t1\n")
    return tmp_path


@pytest.mark.usefixtures("serving")
class TestCommands:
    def test_eval_measures_the_service(self, shoal: CliRunner, beir: Path, client: Client, tmp_path: Path) -> None:
        out = tmp_path / "out.json"
        done = shoal.invoke(main, ["eval", str(beir), "-k", "5", "--depth", "64", "--json", str(out)])
        assert done.exit_code == 0, done.output
        found = json.loads(out.read_text())["settings"][0]
        hits = client.search([PAIRS[1], PAIRS[12], PAIRS[33]], k=64)
        ranks = [[hit["id"] for hit in of].index(wanted) for of, wanted in zip(hits, ("1", "12", "63"), strict=True)]
        expected = [1 / np.log2(rank + 2) if rank < 5 else 0.0 for rank in ranks]
        assert list(found["values"]["nDCG@5"].values()) == pytest.approx(expected)
        assert found["measures"]["recall@64"]["mean"] == 1.0
        assert found["times"]["p50_ms"] > 0
        assert found["values"].keys() == found["measures"].keys()
        assert "| defaults |" in done.stdout

    def test_eval_measures_a_service_over_http_with_a_key(
        self, shoal: CliRunner, beir: Path, listen: Listen, make_app: MakeApp, tmp_path: Path
    ) -> None:
        key = api_keys.add(tmp_path / "keys", "eval", "user", "")
        words = ["eval", str(beir), "--no-times", "--json"]
        elsewhere = CliRunner(env={"SHOAL_API_KEY": key})
        asked = ["--url", listen(make_app(api_keys_file=str(tmp_path / "keys")))]
        assert shoal.invoke(main, [*words, str(tmp_path / "redis.json")]).exit_code == 0
        done = elsewhere.invoke(main, [*words, str(tmp_path / "http.json"), *asked])
        assert done.exit_code == 0, done.output
        assert (tmp_path / "http.json").read_text() == (tmp_path / "redis.json").read_text()
        assert key not in done.output
        kept = tmp_path / "kept.json"
        kept.write_text("of an earlier run")
        for out in (kept, tmp_path / "no.json"):
            refused = CliRunner().invoke(main, [*words, str(out), *asked])
            assert (refused.exit_code, "[unauthorized]" in refused.stderr) == (1, True)
        assert (kept.read_text(), (tmp_path / "no.json").exists()) == ("of an earlier run", False)
        other = elsewhere.invoke(main, [*words, str(tmp_path / "no.json"), *asked, "--index", "other"])
        assert "has no index other: name one with --index, or build it there" in other.stderr

    def test_eval_compares_settings(self, shoal: CliRunner, beir: Path) -> None:
        (beir / "queries.jsonl").write_text(f"7\t{PAIRS[1]}\n")
        (beir / "qrels" / "dev.tsv").write_text("7 0 1 1\n")
        words = ["eval", str(beir), "--split", "dev", "--no-times"]
        done = shoal.invoke(main, [*words, "--setting", "mode=dense", "--setting", "truncation_side=left"])
        assert done.exit_code == 0, done.output
        assert "nDCG@10 x 100 against mode=dense:" in done.stdout
        assert "| truncation_side=left | +0.0 (+0.0 to +0.0) | 1.000 | 1.000 | 0 | 0 | 1 |" in done.stdout
        for wrong, message in (
            (["--depth", "5"], "--depth is 5, less than -k, 10"),
            ([], "there is no file x/queries.jsonl: name the folder"),
            (["--json", "no/such/a.json"], "no/such is no folder"),
        ):
            assert message in shoal.invoke(main, ["eval", "x", *wrong]).stderr

    def test_an_index_is_built_with_the_given_home(
        self, shoal: CliRunner, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[str] = []

        def note(source: str, home: str, name: str, **_: Any) -> None:
            given.extend([Path(source).read_text().splitlines()[1], home, name])
            raise InvalidRequest("it is noted")

        monkeypatch.setattr(build, "callback", note)
        done = shoal.invoke(main, ["eval", str(beir), "--index", "other", "--home", str(tmp_path / "home")])
        assert "it is noted" in done.stderr
        assert given == [json.dumps({"id": "1", "text": PAIRS[1]}), str(tmp_path / "home"), "other"]
        (beir / "corpus.jsonl").unlink()
        done = shoal.invoke(main, ["eval", str(beir), "--index", "other"])
        assert "no worker serves an index other: name one with --index, or put its documents into " in done.stderr

    def test_the_page_tunes_a_search(self, shoal: CliRunner, beir: Path) -> None:
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
        best = max(found, key=lambda each: each["measures"]["nDCG@10"]["mean"])
        said = output(sys.executable, "-c", program)
        assert f"best: {best['setting']}: {100 * best['measures']['nDCG@10']['mean']:.1f}, expected: " in said
        assert json.dumps(best["options"]) in said
        words = output("bash", "-ec", f"shoal() {{ printf '%s\\n' \"$@\"; }}\n{rerank}").splitlines()
        settings = [Setting.parse(word.removeprefix("--setting=")) for word in words if word.startswith("--setting=")]
        assert [each.options.get("rerank") for each in settings] == [None, *({"top_n": n} for n in (10, 20, 50)), None]
