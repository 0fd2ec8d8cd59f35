"""Webhooks: a request that tells a URL of the end of a long job, signed so that the receiver can tell who sent it."""

import hmac
import json
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from hashlib import sha256
from typing import Any

from shoal.errors import FileError, Unavailable
from shoal.process.private_network import send_request, without_query

#: Header of the time and the signature.
SIGNATURE = "Shoal-Signature"

#: Longest wait for the receiver to connect and to answer, in seconds.
TIMEOUT_S = 5.0


def sign(secret: str, body: bytes, at_s: int) -> str:
    """Return the value of the header: the time, and the HMAC-SHA-256 in hex of the time, a dot and the body."""
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def send(url: str, values: Mapping[str, Any], secret: str, private_hosts: Collection[str]) -> int:
    """Send the values as JSON, signed if there is a secret, and return the status of the answer.

    No redirect is followed. Raises Unavailable if there is no answer or one that is no success, and AddressNotAllowed
    for an address in a private network whose host is not among `private_hosts`.
    """
    body = json.dumps(values, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "shoal"}
    if secret:
        headers[SIGNATURE] = sign(secret, body, int(time.time()))
    try:
        with closing(send_request(url, private_hosts, "POST", body, headers, TIMEOUT_S)) as response:
            status = int(response.status)
    except FileError as error:
        raise Unavailable(error.message) from error
    if not 200 <= status < 300:
        raise Unavailable(f"{without_query(url)} answered {status}: a webhook takes an answer of 200 to 299")
    return status
