"""The address of the primary that has a pool's keys. Sentinels or the nodes of a cluster name it.

All keys of a pool are in one slot, so a pool needs only one node of a cluster.
"""

import re
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

#: `redis+sentinel://user:password@host:port,host:port/service/db` or
#: `redis+cluster://user:password@host:port,host:port`, with options after a question mark.
_URL = re.compile(r"(?P<scheme>rediss?)\+(?P<kind>sentinel|cluster)://(?P<user>[^/]*@)?(?P<nodes>[^/?@]+)(?P<rest>.*)")

#: Largest number of remembered nodes that the URL does not name. If nodes get new addresses at each start, old
#: addresses do not answer, and would all be tried before the nodes of the URL.
MAX_MOVED_TO = 3

Address = tuple[str, int]


class Sentinels:
    """The primary that Sentinels name for a service. They are asked before each new connection. Thread-safe."""

    def __init__(self, nodes: list[Address], service: str, options: Mapping[str, Any]):
        self._nodes = nodes
        self._service = service
        self._options = dict(options)

    def find(self) -> Address:
        """Return the address from the first Sentinel that knows the primary and sees it alive.

        Raises redis.ConnectionError.
        """
        with closing(Sentinel(self._nodes, sentinel_kwargs=self._options)) as sentinel:  # type: ignore[no-untyped-call]
            host, port = sentinel.discover_master(self._service)  # type: ignore[no-untyped-call]
            first = sentinel.sentinels[0].connection_pool.connection_kwargs  # address of the Sentinel that answered
        answered = (first["host"], first["port"])
        self._nodes = [answered, *(node for node in self._nodes if node != answered)]  # the next call asks it first
        return str(host), int(port)

    def note_move(self, error: MovedError) -> None:
        """Do nothing, because only nodes of a cluster raise such an error."""

    def note_silence(self, address: Address) -> None:
        """Do nothing, because `find` asks the Sentinels each time."""


class ClusterNodes:
    """The primary of a pool's keys in a cluster. Any other node answers with the primary's address. Thread-safe."""

    def __init__(self, nodes: list[Address]):
        self._named = nodes
        self._nodes = deque(nodes)
        self._lock = Lock()

    def find(self) -> Address:
        """Return the node that had the keys last, or another node if that node did not answer."""
        return self._nodes[0]

    def note_move(self, error: MovedError) -> None:
        """Put the node that has the keys first."""
        with self._lock:
            address = (error.host or self._nodes[0][0], int(error.port))
            others = [node for node in self._nodes if node != address]
            dropped = [node for node in others if node not in self._named][MAX_MOVED_TO - 1 :]
            self._nodes = deque([address, *(node for node in others if node not in dropped)])

    def note_silence(self, address: Address) -> None:
        """Put the next node first if the silent node was first."""
        with self._lock:
            if self._nodes[0] == address:
                self._nodes.rotate(-1)


#: The address of the primary.
Primary = Sentinels | ClusterNodes


def split_url(url: str, answer_s: float) -> tuple[str, Primary | None]:
    """Return a URL that redis-py can read, and the `Primary` if the URL names Sentinels or a cluster.

    Raises ValueError.
    """
    if (found := _URL.fullmatch(url)) is None:
        return url, None
    default_port = 26_379 if found["kind"] == "sentinel" else 6_379
    nodes = [_address(node, default_port) for node in found["nodes"].split(",")]
    rest, _, query = found["rest"].partition("?")
    options = dict(parse_qsl(query, strict_parsing=bool(query)))
    names = ("username", "password")  # Sentinels have their own users and passwords
    of_sentinels = {name: options.pop(f"sentinel_{name}") for name in names if f"sentinel_{name}" in options}
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
        certificates = {
            name: options[name] for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile") if name in options
        }
        primary = Sentinels(nodes, service, limits | certificates | of_sentinels)
    host, port = nodes[0]
    host = f"[{host}]" if ":" in host else host
    return f"{found['scheme']}://{found['user'] or ''}{host}:{port}/{number or 0}?{urlencode(options)}", primary


def _address(node: str, default_port: int) -> Address:
    parts = urlsplit(f"//{node}")
    if not parts.hostname:
        raise ValueError(f"{node!r} is no node")
    parts.hostname.encode("idna")  # raises a ValueError if the name has an empty or long part
    return parts.hostname, parts.port or default_port
