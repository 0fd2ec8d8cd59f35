"""A long job that can be done: the function of its kind, its progress, and how a run of it ends."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from rq.executions import Execution
from rq.job import JobStatus
from rq.timeouts import JobTimeoutException
from rq.utils import now

from shoal.contract.excerpt import excerpt
from shoal.errors import (
    DiskFull,
    Expired,
    FileError,
    FolderBusy,
    IndexBusy,
    Internal,
    MalformedJob,
    NotReady,
    Overloaded,
    ShoalError,
    Timeout,
    Unavailable,
)
from shoal.long_jobs.rq_job import CANCEL, PAUSE, RUN, LongJob
from shoal.long_jobs.status import Progress
from shoal.task_progress import Report, TaskProgress

if TYPE_CHECKING:
    from redis.client import Pipeline

#: The function of a kind of job: takes the arguments, the id of the job and the call to report progress; returns the
#: result, a map.
Task: TypeAlias = Callable[[Mapping[str, Any], str, Report], Any]

#: Errors that pass by themselves: after one of them a job is tried again. A folder may still be locked by a process of
#: the same job that was slow to notice that it had lost it.
TEMPORARY_ERRORS = (Unavailable, Overloaded, NotReady, Timeout, Expired, FolderBusy, IndexBusy)

#: Pause between two notes of the progress.
NOTE_EVERY_S = 0.5


class RunnableJob(LongJob):
    """A long job in a runner. Of the processes that may end a run, the first that finds the job in it does so."""

    functions: ClassVar[Mapping[str, Task]] = {}
    #: Makes a message one for clients, which need not know the folders of the runner.
    public: ClassVar[Callable[[str], str]] = str

    def begin(self, worker: str, alive_s: int) -> Execution | None:
        """Make the job that waits the worker's; return None if it does not wait, as when it is queued twice."""
        begun: list[Execution] = []

        def write(pipeline: "Pipeline") -> None:
            self._leave(pipeline)
            begun[:] = [Execution.create(self, alive_s, pipeline, worker)]
            pipeline.hset(self.key, RUN, begun[0].id)
            self.prepare_for_execution(worker, pipeline)

        return begun[0] if self.change(write, JobStatus.QUEUED) else None

    def do(self, report: Report) -> Any:
        """Return the result. Raises ShoalErrors alone, with their messages and without what they were caused by."""
        function = self.functions.get(self.kind.name)
        if function is None:
            raise MalformedJob(f"this runner knows no long job called {excerpt(self.kind.name)}: upgrade it")
        try:
            return function(self.submission.arguments, self.id, report)
        except (Exception, JobTimeoutException) as error:
            raise self._translated(error).with_traceback(error.__traceback__) from None

    def succeed(self, worker: str, execution: Execution, result: Any) -> bool:
        """End a run with its result; return False if another run has the job by now."""

        def write(pipeline: "Pipeline") -> None:
            self.ended_at, self._result = now(), result
            self.meta.pop("error", None)  # of an earlier try
            pipeline.hset(self.key, "meta", self.serializer.dumps(self.meta))
            self._handle_success(self.result_ttl, pipeline, worker, execution.id, execution.created_at, self.ended_at)
            self.cleanup(self.result_ttl, pipeline, remove_from_queue=False)
            self.announce_end(pipeline)

        return self._end(execution, write)

    def break_off(
        self, worker: str, execution: Execution, error: ShoalError | None, passes: bool = True, trace: str = ""
    ) -> bool:
        """End a run that was stopped or has an error; return False if another run has the job by now."""

        def write(pipeline: "Pipeline") -> None:
            if error is not None:
                self.ended_at = now()
                self.meta["error"] = {"code": error.code, "message": type(self).public(error.message)}
                pipeline.hset(self.key, "meta", self.serializer.dumps(self.meta))
            if self.wanted == CANCEL:
                self.drop(pipeline)
            elif error is not None and not (passes and self.should_retry):
                self.set_status(JobStatus.FAILED, pipeline)
                self._handle_failure(trace or error.message, pipeline, worker)
                self.announce_end(pipeline)
            elif self.wanted == PAUSE:
                self.park(pipeline)
            elif error is not None:
                self.try_later(pipeline)
            else:
                self.enqueue(pipeline, at_front=True)

        return self._end(execution, write)

    def _end(self, execution: Execution, write: Callable[["Pipeline"], None]) -> bool:
        """Write the end of a run if it still has the job, and forget the execution."""

        def end(pipeline: "Pipeline") -> None:
            execution.delete(self, pipeline)
            write(pipeline)

        is_ended = self.change(end, JobStatus.STARTED, execution.id)
        if not is_ended:
            with self.connection.pipeline() as pipeline:
                execution.delete(self, pipeline)
                pipeline.execute()
        return is_ended

    def _translated(self, error: BaseException) -> ShoalError:
        """Return the error that is kept: no message of another library, which may repeat a text."""
        if isinstance(error, ShoalError):
            return error
        if isinstance(error, JobTimeoutException):
            return Timeout(f"the job took longer than {self.timeout} s, the limit of its kind")
        if isinstance(error, OSError) and error.errno in DiskFull.ERRNOS:
            return DiskFull(f"no room to write {error.filename or 'the output'}: make some, and retry the job")
        if isinstance(error, OSError) and error.filename:
            return FileError(f"{error.filename} cannot be used ({error.strerror}): check its name and permissions")
        return Internal(f"{type(error).__name__} in the job: the log of the runner has its traceback")


class ProgressLog:
    """The progress of one run of a job, which the id of its execution names."""

    def __init__(self, job: LongJob, run: str, translated: Callable[[], AbstractContextManager[None]]):
        self._job, self._run = job, run
        self._translated = translated
        self._meter = Meter(time.monotonic())
        self._due_s = time.monotonic()
        self._latest: Progress | None = None
        self._most_rows = Progress.from_map(job.meta.get("progress")).rows

    def report(self, progress: TaskProgress) -> None:
        """Note the progress, every `NOTE_EVERY_S`."""
        now_s = time.monotonic()
        self._latest = self._meter.measure(progress, now_s)
        if now_s >= self._due_s:
            self._due_s = now_s + NOTE_EVERY_S
            self.save()

    def save(self) -> None:
        """Write what was reported last, unless another run has the job or Redis is away."""
        if (latest := self._latest) is None:
            return

        def write(pipeline: "Pipeline") -> None:
            if latest.rows > self._most_rows:  # it gets on, so what stopped it before was no fault of its own
                self._job.renew_retries()
            self._job.meta = {"progress": latest.to_map()}
            values: Any = {
                "meta": self._job.serializer.dumps(self._job.meta),
                "retries_left": self._job.retries_left or 0,
            }
            pipeline.hset(self._job.key, mapping=values)

        with suppress(ShoalError), self._translated():
            if self._job.change(write, JobStatus.STARTED, self._run):
                self._most_rows = max(self._most_rows, latest.rows)


class Meter:
    """The rate since a step was begun or resumed, of which a wait is a part."""

    def __init__(self, now_s: float):
        self._began_s = now_s
        self._first: TaskProgress | None = None

    def measure(self, progress: TaskProgress, now_s: float) -> Progress:
        """Return the progress with its rate and the seconds left, as far as they can be told."""
        is_wait = progress.step.startswith("waiting")
        if self._first is None or (progress.step != self._first.step and not is_wait):
            self._first, self._began_s = progress, now_s
        passed_s, rows = now_s - self._began_s, progress.rows - self._first.rows
        eta_s, begun = None, self._first.fraction
        if progress.fraction is not None and begun is not None and progress.fraction > begun:
            # the rest of the source takes as long as the same part of it took
            eta_s = passed_s * (1 - progress.fraction) / (progress.fraction - begun)
        return Progress(
            rows=progress.rows,
            num_bad=progress.num_bad,
            first_bad=progress.first_bad,
            fraction=progress.fraction,
            step=progress.step,
            rows_per_s=rows / passed_s if passed_s > 0 and rows > 0 else None,
            eta_s=eta_s,
        )
