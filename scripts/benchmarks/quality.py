"""The quality of a running service: public judgements, and Sentence Transformers in fp32."""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from stack import datasets, post

from shoal.bench.trial import Figures
from shoal.settings import Settings
from shoal_workers.model.reference import encode, load
from shoal_workers.model.source import find_source

#: Texts a request, for the batched comparison, and texts of each set that are sent one by one.
BATCH, NUM_ALONE = 64, 400


def text_sets() -> dict[str, list[str]]:
    """Return the texts whose vectors are compared with fp32."""
    data = datasets()
    found = {"mixed headlines": data.mixed_headlines()[:2000], "naughty strings": data.naughty_strings()}
    return found | {"languages": list(data.languages().values())}


def cosines(texts: Sequence[str], url: str) -> Figures:
    """Return the cosines to Sentence Transformers in fp32, batched and, for some of the texts, alone."""
    expected, step = _expected(tuple(texts)), max(1, len(texts) // NUM_ALONE)
    batched = (_embed(url, texts, BATCH) * expected).sum(axis=1)
    alone = (_embed(url, texts[::step], 1) * expected[::step]).sum(axis=1)
    return {
        f"{name}: {figure}": float(value)
        for name, found in {"batched": batched, "alone": alone}.items()
        for figure, value in {"texts": len(found), "lowest": found.min(), "mean": found.mean()}.items()
    }


def sts(url: str) -> Figures:
    """Return 100 times the Spearman correlation with human judgements on STS-B dev."""
    pairs = datasets().stsb_dev()
    left, right = (_embed(url, [pair[side] for pair in pairs], BATCH) for side in (0, 1))
    found = spearmanr((left * right).sum(axis=1), [score for _, _, score in pairs]).statistic
    return {"Spearman x 100": float(100 * found)}


def cranfield(url: str) -> Figures:
    """Return 100 times nDCG@10 of the service's search on Cranfield."""
    _, queries, judgements = datasets().cranfield()
    results = post(f"{url}/search", {"queries": list(queries.values()), "k": 10})["results"]
    scores = []
    for name, hits in zip(queries, results, strict=True):
        gains = judgements.get(name, {})
        best = _gain(sorted(gains.values(), reverse=True)[:10])
        scores.append(_gain([gains.get(hit["id"], 0) for hit in hits]) / best if best else 0.0)
    return {"nDCG@10 x 100": float(100 * np.mean(scores))}


def _gain(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains))


def _embed(url: str, texts: Sequence[str], at_once: int) -> NDArray[np.float32]:
    parts = [post(f"{url}/embed", {"inputs": texts[n : n + at_once]}) for n in range(0, len(texts), at_once)]
    return np.array([row for part in parts for row in part], np.float32)


@cache
def _expected(texts: tuple[str, ...]) -> NDArray[np.float32]:
    return encode(load(str(find_source(Settings().model))), texts)
