"""Access control: keys, roles, rates, shares and origins. Every request passes it before its body is read."""

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, partial
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs

from shoal.broker.broker import Broker
from shoal.contract.excerpt import excerpt
from shoal.errors import Forbidden, Overloaded
from shoal.settings import OPEN_PATHS, Settings
from shoal_api.access.api_keys import ApiKey, Keyring
from shoal_api.access.rate_limit import RateLimits
from shoal_api.request import JsonRequest

#: Routes that need no key. Files of pages need none either. Their paths begin with one of `OPEN_PATHS`.
OPEN_ROUTES = ("/", "/health", "/ready", "/docs", "/openapi.json")

#: Prefixes of the routes that need the key of an admin.
_ADMIN_ROUTES = ("/v1/dead", "/v1/indexes/")

#: Routes whose body is a file if the query has a `name`.
UPLOAD_ROUTES = ("/v1/bulk", "/v1/indexes/<index>/builds")

#: Largest number of open connections of a process. Further connections wait in the backlog. An idle connection needs
#: some kilobytes.
MAX_CONNECTIONS = 4_096

#: Largest number of uploads and downloads of a process at a time. Each of them may last minutes.
MAX_TRANSFERS = 64

#: Routes for monitoring. They are answered even while other requests are refused as too many.
_ALWAYS_ANSWERED = ("/health", "/ready")

#: A process has memory for this many requests and responses of the largest size.
_LARGEST_AT_A_TIME = 4

#: Bytes that a vector needs in JSON for each byte of its 32-bit floats.
JSON_BYTES = 2.5

#: Host names that mean the local machine everywhere, whatever the DNS says.
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")

#: Methods that change nothing. A browser sends them when its user follows a link on another site.
_SAFE_METHODS = ("GET", "HEAD")


#: An address with a port or in brackets, as some proxies write it.
_WITH_PORT = re.compile(r"^\[(.*)\](?::\d+)?$|^([^:]*):\d+$")


class Shares:
    """The clients' shares of a limited `total`. Thread-safe.

    A share may not exceed the amount that is still free (dynamic thresholds, Choudhury and Hahne, 1998). So a single
    client gets half, several greedy clients get less each, and something is left for the next client. A client that
    holds nothing may get all that is free. Error messages call the total `name`.
    """

    def __init__(self, total: int, name: str):
        self._total = total
        self._name = name
        self._num_free = total
        self._held: dict[str, int] = {}
        self._lock = Lock()

    def acquire(self, client: str, num: int) -> None:
        """Add `num` to the amount that the client holds. Raises Overloaded if that would exceed its share."""
        with self._lock:
            held, free = self.held(client), self._num_free - num
            if free < 0 or (held and held + num > free):
                raise Overloaded(
                    f"this client has {held:,} of {self._total:,} {self._name}, and {num:,} more are not granted now: "
                    "send fewer or smaller requests at a time"
                )
            self._held[client] = held + num
            self._num_free = free

    def held(self, client: str) -> int:
        """Return the amount that the client holds."""
        return self._held.get(client, 0)

    def release(self, client: str, num: int) -> None:
        """Subtract `num` from the amount that the client holds."""
        with self._lock:
            self._num_free += num
            if left := self._held.pop(client, 0) - num:
                self._held[client] = left


class AccessControl:
    """The rules that admit or refuse requests. Thread-safe. Raises BadSetting for a wrong key file."""

    def __init__(self, settings: Settings):
        self._keys = settings.keys
        self._broker = Broker.connect(settings.redis_address)
        self._keyring = Keyring(Path(settings.api_keys_file)) if settings.api_keys_file else None
        self._local_names = {*_LOCAL_NAMES, settings.host.lower()} if settings.allow_anonymous == "loopback" else None
        self._origins = {name.lower() for name in settings.origin_names()}
        self._num_proxies = settings.trusted_proxies
        largest = settings.max_request_bytes + int(JSON_BYTES * settings.max_response_mb * 2**20)
        self._bytes = Shares(_LARGEST_AT_A_TIME * largest, "bytes of requests and responses in memory")
        self._requests = Shares(MAX_CONNECTIONS, "requests under way")
        self._transfers = Shares(MAX_TRANSFERS, "uploads and downloads")

    def close(self) -> None:
        """Close the connections to Redis."""
        self._broker.close()

    @property
    def needs_keys(self) -> bool:
        """True if requests need a key."""
        return self._keyring is not None

    async def admit(self, request: JsonRequest) -> None:
        """Admit a request, and record its client in it. Raises Unauthorized, Forbidden, RateLimited or Overloaded."""
        route = request.url_rule.rule if request.url_rule else ""
        if route in _ALWAYS_ANSWERED or request.method == "OPTIONS":  # browsers send OPTIONS without the key
            return
        key, environ = None, request.environ
        if self._keyring is None:
            self._check_browser(environ)
        else:
            key = self._authorize(self._keyring, environ, route)
        if key is None:
            noted = str(environ.get("HTTP_X_FORWARDED_FOR", "")).split(",")  # the first trusted proxy wrote the address
            is_noted = 0 < self._num_proxies <= len(noted)
            address = noted[-self._num_proxies].strip() if is_noted else ""
            request.client_name = network_of(address or environ.get("REMOTE_ADDR", ""))
        else:
            request.client_name = key.name
        request.is_admin = key is None or key.role == "admin"
        request.is_upload = route in UPLOAD_ROUTES and "name" in parse_qs(environ.get("QUERY_STRING", ""), True)
        if key and key.rate:
            request.rate_headers, too_early = await asyncio.to_thread(self._rates.count, key)
            if too_early:
                raise too_early
        self._requests.acquire(request.client_name, 1)
        request.is_counted = True

    def hold(self, request: JsonRequest, num_bytes: int) -> None:
        """Count bytes in memory for the request until `release`. Raises Overloaded if its client has too many."""
        self._bytes.acquire(request.client_name, num_bytes)
        request.num_held_bytes += num_bytes

    def release(self, request: JsonRequest) -> None:
        """Stop counting the request and its bytes once its response is sent or its client has disconnected."""
        self._requests.release(request.client_name, int(request.is_counted))
        self._bytes.release(request.client_name, request.num_held_bytes)
        request.is_counted, request.num_held_bytes = False, 0

    def num_requests(self, request: JsonRequest) -> int:
        """Return how many requests of the client that sent this request are under way."""
        return self._requests.held(request.client_name)

    def count_transfer(self, request: JsonRequest) -> Callable[[], None]:
        """Count an upload or a download until the returned function is called. Raises Overloaded."""
        self._transfers.acquire(request.client_name, 1)
        return partial(self._transfers.release, request.client_name, 1)

    @cached_property
    def _rates(self) -> RateLimits:
        return RateLimits(self._broker, self._keys)

    @staticmethod
    def _authorize(keyring: Keyring, environ: Mapping[str, Any], route: str) -> ApiKey | None:
        """Return the request's key, or None if its route is open. Raises Unauthorized and Forbidden."""
        if environ["REQUEST_METHOD"] in _SAFE_METHODS and (route in OPEN_ROUTES or route.startswith(OPEN_PATHS)):
            return None
        key = keyring.authenticate(environ)
        if key.role != "admin" and route.startswith(_ADMIN_ROUTES):
            raise Forbidden(f"the key {key.name} has the role {key.role}, and this route needs the role admin")
        return key

    def _check_browser(self, environ: Mapping[str, Any]) -> None:
        """Raise Forbidden for a browser's request on behalf of another site's web page.

        Such a page can send requests to this machine without its user's knowledge. It can also read the responses, if
        its own host name resolves to this machine (DNS rebinding).
        """
        host = environ.get("HTTP_HOST", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self._local_names and name not in self._local_names:
            raise Forbidden(
                f"the request is for the host {excerpt(host)}, and without keys this server answers only to "
                f"{', '.join(_LOCAL_NAMES)}: give it keys, or allow all hosts with --allow-anonymous anywhere"
            )
        site, origin = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_ORIGIN")
        if site:
            is_foreign = site not in ("none", "same-origin")
        else:  # browsers without Sec-Fetch-Site send Origin
            is_foreign = origin is not None and origin.partition("://")[2] != host
        is_allowed = environ["REQUEST_METHOD"] in _SAFE_METHODS or not self._origins.isdisjoint(("*", origin))
        if is_foreign and not is_allowed:
            raise Forbidden("a web page of another site sent this: name its origin with --cors-origins to allow it")


@lru_cache(4_096)
def network_of(address: str) -> str:
    """Return the address without its port. For IPv6, return its /64 network, because one client may own all of it."""
    address = _WITH_PORT.sub(r"\1\2", address)
    try:
        ip = ip_address(address)
    except ValueError:  # a connection over a Unix socket has no address
        return address
    if not isinstance(ip, IPv6Address):
        return address
    return str(ip.ipv4_mapped or ip_network((ip, 64), strict=False))
