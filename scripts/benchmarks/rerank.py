"""Searches whose hits the reranker scores, beside the limit of the machine and searches without a second stage."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
from stack import HOME, ask, model

from benchmarks import cross_encoder
from benchmarks.indexes import indexes_of
from benchmarks.matrix import limit_trial
from benchmarks.plan import PRECISIONS, Plan
from benchmarks.scenarios import case_of
from benchmarks.server import Server, shoal
from shoal.bench import wrk
from shoal.bench.trial import Figures, Row, Trial
from shoal_workers.encoding.tokenizer import Tokenizer
from shoal_workers.model.model import prepared_folder

#: Documents in the index, hits that the reranker scores, and those that are answered.
SIZE, TOP_N, K = 20_000, 50, 10

#: Connections of the loads.
CONNECTIONS = (1, 64)

#: Searches whose pairs are counted for the limit.
NUM_COUNTED = 100


@dataclass(frozen=True)
class _Searches:
    """Searches over HTTP, of one query each."""

    queries: Sequence[str]

    def bodies(self, **options: object) -> list[bytes]:
        """Return the bodies of the requests."""
        return [json.dumps(self._body(query) | options).encode() for query in self.queries]

    def tokens(self, url: str) -> float:
        """Return the tokens that the reranker reads for a search, on average."""
        pairs: list[tuple[str, str]] = []
        for query in self.queries[:NUM_COUNTED]:
            _, answer = ask(f"{url}/search", self._body(query) | {"k": TOP_N})
            pairs += [(query, hit["text"]) for hit in answer["results"][0]]
        path = prepared_folder(HOME, model().name) / "tokenizer.json"
        found = Tokenizer(path, cross_encoder.MAX_TOKENS).encode_pairs(pairs)
        return float(np.sum([len(tokens.ids) for tokens in found])) / len(self.queries[:NUM_COUNTED])

    @staticmethod
    def _body(query: str) -> dict[str, object]:
        return {"queries": [query], "k": K, "index": f"n{SIZE}"}


def run(plan: Plan) -> list[Row]:
    """Run the limit and the searches in turns, in each precision."""
    searches = _Searches([query for (query,) in plan.texts.alone])
    with ExitStack() as running:
        trials: list[Trial] = []
        for name, environment in PRECISIONS.items():
            settings = {"SHOAL_RERANKER": str(cross_encoder.made()), **environment}
            server = running.enter_context(shoal(name, indexes_of((SIZE,), plan.texts), environment=settings))
            operations = 2.0 * cross_encoder.NUM_WEIGHTS * searches.tokens(server.url)
            precision = environment.get("SHOAL_PRECISION", "auto")
            target = f"machine{name.removeprefix('shoal')}"
            trials.append(running.enter_context(limit_trial(f"rerank of {TOP_N}", target, precision, operations)))
            for connections in CONNECTIONS:
                trials.append(_trial(server, connections, searches.bodies(), "search"))
                bodies = searches.bodies(rerank={"top_n": TOP_N})
                trials.append(_trial(server, connections, bodies, f"search, rerank of {TOP_N}"))
        return plan.interleave("rerank", trials)


def _trial(server: Server, connections: int, bodies: Sequence[bytes], what: str) -> Trial:
    load = wrk.Load(f"{server.url}/search", bodies, connections)
    return Trial(f"{case_of(connections)} x 1 {what}", server.name, partial(_run, server, load))


def _run(server: Server, load: wrk.Load, seconds: int, number: int) -> Figures:
    return server.run(load, 1, seconds, number)
