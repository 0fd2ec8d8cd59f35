"""HTTP requests to URLs that users give. A URL that leads into a private network is refused."""

import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from shoal.contract.excerpt import excerpt
from shoal.errors import AddressNotAllowed, FileError, InvalidRequest

#: Longest time to connect, and longest wait for each part of an answer, in seconds.
TIMEOUT_S = 30.0

#: Longest wait for all headers of an answer, as a multiple of the longest wait for a part.
_TIMES_FOR_HEADERS = 4

#: Longest URL, in characters.
MAX_URL_CHARS = 8_192

_PORTS = {"http": 80, "https": 443}

#: IPv6 addresses that are translated to the IPv4 address in their last four bytes.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

#: Characters of a path or a query that are not escaped.
_SENT_AS_IS = "%/:=&?~+!$,;'@()*[]"


def without_query(url: str) -> str:
    """Return a URL without its query and its user, because both may contain a secret."""
    return re.sub(r"//[^/?#]*@|[?#].*", lambda found: "//" if found[0].startswith("//") else "", url, flags=re.DOTALL)


def check_address(url: str, private_hosts: Collection[str]) -> list[tuple[str, int]]:
    """Return the IP addresses and ports of a URL's host.

    Raises InvalidRequest for a wrong URL, FileError for an unknown host, and AddressNotAllowed for an address that is
    not public, unless the host is one of `private_hosts`.
    """
    parts = _split(url)
    host = parts.hostname or ""
    try:
        found = socket.getaddrinfo(host, parts.port or _PORTS[parts.scheme], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise FileError(f"{without_query(url)} cannot be read: there is no host {excerpt(host)}") from error
    addresses = list(dict.fromkeys((str(place[0]), int(place[1])) for *_, place in found))
    if host not in private_hosts and not all(is_public(address) for address, _ in addresses):
        raise AddressNotAllowed(
            f"{without_query(url)} leads into a private network: if that is intended, add {excerpt(host)} to "
            "SHOAL_PRIVATE_HOSTS"
        )
    return addresses


def check_webhook(url: str, private_hosts: Collection[str]) -> None:
    """Raise InvalidRequest or AddressNotAllowed for a webhook that may not be used; an unknown host is accepted."""
    with suppress(FileError):
        check_address(url, private_hosts)


def is_public(address: str) -> bool:
    """Return True if an IP address belongs to a single machine in the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ipaddress.IPv4Address(ip.packed[-4:]) if ip in _NAT64 else None)
        if inner or ip.teredo:
            return inner is not None and is_public(str(inner))
        if ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def send_request(
    url: str,
    private_hosts: Collection[str],
    method: str = "GET",
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> HTTPResponse:
    """Send one request to a checked address, and return the response, which the caller closes.

    Follows no redirect and uses no proxy. `timeout_s` limits the time to connect and the wait for each part of the
    answer. All headers together may take four times as long. Raises the errors of `check_address`, and FileError
    without an answer.
    """
    parts = _split(url)
    connection = _CheckedConnection(parts, check_address(url, private_hosts), timeout_s)
    timer = threading.Timer(_TIMES_FOR_HEADERS * timeout_s, connection.shut_down)
    timer.daemon = True
    timer.start()
    target = quote(f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}", safe=_SENT_AS_IS)
    try:
        connection.request(method, target, body or None, {"Connection": "close"} | dict(headers or {}))
        response = connection.getresponse()
        if connection.is_shut_down:
            response.close()
            raise TimeoutError("its headers take too long")
        if connection.sock:
            connection.sock.close()  # takes effect when the response is closed, even if the server stays connected
        return response
    except (OSError, HTTPException) as error:
        connection.close()
        raise FileError(f"{without_query(url)} does not answer ({error or type(error).__name__})") from error
    finally:
        timer.cancel()


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0 and len(url) <= MAX_URL_CHARS
    except ValueError:
        is_usable = False
    if not is_usable:
        raise InvalidRequest(
            f"{excerpt(without_query(url))} is no URL that can be used: write http:// or https:// and a host"
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(f"the URL of {excerpt(parts.hostname)} has a user name: leave it out")
    return parts


class _CheckedConnection(HTTPConnection):
    """A connection to the first checked address that accepts it. The host's name is not resolved again."""

    def __init__(self, parts: SplitResult, addresses: list[tuple[str, int]], timeout_s: float):
        super().__init__(parts.hostname or "", parts.port or _PORTS[parts.scheme], timeout=timeout_s)
        self.default_port = _PORTS[parts.scheme]
        self._addresses = addresses
        self._has_tls = parts.scheme == "https"
        self.is_shut_down = False

    def connect(self) -> None:
        """Connect, with TLS for an https URL."""
        plain = self._first_connection()
        try:
            self.sock: Any = plain
            if self._has_tls:
                tls = ssl.create_default_context()
                self.sock = tls.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
                self.sock.do_handshake()
        except BaseException:
            self.close()
            raise

    def shut_down(self) -> None:
        """Interrupt reads and writes in another thread. The socket stays open."""
        self.is_shut_down = True
        with suppress(OSError, AttributeError):  # there may be no socket yet, or no longer
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def _first_connection(self) -> socket.socket:
        for address in self._addresses[:-1]:
            with suppress(OSError):
                return socket.create_connection(address, self.timeout)
        return socket.create_connection(self._addresses[-1], self.timeout)
