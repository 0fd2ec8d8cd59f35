"""Opening indexes: a large one, its memory, and a hundred small ones."""

import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import redis
from numpy.typing import NDArray
from stack import HOME, OURS, Running, ask, index_of, model, stack

from benchmarks.indexes import Maker, real_index
from benchmarks.plan import Plan, own_process, say
from benchmarks.server import NO_CACHE, Processes
from benchmarks.versions import TICK_S
from shoal.bench.trial import Figures, Row, Trial
from shoal.operations import Search
from shoal.operations.search_options import SearchOptions
from shoal.records.source import Source
from shoal_workers.index.build.builder import build
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.serving.open_indexes import OpenIndexes

#: Name of the large index, and how many worker processes hold it on this machine.
NAME, WORKERS = "large", 2

#: Number of small indexes, documents in each, and seconds for which commands to Redis are counted.
NUM_SMALL, SMALL, COUNTED_S = 100, 1_000, 4.0

#: Searches of each kind by which the memory of an index is measured.
NUM_SEARCHES = 16

#: The kinds of searches: by meaning, by words, by both, and with a filter, an order and a count.
KINDS: dict[str, SearchOptions] = {
    "dense": SearchOptions(),
    "lexical": SearchOptions(mode="lexical"),
    "hybrid": SearchOptions(mode="hybrid"),
    "filtered": SearchOptions(filter={"year": {"lt": 2010}}, facets=["topic"]),
    "sorted": SearchOptions(sort=[{"field": "published", "order": "desc"}]),
}


def run(plan: Plan) -> list[Row]:
    """Open an index of `plan.vectors` documents with words and fields, and hold it in two workers."""
    large = _large(plan.vectors, plan.texts.headlines, real_index(plan.texts))
    case = f"{plan.vectors:,} documents with words and fields"
    openings = {
        "files in memory": partial(_open, large),
        "nothing in memory": partial(_open, large, is_cold=True),
    }
    trials = [Trial(case, name, opening) for name, opening in openings.items()]
    trials.append(Trial(f"{case}, {WORKERS} workers", "shoal", partial(_hold, large, plan.texts.headlines)))
    return plan.interleave("opening", trials)


def run_many(plan: Plan) -> list[Row]:
    """Run a worker with a hundred indexes beside one with none."""
    many = NO_CACHE | _home_of_many(plan.texts.headlines)
    counting = [Trial("no index", "shoal", partial(_serve, NO_CACHE, 0))]
    counting += [Trial(f"{NUM_SMALL} indexes of {SMALL:,}", "shoal", partial(_serve, many, NUM_SMALL))]
    return plan.interleave("hundred", counting)


def _large(count: int, headlines: Sequence[str], real: Path) -> Path:
    """Return the folder of an index of made documents: two headlines each, a year, a topic, tags and a date."""
    folder = HOME / "bench" / f"opening-{count}-{model().digest[:8]}" / NAME
    if not OURS.can_serve(folder):
        say(f"making an index of {count:,} documents in {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        if not (source := folder.parent / "source.jsonl").exists():  # else an earlier build of it goes on
            with (scratch := source.with_suffix(".part")).open("w") as file:
                file.writelines(json.dumps(line) + "\n" for line in islice(_documents(headlines), count))
            scratch.replace(source)
        build(Source(source), folder, Maker("mixtures", np.asarray(Index.open(real).vectors)))
        source.unlink()
    return folder


def _documents(headlines: Sequence[str]) -> Iterator[dict[str, object]]:
    random = np.random.default_rng(7)
    number = 0
    while True:
        first, second, year, topic, day = (int(n) for n in random.integers([len(headlines)] * 2 + [50, 20, 28]))
        yield {
            "id": str(number),
            "text": f"{headlines[first]} {headlines[second]} {number}",
            "year": 1980 + year,
            "topic": f"topic {topic}",
            "tags": [f"tag {n}" for n in {first % 100, second % 100}],
            "published": f"{1980 + year}-05-{day + 1:02}",
        }
        number += 1


# One large index


def _open(folder: Path, _: int, __: int, is_cold: bool = False) -> Figures:
    for path in current_version(folder).iterdir():
        with path.open("rb") as file:
            if is_cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                hashlib.file_digest(file, "sha256")
    with own_process() as process:
        return process.submit(_opened, folder).result()


def _opened(folder: Path) -> Figures:
    """Open the index for a first search, and compare what is left; meanwhile this thread looks at the clock."""
    indexes = OpenIndexes({}, folder.parent, model())
    started = time.perf_counter()
    indexes.look(time.monotonic())
    listed_s = time.perf_counter() - started
    opening = threading.Thread(target=lambda: indexes[NAME])
    opening.start()
    before, longest_s = time.perf_counter(), 0.0
    while opening.is_alive():
        time.sleep(TICK_S)
        before, longest_s = (now := time.perf_counter()), max(longest_s, now - before)
    opened_s = time.perf_counter() - started
    indexes.check_files(time.monotonic())
    checked_s = time.perf_counter() - started
    assert indexes[NAME].files.is_done
    assert not indexes.errors
    figures = {"listed after s": listed_s, "open after s": opened_s, "checked after s": checked_s}
    return figures | {"longest pause of another thread ms": longest_s * 1_000}


def _hold(folder: Path, headlines: Sequence[str], _: int, __: int) -> Figures:
    """Return the memory that workers take for an index in which all of them have searched, in MB."""
    vectors = np.array(Index.open_version(current_version(folder)).vectors[:NUM_SEARCHES])
    with ExitStack() as running:
        holders = [running.enter_context(own_process()) for _ in range(WORKERS)]
        before = [holder.submit(_start, folder).result() for holder in holders]
        for holder in holders:
            holder.submit(_search, headlines[:NUM_SEARCHES], vectors).result()
        after = [holder.submit(_own_mb).result() for holder in holders]
        pids = [holder.submit(os.getpid).result() for holder in holders]
        files = [_files_mb(pid, current_version(folder)) for pid in pids]
    own_mb = max(late - early for early, late in zip(before, after, strict=True))
    size_mb = sum(path.stat().st_size for path in current_version(folder).iterdir()) / 2**20
    found = {"own memory MB": own_mb, "files on disk MB": size_mb}
    return found | {f"files {name} MB": max(of_worker[name] for of_worker in files) for name in files[0]}


#: The index that a process of its own holds.
_held: list[Index] = []


def _start(folder: Path) -> float:
    """Open the index in this process, once all is imported; return the memory of its own before."""
    own_mb = _own_mb()
    _held.append(Index.open_version(current_version(folder)))
    _held[0].warm_up()
    return own_mb


def _search(headlines: Sequence[str], vectors: NDArray[np.float32]) -> None:
    for options in KINDS.values():
        for text, vector in zip(headlines, vectors, strict=True):
            _held[0].answer(Search([text], index=NAME, search=options), vector[None])


def _own_mb() -> float:
    """Return the memory of this process that no file holds, in MB."""
    return float(psutil.Process().memory_full_info().uss) / 2**20 - _clean_mb()


def _clean_mb() -> float:
    found = re.search(r"Private_Clean:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    return int(found[1]) / 2**10 if found else 0.0


def _files_mb(pid: int, version: Path) -> dict[str, float]:
    """Return the memory of a process that is files of a version: all of it, and what no other process maps, in MB."""
    maps = [file for file in psutil.Process(pid).memory_maps() if file.path.startswith(f"{version}/")]
    sums = {"resident": sum(file.rss for file in maps), "private": sum(file.private_clean for file in maps)}
    return {name: size / 2**20 for name, size in sums.items()}


# A hundred small ones


def _home_of_many(headlines: Sequence[str]) -> dict[str, str]:
    """Return the setting of a folder of small indexes, each with files of its own."""
    one = index_of(f"headlines-{SMALL}", {str(n): text for n, text in enumerate(headlines[:SMALL])})
    home = HOME / "bench" / f"many-{model().digest[:8]}"
    for number in range(NUM_SMALL):
        if not (home / f"i{number}").exists():
            shutil.copytree(one, home / f"i{number}")
    return {"SHOAL_INDEX_HOME": str(home)}


def _serve(environment: Mapping[str, str], num_indexes: int, _: int, __: int) -> Figures:
    """Return the seconds until a stack is ready, and the figures of its worker."""
    started = time.perf_counter()
    with stack(environment=environment) as running:
        return {"ready after s": time.perf_counter() - started, **_count(running, num_indexes)}


def _count(running: Running, num_indexes: int) -> Figures:
    """Return the memory of a worker, its first searches of all indexes, and what it does while nobody searches."""
    pids = {name: pid for name, pid in running.processes.items() if name.startswith("worker")}
    worker = psutil.Process(next(iter(pids.values())))
    names, times_ms = [f"i{n}" for n in range(num_indexes)], dict[str, list[float]]()
    own_mb = {"before": Processes(pids).memory_mb()["worker 1"]["written"]}
    for turn in ("first", "second"):
        for name in names:
            started = time.perf_counter()
            ask(f"{running.url}/search", {"queries": [f"{turn} rain {name}"], "index": name, "k": 5})
            times_ms.setdefault(turn, []).append((time.perf_counter() - started) * 1_000)
    own_mb["after"] = Processes(pids).memory_mb()["worker 1"]["written"]
    with redis.Redis.from_url(running.redis_url) as connection:
        commands, used_s = _num_commands(connection), _cpu_s(worker)
        time.sleep(COUNTED_S)
        commands, used_s = _num_commands(connection) - commands, _cpu_s(worker) - used_s
    figures = {f"own memory MB {when} the searches": size for when, size in own_mb.items()}
    figures |= {f"{turn} search p50 ms": float(np.median(times)) for turn, times in times_ms.items()}
    figures |= {f"{turn} search max ms": max(times) for turn, times in times_ms.items()}
    return figures | {
        "open files": worker.num_fds(),
        "commands/s without load": commands / COUNTED_S,
        "processor ms a second without load": used_s * 1_000 / COUNTED_S,
    }


def _num_commands(connection: "redis.Redis") -> int:
    """Return the number of commands that Redis has executed."""
    return int(connection.info("stats")["total_commands_processed"])


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
