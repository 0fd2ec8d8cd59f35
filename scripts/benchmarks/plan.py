"""A run of the benchmarks: its texts, its trials in turns, and its progress."""

import random
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from multiprocessing import get_context

from stack import DATA, Checkout, datasets

from shoal.bench import trial
from shoal.bench.service import sample
from shoal.bench.trial import Figures, Row, Trial
from shoal.errors import ShoalError
from shoal.settings import Settings

#: An article is used from every so many words on: models see only the beginning of a text.
ARTICLE_STEP = 400

#: The headlines that loads send: those after the ones that are in the index.
SENT = slice(20_000, 60_000)


@dataclass(frozen=True)
class Texts:
    """Distinct texts of three lengths, and their source."""

    source: str
    headlines: list[str]
    abstracts: list[str]
    articles: list[str]

    @classmethod
    def load(cls) -> "Texts":
        """Return the texts in the data folder, or a stand-in made of the sample headlines."""
        if (DATA / "datasets.py").exists():
            data = datasets()
            articles = [article.split() for article in data.long_documents()]
            parts = [words[n:] for words in articles for n in range(0, max(1, len(words) - 800), ARTICLE_STEP)]
            sets = data.abc_headlines(), data.cranfield()[0].values(), map(" ".join, parts)
            return cls("real headlines, abstracts and articles", *map(_distinct, sets))
        lines = sample()
        joined = ([" ".join((lines[n:] + lines[:n])[:size]) for n in range(len(lines))] for size in (15, 300))
        return cls(f"the {len(lines):,} sample headlines, and joined ones (no data folder)", lines, *joined)

    @cached_property
    def alone(self) -> list[list[str]]:
        """Requests of one headline each, none of which is in the index if there are enough."""
        return [[text] for text in self.headlines[SENT] or self.headlines]

    def mixed(self, count: int) -> list[str]:
        """Return at most `count` texts: six headlines to three abstracts and an article, shuffled."""
        chosen = random.Random(7)
        kinds = ((self.headlines, 6), (self.abstracts, 3), (self.articles, 1))
        texts = [text for kind, share in kinds for text in chosen.sample(kind, min(len(kind), share * count // 10))]
        chosen.shuffle(texts)
        return texts

    def equally_long(self) -> list[list[str]]:
        """Return requests of one headline each, all with the most usual number of words."""
        lengths = [len(text.split()) for text in self.headlines]
        usual = max(set(lengths), key=lengths.count)
        return [[text] for text, length in zip(self.headlines, lengths, strict=True) if length == usual]


@dataclass(frozen=True)
class Plan:
    """The texts, the number and the length of the runs, and the servers beside ours."""

    texts: Texts
    runs: int = 3
    seconds: int = 8
    minutes: float = 10
    peers: Sequence[str] = ()
    checkouts: Sequence[Checkout] = ()
    workers: int = 1
    vectors: int = 1_000_000
    failed: list[str] = field(default_factory=list)

    def interleave(self, scenario: str, trials: Iterable[Trial]) -> list[Row]:
        """Run the trials in turns. One that fails is noted in `failed` and not run again; the others go on."""
        guarded = [
            replace(trial, run=partial(self._run, f"{scenario}: {trial.case}, {trial.target}", trial))
            for trial in trials
        ]
        return trial.interleave(scenario, guarded, self.runs, self.seconds, say)

    def _run(self, name: str, trial: Trial, seconds: int, number: int) -> Figures:
        try:
            return trial.run(seconds, number) if name not in self.failed else {}
        except (ShoalError, OSError, BrokenExecutor) as error:
            say(f"{name}: {error}")
            self.failed.append(name)
            return {}


def precisions() -> dict[str, dict[str, str]]:
    """Return the settings of the default precision, and of int8 where this Shoal has it, by their name in tables."""
    known = Settings.__dataclass_fields__["precision"].metadata["choices"]
    return {"shoal": {}} | ({"shoal int8": {"SHOAL_PRECISION": "int8"}} if "int8" in known else {})


def say(text: str) -> None:
    """Print progress to standard error; standard output has the tables alone."""
    print(f"  {text}", file=sys.stderr, flush=True)


def own_process() -> ProcessPoolExecutor:
    """Return an executor of one process, which is started afresh."""
    return ProcessPoolExecutor(1, get_context("spawn"))


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, texts)))
