"""The quality of a running service: public judgements, and the cosine to Sentence Transformers in fp32."""

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from stack import DATA, ask, datasets, index_of

from benchmarks.plan import PRECISIONS, Plan, say
from benchmarks.server import shoal
from benchmarks.trial import Figures, Row
from shoal.evaluation.evaluation import measures
from shoal.settings import Settings
from shoal_workers.model.download import find_source

#: The precision with which the other precisions are compared.
FULL = {"shoal f32": {"SHOAL_PRECISION": "f32"}}

#: Number of texts in a request, and number of texts of each set that are also sent one by one.
BATCH, NUM_ALONE = 64, 400


def run(plan: Plan) -> list[Row]:
    """Compare vectors and hits in each precision with public judgements and fp32, once, because nothing is random."""
    if not (DATA / "datasets.py").exists():
        say("quality: the data folder is missing; name it with SHOAL_DATA")
        return []
    data = datasets()
    texts = {"mixed headlines": data.mixed_headlines()[:2000], "naughty strings": data.naughty_strings()}
    texts["languages"] = list(data.languages().values())
    measures: dict[str, Callable[[str], Figures]] = {"STS-B dev": sts, "Cranfield": cranfield}
    measures |= {f"cosine to fp32, {name}": partial(cosines, of_set) for name, of_set in texts.items()}
    rows, index = [], index_of("cranfield", data.cranfield()[0])
    for name, environment in (PRECISIONS | FULL).items():
        with shoal(name, {"default": index}, environment=environment) as server:
            for case, measure in measures.items():
                figures = {figure: [value] for figure, value in measure(server.url).items()}
                rows.append(Row("quality", case, name, figures))
    return rows


def cosines(texts: Sequence[str], url: str) -> Figures:
    """Return the cosines to Sentence Transformers in fp32, in batches and, for some of the texts, one by one."""
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
    from scipy.stats import spearmanr  # this import takes a second

    pairs = datasets().stsb_dev()
    left, right = (_embed(url, [pair[side] for pair in pairs], BATCH) for side in (0, 1))
    found = spearmanr((left * right).sum(axis=1), [score for _, _, score in pairs]).statistic
    return {"Spearman x 100": float(100 * found)}


def cranfield(url: str) -> Figures:
    """Return 100 times nDCG@10 of the service's search on Cranfield."""
    _, queries, judgements = datasets().cranfield()
    results = ask(f"{url}/search", {"queries": list(queries.values()), "k": 10})[1]["results"]
    found = [
        measures([gains.get(hit["id"], 0) for hit in hits], [*gains.values()], 10, 10)["nDCG@10"]
        for gains, hits in zip((judgements.get(name, {}) for name in queries), results, strict=True)
    ]
    return {"nDCG@10 x 100": float(100 * np.mean(found))}


def _embed(url: str, texts: Sequence[str], at_once: int) -> NDArray[np.float32]:
    parts = [ask(f"{url}/embed", {"inputs": texts[n : n + at_once]})[1] for n in range(0, len(texts), at_once)]
    return np.array([row for part in parts for row in part], np.float32)


@cache
def _expected(texts: tuple[str, ...]) -> NDArray[np.float32]:
    from sentence_transformers import SentenceTransformer  # this import loads torch

    model = SentenceTransformer(str(find_source(Settings().model)), device="cpu", local_files_only=True)
    return np.asarray(model.encode(list(texts), prompt="", normalize_embeddings=True, show_progress_bar=False))
