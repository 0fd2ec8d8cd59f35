"""A long job in a runner: the function of its kind, its progress, and the end of its runs."""

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
from shoal.long_jobs.rq_job import CANCEL, RUN, LongJob
from shoal.process.progress import RateMeter
from shoal.task_progress import Report, TaskProgress

if TYPE_CHECKING:
    from redis.client import Pipeline

#: The function of a kind of job. It gets the arguments, the job's id and a function that reports progress, and returns
#: the result, a map.
Task: TypeAlias = Callable[[Mapping[str, Any], str, Report], Any]

#: Errors after which a job is tried again. FolderBusy and IndexBusy are among them because an earlier process of the
#: same job may still lock the folder: that process has lost the job and has not noticed yet.
TEMPORARY_ERRORS = (Unavailable, Overloaded, NotReady, Timeout, Expired, FolderBusy, IndexBusy)

#: Seconds between two writes of the progress.
NOTE_EVERY_S = 0.5


class RunnableJob(LongJob):
    """A long job in a runner. If several processes try to end a run, the first succeeds and the others do nothing."""

    functions: ClassVar[Mapping[str, Task]] = {}
    #: Returns an error message for clients, without the runner's folders.
    public: ClassVar[Callable[[str], str]] = str

    def begin(self, worker: str, alive_s: int) -> Execution | None:
        """Begin a run of the job; return None if the job is not queued, for example because it was queued twice."""
        begun: list[Execution] = []

        def write(pipeline: "Pipeline") -> None:
            self._leave(pipeline)
            begun[:] = [Execution.create(self, alive_s, pipeline, worker)]
            pipeline.hset(self.key, RUN, begun[0].id)
            self.prepare_for_execution(worker, pipeline)

        return begun[0] if self.change(write, JobStatus.QUEUED) else None

    def do(self, report: Report) -> Any:
        """Return the result of the job. Raises only ShoalErrors, without their causes."""
        function = self.functions.get(self.kind.name)
        if function is None:
            raise MalformedJob(f"this runner knows no long job called {excerpt(self.kind.name)}: upgrade it")
        try:
            return function(self.submission.arguments, self.id, report)
        except (Exception, JobTimeoutException) as error:
            raise self._translated(error).with_traceback(error.__traceback__) from None

    def succeed(self, worker: str, execution: Execution, result: Any) -> bool:
        """End a run with its result; return False if the job now belongs to another run."""

        def write(pipeline: "Pipeline") -> None:
            self.ended_at, self._result = now(), result
            self.meta.pop("error", None)  # an earlier attempt may have left an error
            pipeline.hset(self.key, "meta", self.serializer.dumps(self.meta))
            self._handle_success(self.result_ttl, pipeline, worker, execution.id, execution.created_at, self.ended_at)
            self.cleanup(self.result_ttl, pipeline, remove_from_queue=False)

        return self._end(execution, write)

    def break_off(
        self, worker: str, execution: Execution, error: ShoalError | None, is_temporary: bool = True, trace: str = ""
    ) -> bool:
        """End a run that was stopped or failed; return False if the job now belongs to another run.

        If the error `is_temporary`, the job is tried again while it has retries.
        """

        def write(pipeline: "Pipeline") -> None:
            if error is not None:
                self.ended_at = now()
                self.meta["error"] = {"code": error.code, "message": type(self).public(error.message)}
                pipeline.hset(self.key, "meta", self.serializer.dumps(self.meta))
            if self.wanted == CANCEL:
                self.mark_cancelled(pipeline)
            elif error is not None and not (is_temporary and self.should_retry):
                self.set_status(JobStatus.FAILED, pipeline)
                self._handle_failure(trace or error.message, pipeline, worker)
            elif error is not None:
                self.try_later(pipeline)
            else:
                self.enqueue(pipeline, at_front=True)

        return self._end(execution, write)

    def _end(self, execution: Execution, write: Callable[["Pipeline"], None]) -> bool:
        """Call `write` if the job still belongs to the run, and delete the execution; return True if it was called."""

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
        """Return the error to keep. Other libraries' messages are left out, because they may contain a user's text."""
        if isinstance(error, ShoalError):
            return error
        if isinstance(error, JobTimeoutException):
            return Timeout(f"the job took longer than {self.timeout} s, the limit of its kind")
        if isinstance(error, OSError) and error.errno in DiskFull.ERRNOS:
            return DiskFull(f"no room to write {error.filename or 'the output'}: free some space, and retry the job")
        if isinstance(error, OSError) and error.filename:
            return FileError(f"{error.filename} cannot be used ({error.strerror}): check its name and permissions")
        return Internal(f"{type(error).__name__} in the job: the log of the runner has its traceback")


class ProgressLog:
    """The progress of one run of a job; `run` is the id of its execution."""

    def __init__(self, job: LongJob, run: str, translated: Callable[[], AbstractContextManager[None]]):
        self._job, self._run = job, run
        self._translated = translated
        self._meter = RateMeter()
        self._due_s = time.monotonic()
        self._latest: TaskProgress | None = None
        self._most_rows = TaskProgress.from_map(job.meta.get("progress")).rows

    def report(self, progress: TaskProgress) -> None:
        """Record the progress, and write it every `NOTE_EVERY_S` seconds."""
        now_s = time.monotonic()
        self._latest = self._meter.measure(progress, now_s)
        if now_s >= self._due_s:
            self._due_s = now_s + NOTE_EVERY_S
            self.save()

    def save(self) -> None:
        """Write the last report, unless the job belongs to another run or Redis does not answer."""
        if (latest := self._latest) is None:
            return

        def write(pipeline: "Pipeline") -> None:
            if latest.rows > self._most_rows:  # the job makes progress, so the earlier failures were not its fault
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
