"""The primary that has a pool's keys, where it is at no fixed address: Sentinels name it, or the nodes of a cluster do.

All keys of a pool lie in one slot, so a pool needs one node of a cluster.
"""

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.backoff import NoBackoff
from redis.exceptions import MovedError
from redis.retry import Retry
from redis.sentinel import Sentinel

#: `redis+sentinel://user:password@host:port,host:port/service/db` and `redis+cluster://user:password@host:port,host:port`,
#: each with options after a question mark.
_URL = re.compile(r"(?P<scheme>rediss?)\+(?P<kind>sentinel|cluster)://(?P<user>[^/]*@)?(?P<nodes>[^/?@]+)(?P<rest>.*)")

#: Ports of nodes whose port a URL leaves out.
_PORTS = {"sentinel": 26_379, "cluster": 6_379}

#: Options of a URL for the connections to the Sentinels, which have users and passwords of their own.
_SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}

#: Options of a URL for all connections.
_CERTIFICATES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

Address = tuple[str, int]


class Primary(ABC):
    """The way to the primary. Thread-safe. `find` raises redis.ConnectionError where no primary is known."""

    @abstractmethod
    def find(self) -> Address:
        """Return the address of the primary, as far as it is known."""

    def note_move(self, error: MovedError) -> None:  # noqa: B027 - Sentinels name no other node
        """Note where a node says that the keys are."""

    def note_silence(self, address: Address) -> None:  # noqa: B027 - Sentinels are asked anew
        """Note that nothing answers at an address."""


class Sentinels(Primary):
    """The Sentinels of a primary, by the name of its service. Each new connection asks them."""

    def __init__(self, nodes: list[Address], service: str, options: Mapping[str, Any]):
        self._nodes = nodes
        self._service = service
        self._options = dict(options)

    def find(self) -> Address:
        """Return the address that the first Sentinel names which knows the primary and sees it alive."""
        with closing(Sentinel(self._nodes, sentinel_kwargs=self._options)) as sentinel:  # type: ignore[no-untyped-call]
            host, port = sentinel.discover_master(self._service)  # type: ignore[no-untyped-call]
            first = sentinel.sentinels[0].connection_pool.connection_kwargs  # the one that answered
        answered = (first["host"], first["port"])
        self._nodes = [answered, *(node for node in self._nodes if node != answered)]  # is asked first from now on
        return str(host), int(port)


class ClusterNodes(Primary):
    """The nodes of a cluster. Any of them names the one that has the keys, as the answer to a command about them."""

    def __init__(self, nodes: list[Address]):
        self._nodes = deque(nodes)
        self._lock = Lock()

    def find(self) -> Address:
        """Return the node that had the keys last, or else another one."""
        return self._nodes[0]

    def note_move(self, error: MovedError) -> None:
        """Take the node that has the keys as the first one."""
        with self._lock:
            address = (error.host or self._nodes[0][0], int(error.port))
            self._nodes = deque([address, *(node for node in self._nodes if node != address)])

    def note_silence(self, address: Address) -> None:
        """Go on to the next node if this one was the first."""
        with self._lock:
            if self._nodes[0] == address:
                self._nodes.rotate(-1)


def split_url(url: str, answer_s: float) -> tuple[str, Primary | None]:
    """Return the URL of one Redis, as redis-py reads it, and the way to the primary of several. Raises ValueError."""
    if (found := _URL.fullmatch(url)) is None:
        return url, None
    nodes = [_address(node, _PORTS[found["kind"]]) for node in found["nodes"].split(",")]
    rest, _, query = found["rest"].partition("?")
    options = dict(parse_qsl(query, strict_parsing=bool(query)))
    of_sentinels = {name: options.pop(option) for option, name in _SENTINEL_OPTIONS.items() if option in options}
    service, _, number = rest.strip("/").partition("/")
    if found["kind"] == "cluster":
        if service not in ("", "0"):
            raise ValueError("a cluster has no databases but 0")
        primary: Primary = ClusterNodes(nodes)
    elif not service:
        raise ValueError("the name of the Sentinels' service is missing")
    else:
        limits: dict[str, Any] = {"socket_timeout": answer_s, "socket_connect_timeout": answer_s}
        limits |= {"retry": Retry(NoBackoff(), 0), "ssl": found["scheme"] == "rediss"}
        certificates = {name: value for name, value in options.items() if name in _CERTIFICATES}
        primary = Sentinels(nodes, service, limits | certificates | of_sentinels)
    host, port = nodes[0]
    host = f"[{host}]" if ":" in host else host
    return f"{found['scheme']}://{found['user'] or ''}{host}:{port}/{number or 0}?{urlencode(options)}", primary


def _address(node: str, default_port: int) -> Address:
    parts = urlsplit(f"//{node}")
    if not parts.hostname:
        raise ValueError(f"{node!r} is no node")
    return parts.hostname, parts.port or default_port
