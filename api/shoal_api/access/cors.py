"""CORS: the origins whose web pages may use the API from a browser."""

import re
from collections.abc import Sequence

from flask import Flask
from flask_cors import CORS

from shoal.contract.replies import FINGERPRINT_HEADER

#: Response headers that a page of an allowed origin may read. Browsers let every page read a few other headers.
_RESPONSE_HEADERS = (
    *("Location", "RateLimit", "RateLimit-Policy", "Retry-After", FINGERPRINT_HEADER),
    *("Server-Timing", "WWW-Authenticate", "X-Cached", "X-Dtype", "X-Shape", "X-Tokens", "X-Truncated"),
)

#: Time for which a browser may cache the answer to a preflight request, in seconds: the longest that Chromium allows.
_MAX_AGE_S = 7_200


def install(app: Flask, origins: Sequence[str]) -> None:
    """Let web pages of these origins use the API, without cookies.

    The pages may send any header, because clients in a page send their own, such as OpenAI's `X-Stainless-OS`.
    """
    CORS(
        app,
        origins="*" if "*" in origins else [re.compile(rf"{re.escape(name)}\Z", re.IGNORECASE) for name in origins],
        send_wildcard=True,
        always_send=False,
        methods=["GET", "HEAD", "POST", "DELETE"],
        expose_headers=list(_RESPONSE_HEADERS),
        max_age=_MAX_AGE_S,
        intercept_exceptions=False,
    )
