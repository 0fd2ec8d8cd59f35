"""Breaks a real deployment under load and checks that it kept its promises: docs/reliability.md says which."""

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis
from chaos_run.answers import Answers
from chaos_run.audit import Audit
from chaos_run.cases import WORDS, Case, draw
from chaos_run.clients import Clients
from chaos_run.deployment import Deployment
from chaos_run.faults import KINDS, Breaker, schedule
from chaos_run.outcomes import Outcomes, counts, table, times
from chaos_run.recovery import Recovery
from stack import HOME

from shoal.settings import Settings
from shoal_workers.index.builder import build
from shoal_workers.index.document import DocumentSource
from shoal_workers.index.index import Index
from shoal_workers.service import open_encoder

#: The promise: jobs of a worker that died run elsewhere within so many seconds.
RECOVERED_WITHIN_S = 5.0

#: Clients give up when none of them has had an answer for so long.
GIVE_UP_S = 90.0

#: After how long without progress a worker ends itself: longer than the longest stop and than some time limits of
#: Redis one after another, which are no fault of its own.
STALL_S = 20.0

#: Most breaches that are printed; the JSON file has all.
MAX_SHOWN = 20

#: Growth of a process's memory that is allowed, and the MB that Redis may have more afterwards: what it keeps for
#: connections, workers that died, and scripts.
MAX_GROWTH, REDIS_SPARE_MB = 1.5, 4.0

#: Share of the run before the first fault.
SHARE_CALM = 0.1


def main() -> None:
    """Print the table of the run; exit code 1 if a promise was broken."""
    args = arguments()
    folder = Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
    logging.basicConfig(filename=folder / "clients.log", level="INFO", format="%(asctime)s %(name)s: %(message)s")
    run = Run(args, folder)
    try:
        run.prepare()
        run.load()
        run.audit()
    finally:
        run.stop()
    print(table(run.rows()))
    found = {"broken": run.outcomes.broken, "late": run.outcomes.late}
    if args.json:
        args.json.write_text(json.dumps({**found, **dict(run.rows())}))
    for word, breaches in found.items():
        for what in breaches[:MAX_SHOWN]:
            print(f"{word}: {what}", file=sys.stderr)
    if any(found.values()):
        sys.exit(f"logs are in {folder}")
    shutil.rmtree(folder)


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="draws the jobs and the faults")
    parser.add_argument("--jobs", type=int, default=20_000, help="how many are asked")
    parser.add_argument("--seconds", type=float, default=600, help="over how long")
    parser.add_argument("--faults", default="", help=f"kinds to do, of: {'; '.join(KINDS)}; all without it")
    parser.add_argument("--every", type=float, default=1.5, help="seconds from fault to fault on average")
    parser.add_argument("--workers", type=int, default=4, help="worker processes")
    parser.add_argument("--threads", type=int, default=48, help="clients at a time")
    parser.add_argument("--pause-ms", type=float, default=300, help="time that a batch takes on top of computing it")
    parser.add_argument("--fsync", choices=("always", "everysec"), default="always", help="Redis's appendfsync")
    parser.add_argument("--model", default=Settings().model, help="model to serve, prepared under SHOAL_HOME")
    parser.add_argument("--json", type=Path, help="save the table here")
    args = parser.parse_args()
    args.faults = [name.strip() for name in args.faults.split(";") if name.strip()] or list(KINDS)
    if unknown := set(args.faults) - KINDS.keys():
        parser.error(f"there is no fault {unknown.pop()!r}: choose of {'; '.join(KINDS)}")
    return args


class Run:
    """One run: prepared, loaded and broken, then audited."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args = args
        self.outcomes = Outcomes()
        self.cases: list[Case] = draw(args.seed, args.jobs, args.seconds)
        (folder / "models").symlink_to(HOME / "models")
        settings = Settings(
            model=args.model,
            precision="f32",
            threads=1,
            workers=args.workers,
            home=str(folder),
            request_timeout_s=10,
            stall_timeout_s=STALL_S,
            log_level="info",
        )
        encoder = open_encoder(settings, len(os.sched_getaffinity(0)))
        answers = Answers(encoder, self._index(folder, encoder), self.cases)
        settings = replace(settings, indexes=str(folder / "index"))
        self.deployment = Deployment(folder, settings, args.pause_ms / 1000, args.fsync)
        self.clients = Clients(self.deployment, answers, self.outcomes, self.cases, args.threads)
        self.recovery = Recovery(self.deployment)
        self.calm_s = SHARE_CALM * args.seconds
        faults = schedule(args.seed, args.seconds - self.calm_s, args.every, args.faults, args.workers)
        faults = [replace(fault, at_s=fault.at_s + self.calm_s) for fault in faults]
        self.breaker = Breaker(self.deployment, faults, self.recovery.note)
        connection, computed = self.deployment.connect(), self.deployment.computed
        self.checks = Audit(connection, settings.keys, computed, answers, self.outcomes, self.cases)
        #: Memory in MB by process before the first fault and after the last one, and Redis's own without expiring keys.
        self.memory: list[dict[str, float]] = []
        self.redis_mb: list[float] = []
        self.took_s = 0.0

    def _index(self, folder: Path, encoder: Any) -> Index:
        documents = "\n".join(f"{first} {second}" for first in WORDS for second in WORDS)
        (folder / "documents.txt").write_text(documents)
        build(DocumentSource(folder / "documents.txt"), folder / "index", encoder, len(WORDS) ** 2, lambda _: None)
        return Index.open(folder / "index")

    def prepare(self) -> None:
        """Start everything."""
        self.deployment.start()
        self.recovery.start()
        self.redis_mb.append(self.checks.used_memory_mb())

    def load(self) -> None:
        """Ask and break until every client has its answers, or none has had one for long."""
        self.clients.start()
        started = progressed = time.monotonic()
        num_answered = 0
        while (self.clients.are_busy or not self.breaker.is_done) and time.monotonic() - progressed < GIVE_UP_S:
            now_s = time.monotonic() - started
            if not self.memory and now_s > self.calm_s:
                self.memory.append(dict(self.deployment.memory_mb()))
            self.breaker.step(now_s)
            self._check_processes()
            if self.outcomes.answered.total() > num_answered or not self.breaker.is_done:
                num_answered, progressed = self.outcomes.answered.total(), time.monotonic()
            time.sleep(0.02)
        self.clients.close()
        self.took_s = time.monotonic() - started
        for number in sorted(self.outcomes.unfinished):
            case = self.cases[number]
            self.outcomes.breach(f"case {number} ({case.kind}, {case.route}) has no answer")

    def audit(self) -> None:
        """Wait until nothing is left to do, and check that all is as promised."""
        until = time.monotonic() + GIVE_UP_S
        while self._num_unanswered() and time.monotonic() < until:
            self._check_processes()
            time.sleep(0.1)
        self.deployment.wait_until_ready()
        self.recovery.stop()
        self.memory.append(dict(self.deployment.memory_mb()))
        self.checks.run()
        self.redis_mb.append(self.checks.used_memory_mb())
        for name, before, after in self._memory():
            if after > MAX_GROWTH * before + (REDIS_SPARE_MB if name == "Redis" else 0):
                self.outcomes.breach(f"{name} has {after:.1f} MB, and had {before:.1f} MB")
        late = [seconds for seconds in self.recovery.seconds(True) if seconds > RECOVERED_WITHIN_S]
        self.outcomes.late += [f"jobs of a killed worker waited {seconds:.1f} s" for seconds in late]

    def stop(self) -> None:
        """Stop everything."""
        self.clients.close()
        self.deployment.stop()

    def rows(self) -> list[tuple[str, Any]]:
        """Return the names and values of the table."""
        outcomes = self.outcomes
        deaths = Counter(how for process in self.deployment.processes.values() for how in process.deaths)
        return [
            ("seed", self.args.seed),
            ("cases", counts(Counter(case.kind for case in self.cases))),
            ("took", f"{self.took_s:.0f} s"),
            ("faults", f"{self.breaker.done.total()}: {counts(self.breaker.done)}"),
            ("faults left out, for what they break was broken", self.breaker.skipped),
            ("ends of processes", counts(deaths)),
            ("requests that failed and were made again", counts(outcomes.refused)),
            ("answers", counts(outcomes.answered)),
            ("jobs accepted by submitting", f"{len(outcomes.accepted):,}"),
            *self.checks.figures.items(),
            ("jobs of a killed worker run elsewhere", times(self.recovery.seconds(False))),
            ("the same, when nothing else was broken", times(self.recovery.seconds(True))),
            ("memory in MB, before and after", ", ".join(f"{name} {a:.1f} → {b:.1f}" for name, a, b in self._memory())),
            ("promises broken", len(outcomes.broken)),
            ("promises kept late", len(outcomes.late)),
        ]

    def _memory(self) -> list[tuple[str, float, float]]:
        """Return each process that is known from before and after; Redis's own figure says more than its process's."""
        if len(self.memory) < 2 or len(self.redis_mb) < 2:
            return []
        before, after = self.memory
        names = sorted(before.keys() & after.keys() - {"redis"})
        return [("Redis", self.redis_mb[0], self.redis_mb[1]), *((name, before[name], after[name]) for name in names)]

    def _check_processes(self) -> None:
        for process in self.deployment.processes.values():
            if what := process.check():
                (self.outcomes.late if process.told_to == "stop" else self.outcomes.broken).append(what)

    def _num_unanswered(self) -> int:
        try:
            return self.checks.num_unanswered()
        except redis.RedisError:
            return 1


if __name__ == "__main__":
    main()
