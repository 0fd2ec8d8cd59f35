"""The evaluator: it runs settings over a collection on a running service."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shoal.errors import IndexMismatch, InvalidRequest, Unsupported
from shoal.evaluation.collection import Collection
from shoal.evaluation.evaluation import Evaluation
from shoal.evaluation.measure import measures
from shoal.evaluation.run import Ids, Run, Search, run, times
from shoal.evaluation.setting import Setting
from shoal.progress import Progress

#: Errors of a setting that the service, or the index, does not have.
_NOT_THERE = (Unsupported, IndexMismatch, InvalidRequest)


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A collection, and the service that is asked: the first `k` hits count most, and `depth` are looked at."""

    search: Search
    collection: Collection
    k: int = 10
    depth: int = 100
    ids: Ids = field(default_factory=Ids)

    def run(self, setting: Setting) -> Run:
        """Search for all queries with the setting."""
        progress = Progress(setting.name, len(self.collection.queries), unit=" queries")

        def on_progress(num_queries: int) -> None:
            progress.advance(num_queries)
            progress.tick()

        try:
            return run(self.search, self.collection, setting, self.depth, self.ids, on_progress)
        finally:
            progress.finish()

    def run_those_there(self, settings: Iterable[Setting], say: Callable[[str], object]) -> list[Run]:
        """Run the settings; `say` gets a line for each that the service or the index does not have."""
        runs = []
        for setting in settings:
            try:
                runs.append(self.run(setting))
            except _NOT_THERE as error:
                say(f"{setting.name} is left out: {error.message}")
        return runs

    def evaluate(self, runs: list[Run], with_times: bool = True) -> Evaluation:
        """Return the evaluation of the runs, with the times of single searches if they are wanted."""
        settings = [each.setting for each in runs]
        queries = list(self.collection.queries.values())
        with Progress(f"timing {len(settings)} settings"):
            found = times(self.search, queries, settings, self.k) if with_times else [None] * len(settings)
        return Evaluation(self.collection, measures(self.k, self.depth), runs, found)
