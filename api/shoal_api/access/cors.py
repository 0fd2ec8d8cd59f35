"""Which web pages of other sites may use the API from a browser."""

import re

from flask import Flask
from flask_cors import CORS

from shoal.errors import BadSetting

#: Headers that a page may send, a key among them.
_SENT = ("Authorization", "Content-Type", "Idempotency-Key", "Prefer", "X-API-Key")

#: Headers of an answer that a page may read, beside those that it always may.
_READ = (
    *("Location", "Preference-Applied", "RateLimit", "RateLimit-Policy", "Retry-After"),
    *("Server-Timing", "WWW-Authenticate", "X-Cached", "X-Tokens", "X-Truncated"),
)

#: How long a browser need not ask again, in seconds: the longest that any of them keeps to.
_MAX_AGE_S = 7_200

_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]+)?")


def install(app: Flask, origins: str) -> None:
    """Lets pages of these origins, separated by commas, use the API; cookies are no part of it.

    Raises BadSetting for what is no origin.
    """
    names = [name.strip() for name in origins.split(",")]
    for name in names:
        if name != "*" and not _ORIGIN.fullmatch(name):
            raise BadSetting(f"cors_origins has {name!r}: write https://host or https://host:port, or * for all")
    CORS(
        app,
        origins="*" if "*" in names else [re.compile(rf"{re.escape(name)}\Z", re.IGNORECASE) for name in names],
        send_wildcard=True,
        always_send=False,
        methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=list(_SENT),
        expose_headers=list(_READ),
        max_age=_MAX_AGE_S,
        intercept_exceptions=False,
    )
