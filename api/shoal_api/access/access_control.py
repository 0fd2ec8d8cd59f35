"""Who may pass: the key of a request, what it may do, and how much at a time. Every request goes through here."""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from shoal.errors import Forbidden, Unauthorized
from shoal.excerpt import excerpt
from shoal.settings import Settings
from shoal_api.access.api_keys import ApiKey, Keyring
from shoal_api.access.client_name import origin_of
from shoal_api.access.rate_limit import RateLimits
from shoal_api.access.thread_quota import ThreadQuotas
from shoal_api.request import JsonRequest

#: Routes that need no key. Those below /docs are its page.
OPEN_ROUTES = ("/", "/health", "/ready", "/docs", "/openapi.json")

#: What the routes that need an admin's key begin with.
_ADMIN_ROUTES = ("/v1/dead",)

#: The routes that are no client's share, so that a busy server is taken neither for dead nor for not ready.
_ALWAYS_ANSWERED = ("/health", "/ready")

#: Names of this machine, by which nobody else's web page can be reached.
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")

#: Methods that change nothing, so that a browser may follow another site's link with them.
_SAFE_METHODS = ("GET", "HEAD")

_Answer = TypeVar("_Answer")


class AccessControl:
    """Lets requests in. Thread-safe.

    Raises BadSetting for a key file that cannot be read.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        self._keyring = Keyring(Path(settings.api_keys_file)) if settings.api_keys_file else None
        self._local_names = {"", *_LOCAL_NAMES, settings.host} if settings.allow_anonymous == "loopback" else None
        self._origins = {origin.strip() for origin in settings.cors_origins.split(",")}
        self._shares = ThreadQuotas(settings.api_threads)
        #: The requests that are being answered.
        self.running: set[JsonRequest] = set()

    @property
    def needs_keys(self) -> bool:
        """Whether requests need a key."""
        return self._keyring is not None

    def answer(self, request: JsonRequest, view: Callable[[], _Answer]) -> _Answer:
        """What the view answers, if the request may come in.

        Raises Unauthorized, Forbidden, RateLimited and Overloaded if it may not.
        """
        route = request.url_rule.rule if request.url_rule else ""
        if route in _ALWAYS_ANSWERED or request.method == "OPTIONS":  # which browsers ask before they send a key
            return view()
        key = self._admit(request.environ, route)
        request.caller = key.name if key else origin_of(request.environ.get("REMOTE_ADDR", ""))
        self._shares.take(request.caller)
        self.running.add(request)
        try:
            if key and key.rate:
                self._check_rate(request, key)
            return view()
        finally:
            self.running.discard(request)
            self._shares.give_back(request.caller)

    @cached_property
    def _rates(self) -> RateLimits:
        return RateLimits(self._settings)

    def _check_rate(self, request: JsonRequest, key: ApiKey) -> None:
        standing = self._rates.count(key)
        request.rate_headers = standing.headers
        standing.check()

    def _admit(self, environ: Mapping[str, Any], route: str) -> ApiKey | None:
        """The request's key, or None where none is needed."""
        if self._keyring is None:
            self._check_browser(environ)
            return None
        if route in OPEN_ROUTES or route.startswith("/docs/"):
            return None
        if not (secret := _secret(environ)):
            raise Unauthorized("this needs a key: send it as `Authorization: Bearer <key>`")
        if not (key := self._keyring.find(secret)):
            raise Unauthorized("the key is not one of those that this server knows")
        if key.role != "admin" and route.startswith(_ADMIN_ROUTES):
            raise Forbidden(f"the key {key.name} is no admin's: this route needs one that is")
        return key

    def _check_browser(self, environ: Mapping[str, Any]) -> None:
        """Raises Forbidden for what a web page of another site makes a browser send: its user has asked for nothing.

        Such a page can send a request to this machine, and can read the answer too if its own name leads here.
        """
        host = environ.get("HTTP_HOST", "")
        if self._local_names and _without_port(host) not in self._local_names:
            raise Forbidden(
                f"without keys this server answers only to {', '.join(_LOCAL_NAMES)}, and was called {excerpt(host)}: "
                "give it keys, or allow it with --allow-anonymous anywhere"
            )
        if _is_foreign(environ) and environ["REQUEST_METHOD"] not in _SAFE_METHODS and not self._is_allowed(environ):
            raise Forbidden("a web page of another site sent this: name its origin with --cors-origins to allow it")

    def _is_allowed(self, environ: Mapping[str, Any]) -> bool:
        return not self._origins.isdisjoint(("*", environ.get("HTTP_ORIGIN")))


def _is_foreign(environ: Mapping[str, Any]) -> bool:
    """Whether a page of another origin sent this; browsers that do not say so say at least which origin it was."""
    if site := environ.get("HTTP_SEC_FETCH_SITE"):
        return site not in ("none", "same-origin")
    origin = environ.get("HTTP_ORIGIN")
    return origin is not None and origin.partition("://")[2] != environ.get("HTTP_HOST", "")


def _secret(environ: Mapping[str, Any]) -> str:
    """The key that the request came with, or none."""
    scheme, _, secret = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else str(environ.get("HTTP_X_API_KEY", ""))


def _without_port(host: str) -> str:
    return host if host.endswith("]") else host.rpartition(":")[0] or host
