"""All errors, one level below `ShoalError`.

Each class has a stable `code`, the same on the wire, in HTTP bodies, metrics and logs. `docs/http.md` lists the codes
with their remedies, and `shoal_api.errors` maps them to HTTP statuses.
"""

import errno
import re


class ShoalError(Exception):
    """Base of all errors that are raised on purpose. A message says what was wrong, which value, and what to do."""

    code = "internal"

    @property
    def message(self) -> str:
        """The message of the error."""
        return str(self)

    @property
    def line(self) -> str:
        """The line that a command prints before it ends with the error; `parse` reads it."""
        return f"shoal: {self.message} [{self.code}]"


class InvalidRequest(ShoalError):
    """Error raised when a field is missing, has a wrong type, or has a value that it does not take."""

    code = "invalid_request"


class InvalidJson(ShoalError):
    """Error raised when the body of an HTTP request is neither JSON nor, where it says so, a msgpack map."""

    code = "invalid_json"


class NotAcceptable(ShoalError):
    """Error raised when the API has no format that the request's Accept header takes."""

    code = "not_acceptable"


class InvalidText(ShoalError):
    """Error raised when a text holds half of a surrogate pair, which UTF-8 cannot encode."""

    code = "invalid_text"


class TextTooLong(ShoalError):
    """Error raised when a text has more tokens than the model takes and the job has `truncate` false."""

    code = "text_too_long"


class TooLarge(ShoalError):
    """Error raised when a request, a job, a text or a reply is over its size limit."""

    code = "too_large"


class Unauthorized(ShoalError):
    """Error raised when the API needs a key and a request has none, or an unknown one."""

    code = "unauthorized"


class Forbidden(ShoalError):
    """Error raised when the key of a request is no admin's, or when a web page of another site sent it."""

    code = "forbidden"


class PathNotAllowed(ShoalError):
    """Error raised when a long job names a file, folder or URL that is below none of the configured roots."""

    code = "path_not_allowed"


class AddressNotAllowed(ShoalError):
    """Error raised when a URL leads into a private network and its host is not allowed by name."""

    code = "address_not_allowed"


class RateLimited(ShoalError):
    """Error raised when an API key is over its rate; it may be used again after `retry_after_s`."""

    code = "rate_limited"

    def __init__(self, message: str, retry_after_s: int = 1):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnknownFile(ShoalError):
    """Error raised when the result of a long job has no file of a name, or the job is not done yet."""

    code = "unknown_file"


class UnknownIndex(ShoalError):
    """Error raised when a search names an index that the worker does not serve."""

    code = "unknown_index"


class Unsupported(ShoalError):
    """Error raised when the served model cannot do what a request asks for, such as score pairs of texts."""

    code = "unsupported"


class UnknownJob(ShoalError):
    """Error raised when no job has the id, because it was never submitted or its result has expired."""

    code = "unknown_job"


class MalformedJob(ShoalError):
    """Error raised when the bytes of a job or reply are not a msgpack map of the documented shape."""

    code = "malformed_job"


class UnsupportedVersion(ShoalError):
    """Error raised when a job is written in a version of the contract that the worker does not speak."""

    code = "unsupported_version"


class Cancelled(ShoalError):
    """Error raised in place of the reply to a job that was cancelled before it was answered."""

    code = "cancelled"


class Paused(ShoalError):
    """Error raised in a long job that was paused before it was done; resumed, it goes on from there."""

    code = "paused"


class JobNotEnded(ShoalError):
    """Error raised when a long job that waits, runs or is paused is to be deleted."""

    code = "job_not_ended"


class Expired(ShoalError):
    """Error raised in place of the reply to a job whose deadline passed before a worker computed it."""

    code = "expired"


class Timeout(ShoalError):
    """Error raised when no reply came within the time that the caller waits."""

    code = "timeout"


class Overloaded(ShoalError):
    """Error raised when a lane or Redis is full, before anything is written; try again after `retry_after_s`."""

    code = "overloaded"

    def __init__(self, message: str, retry_after_s: int = 1):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(ShoalError):
    """Error raised when Redis does not answer, or refuses; over HTTP also when the API does not answer."""

    code = "unavailable"


class NotReady(ShoalError):
    """Error raised when no worker has the model and the index, when several have different models, or a start fails."""

    code = "not_ready"


class Poisoned(ShoalError):
    """Error raised in place of the reply to a job whose workers died as often as it may be delivered."""

    code = "poisoned"


class Internal(ShoalError):
    """Error raised in place of the reply to a job that made a worker fail; its log has the traceback."""

    code = "internal"


class ModelNotFound(ShoalError):
    """Error raised when the model is no local folder, installed package or cached download, or lacks a file."""

    code = "model_not_found"


class ModelMismatch(ShoalError):
    """Error raised when the weights have another digest than expected, or fail the parity check."""

    code = "model_mismatch"


class IndexNotFound(ShoalError):
    """Error raised when a folder that was named as an index holds none."""

    code = "index_not_found"


class IndexCorrupt(ShoalError):
    """Error raised when a file of an index is missing, cut short, or has another checksum."""

    code = "index_corrupt"


class IndexMismatch(ShoalError):
    """Error raised when an index was built with another model than the worker runs."""

    code = "index_mismatch"


class IndexBusy(ShoalError):
    """Error raised when a build of an index is started while another one of it runs."""

    code = "index_busy"


class TooManyChanges(ShoalError):
    """Error raised when an index has as many changes as it may have before a build folds them in."""

    code = "too_many_changes"


class FolderBusy(ShoalError):
    """Error raised when a file is embedded into a folder while another process writes into it."""

    code = "folder_busy"


class BadDocument(ShoalError):
    """Error raised when a line of a source file cannot be indexed; the message has its number."""

    code = "bad_document"


class BadSetting(ShoalError):
    """Error raised when a setting has a value that cannot work."""

    code = "bad_setting"


class PortInUse(ShoalError):
    """Error raised when another program listens on the address of the server."""

    code = "port_in_use"


class DiskFull(ShoalError):
    """Error raised when the disk is too full for a file; the file that it would replace is unchanged."""

    code = "disk_full"

    #: The system's error numbers that mean this: no space, no quota, and a file over the largest size.
    ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileError(ShoalError):
    """Error raised when a file or folder that was named cannot be read or written."""

    code = "file_error"


class MissingExtra(ShoalError):
    """Error raised when a command or a client needs a package or program that is not installed."""

    code = "missing_extra"


#: The error class of each code, to make an exception of an error on the wire.
BY_CODE: dict[str, type[ShoalError]] = {cls.code: cls for cls in ShoalError.__subclasses__()}

_LINE = re.compile(r"shoal: (.+) \[(\w+)\]")


def parse(line: str) -> ShoalError | None:
    """Return the error of a line that a command printed; None for any other line."""
    found = _LINE.fullmatch(line)
    return BY_CODE[found[2]](found[1]) if found and found[2] in BY_CODE else None
