"""Uploads: files as the bodies of requests, read piece by piece, so that none is in memory as a whole."""

from collections.abc import Iterator

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, TooLarge
from shoal_api.request import MAX_DISCARDED, MAX_LENGTH_DIGITS, PIECE_BYTES, JsonRequest

#: Longest name of an upload, in bytes of UTF-8.
_MAX_NAME_BYTES = 200


def check_name(name: str) -> None:
    """Raise InvalidRequest for a name that could lead elsewhere, or is none that a file can have."""
    if (
        not name.isprintable()
        or set(name) & set("/\\")
        or name.startswith(".")
        or not 0 < len(name.encode()) <= _MAX_NAME_BYTES
    ):
        raise InvalidRequest(
            f"name is {excerpt(name)}: it takes the name of a file without folders, such as news.csv, of at most "
            f"{_MAX_NAME_BYTES} bytes, that does not begin with a dot"
        )


def num_bytes_of(request: JsonRequest, most: int) -> int:
    """Return the length that the request has for its body; raise InvalidRequest without one, and TooLarge."""
    length = request.environ.get("CONTENT_LENGTH", "")[:MAX_LENGTH_DIGITS]
    if "HTTP_TRANSFER_ENCODING" in request.environ or not length.isdecimal() or not int(length):
        raise InvalidRequest(
            "an upload needs the file as its body, with a Content-Length: without one, a connection that breaks looks "
            "like the end of the file"
        )
    if int(length) > most:
        raise TooLarge(
            f"the file has {int(length):,} bytes, and an upload may have {most:,} (SHOAL_MAX_UPLOAD_MB): split it, "
            "compress it, or put it below one of the roots and name it as the source"
        )
    return int(length)


def pieces_of(request: JsonRequest, num_bytes: int) -> Iterator[bytes]:
    """Yield the body piece by piece, and note in the request how much came; raise InvalidRequest if it breaks off."""
    request.is_read = True
    while request.num_uploaded_bytes < num_bytes:
        piece = request.environ["wsgi.input"].read(min(PIECE_BYTES, num_bytes - request.num_uploaded_bytes))
        request.num_uploaded_bytes += len(piece)
        if not piece:
            raise InvalidRequest(
                f"the body has {request.num_uploaded_bytes:,} bytes, but Content-Length says {num_bytes:,}: send all "
                "of it"
            )
        yield piece


def discard_rest(request: JsonRequest) -> None:
    """Read and drop the rest of an upload that is refused, as far as that is worth while."""
    request.is_read = True
    num_left = (request.declared_bytes or 0) - request.num_uploaded_bytes
    num_left = min(num_left, MAX_DISCARDED * (request.max_content_length or 0))
    while num_left > 0 and (piece := request.environ["wsgi.input"].read(min(num_left, PIECE_BYTES))):
        num_left -= len(piece)
