"""A long job that can be done: the function of its kind, and the errors with which it may end."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from rq.timeouts import JobTimeoutException

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
from shoal.long_jobs.rq_job import LongJob
from shoal.long_task import Report
from shoal_workers.long_jobs.control import JobControl

#: The function of a kind of job: takes the arguments, the id of the job and the call to report progress; returns the
#: result, a map.
Task: TypeAlias = Callable[[Mapping[str, Any], str, Report], Any]

#: Errors that pass by themselves: after one of them a job is tried again. A folder may still be locked by a process of
#: the same job that was slow to notice that it had lost it.
TEMPORARY_ERRORS = (Unavailable, Overloaded, NotReady, Timeout, Expired, FolderBusy, IndexBusy)


class RunnableJob(LongJob):
    """A long job in a runner, which has a table of functions."""

    functions: ClassVar[Mapping[str, Task]] = {}
    #: Makes a message one for clients, which need not know the folders of the runner.
    public: ClassVar[Callable[[str], str]] = str
    control: JobControl

    def _execute(self) -> Any:
        """Do the job. Raises ShoalErrors alone, with their messages and without what they were caused by."""
        submission = self.submission
        function = self.functions.get(submission.kind)
        if function is None:
            raise MalformedJob(f"there is no long job called {excerpt(submission.kind)}")
        self.set_error(None)
        try:
            result = function(submission.arguments, self.id, self.control.report)
        except (Exception, JobTimeoutException) as error:
            raise _translated(error, self).with_traceback(error.__traceback__) from None
        self.control.save()
        return result

    def set_error(self, error: ShoalError | None) -> None:
        """Keep the error with the progress, without the folders of this machine; it is saved with it."""
        super().set_error(error)
        if error is not None:
            self.meta["error"]["message"] = type(self).public(error.message)


def _translated(error: Exception, job: LongJob) -> ShoalError:
    """Return the error that is kept: no message of another library, which may repeat a text."""
    if isinstance(error, ShoalError):
        return error
    if isinstance(error, JobTimeoutException):
        return Timeout(f"the job took longer than {job.timeout} s, the limit of its kind")
    if isinstance(error, OSError) and error.errno in DiskFull.ERRNOS:
        return DiskFull(f"no room to write {error.filename or 'the output'}: make some, and retry the job")
    if isinstance(error, OSError) and error.filename:
        return FileError(f"{error.filename} cannot be used ({error.strerror}): check its name and permissions")
    return Internal(f"{type(error).__name__} in the job: the log of the runner has its traceback")
