"""Blame: which jobs may have ended their workers, and the dead letters of jobs that were not answered as they asked.

| a job that | is | and a worker |
|---|---|---|
| was put, or given back | waiting | takes it with others, which share its passes |
| was held by one or two workers that died | a suspect | takes and computes it alone, before its other jobs |
| was held by `MAX_DEATHS` workers that died | poisoned | does not read it: error Poisoned, and a dead letter |
| the engine, the tokenizer or an index fails on | failed | error Internal, and a dead letter |
| has no id that can be read | unreadable | a dead letter alone: there is no address for a reply |
| is refused for another reason | refused | its error alone |

The script `reclaim` counts the deaths, and `take` gives out suspects (`shared/shoal/queue/lua`); the scheduler computes
them alone.
"""

import logging
import traceback

from shoal.contract.outline import Outline
from shoal.errors import Internal, Poisoned, ShoalError
from shoal.process import logs
from shoal.queue.blame import DeadLetter
from shoal.queue.delivery import Delivery
from shoal_workers.process.crash_report import CrashReports

log = logging.getLogger(__name__)

#: Workers that die while they hold a job before it counts as poison.
MAX_DEATHS = 3

#: Summary for a worker that ended without leaving a crash report.
NO_REPORT = "ended without a report: killed, or out of memory"


def check_deaths(delivery: Delivery) -> None:
    """Raise Poisoned for a job that has ended too many workers."""
    if delivery.deaths >= MAX_DEATHS:
        raise Poisoned(f"delivered {MAX_DEATHS} times, and each time the worker died: take a look at its texts")


class Blame:
    """The dead letters that one worker writes."""

    def __init__(self, worker_id: str, crash_reports: CrashReports):
        self._worker_id = worker_id
        self._crash_reports = crash_reports

    def letter(self, delivery: Delivery, error: ShoalError, outline: Outline) -> DeadLetter | None:
        """Return the dead letter of a job that is answered with the error; None for one that does no harm."""
        job_id = delivery.put_as or outline.id
        if job_id and not isinstance(error, Poisoned | Internal):
            return None
        reason, trace = f"{error.code}: {error}", "".join(traceback.format_exception(error))
        worker, deliveries = self._worker_id, delivery.deaths + 1
        if isinstance(error, Poisoned):
            summary, _, trace = self._crash_reports.read(delivery.died).partition("\n")
            reason, worker = f"{reason}; the last one {summary or NO_REPORT}", delivery.died
            deliveries -= 1  # the present one is only to answer it
        facts = logs.about(job_id, delivery.client, outline.traceparent)
        log.warning("dead letter: %s in delivery %d; `shoal dead` has the rest", error.code, deliveries, extra=facts)
        return DeadLetter(reason, trace, worker, deliveries)
