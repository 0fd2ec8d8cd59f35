"""Access control, which every request passes before its body is read: keys, roles, rates, thread quotas, browsers."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs

from shoal.broker.broker import Broker
from shoal.errors import Forbidden, Overloaded, Unauthorized
from shoal.excerpt import excerpt
from shoal.settings import OPEN_PATHS, Settings
from shoal_api.access.api_keys import ApiKey, Keyring
from shoal_api.access.body_reads import BodyRead, BodyReads, num_read_threads
from shoal_api.access.client_name import address_of, network_of
from shoal_api.access.rate_limit import RateLimits
from shoal_api.access.thread_quota import MAX_VIEWERS, ThreadQuotas
from shoal_api.access.waiting_requests import ThreadDemand, WaitingRequests
from shoal_api.request import MAX_LENGTH_DIGITS, JsonRequest

#: Routes that may be read without a key, beside those below `OPEN_PATHS`, which are files of pages.
OPEN_ROUTES = ("/", "/health", "/ready", "/docs", "/openapi.json")

#: Beginnings of the routes that need the key of an admin.
_ADMIN_ROUTES = ("/v1/dead", "/v1/indexes/")

#: The routes that take a file as their body where the query has its `name`.
UPLOAD_ROUTES = ("/v1/bulk", "/v1/indexes/<index>/builds")

#: A path of one of `UPLOAD_ROUTES`.
_UPLOAD_PATH = re.compile("|".join(route.replace("<index>", "[^/]+") for route in UPLOAD_ROUTES))

#: One thread in this many is for requests that may take minutes: uploads, downloads and event streams of jobs.
_THREADS_PER_LASTING = 4

#: Streams that operators leave open. They have threads of their own, outside the thread quotas.
VIEWER_ROUTES = ("/v1/pool/events",)

#: Routes that are outside the thread quotas, so that monitoring does not take a busy server for a dead one.
_ALWAYS_ANSWERED = ("/health", "/ready")

#: Name of a request's `ThreadDemand` in its environment.
THREAD_DEMAND = "shoal.thread_demand"

#: Share of all threads that a body of the largest size counts for, beside the thread of its request: so a process has
#: about 8 such bodies in memory at a time. A large response counts in the same way.
_LARGEST_SHARE = 1 / 8

#: A body of unknown size counts as one of this share of the largest size.
_UNKNOWN_BODY_SHARE = 1 / 8

#: Names of this machine. The DNS cannot make the browser of another machine use them for this one.
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")

#: Methods that change nothing, so a browser may follow another site's link with them.
_SAFE_METHODS = ("GET", "HEAD")

_Answer = TypeVar("_Answer")


class AccessControl:
    """The rules by which requests are let in. Thread-safe.

    `broker` leads to the Redis that counts the rates of keys. Raises BadSetting for a key file that cannot be read.
    """

    def __init__(self, settings: Settings, broker: Broker):
        self._keys = settings.keys
        self._broker = broker
        self._keyring = Keyring(Path(settings.api_keys_file)) if settings.api_keys_file else None
        self._local_names = {"", *_LOCAL_NAMES, settings.host} if settings.allow_anonymous == "loopback" else None
        self._origins = {origin.strip() for origin in settings.cors_origins.split(",")}
        self._num_proxies = settings.trusted_proxies
        self._quotas = ThreadQuotas(settings.api_threads)
        self._lasting = ThreadQuotas(
            max(1, settings.api_threads // _THREADS_PER_LASTING),
            "threads of this server for uploads, downloads and event streams",
        )
        self._viewers = ThreadQuotas(MAX_VIEWERS, "threads of this server for viewers of the pool")
        self._max_body_bytes = settings.max_request_bytes
        self._threads_of_largest = _LARGEST_SHARE * settings.api_threads
        #: Requests that are being answered, and reads of the bodies of requests that will wait.
        self.running: set[JsonRequest | BodyRead] = set()
        #: The requests that the server lets wait before they are answered.
        self.waiting: WaitingRequests[Any] = WaitingRequests(self._quotas)
        self._reads = BodyReads(num_read_threads(settings.api_threads))
        self._max_wait_s = settings.request_timeout_s

    @property
    def needs_keys(self) -> bool:
        """True if requests need a key."""
        return self._keyring is not None

    def answer(self, request: JsonRequest, view: Callable[[], _Answer]) -> _Answer:
        """Return the view's answer if the request may come in.

        Raises Unauthorized, Forbidden, RateLimited or Overloaded if it may not.
        """
        route = request.url_rule.rule if request.url_rule else ""
        if route in _ALWAYS_ANSWERED or request.method == "OPTIONS":  # browsers send OPTIONS without the key
            return view()
        key = self._authorize(request.environ, route)
        demand = request.environ.get(THREAD_DEMAND) or self._make_demand(request.environ, key)
        request.environ[THREAD_DEMAND] = demand
        request.client_name, request.started_s = demand.client, min(demand.arrived_s, request.started_s)
        self._check_wait(demand)
        request.waited_s = demand.waited_s
        request.is_admin = key is None or key.role == "admin"
        request.is_upload = route in UPLOAD_ROUTES and _is_upload(request.environ)
        if not demand.is_held:
            self._quotas.acquire(demand.client, demand.num_threads)
        self.running.add(request)
        try:
            if key and key.rate:
                self._check_rate(request, key)
            return view()
        finally:
            self.running.discard(request)
            if not demand.is_held:
                self._quotas.release(demand.client, demand.num_threads)

    def still_allows(self, request: JsonRequest) -> bool:
        """Return True if a request that was let in has the same key and role as then."""
        if self._keyring is None:
            return True
        try:
            key = self._keyring.authenticate(request.environ)
        except Unauthorized:
            return False
        return (key.name, key.role == "admin") == (request.client_name, request.is_admin)

    def demand_of(self, environ: Mapping[str, Any]) -> ThreadDemand | None:
        """Return how many threads the server counts a request for; None for a request outside the thread quotas.

        A request with a wrong key counts for its address.
        """
        is_outside = environ["PATH_INFO"] in (*_ALWAYS_ANSWERED, *VIEWER_ROUTES)
        if is_outside or environ["REQUEST_METHOD"] == "OPTIONS":
            return None
        try:
            key = self._keyring.authenticate(environ) if self._keyring else None
        except Unauthorized:
            key = None
        demand = self._make_demand(environ, key)
        demand.is_held = True
        return demand

    @contextmanager
    def reading(self, demand: ThreadDemand, beside_slow: bool = True) -> Iterator[None]:
        """Count a thread that reads the body of a request which is to wait. Raises Overloaded."""
        with self._reads.reading(demand.client, beside_slow) as read:
            self.running.add(read)
            try:
                yield
            finally:
                self.running.discard(read)

    def drop_body(self, request: JsonRequest) -> None:
        """Read and drop a small body that nothing has read, unless too many bodies of the client are being read."""
        if num_bytes := request.num_unread_bytes():
            demand = request.environ.get(THREAD_DEMAND) or self._make_demand(request.environ, None)
            with suppress(Overloaded), self.reading(demand, beside_slow=False):
                request.discard(num_bytes)

    def num_threads_of(self, client: str) -> int:
        """Return the number of threads that the requests of a client count for."""
        return self._quotas.num_held(client)

    def num_unanswered(self) -> int:
        """Return the number of requests that have no answer yet."""
        return len(self.running) + len(self.waiting)

    def reserve(self, request: JsonRequest, share: float) -> None:
        """Count the request for more threads until it is answered, as its response has this share of the largest size.

        Raises Overloaded.
        """
        if num_threads := int(share * self._threads_of_largest):
            demand: ThreadDemand = request.environ[THREAD_DEMAND]
            self._quotas.acquire(demand.client, num_threads)
            demand.num_threads += num_threads

    def hold(self, request: JsonRequest) -> Callable[[], None]:
        """Count an answered request for as many threads as before, until the function that is returned is called."""
        demand: ThreadDemand = request.environ[THREAD_DEMAND]
        if demand.is_held:
            return lambda: None
        self._quotas.hold(demand.client, demand.num_threads)
        return partial(self._quotas.release, demand.client, demand.num_threads)

    def last(self, request: JsonRequest) -> Callable[[], None]:
        """Count a request that may take minutes, until the function that is returned is called.

        Such requests have a part of the threads, so that they leave the others to requests that are answered soon.
        Raises Overloaded.
        """
        quotas = self._viewers if request.path in VIEWER_ROUTES else self._lasting
        quotas.acquire(request.client_name)
        return partial(quotas.release, request.client_name)

    def _make_demand(self, environ: Mapping[str, Any], key: ApiKey | None) -> ThreadDemand:
        client = key.name if key else network_of(address_of(environ, self._num_proxies))
        is_viewer = environ["PATH_INFO"] in VIEWER_ROUTES
        return ThreadDemand(client, self._num_threads(environ), time.perf_counter(), is_held=is_viewer)

    def _check_wait(self, demand: ThreadDemand) -> None:
        """Raise Overloaded for a request that could not wait, or has waited for as long as it may for its answer."""
        if demand.refusal:
            raise demand.refusal
        if demand.waited_s >= self._max_wait_s:
            raise Overloaded(f"the request has waited {demand.waited_s:.1f} s for a thread: send fewer at a time")

    def _num_threads(self, environ: Mapping[str, Any]) -> int:
        """Return the number of threads that a request counts for: one, and more for a large body that is not a file."""
        if _is_upload(environ):
            return 1
        size = environ.get("CONTENT_LENGTH", "")
        if "HTTP_TRANSFER_ENCODING" in environ:
            num_bytes = _UNKNOWN_BODY_SHARE * self._max_body_bytes
        else:
            num_bytes = min(self._max_body_bytes, int(size[:MAX_LENGTH_DIGITS])) if size.isdecimal() else 0
        return 1 + int(num_bytes / self._max_body_bytes * self._threads_of_largest)

    @cached_property
    def _rates(self) -> RateLimits:
        return RateLimits(self._broker, self._keys)

    def _check_rate(self, request: JsonRequest, key: ApiKey) -> None:
        usage = self._rates.count(key)
        request.rate_headers = usage.headers
        usage.check()

    def _authorize(self, environ: Mapping[str, Any], route: str) -> ApiKey | None:
        """Return the request's key, or None where none is needed."""
        if self._keyring is None:
            self._check_browser(environ)
            return None
        if environ["REQUEST_METHOD"] in _SAFE_METHODS and (route in OPEN_ROUTES or route.startswith(OPEN_PATHS)):
            return None
        key = self._keyring.authenticate(environ)
        if key.role != "admin" and route.startswith(_ADMIN_ROUTES):
            raise Forbidden(f"the key {key.name} has the role {key.role}, and this route needs the role admin")
        return key

    def _check_browser(self, environ: Mapping[str, Any]) -> None:
        """Raise Forbidden for a request that a web page of another site made a browser send without its user's wish.

        Such a page can send requests to this machine, and can read the responses if its own host name leads here (DNS
        rebinding).
        """
        host = environ.get("HTTP_HOST", "")
        if self._local_names and _without_port(host) not in self._local_names:
            raise Forbidden(
                f"the request is for the host {excerpt(host)}, and without keys this server answers only to "
                f"{', '.join(_LOCAL_NAMES)}: give it keys, or allow all hosts with --allow-anonymous anywhere"
            )
        if _is_foreign(environ) and environ["REQUEST_METHOD"] not in _SAFE_METHODS and not self._is_allowed(environ):
            raise Forbidden("a web page of another site sent this: name its origin with --cors-origins to allow it")

    def _is_allowed(self, environ: Mapping[str, Any]) -> bool:
        return not self._origins.isdisjoint(("*", environ.get("HTTP_ORIGIN")))


def _is_upload(environ: Mapping[str, Any]) -> bool:
    """Return true if the body is a file, whose name is in the query."""
    query = environ.get("QUERY_STRING", "")
    return bool(query and _UPLOAD_PATH.fullmatch(environ["PATH_INFO"])) and "name" in parse_qs(query, True)


def _is_foreign(environ: Mapping[str, Any]) -> bool:
    """Return true if a page of another origin sent this; browsers without Sec-Fetch-Site send at least Origin."""
    if site := environ.get("HTTP_SEC_FETCH_SITE"):
        return site not in ("none", "same-origin")
    origin = environ.get("HTTP_ORIGIN")
    return origin is not None and origin.partition("://")[2] != environ.get("HTTP_HOST", "")


def _without_port(host: str) -> str:
    return host if host.endswith("]") else host.rpartition(":")[0] or host
