"""Versions of a large index: opening one, holding it once for several workers, and switching to another under load."""

import asyncio
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import psutil
from stack import HOME, Running, model, stack

from benchmarks.arrivals import percentiles_ms
from benchmarks.indexes import real_index, synthetic
from benchmarks.plan import Plan, own_process, say
from benchmarks.server import NO_CACHE, Processes
from shoal.bench.trial import Figures, Row, Trial
from shoal.client.redis.client import Client
from shoal.contract.jobs import TEXTS_PER_JOB
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.manifest import DOCUMENTS, MANIFEST, OFFSETS, checksum
from shoal_workers.index.index import current_version
from shoal_workers.index.serving.open_indexes import OpenIndexes
from shoal_workers.index.versions import make_current

#: The index, its two versions, and the workers of one machine that serve it.
NAME, VERSIONS, WORKERS = "made", ("first", "second"), 4

#: Connections in all, and those whose searches make two jobs each, so that an answer could mix two versions.
CONNECTIONS, OF_TWO_JOBS = 64, 1

#: Seconds until the load begins, as its process has to start; those to warm up; and those that count as the switch.
START_S, WARM_UP_S, SWITCH_S = 3.0, 2.0, 5.0

#: Seconds between two looks of a thread at the clock. A longer gap shows for how long the thread was kept from running.
TICK_S = 0.000_5


class Answer(NamedTuple):
    """The times of a search on the monotonic clock, its number of queries, and the versions that its hits are from.

    Without any, it failed.
    """

    sent_s: float
    answered_s: float
    num_queries: int
    versions: frozenset[str]


def run(plan: Plan) -> list[Row]:
    """Open versions of `plan.vectors` documents, then switch between them under load."""
    folder = _two_versions(synthetic("mixtures", plan.vectors, real_index(plan.texts)))
    trials = [Trial(f"{plan.vectors:,} documents, one process", "shoal", partial(_open, folder))]
    rows = plan.interleave("versions", trials)
    make_current(folder, VERSIONS[0])
    with stack(workers=WORKERS, environment=NO_CACHE | {"SHOAL_INDEX_HOME": str(folder.parent)}) as running:
        case = f"{plan.vectors:,} documents, {WORKERS} workers, {CONNECTIONS} connections"
        switch = partial(_switch, folder, running, plan.texts.headlines[-2_000:])
        return rows + plan.interleave("versions", [Trial(case, "shoal", switch)])


def _two_versions(source: Path) -> Path:
    """Return an index with two versions of the same vectors, in each of which the documents name the version."""
    folder = HOME / "bench" / f"versions-{source.name}" / NAME
    for name in VERSIONS:
        if (folder / name / MANIFEST).exists():  # it is written last
            continue
        shutil.rmtree(folder / name, ignore_errors=True)
        say(f"making the version {name} in {folder}")
        version = Path(shutil.copytree(current_version(source), folder / name))
        values = json.loads((version / MANIFEST).read_bytes()) | {"version": name}
        (version / MANIFEST).unlink()
        end = b', "version": "%s"}\n' % name.encode()
        lines = [line[:-2] + end for line in (version / DOCUMENTS).read_bytes().splitlines(keepends=True)]
        (version / DOCUMENTS).write_bytes(b"".join(lines))
        save_array(version / OFFSETS, np.cumsum([0, *map(len, lines)], dtype=np.int64))
        values["checksums"] |= {file: checksum(version / file) for file in (DOCUMENTS, OFFSETS)}
        (version / MANIFEST).write_text(json.dumps(values))
    make_current(folder, VERSIONS[0])
    return folder


# Opening


def _open(folder: Path, _: int, number: int) -> Figures:
    with own_process() as process:
        return process.submit(_opened, folder, VERSIONS[(number + 1) % 2]).result()


def _opened(folder: Path, other: str) -> Figures:
    """Open the version that is published, switch to another, and compare its checksums; in seconds.

    Meanwhile another thread does nothing but look at the clock, as a worker would search.
    """
    indexes = OpenIndexes({}, folder.parent, model())
    steps: dict[str, Callable[[], None]] = {
        "open": lambda: open_first(indexes),
        "switch": lambda: indexes.look(1.0),
        "give back": lambda: indexes.look(2.0),
        "checksums": lambda: indexes.check_files(3.0),
    }
    figures: dict[str, float] = {}
    for name, step in steps.items():
        if name == "switch":
            make_current(folder, other)
        figures |= {f"{name}: {kind}": value for kind, value in _timed(step).items()}
    assert indexes[NAME].manifest.version == other
    assert not indexes.errors
    return figures


def open_first(indexes: OpenIndexes) -> None:
    """Open the index as a first search does."""
    indexes.look(0.0)
    assert indexes[NAME].count


def _timed(step: Callable[[], None]) -> dict[str, float]:
    """Run the step in a thread; return its time, and the longest pause of this one."""
    thread, longest_s = threading.Thread(target=step), 0.0
    started = before = time.perf_counter()
    thread.start()
    while thread.is_alive():
        time.sleep(TICK_S)
        before, longest_s = (now := time.perf_counter()), max(longest_s, now - before)
    return {"s": before - started, "longest pause ms": longest_s * 1_000}


# Switching


def _switch(folder: Path, running: Running, queries: Sequence[str], seconds: int, number: int) -> Figures:
    """Publish the other version under load; return latencies before, during and after the switch, and memory."""
    version, old = VERSIONS[(number + 1) % 2], VERSIONS[number % 2]
    Processes(running.processes).wait_until_idle()
    with own_process() as process, Client(running.redis_url) as client:
        before_s = time.monotonic() + START_S + WARM_UP_S
        until = before_s + 2 * seconds + SWITCH_S
        load = process.submit(_search, f"{running.url}/search", queries, before_s - WARM_UP_S, until)
        time.sleep(before_s + seconds - time.monotonic())
        make_current(folder, version)
        published_s = time.monotonic()
        while {about["indexes"][NAME]["version"] for about in client.pool.ready().values()} != {version}:
            time.sleep(0.05)
        served_s = time.monotonic() - published_s
        answers = load.result()
    figures: dict[str, float] = {
        "switched after s": served_s,
        "failed": sum(not answer.versions for answer in answers),
        "mixed": sum(len(answer.versions) > 1 for answer in answers),
        **_memory(running.processes, {"new": folder / version, "old": folder / old}),
    }
    windows_s = {
        "before": (before_s, published_s),
        "switch": (published_s, published_s + SWITCH_S),
        "after": (published_s + SWITCH_S, float("inf")),
    }
    for name, (start_s, end_s) in windows_s.items():
        chosen = [a for a in answers if start_s <= a.answered_s < end_s and a.num_queries == 1]
        latencies_s = np.array([answer.answered_s - answer.sent_s for answer in chosen])
        figures |= {f"{name}: searches": len(chosen)}
        figures |= {f"{name}: {percentile}": ms for percentile, ms in percentiles_ms(latencies_s).items()}
    return figures


def _memory(processes: Mapping[str, int], versions: Mapping[str, Path]) -> dict[str, float]:
    """Return the memory of the workers that is files of each version, in MB: resident ones, and each page once."""
    figures: dict[str, float] = {}
    workers = [psutil.Process(pid) for name, pid in processes.items() if name.startswith("worker")]
    files = [file for worker in workers for file in worker.memory_maps()]
    for name, version in versions.items():
        of_version = [file for file in files if file.path.startswith(f"{version}/")]
        figures |= {
            f"memory in MB: {name} version, resident": sum(file.rss for file in of_version) / 2**20,
            f"memory in MB: {name} version, held": sum(file.pss for file in of_version) / 2**20,
        }
    return figures


def _search(url: str, queries: Sequence[str], start: float, until: float) -> list[Answer]:
    """Search on all connections between these times, on each as soon as it has the answer to the search before."""
    time.sleep(max(0.0, start - time.monotonic()))
    return asyncio.run(_search_on_all(url, queries, until))


async def _search_on_all(url: str, queries: Sequence[str], until: float) -> list[Answer]:
    sizes = [TEXTS_PER_JOB + 1 if n < OF_TWO_JOBS else 1 for n in range(CONNECTIONS)]
    tasks = [_search_on_one(url, queries[n::CONNECTIONS], size, until) for n, size in enumerate(sizes)]
    return sorted(answer for found in await asyncio.gather(*tasks) for answer in found)


async def _search_on_one(url: str, queries: Sequence[str], size: int, until: float) -> list[Answer]:
    address, answers, number = urlsplit(url), [], 0
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**24)
    while (sent_s := time.monotonic()) < until:
        chosen = [queries[(number + n) % len(queries)] for n in range(size)]
        number += size
        body = json.dumps({"queries": chosen, "k": 5, "index": NAME}).encode()
        head = f"POST {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        head_of_answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        text = await reader.readexactly(int(head_of_answer.partition(b"content-length:")[2].split(None, 1)[0]))
        versions = {found.decode() for found in re.findall(rb'"(?:index_)?version":"(\w+)"', text)}
        answers.append(Answer(sent_s, time.monotonic(), size, frozenset(versions)))
    writer.close()
    return answers
