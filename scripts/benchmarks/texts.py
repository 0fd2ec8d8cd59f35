"""The texts of the benchmarks: real ones from the data folder, or else what can be made of the sample headlines."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from stack import DATA, datasets

from shoal.bench.service import sample

#: An article is used from every so many words on: models see only the beginning of what they are given.
ARTICLE_STEP = 400

#: How often each kind comes in ten texts of mixed length.
HEADLINES, ABSTRACTS, ARTICLES = 6, 3, 1


@dataclass(frozen=True)
class Texts:
    """Texts of three lengths, and where they are from."""

    source: str
    headlines: list[str]
    abstracts: list[str]
    articles: list[str]

    def mixed(self, count: int) -> list[str]:
        """So many headlines, abstracts and long articles, shuffled, or fewer: no text comes twice."""
        chosen = random.Random(7)
        kinds = ((self.headlines, HEADLINES), (self.abstracts, ABSTRACTS), (self.articles, ARTICLES))
        texts = [text for kind, share in kinds for text in chosen.sample(kind, min(len(kind), share * count // 10))]
        chosen.shuffle(texts)
        return texts


def load_texts() -> Texts:
    """The texts in the data folder, or a stand-in made of the sample headlines, which `source` then says.

    They are distinct: a text that is under way already would not be computed again.
    """
    if (DATA / "datasets.py").exists():
        data = datasets()
        headlines, abstracts = _distinct(data.abc_headlines()), _distinct(data.cranfield()[0].values())
        articles = _distinct(part for article in data.long_documents() for part in _from_every(article, ARTICLE_STEP))
        return Texts("real headlines, abstracts and articles", headlines, abstracts, articles)
    headlines = sample()
    source = f"the {len(headlines):,} sample headlines; abstracts and articles are headlines joined (no data folder)"
    return Texts(source, headlines, _joined(headlines, 15), _joined(headlines, 300))


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, texts)))


def _from_every(text: str, step: int) -> list[str]:
    """The text from its beginning, and from every `step` words on, as long as it is still long."""
    words = text.split()
    return [" ".join(words[start:]) for start in range(0, max(1, len(words) - 2 * step), step)]


def _joined(headlines: list[str], size: int) -> list[str]:
    return [" ".join((headlines[n:] + headlines[:n])[:size]) for n in range(len(headlines))]
