"""All errors, one level below `ShoalError`.

`docs/http.md` lists their codes with remedies, and `shoal_api.errors` maps them to HTTP statuses.
"""

import errno
import re
from typing import ClassVar


class ShoalError(Exception):
    """Base of all errors that are raised on purpose. A message says what was wrong, which value, and what to do.

    The `code` is the name of the class in small letters, as `too_large`: the same on the wire, in HTTP bodies, metrics
    and logs. To rename a class would break the clients that know its code.
    """

    code: ClassVar[str] = "internal"

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

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


class InvalidJson(ShoalError):
    """Error raised when the body of an HTTP request is neither JSON nor, where it says so, a msgpack map."""


class NotAcceptable(ShoalError):
    """Error raised when the API has no format that the request's Accept header takes."""


class InvalidText(ShoalError):
    """Error raised when a text holds half of a surrogate pair, which UTF-8 cannot encode."""


class TextTooLong(ShoalError):
    """Error raised when a text has more tokens than the model takes and the job has `truncate` false."""


class TooLarge(ShoalError):
    """Error raised when a request, a job, a text or a reply is over its size limit."""


class Unauthorized(ShoalError):
    """Error raised when the API needs a key and a request has none, or an unknown one."""


class Forbidden(ShoalError):
    """Error raised when the key of a request is no admin's, or when a web page of another site sent it."""


class PathNotAllowed(ShoalError):
    """Error raised when a long job names a file, folder or URL that is below none of the configured roots."""


class AddressNotAllowed(ShoalError):
    """Error raised when a URL leads into a private network and its host is not allowed by name."""


class RateLimited(ShoalError):
    """Error raised when an API key is over its rate; it may be used again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: int = 1):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnknownFile(ShoalError):
    """Error raised when the result of a long job has no file of a name, or the job is not done yet."""


class UnknownIndex(ShoalError):
    """Error raised when a search names an index that the worker does not serve."""


class Unsupported(ShoalError):
    """Error raised when the served model cannot do what a request asks for, such as score pairs of texts."""


class UnknownJob(ShoalError):
    """Error raised when no job has the id, because it was never submitted or its result has expired."""


class MalformedJob(ShoalError):
    """Error raised when the bytes of a job or reply are not a msgpack map of the documented shape."""


class UnsupportedVersion(ShoalError):
    """Error raised when a job is written in a version of the contract that the worker does not speak."""


class Cancelled(ShoalError):
    """Error raised in place of the reply to a job that was cancelled before it was answered."""


class Paused(ShoalError):
    """Error raised in a long job that was paused before it was done; resumed, it goes on from there."""


class JobNotEnded(ShoalError):
    """Error raised when a long job that waits, runs or is paused is to be deleted."""


class Expired(ShoalError):
    """Error raised in place of the reply to a job whose deadline passed before a worker computed it."""


class Timeout(ShoalError):
    """Error raised when no reply came within the time that the caller waits."""


class Overloaded(ShoalError):
    """Error raised when a lane or Redis is full, before anything is written; try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: int = 1):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(ShoalError):
    """Error raised when Redis does not answer, or refuses; over HTTP also when the API does not answer."""


class NotReady(ShoalError):
    """Error raised when no worker has the model and the index, when several have different models, or a start fails."""


class Poisoned(ShoalError):
    """Error raised in place of the reply to a job whose workers died as often as it may be delivered."""


class Internal(ShoalError):
    """Error raised in place of the reply to a job that made a worker fail; its log has the traceback."""


class ModelNotFound(ShoalError):
    """Error raised when the model is no local folder, installed package or cached download, or lacks a file."""


class ModelMismatch(ShoalError):
    """Error raised when the weights have another digest than expected, or fail the parity check."""


class IndexNotFound(ShoalError):
    """Error raised when a folder that was named as an index holds none."""


class IndexCorrupt(ShoalError):
    """Error raised when a file of an index is missing, cut short, or has another checksum."""


class IndexMismatch(ShoalError):
    """Error raised when an index was built with another model than the worker runs."""


class IndexBusy(ShoalError):
    """Error raised when a build of an index is started while another one of it runs."""


class TooManyChanges(ShoalError):
    """Error raised when an index has as many changes as it may have before a build folds them in."""


class FolderBusy(ShoalError):
    """Error raised when a file is embedded into a folder while another process writes into it."""


class BadDocument(ShoalError):
    """Error raised when a line of a source file cannot be indexed; the message has its number."""


class BadSetting(ShoalError):
    """Error raised when a setting has a value that cannot work."""


class PortInUse(ShoalError):
    """Error raised when another program listens on the address of the server."""


class DiskFull(ShoalError):
    """Error raised when the disk is too full for a file; the file that it would replace is unchanged."""

    #: The system's error numbers that mean this: no space, no quota, and a file over the largest size.
    ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileError(ShoalError):
    """Error raised when a file or folder that was named cannot be read or written."""


class MissingExtra(ShoalError):
    """Error raised when a command or a client needs a package or program that is not installed."""


#: The error class of each code, to make an exception of an error on the wire.
BY_CODE: dict[str, type[ShoalError]] = {cls.code: cls for cls in ShoalError.__subclasses__()}

_LINE = re.compile(r"shoal: (.+) \[(\w+)\]")


def parse(line: str) -> ShoalError | None:
    """Return the error of a line that a command printed; None for any other line."""
    found = _LINE.fullmatch(line)
    return BY_CODE[found[2]](found[1]) if found and found[2] in BY_CODE else None
