"""All errors. Each is a direct subclass of `ShoalError`.

`docs/http.md` lists their codes with remedies, and `shoal_api.schema.error_statuses` gives them their HTTP statuses.
"""

import errno
import re
from typing import ClassVar


class ShoalError(Exception):
    """Base of all errors that are raised on purpose. A message says what was wrong, which value, and what to do.

    The `code` is the name of the class in lower case, such as `too_large`. It is the same on the wire, in HTTP bodies,
    metrics and logs, so a class with another name would break clients.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, retry_after_s: int = 1):
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @property
    def message(self) -> str:
        """The message of the error. In a path, bytes that are not UTF-8 are replaced by question marks."""
        return str(self).encode(errors="replace").decode()

    @property
    def line(self) -> str:
        """The line that a command prints when it ends with the error. `parse` reads it."""
        return f"shoal: {self.message} [{self.code}]"


class InvalidRequest(ShoalError):
    """Error raised when a field is missing, or has a wrong type or value."""


class InvalidJson(ShoalError):
    """Error raised when an HTTP request's body is not JSON, or is not msgpack although the header announces msgpack."""


class NotAcceptable(ShoalError):
    """Error raised when the request's Accept header allows no format of the API."""


class InvalidText(ShoalError):
    """Error raised when a text contains half of a surrogate pair, which UTF-8 cannot encode."""


class TextTooLong(ShoalError):
    """Error raised when a text has more tokens than the model reads, and the job's option `truncate` is false."""


class TooLarge(ShoalError):
    """Error raised when a request, a job, a text or a reply is over its size limit."""


class Unauthorized(ShoalError):
    """Error raised when the API needs a key, and a request has none or an unknown one."""


class Forbidden(ShoalError):
    """Error raised when a request needs an admin's key and has a user's key, or comes from another site's web page."""


class PathNotAllowed(ShoalError):
    """Error raised when a long job names a file or folder that is not below a configured root."""


class RateLimited(ShoalError):
    """Error raised when an API key has exceeded its rate. The key may be used again after `retry_after_s`."""


class UnknownFile(ShoalError):
    """Error raised when the result of a long job has no file with the wanted name, or the job is not done yet."""


class UnknownIndex(ShoalError):
    """Error raised when a search names an index that the worker does not serve."""


class Unsupported(ShoalError):
    """Error raised when a request asks for something that the served model cannot do, such as to score pairs."""


class UnknownJob(ShoalError):
    """Error raised when no job has the id: it was never submitted, or its result has expired."""


class MalformedJob(ShoalError):
    """Error raised when the bytes of a job or reply are not a msgpack map of the documented shape."""


class UnsupportedVersion(ShoalError):
    """Error raised when a job is written in a version of the contract that the worker does not speak."""


class Cancelled(ShoalError):
    """Error raised in place of the reply to a job that was cancelled before it was answered."""


class JobNotEnded(ShoalError):
    """Error raised when a request deletes a long job that waits or runs."""


class Expired(ShoalError):
    """Error raised in place of the reply to a job whose deadline passed before a worker computed it."""


class Timeout(ShoalError):
    """Error raised when no reply came within the time that the caller waits."""


class Overloaded(ShoalError):
    """Error raised when a lane or Redis is full, before anything is written. Try again after `retry_after_s`."""


class Unavailable(ShoalError):
    """Error raised when Redis does not answer or refuses a command, or when the API does not answer a client."""


class NotReady(ShoalError):
    """Error raised when no worker has the model and the index, workers have different models, or a start fails."""


class Poisoned(ShoalError):
    """Error raised in place of the reply to a job after too many workers died while they held it."""


class Internal(ShoalError):
    """Error raised in place of the reply to a job on which a worker failed. The worker's log has the traceback."""


class ModelNotFound(ShoalError):
    """Error raised when the model is not a local folder, installed package or cached download, or lacks a file."""


class ModelMismatch(ShoalError):
    """Error raised when the weights have another digest than expected, or fail the parity check."""


class IndexNotFound(ShoalError):
    """Error raised when a folder contains no index."""


class IndexCorrupt(ShoalError):
    """Error raised when a file of an index is missing, cut short, or has another checksum."""


class IndexMismatch(ShoalError):
    """Error raised when an index was built with another model than the worker runs."""


class IndexBusy(ShoalError):
    """Error raised when a build of an index is started while another build of the same index runs."""


class TooManyChanges(ShoalError):
    """Error raised when an index has too many changes. A build must fold them in first."""


class FolderBusy(ShoalError):
    """Error raised when a file is embedded into a folder while another process writes into it."""


class BadDocument(ShoalError):
    """Error raised when a line of a source file cannot be indexed. The message has the number of the line."""


class BadSetting(ShoalError):
    """Error raised when a setting has a value that cannot work."""


class PortInUse(ShoalError):
    """Error raised when another program listens on the address of the server."""


class DiskFull(ShoalError):
    """Error raised when the disk is too full for a new file. A file that it would have replaced is unchanged."""

    #: The system's error numbers for a full disk, an exhausted quota and a file over the largest size.
    ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileError(ShoalError):
    """Error raised when a named file or folder cannot be read or written."""


class MissingExtra(ShoalError):
    """Error raised when a command or a client needs a package or program that is not installed."""


#: The class for each code. It turns an error on the wire into an exception.
BY_CODE: dict[str, type[ShoalError]] = {cls.code: cls for cls in ShoalError.__subclasses__()}

_LINE = re.compile(r"shoal: (.+) \[(\w+)\]")


def parse(line: str) -> ShoalError | None:
    """Return the error in a line that a command printed, or None for any other line."""
    found = _LINE.fullmatch(line)
    return BY_CODE[found[2]](found[1]) if found and found[2] in BY_CODE else None
