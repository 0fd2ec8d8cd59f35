"""A run of the benchmarks: its texts, the order of its trials, and its progress."""

import csv
import random
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context

from stack import DATA, ROOT, Checkout, datasets

from benchmarks.trial import Figures, Row, Trial, shown
from shoal.errors import ShoalError

#: Number of words between the starts of two texts in an article. Models read only the beginning of a text, so each
#: start makes another text.
ARTICLE_STEP = 400

#: Number of abstracts, which are sent in turns with headlines.
NUM_ABSTRACTS = 512

#: The headlines that loads send: they follow the headlines of the index.
SENT = slice(20_000, 60_000)

#: Longest warm-up before the runs that count, in seconds.
WARM_UP_S = 2

#: The settings of each precision, by its name in tables.
PRECISIONS: dict[str, dict[str, str]] = {"shoal": {}, "shoal int8": {"SHOAL_PRECISION": "int8"}}


@dataclass(frozen=True)
class Texts:
    """Distinct texts of three lengths, and their source."""

    source: str
    headlines: list[str]
    abstracts: list[str]
    articles: list[str]

    @classmethod
    def load(cls) -> "Texts":
        """Return the texts in the data folder; without a data folder, texts made from the sample headlines."""
        if not (DATA / "datasets.py").exists():
            with (ROOT / "workers/shoal_workers/sample/headlines.csv").open(encoding="utf-8", newline="") as file:
                lines = [row["headline"] for row in csv.DictReader(file)]
            joined = ([" ".join((lines[n:] + lines[:n])[:size]) for n in range(len(lines))] for size in (15, 300))
            return cls(f"the {len(lines):,} sample headlines, and joined ones (no data folder)", lines, *joined)
        data = datasets()
        articles = [article.split() for article in data.long_documents()]
        parts = [words[n:] for words in articles for n in range(0, max(1, len(words) - 800), ARTICLE_STEP)]
        sets = data.abc_headlines(), data.cranfield()[0].values(), map(" ".join, parts)
        return cls("real headlines, abstracts and articles", *(list(dict.fromkeys(filter(None, of))) for of in sets))

    @cached_property
    def alone(self) -> list[list[str]]:
        """Requests with one headline each. If there are enough headlines, the index has none of them."""
        return [[text] for text in self.headlines[SENT] or self.headlines]

    @cached_property
    def headlines_and_abstracts(self) -> list[str]:
        """Headlines and abstracts in turns."""
        pairs = zip(self.headlines, self.abstracts[:NUM_ABSTRACTS], strict=False)
        return [text for pair in pairs for text in pair]

    def mixed(self, count: int) -> list[str]:
        """Return at most `count` texts: six headlines to three abstracts and an article, shuffled."""
        chosen = random.Random(7)
        kinds = ((self.headlines, 6), (self.abstracts, 3), (self.articles, 1))
        texts = [text for kind, share in kinds for text in chosen.sample(kind, min(len(kind), share * count // 10))]
        chosen.shuffle(texts)
        return texts


@dataclass(frozen=True)
class Plan:
    """The texts, the number and the length of the runs, and the peers."""

    texts: Texts
    runs: int
    seconds: int
    peers: Sequence[str]
    checkouts: Sequence[Checkout]
    workers: int
    failed: list[str] = field(default_factory=list)

    def interleave(self, scenario: str, trials: Sequence[Trial]) -> list[Row]:
        """Run all trials once to warm up, then `runs` times, one after the other; return a row for each trial.

        A trial that fails is noted in `failed` and not run again. A run without figures does not count.
        """
        found: dict[Trial, list[Figures]] = {trial: [] for trial in trials}
        for number in range(self.runs + 1):
            for trial, figures_of_runs in found.items():
                name = f"{scenario}: {trial.case}, {trial.target}"
                if name in self.failed:
                    continue
                try:
                    figures = trial.run(self.seconds if number else min(self.seconds, WARM_UP_S), number)
                except (ShoalError, OSError, BrokenExecutor) as error:
                    say(f"{name}: {error}")
                    self.failed.append(name)
                    continue
                if number and figures:
                    figures_of_runs.append(figures)
                    figure, value = next(iter(figures.items()))
                    say(f"{name}, run {number}: {figure} {shown(value)}")
        return [
            Row(scenario, trial.case, trial.target, {figure: [run[figure] for run in runs] for figure in runs[0]})
            for trial, runs in found.items()
            if runs
        ]


def say(text: str) -> None:
    """Print progress to standard error; standard output has only the tables."""
    print(f"  {text}", file=sys.stderr, flush=True)


def own_process() -> ProcessPoolExecutor:
    """Return an executor with one new process, which shares nothing with this process."""
    return ProcessPoolExecutor(1, get_context("spawn"))
