"""Breaks a real deployment under load, and checks the promises of docs/reliability.md."""

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import redis
from chaos_run.answers import Answers
from chaos_run.audit import Audit
from chaos_run.cases import WORDS, Outcomes, draw
from chaos_run.clients import Clients
from chaos_run.deployment import NUM_WORKERS, Deployment
from chaos_run.faults import KINDS, Breaker, kinds_of, schedule
from chaos_run.hostile import Hostile
from chaos_run.recovery import Recovery
from chaos_run.redis_group import GROUPS
from stack import HOME

from shoal.errors import Overloaded
from shoal.records.source import Source
from shoal.settings import Settings
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import LocalEncoder
from shoal_workers.index.index import Index
from shoal_workers.service.service import open_encoder

#: Seconds without any answer after which clients give up.
GIVE_UP_S = 90.0

#: Seconds without progress after which a worker ends itself. The longest stop, and a few time limits of Redis in
#: sequence, are shorter, so they do not look like stalls.
STALL_S = 20.0

#: Largest reply in MB, and largest number of texts in a lane: low enough that the hostile client reaches this limit.
MAX_REPLY_MB, MAX_BACKLOG_TEXTS = 4, 3_000

#: Limit on other clients' requests that are refused as `overloaded` because of the hostile client: a share of all their
#: requests, plus a number.
MAX_OVERLOADED, SPARE_OVERLOADED = 0.01, 5

#: Allowed growth of a process's memory: a factor, and additional MB for some kinds of process. Redis keeps memory for
#: connections, dead workers and scripts; an API keeps at most some 350 MB that were freed after bodies of 13 MB.
MAX_GROWTH, SPARE_MB = 1.5, {"redis": 4.0, "api": 350.0}

#: The first fault comes after this share of the run, but not before this number of answers.
SHARE_CALM, NUM_CALM = 0.1, 20


def main() -> None:
    """Print the table of the run; exit code 1 if a promise was broken."""
    args = arguments()
    folder = Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
    logging.basicConfig(filename=folder / "clients.log", level="INFO", format="%(asctime)s %(name)s: %(message)s")
    run = Run(args, folder)
    try:
        run.load()
        run.audit()
    finally:
        run.stop()
    print("\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in run.rows().items())]))
    found = {"broken": run.outcomes.broken, "late": run.outcomes.late}
    if args.json:
        args.json.write_text(json.dumps(found | run.rows()))
    for word, breaches in found.items():
        for what in breaches[:20]:  # the JSON file lists all promises
            print(f"{word}: {what}", file=sys.stderr)
    if any(found.values()):
        sys.exit(f"logs are in {folder}")
    shutil.rmtree(folder)


def arguments() -> argparse.Namespace:
    """Return the parsed arguments of the command line."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the jobs and the faults")
    parser.add_argument("--jobs", type=int, default=20_000, help="number of jobs")
    parser.add_argument("--seconds", type=float, default=600, help="length of the run")
    parser.add_argument("--redis", choices=("alone", *GROUPS), default="alone", help="one Redis, or a group")
    parser.add_argument("--faults", default="", help=f"kinds of faults, separated by semicolons: {'; '.join(KINDS)}")
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two faults, on average")
    parser.add_argument("--fsync", choices=("always", "everysec"), default="always", help="Redis's appendfsync")
    parser.add_argument("--model", default=Settings().model, help="model to serve, prepared under SHOAL_HOME")
    parser.add_argument("--json", type=Path, help="save the table here")
    args = parser.parse_args()
    args.redis = args.redis.replace("alone", "")
    args.faults = [name.strip() for name in args.faults.split(";") if name.strip()] or kinds_of(args.redis)
    if unknown := set(args.faults) - KINDS.keys():
        parser.error(f"there is no fault {unknown.pop()!r}: choose from {'; '.join(KINDS)}")
    return args


class Run:
    """One run: a deployment under load and with faults, then its audit."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.seed, self.outcomes = args.seed, Outcomes()
        self.cases = draw(args.seed, args.jobs, args.seconds)
        (folder / "models").symlink_to(HOME / "models")
        settings = Settings(
            model=args.model,
            precision="f32",
            threads=1,
            workers=NUM_WORKERS,
            home=str(folder),
            request_timeout_s=10,
            max_reply_mb=MAX_REPLY_MB,
            max_backlog_texts=MAX_BACKLOG_TEXTS,
            stall_timeout_s=STALL_S,
            log_level="info",
        )
        encoder = open_encoder(settings, len(os.sched_getaffinity(0)))
        pairs = folder / "documents.txt"
        pairs.write_text("\n".join(f"{first} {second}" for first in WORDS for second in WORDS))
        build(Source(pairs), folder / "index", LocalEncoder(encoder))
        answers = Answers(encoder, Index.open(folder / "index"), self.cases)
        self.deployment = Deployment(folder, replace(settings, indexes=str(folder / "index")), args.fsync, args.redis)
        self.clients = Clients(self.deployment, answers, self.outcomes, self.cases)
        self.hostile = Hostile(self.deployment.api_ports.values(), args.seed, args.seconds)
        self.recovery = Recovery(self.deployment)
        self.calm_s = SHARE_CALM * args.seconds
        faults = schedule(args.seed, self.calm_s, args.seconds, args.every, args.faults)
        self.breaker = Breaker(self.deployment, faults, self.recovery)
        computed = self.deployment.computed
        self.checks = Audit(None, settings.keys, computed, answers, self.outcomes, self.cases)
        #: Memory in MB by process before the first fault and after the last one; Redis's is without expiring keys.
        self.before_mb: dict[str, float] = {}
        self.after_mb: dict[str, float] = {}
        self.took_s = 0.0

    def load(self) -> None:
        """Start everything. Send requests and cause faults until all cases are answered or the clients give up."""
        self.deployment.start()
        self.recovery.start()
        self.checks.redis = self.deployment.connect(answer_s=GIVE_UP_S)
        redis_mb = self.checks.used_memory_mb()
        self.clients.start()
        self.hostile.start()
        started = progressed = time.monotonic()
        num_answered, waited_s = 0, 0.0
        while (self.clients.are_busy or not self.breaker.is_done) and time.monotonic() - progressed < GIVE_UP_S:
            now_s = time.monotonic() - started
            if self.before_mb:
                self.breaker.step(now_s - waited_s)
            elif now_s > self.calm_s and (len(self.outcomes.answered) >= NUM_CALM or not self.clients.are_busy):
                self.before_mb = {**self.deployment.memory_mb(), "redis": redis_mb}
                waited_s = now_s - self.calm_s
            self._check_processes()
            is_breaking = self.before_mb and not self.breaker.is_done
            if len(self.outcomes.answered) > num_answered or is_breaking:
                num_answered, progressed = len(self.outcomes.answered), time.monotonic()
            time.sleep(0.02)
        self.clients.close()
        self.hostile.stop()
        self.took_s = time.monotonic() - started
        for number in sorted(self.outcomes.unfinished):
            self.outcomes.breach(self.cases[number], "it has no answer")

    def audit(self) -> None:
        """Wait until every job is answered, and check every promise."""
        self.deployment.wait_until_ready()
        self.checks.redis = self.deployment.connect(answer_s=GIVE_UP_S)
        until = time.monotonic() + GIVE_UP_S
        while self._is_unanswered() and time.monotonic() < until:
            self._check_processes()
            time.sleep(0.1)
        self.deployment.wait_until_ready()
        self.recovery.stop()
        after_mb = self.deployment.memory_mb()
        self.checks.hostile = self.hostile.job_ids
        self.checks.run()
        self.after_mb = {**after_mb, "redis": self.checks.used_memory_mb()}
        # Servers of a group fork to copy data to new replicas, so only the memory that Redis reports counts.
        of_group = self.deployment.group.ports if self.deployment.group else ()
        for name in self.before_mb.keys() & self.after_mb.keys() - set(of_group):
            # A process of the same kind may have had larger jobs before the first fault.
            kind, after = name.split()[0], self.after_mb[name]
            before = max(mb for other, mb in self.before_mb.items() if other.split()[0] == kind)
            if after > MAX_GROWTH * before + SPARE_MB.get(kind, 0.0):
                self.outcomes.broken.append(f"{name} has {after:.1f} MB, and had {before:.1f} MB")
        num_overloaded = sum(refusal.endswith(Overloaded.code) for refusal in self.outcomes.refused)
        if num_overloaded > SPARE_OVERLOADED + MAX_OVERLOADED * len(self.cases):
            self.outcomes.broken.append(f"{num_overloaded} requests found no room beside a hostile client")
        late = [kill for kill in self.recovery.kills(is_alone=True) if kill.is_late]
        self.outcomes.late += [f"interactive jobs of a killed worker waited {kill.waited_s:.1f} s" for kill in late]

    def stop(self) -> None:
        """Stop everything."""
        self.clients.close()
        self.hostile.stop()
        self.deployment.stop()

    def rows(self) -> dict[str, Any]:
        """Return the values of the table by name."""
        outcomes = self.outcomes
        both_mb = sorted(self.before_mb.keys() & self.after_mb.keys())
        memory = (f"{name} {self.before_mb[name]:.1f} → {self.after_mb[name]:.1f}" for name in both_mb)
        return {
            "seed": self.seed,
            "cases": _counts(case.kind for case in self.cases),
            "took": f"{self.took_s:.0f} s",
            "faults": f"{self.breaker.done.total()}: {_counts(self.breaker.done)}",
            "faults left out, because their target was broken already": self.breaker.skipped,
            "ends of processes": _counts(d for process in self.deployment.processes.values() for d in process.deaths),
            "requests that failed and were repeated": _counts(outcomes.refused),
            "requests of the hostile client": _counts(self.hostile.outcomes),
            "answers": _counts(outcomes.answered),
            "jobs accepted by submitting": f"{len(outcomes.accepted):,}",
            **self.checks.figures,
            "time until other workers had a killed worker's interactive jobs, with no other fault": self._waits(True),
            "time until other workers had a killed worker's interactive jobs, with other faults": self._waits(False),
            "memory in MB, before and after": ", ".join(memory),
            "promises broken": len(outcomes.broken),
            "promises kept late": len(outcomes.late),
        }

    def _waits(self, is_alone: bool) -> str:
        seconds = [kill.waited_s for kill in self.recovery.kills(is_alone)]
        if not seconds:
            return "none"
        return f"median {median(seconds):.1f} s, longest {max(seconds):.1f} s, of {len(seconds)}"

    def _check_processes(self) -> None:
        for process in self.deployment.processes.values():
            if what := process.check():
                (self.outcomes.late if process.told_to == "stop" else self.outcomes.broken).append(what)

    def _is_unanswered(self) -> bool:
        try:
            return self.checks.num_unanswered() > 0
        except redis.RedisError:
            return True


def _counts(found: Iterable[str] | Mapping[str, int]) -> str:
    items = sorted(Counter(found).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number:,} {name}" for name, number in items) or "none"


if __name__ == "__main__":
    main()
