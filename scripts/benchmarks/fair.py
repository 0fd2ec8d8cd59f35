"""Interactive work while the bulk lane is never empty, and bulk work during interactive work."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from threading import Event

from stack import ask

from benchmarks import wrk
from benchmarks.plan import Plan
from benchmarks.server import Server, shoal
from benchmarks.trial import Figures, Row, Trial, figures_of

#: Number of the bulk client's unanswered jobs at any time: two in the worker's current pass, and two in the lane. With
#: more jobs, texts would come in bursts longer than a run.
WINDOW = 4

#: Number of texts in a bulk job, as in the jobs of `shoal.Client`.
TEXTS_PER_JOB = 32

PERSON = "1 connection x 1 headline"


def run(plan: Plan) -> list[Row]:
    """Run interactive work alone, bulk work alone, and both, in turns on one server."""
    with shoal() as server:
        alone = server.embed_trial(f"{PERSON}, nothing else", 1, plan.texts.alone)
        return plan.interleave("fair", [alone, *bulk_trials(server, plan)])


def bulk_trials(server: Server, plan: Plan) -> list[Trial]:
    """Return the trials of bulk work on one server, alone and during interactive work."""
    load = server.embed_load(1, plan.texts.alone)
    kinds = {"headlines": [text for (text,) in reversed(plan.texts.alone)], "abstracts": plan.texts.abstracts}
    cases = {"bulk {}, nothing else": None, f"{PERSON}, beside bulk {{}}": load}
    return [
        Trial(case.format(kind), server.name, partial(_run, server, texts, beside))
        for kind, texts in kinds.items()
        for case, beside in cases.items()
    ]


def _run(server: Server, texts: Sequence[str], beside: wrk.Load | None, seconds: int, number: int) -> Figures:
    figures: Figures = {}
    with _bulk(server.url, texts) as num_done:
        started_s, before = time.monotonic(), sum(num_done)
        if beside:
            figures = figures_of(wrk.run(beside, seconds, number * wrk.STRIDE), 1)
        else:
            time.sleep(seconds)
        rate = (sum(num_done) - before) / (time.monotonic() - started_s)
    server.processes.wait_until_idle()
    return {**figures, "bulk texts/s": rate}


@contextmanager
def _bulk(url: str, texts: Sequence[str]) -> Iterator[list[int]]:
    """Submit bulk jobs and fetch their results, again and again. The list has the size of each finished job."""
    jobs = [texts[n : n + TEXTS_PER_JOB] for n in range(0, len(texts) - TEXTS_PER_JOB + 1, TEXTS_PER_JOB)]
    numbers, num_done, stopping = count(), list[int](), Event()

    def client() -> None:
        while not stopping.is_set():
            job = {"op": "embed", "lane": "bulk", "inputs": jobs[next(numbers) % len(jobs)]}
            result = f"{url}/v1/jobs/{ask(f'{url}/v1/jobs', job)[1]['id']}/result?wait=30"
            while ask(result)[0].status != 200:
                pass  # 202: the job still waits
            num_done.append(len(job["inputs"]))

    with ThreadPoolExecutor(WINDOW) as pool:
        clients = [pool.submit(client) for _ in range(WINDOW)]
        try:
            while not num_done and not any(client.done() for client in clients):
                time.sleep(0.01)
            yield num_done
        finally:
            stopping.set()
    for ended in clients:
        ended.result()
