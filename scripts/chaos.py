"""Breaks a real stack under load and looks whether it kept its promises: docs/reliability.md says which."""

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis
from chaos_run import tally
from chaos_run.answers import Answers
from chaos_run.audit import Audit
from chaos_run.cases import WORDS, Case, draw
from chaos_run.clients import Clients
from chaos_run.faults import KINDS, Breaker, schedule
from chaos_run.ledger import Ledger
from chaos_run.memory import Memory
from chaos_run.recovery import Recovery
from chaos_run.stack import Supervisor
from stack import HOME

from shoal.settings import Settings
from shoal_workers.index.builder import build
from shoal_workers.index.document import DocumentSource
from shoal_workers.index.index import Index
from shoal_workers.process.service import open_encoder

#: The promise: jobs of a worker that died run elsewhere within so many seconds.
RECOVERED_WITHIN_S = 5.0

#: Clients give up when none of them has had an answer for so long.
GIVE_UP_S = 90.0

#: After how long without progress a worker ends itself: longer than the longest stop and than some time limits of
#: Redis one after another, which are no fault of its own.
STALL_S = 20.0

#: Most breaches that are printed; the JSON file has all.
MAX_SHOWN = 20

#: Share of the run before the first fault.
SHARE_CALM = 0.1


def main() -> None:
    """Prints the tally; exit code 1 if a promise was broken."""
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
    print(tally.table(run.rows()))
    if args.json:
        args.json.write_text(json.dumps({"broken": run.ledger.broken, "late": run.ledger.late, **dict(run.rows())}))
    for word, found in (("broken", run.ledger.broken), ("late", run.ledger.late)):
        for what in found[:MAX_SHOWN]:
            print(f"{word}: {what}", file=sys.stderr)
    if run.ledger.broken or run.ledger.late:
        sys.exit(f"logs are in {folder}")
    shutil.rmtree(folder)


def arguments() -> argparse.Namespace:
    """The command line."""
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
    parser.add_argument("--json", type=Path, help="save the tally here")
    args = parser.parse_args()
    args.faults = [name.strip() for name in args.faults.split(";") if name.strip()] or list(KINDS)
    if unknown := set(args.faults) - KINDS.keys():
        parser.error(f"there is no fault {unknown.pop()!r}: choose of {'; '.join(KINDS)}")
    return args


class Run:
    """One run: prepared, loaded and broken, then looked through."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args = args
        self.folder = folder
        self.ledger = Ledger()
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
        self.answers = Answers(encoder, self._index(folder, encoder), self.cases)
        self.stack = Supervisor(
            folder, replace(settings, indexes=str(folder / "index")), args.pause_ms / 1000, args.fsync
        )
        self.clients = Clients(self.stack, self.answers, self.ledger, self.cases, args.threads)
        self.recovery = Recovery(self.stack)
        calm_s = SHARE_CALM * args.seconds
        faults = schedule(args.seed, args.seconds - calm_s, args.every, args.faults, args.workers)
        faults = [replace(fault, at_s=fault.at_s + calm_s) for fault in faults]
        self.calm_s = calm_s
        self.breaker = Breaker(self.stack, faults, self.recovery.note)
        self.inspection = Audit(
            self.stack.connect(), settings.keys, self.stack.computed, self.answers, self.ledger, self.cases
        )
        self.memory = Memory()
        self.took_s = 0.0

    def _index(self, folder: Path, encoder: Any) -> Index:
        documents = "\n".join(f"{first} {second}" for first in WORDS for second in WORDS)
        (folder / "documents.txt").write_text(documents)
        build(DocumentSource(folder / "documents.txt"), folder / "index", encoder, len(WORDS) ** 2, lambda _: None)
        return Index.open(folder / "index")

    def prepare(self) -> None:
        """Starts everything."""
        self.stack.start()
        self.recovery.start()
        self.memory.redis_before = self.inspection.used_memory_mb()

    def load(self) -> None:
        """Asks and breaks until every client has its answers, or none has had one for long."""
        self.clients.start()
        started = progressed = time.monotonic()
        num_answered = 0
        while (self.clients.are_busy or not self.breaker.is_done) and time.monotonic() - progressed < GIVE_UP_S:
            now_s = time.monotonic() - started
            if not self.memory.before and now_s > self.calm_s:
                self.memory.before = self.stack.memory_mb()
            self.breaker.step(now_s)
            self._look()
            if self.ledger.answered.total() > num_answered or not self.breaker.is_done:
                num_answered, progressed = self.ledger.answered.total(), time.monotonic()
            time.sleep(0.02)
        self.clients.close()
        self.took_s = time.monotonic() - started
        for number in sorted(self.ledger.unfinished):
            self.ledger.breach(f"case {number} ({self.cases[number].kind}, {self.cases[number].route}) has no answer")

    def audit(self) -> None:
        """Waits until nothing is left to do, and looks whether all is as promised."""
        until = time.monotonic() + GIVE_UP_S
        while self._num_unanswered() and time.monotonic() < until:
            self._look()
            time.sleep(0.1)
        self.stack.wait_until_ready()
        self.recovery.stop()
        self.memory.after = self.stack.memory_mb()
        self.inspection.run()
        self.memory.redis_after = self.inspection.used_memory_mb()
        for what in self.memory.grown():
            self.ledger.breach(what)
        late = [seconds for seconds in self.recovery.seconds(True) if seconds > RECOVERED_WITHIN_S]
        self.ledger.late += [f"jobs of a killed worker waited {seconds:.1f} s" for seconds in late]

    def stop(self) -> None:
        """Stops everything."""
        self.clients.close()
        self.stack.stop()

    def rows(self) -> list[tuple[str, Any]]:
        """The tally."""
        ledger, inspection = self.ledger, self.inspection.figures
        deaths = [how for watched in self.stack.services.values() for how in watched.deaths]
        kinds = tally.counts(
            {kind: sum(case.kind == kind for case in self.cases) for kind in {c.kind for c in self.cases}}
        )
        return [
            ("seed", self.args.seed),
            ("cases", kinds),
            ("took", f"{self.took_s:.0f} s"),
            ("faults", f"{self.breaker.done.total()}: {tally.counts(self.breaker.done)}"),
            ("faults left out, for what they break was broken", self.breaker.skipped),
            ("ends of processes", tally.counts({how: deaths.count(how) for how in set(deaths)})),
            ("requests that failed and were made again", tally.counts(ledger.refused)),
            ("answers", tally.counts(ledger.answered)),
            ("jobs accepted by submitting", f"{len(ledger.accepted):,}"),
            *inspection.items(),
            ("jobs of a killed worker run elsewhere", tally.times(self.recovery.seconds(False))),
            ("the same, when nothing else was broken", tally.times(self.recovery.seconds(True))),
            ("memory in MB, before and after", self.memory.shown()),
            ("promises broken", len(ledger.broken)),
            ("promises kept late", len(ledger.late)),
        ]

    def _look(self) -> None:
        for watched in self.stack.services.values():
            if what := watched.look():
                (self.ledger.late if watched.told_to == "stop" else self.ledger.broken).append(what)

    def _num_unanswered(self) -> int:
        try:
            return self.inspection.num_unanswered()
        except redis.RedisError:
            return 1


if __name__ == "__main__":
    main()
