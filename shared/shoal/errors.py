"""Every error Shoal raises, one level below `ShoalError`.

Each class carries the stable `code` that travels on the wire, in HTTP bodies, in metrics and in logs. `docs/errors.md`
lists them with their remedies, and `shoal_api.errors` maps the codes a caller can meet to HTTP statuses.
"""

import errno


class ShoalError(Exception):
    """Base of every error raised on purpose; the message says what was wrong, which value, and what would be right."""

    code = "internal"

    @property
    def message(self) -> str:
        """The sentence to show to a person."""
        return str(self)


class InvalidRequest(ShoalError):
    """A field is missing, of the wrong type, or outside the values it may take."""

    code = "invalid_request"


class InvalidJson(ShoalError):
    """An HTTP body is not JSON."""

    code = "invalid_json"


class InvalidText(ShoalError):
    """A text cannot be encoded as UTF-8, because it holds half of a surrogate pair."""

    code = "invalid_text"


class TextTooLong(ShoalError):
    """A text has more tokens than the model takes and the job asked not to truncate."""

    code = "text_too_long"


class TooLarge(ShoalError):
    """A request, a job or one text is over a size limit."""

    code = "too_large"


class Unauthorized(ShoalError):
    """The API needs a key, and a request has none or one that it does not know."""

    code = "unauthorized"


class Forbidden(ShoalError):
    """A request may not do that: its key is no admin's, or a web page of another site made a browser send it."""

    code = "forbidden"


class RateLimited(ShoalError):
    """An API key was used more often than it may be; `retry_after_s` says when it may again."""

    code = "rate_limited"

    def __init__(self, message: str, retry_after_s: int = 1):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnknownIndex(ShoalError):
    """A search names an index that the worker has not opened."""

    code = "unknown_index"


class UnknownJob(ShoalError):
    """A job id was never submitted, or its result has expired."""

    code = "unknown_job"


class MalformedJob(ShoalError):
    """The bytes of a job or reply are not a msgpack map of the documented shape."""

    code = "malformed_job"


class UnsupportedVersion(ShoalError):
    """A job is written in a version of the contract that the worker does not speak."""

    code = "unsupported_version"


class Cancelled(ShoalError):
    """The job was cancelled before a worker started it."""

    code = "cancelled"


class Expired(ShoalError):
    """The job's deadline passed before a worker reached it."""

    code = "expired"


class Timeout(ShoalError):
    """No answer came within the time the caller was willing to wait."""

    code = "timeout"


class Overloaded(ShoalError):
    """The lane holds as much as it may, or Redis is full; nothing was written. Try again after `retry_after_s`."""

    code = "overloaded"

    def __init__(self, message: str, retry_after_s: int = 1):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(ShoalError):
    """Redis does not answer."""

    code = "unavailable"


class NotReady(ShoalError):
    """No worker with the model and the index is alive."""

    code = "not_ready"


class Poisoned(ShoalError):
    """The job was delivered as often as it may be and each time its worker died."""

    code = "poisoned"


class Internal(ShoalError):
    """A worker failed in a way nobody foresaw; its log has the traceback."""

    code = "internal"


class ModelNotFound(ShoalError):
    """The model is no local folder, no installed package and in no local cache, or lacks a file."""

    code = "model_not_found"


class ModelMismatch(ShoalError):
    """The weights are not the ones expected, or the engine does not reproduce the reference vectors."""

    code = "model_mismatch"


class IndexNotFound(ShoalError):
    """A folder given as an index holds none."""

    code = "index_not_found"


class IndexCorrupt(ShoalError):
    """A file of an index is missing, cut short, or not what its checksum says."""

    code = "index_corrupt"


class IndexMismatch(ShoalError):
    """An index was built with another model than the worker runs."""

    code = "index_mismatch"


class BadDocument(ShoalError):
    """A row of a source file cannot be indexed; the message names its line."""

    code = "bad_document"


class BadSetting(ShoalError):
    """A setting has a value that cannot work."""

    code = "bad_setting"


class PortInUse(ShoalError):
    """Something else listens on the address the server was told to use."""

    code = "port_in_use"


class DiskFull(ShoalError):
    """A file could not be written because the disk is full; what stood there before is untouched."""

    code = "disk_full"

    #: The system's error numbers that mean this: no space, no quota, and a file over the largest size.
    ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileError(ShoalError):
    """A file or folder that was named cannot be read or written."""

    code = "file_error"


class MissingExtra(ShoalError):
    """A command needs packages that the light install leaves out."""

    code = "missing_extra"


#: Error class for each code, to turn an error on the wire back into an exception.
BY_CODE: dict[str, type[ShoalError]] = {cls.code: cls for cls in ShoalError.__subclasses__()}
