"""Measures the vectors and hits of a running service against the fp32 reference and public judgements."""

import argparse
import math
import sys

import numpy as np
from scipy.stats import spearmanr
from stack import HOME, datasets, index_of, post, stack

from shoal.settings import Settings
from shoal_workers.model.reference import encode, load
from shoal_workers.model.source import find_source

#: Texts a request, for the batched comparison.
BATCH = 64


def embed(url: str, texts: list[str], at_once: int) -> np.ndarray:
    """Vectors from the service, so many texts a request."""
    parts = [post(f"{url}/embed", {"inputs": texts[n : n + at_once]}) for n in range(0, len(texts), at_once)]
    return np.array([row for part in parts for row in part], np.float32)


def cosines(url: str, alone: int) -> None:
    """Prints the cosines to Sentence Transformers in fp32, batched and, for some texts of each set, alone."""
    data = datasets()
    reference = load(str(find_source(Settings().model)))
    sets = {
        "mixed_headlines()[:2000]": data.mixed_headlines()[:2000],
        "naughty_strings()": data.naughty_strings(),
        "languages()": list(data.languages().values()),
    }
    for name, texts in sets.items():
        expected = encode(reference, texts)
        found = (embed(url, texts, BATCH) * expected).sum(axis=1)
        print(f"{name}: {len(texts)} batched: cosine lowest {found.min():.6f}, mean {found.mean():.6f}")
        some = list(range(0, len(texts), max(1, len(texts) // alone)))
        found = (embed(url, [texts[n] for n in some], 1) * expected[some]).sum(axis=1)
        print(f"{name}: {len(some)} alone: cosine lowest {found.min():.6f}, mean {found.mean():.6f}")


def sts(url: str) -> float:
    """100 times the Spearman correlation with human judgements on STS-B dev."""
    pairs = datasets().stsb_dev()
    left, right = (embed(url, [pair[side] for pair in pairs], BATCH) for side in (0, 1))
    return float(100 * spearmanr((left * right).sum(axis=1), [score for _, _, score in pairs]).statistic)


def cranfield(url: str) -> float:
    """100 times nDCG@10 of the service's search on Cranfield."""
    _, queries, judgements = datasets().cranfield()
    names = list(queries)
    results = post(f"{url}/search", {"queries": [queries[name] for name in names], "k": 10})["results"]
    scores = []
    for name, hits in zip(names, results, strict=True):
        gains = judgements.get(name, {})
        found = sum(gains.get(hit["id"], 0) / math.log2(rank + 2) for rank, hit in enumerate(hits))
        best = sum(gain / math.log2(rank + 2) for rank, gain in enumerate(sorted(gains.values(), reverse=True)[:10]))
        scores.append(found / best if best else 0.0)
    return float(100 * np.mean(scores))


def main() -> None:
    """Starts a service of its own and prints every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", type=int, default=400, help="texts of each set to send one by one")
    precisions = Settings.__dataclass_fields__["precision"].metadata["choices"]
    parser.add_argument("--precision", default="auto", choices=precisions)
    args = parser.parse_args()
    print(f"models and indexes are kept in {HOME}", file=sys.stderr)
    index = index_of("cranfield", datasets().cranfield()[0])
    with stack({"default": index}, environment={"SHOAL_PRECISION": args.precision}) as running:
        print(f"STS-B dev: Spearman {sts(running.url):.2f}")
        print(f"Cranfield: nDCG@10 {cranfield(running.url):.2f}")
        cosines(running.url, args.alone)


if __name__ == "__main__":
    main()
