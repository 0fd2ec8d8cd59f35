"""The numbers to reach, and whether they were: a ratio of two figures of the same run where that is possible."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from benchmarks.results import Results
from shoal.bench.trial import shown

Figure = Callable[[Results], float]

#: The scenario and the case of a row.
Place = tuple[str, str]

#: What the design reached with packed and with padded rows; the bar is their ratio.
PACKED, PADDED = 2_400, 2_090


@dataclass(frozen=True)
class Bar:
    """A number to reach: at least `least`, or at most `most`. An `aim` is a hope for the machine that it names."""

    scenario: str
    what: str
    figure: Figure
    least: float | None = None
    most: float | None = None
    unit: str = ""
    aim: bool = False

    @property
    def needed(self) -> str:
        """The bar in words."""
        sign, value = ("≥", self.least) if self.least is not None else ("≤", self.most)
        return f"{'aim: ' * self.aim}{sign} {round(value or 0, 2):,g}{self.unit}"

    def is_met_by(self, value: float) -> bool:
        """Whether the value reaches the bar."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def judge(self, results: Results) -> tuple[str, str]:
        """What was found, and `pass`, `miss` or `not measured`."""
        try:
            value = self.figure(results)
        except KeyError:
            return "", "not measured"
        return f"{shown(value)}{self.unit}", "pass" if self.is_met_by(value) else "miss"


def table(results: Results) -> str:
    """The bars of the scenarios that were run, as Markdown: what was needed, what was found, pass or miss."""
    rows = [bar for bar in BARS if bar.scenario in results.scenarios]
    lines = [f"| {bar.what} | {bar.needed} | {' | '.join(bar.judge(results))} |" for bar in rows]
    return "\n".join(["| what | needed | found | |", "|---|---|---|---|", *lines]) if lines else ""


def _of(place: Place, target: str, figure: str) -> Figure:
    return lambda results: results.median(*place, target, figure)


def _times(place: Place, figure: str, target: str, other: str) -> Figure:
    """How many times the other's figure the target's is."""
    return lambda results: results.median(*place, target, figure) / results.median(*place, other, figure)


def _lost(place: Place, figure: str) -> Figure:
    """By how much int8 is below the default precision."""
    return lambda results: results.median(*place, "shoal", figure) - results.median(*place, "shoal int8", figure)


def _tail(results: Results) -> float:
    return results.median(*AT_64, "shoal", "p99 ms") / results.median(*AT_64, "shoal", "p50 ms")


def _of_best_batch(results: Results) -> float:
    engine = max(results.medians("embed", "texts/s", "bare engine"))
    return 100 * results.median(*BY_32, "shoal", "texts/s") / engine


def _of_sorted(results: Results) -> float:
    engine = results.median("embed", "mixed lengths, sorted", "bare engine", "texts/s")
    return 100 * results.median(*MIXED, "shoal", "texts/s") / engine


def _added_ms(results: Results) -> float:
    engine = results.median("embed", "1 headline a pass", "bare engine", "p50 ms")
    return results.median("embed", "1 connection x 1 headline", "shoal", "p50 ms") - engine


def _search_share(results: Results) -> float:
    embedding = results.median("search", "embed, 64 connections", "shoal", RATE)
    return 100 * results.median("search", "search over n20000, 64 connections", "shoal", RATE) / embedding


def _beside_bulk(kind: str) -> Figure:
    """How many times as long the slowest in a hundred take as when nothing else goes on."""
    place = ("fair", f"{BESIDE} {kind}")
    return lambda results: results.median(*place, "shoal", "p99 ms") / results.median(*ALONE, "shoal", "p99 ms")


def _unsteady(results: Results) -> float:
    found = results.medians("soak", "p99 ms", start="part ")
    return max(found) / median(found)


RATE = "requests/s"
AT_64 = ("embed", "64 connections x 1 headline")
BY_32 = ("embed", "8 connections x 32 headlines")
MIXED = ("embed", "64 connections x 1 text of mixed length")
BATCH_64 = ("engine", "64 headlines a pass")
LONGER = ("engine", "headlines and abstracts, 32 a pass as they come")
SEARCH = ("search", "search over n20000, 1 connection")
MILLION = ("search", "search over n1000000, hits")
WIRE = ("wire", "256 x 1,024")
USERS = ("batching", "40 users x 1 headline")
ALONE = ("fair", "1 connection x 1 headline, nothing else")
BESIDE = "1 connection x 1 headline, beside bulk"
POOL = ("pool", "96 connections, 2 texts a batch of 20 ms")
CACHE = ("cache", "64 connections, 1,000 texts that repeat")
GROWTH = "resident memory in MB, the highest of each part: growth in %"

BARS = (
    Bar("embed", "embed, 64 connections, over the FastAPI baseline", _times(AT_64, RATE, "shoal", "baseline"), 7),
    Bar("embed", "embed, 64 connections, over Infinity", _times(AT_64, RATE, "shoal", "infinity"), 5),
    Bar("embed", "embed, 64 connections", _of(AT_64, "shoal", RATE), 1_800, unit=" requests/s", aim=True),
    Bar("embed", "int8, 64 connections, over the baseline", _times(AT_64, RATE, "shoal int8", "baseline"), 9),
    Bar("embed", "int8, 64 connections", _of(AT_64, "shoal int8", RATE), 2_300, unit=" requests/s", aim=True),
    Bar("embed", "int8, 64 connections, over the default", _times(AT_64, RATE, "shoal int8", "shoal"), 1.3),
    Bar(
        "engine",
        "bare engine, 64 headlines, over padded rows",
        _times(BATCH_64, "texts/s", "packed", "padded"),
        PACKED / PADDED,
    ),
    Bar("engine", "bare engine, 64 headlines", _of(BATCH_64, "packed", "texts/s"), PACKED, unit=" texts/s", aim=True),
    Bar(
        "engine",
        "bare engine, headlines and abstracts, over padded rows",
        _times(LONGER, "texts/s", "packed", "padded"),
        1.4,
    ),
    Bar("embed", "embed, 64 connections: p99 over p50", _tail, most=2),
    Bar("embed", "embed, 8 connections x 32, of the bare engine's best texts/s", _of_best_batch, 90, unit=" %"),
    Bar("embed", "mixed lengths, of the bare engine's texts/s on sorted texts", _of_sorted, 80, unit=" %"),
    Bar("embed", "one connection: p50 above the bare engine's for one text", _added_ms, most=1.0, unit=" ms"),
    Bar("search", "search over 20,000, one connection: p50", _of(SEARCH, "shoal", "p50 ms"), most=3.5, unit=" ms"),
    Bar("search", "search over 20,000, 64 connections, of the embed rate", _search_share, 80, unit=" %"),
    Bar(
        "search",
        "a query over 1,000,000: p50 of the search step",
        _of(MILLION, "shoal", "hits: step p50 ms"),
        most=12,
        unit=" ms",
    ),
    Bar("search", "a query over 1,000,000: recall@10", _of(MILLION, "shoal", "hits: recall@10"), 0.99),
    Bar(
        "wire",
        "raw bytes, 256 x 1,024: the standard JSON's time over theirs",
        _times(WIRE, "write ms", "JSON, standard library", "raw bytes"),
        30,
    ),
    Bar("batching", "40 users: rate over that without batching", _times(USERS, RATE, "batching on", "batching off"), 4),
    Bar(
        "batching",
        "40 users: p50 over that without batching",
        _times(USERS, "p50 ms", "batching on", "batching off"),
        most=1,
    ),
    Bar("pool", "16 waiting workers over 1", _times(POOL, RATE, "16 workers", "1 worker"), 12),
    Bar("fair", "one connection: p99 beside bulk headlines over that alone", _beside_bulk("headlines"), most=3),
    Bar("fair", "one connection: p99 beside bulk abstracts over that alone", _beside_bulk("abstracts"), most=3),
    Bar("cache", "cached texts, 64 connections", _of(CACHE, "cache on", RATE), 3_500, unit=" requests/s"),
    Bar(
        "start",
        "worker: warm start",
        _of(("start", "worker, compiled model cached"), "shoal", "ready s"),
        most=1.0,
        unit=" s",
    ),
    Bar(
        "start",
        "worker: private memory after a load",
        _of(("start", "worker 1"), "shoal, after a load", "memory in MB: private"),
        most=150,
        unit=" MB",
    ),
    Bar(
        "quality",
        "int8: loss of STS-B dev Spearman, of 100",
        _lost(("quality", "STS-B dev"), "Spearman x 100"),
        most=0.3,
    ),
    Bar(
        "quality", "int8: loss of Cranfield nDCG@10, of 100", _lost(("quality", "Cranfield"), "nDCG@10 x 100"), most=0.5
    ),
    Bar(
        "soak",
        "soak: highest growth of a process's memory",
        lambda results: max(results.medians("soak", GROWTH)),
        most=5,
        unit=" %",
    ),
    Bar(
        "soak", "soak: requests that failed", lambda results: results.medians("soak", "failed", start="soak")[0], most=0
    ),
    Bar("soak", "soak: a part's highest p99 over the usual one", _unsteady, most=1.5),
)
