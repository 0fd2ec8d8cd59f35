"""Files at http and https addresses, read as a stream. If the server allows it, reading can begin at any position."""

import io
import time
from collections.abc import Collection
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urljoin, urlsplit

from shoal.contract.excerpt import excerpt
from shoal.errors import AddressNotAllowed, FileError, PathNotAllowed
from shoal.process.allowed_path import is_below
from shoal.process.private_network import check_address, send_request, without_query

#: Largest number of redirects on the way to a file. Each address is checked.
MAX_REDIRECTS = 5

#: In `PACE_S` seconds of waiting, a server must send at least `PACE_BYTES`. A slower one could hold up a job for days.
PACE_S, PACE_BYTES = 60.0, 64 * 2**10

#: Longest file size that is accepted from a server, in digits. A longer size counts as unknown.
MAX_LENGTH_DIGITS = 18

_REDIRECTS = frozenset((301, 302, 303, 307, 308))


class Pace:
    """The pace at which a server sends a file, measured in periods of `PACE_S` seconds of waiting."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._waited_s = 0.0

    def is_too_slow(self, num_bytes: int, waited_s: float) -> bool:
        """Count bytes and the wait for them. Return True if fewer than `PACE_BYTES` came in a period that has ended."""
        self._num_bytes += num_bytes
        self._waited_s += waited_s
        if self._waited_s < PACE_S:
            return False
        found, self._num_bytes, self._waited_s = self._num_bytes, 0, 0.0
        return found < PACE_BYTES


class WebFile(io.RawIOBase):
    """A file that a web server sends.

    `size_bytes` comes from the server, or is None. `modified` is the ETag or else the date from the server. A redirect
    may lead to another path of the server, or to a public host. Raises AddressNotAllowed, InvalidRequest for a URL that
    cannot be used, FileError if the file cannot be read or has changed meanwhile, and PathNotAllowed if a redirect
    leads from below the `root_urls` to another place.
    """

    def __init__(self, url: str, private_hosts: Collection[str], root_urls: Collection[str] = ()):
        self.url = url
        self._private_hosts = private_hosts
        self._root_urls = root_urls if is_below(url, root_urls) else ()
        self._position = 0
        self._pace = Pace()
        self._response = self._get()
        length = self._response.headers.get("Content-Length", "")
        self.size_bytes = int(length) if length.isdecimal() and len(length) <= MAX_LENGTH_DIGITS else None
        self.modified = _version(self._response)
        self._sends_parts = self._response.headers.get("Accept-Ranges", "").lower() == "bytes"

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True if the server says the size of the file and sends parts of it."""
        return self.size_bytes is not None and self._sends_parts

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position and return it. The next read asks the server for the part that begins there."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes or 0}[whence] + offset
        if start != self._position:
            self._response.close()
            self._position = start
        return start

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer and return the number of bytes, which is 0 at the end of the file.

        If the connection breaks, the server is asked once more, for the part that begins at the position.
        """
        is_at_end = self._response.isclosed() if self.size_bytes is None else self._position >= self.size_bytes
        if is_at_end:
            return 0
        began_s = time.monotonic()
        if self._response.isclosed():
            self._reconnect()
        try:
            num_bytes = self._read(buffer)
        except FileError:
            if not self.seekable():
                raise
            self._reconnect()
            num_bytes = self._read(buffer)
        self._position += num_bytes
        if self._pace.is_too_slow(num_bytes, time.monotonic() - began_s):
            raise self._failure(f"under {PACE_BYTES:,} bytes come in {PACE_S:g} s of waiting")
        return num_bytes

    def close(self) -> None:
        """Close the connection."""
        if not self.closed and hasattr(self, "_response"):
            self._response.close()
        super().close()

    def _get(self, **headers: str) -> HTTPResponse:
        """Return the response with the file, or with the part that the headers ask for."""
        url, status = self.url, 206 if headers else 200
        for _ in range(MAX_REDIRECTS + 1):
            response = send_request(url, self._private_hosts, headers={"Accept-Encoding": "identity"} | headers)
            if response.status == status:
                return response
            response.close()
            if response.status not in _REDIRECTS:
                raise self._failure(f"the server answers {response.status} {response.reason}")
            location = response.headers.get("Location", "")
            try:
                url = self._redirect_target(url, location)
            except ValueError as error:  # from urllib
                raise self._failure(f"the server redirects to {excerpt(location)}, which is no URL") from error
        raise self._failure(f"there are over {MAX_REDIRECTS} redirects")

    def _read(self, buffer: Any) -> int:
        try:
            num_bytes = self._response.readinto(buffer)
        except (OSError, HTTPException) as error:
            raise self._failure(str(error) or type(error).__name__) from error
        if not num_bytes and self.size_bytes is not None:
            raise self._failure(f"it ended after {self._position:,} of {self.size_bytes:,} bytes")
        return num_bytes

    def _reconnect(self) -> None:
        """Ask for the part of the file from the position to the end. Raises FileError if the file has changed."""
        self._response.close()
        self._response = self._get(Range=f"bytes={self._position}-")
        begins = self._response.headers.get("Content-Range", "").startswith(f"bytes {self._position}-")
        if not begins or _version(self._response) != self.modified:
            raise self._failure("it has changed since it was opened")

    def _redirect_target(self, url: str, location: str) -> str:
        """Return the address to which a redirect leads. A user may name private hosts, but a server may not."""
        target = urljoin(url, location)
        redirected = f"{without_query(self.url)} is redirected to"
        if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
            raise AddressNotAllowed(f"{redirected} an address without TLS: name another")
        redirected = f"{redirected} {excerpt(without_query(target))}"
        if self._root_urls and not is_below(target, self._root_urls):
            raise PathNotAllowed(
                f"{redirected}, which is below none of the URLs that long jobs may use: name another source, or add "
                "the beginning of that URL to SHOAL_ROOTS"
            )
        if urlsplit(target).hostname != urlsplit(self.url).hostname:
            try:
                check_address(target, ())
            except AddressNotAllowed as error:
                raise AddressNotAllowed(
                    f"{redirected}, which leads into a private network: name that address as the source, if it is "
                    "allowed"
                ) from error
        return target

    def _failure(self, reason: str) -> FileError:
        return FileError(f"{without_query(self.url)} cannot be read ({reason}): check that it is there, and try again")


def _version(response: HTTPResponse) -> str:
    return str(response.headers.get("ETag") or response.headers.get("Last-Modified") or "")
