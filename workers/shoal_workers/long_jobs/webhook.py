"""The webhook: an HTTP request that reports the end of a long job. Sending it is a long job too, with retries."""

import hmac
import json
import socket
import ssl
import time
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote

from shoal.contract.excerpt import excerpt
from shoal.errors import FileError, InvalidRequest, Unavailable, UnknownJob
from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_jobs.status import public_map
from shoal.process.private_network import check_address, split_url, without_query
from shoal.settings import Settings
from shoal.task_progress import Report

#: The header with the time and the signature.
SIGNATURE = "Shoal-Signature"

#: Longest wait for the connection to the receiver, and for each part of its answer, in seconds.
WEBHOOK_TIMEOUT_S = 5.0

#: Characters of a path or a query that are not escaped.
_SENT_AS_IS = "%/:=&?~+!$,;'@()*[]"


def send_webhook(settings: Settings, arguments: Mapping[str, Any], job_id: str, report: Report) -> dict[str, Any]:
    """Report the end of the job `id` to the `url`, unless the job was deleted or retried meanwhile."""
    url, of = (arguments.get(name) for name in ("url", "id"))
    if not isinstance(url, str) or not isinstance(of, str):
        raise InvalidRequest("a webhook takes url and id, two strings")
    job = None
    with suppress(UnknownJob), LongJobs(settings) as jobs:
        job = jobs.status(of)
    if not job or not job.has_ended:
        return {"status": None}
    values = public_map(job, settings)
    del values["webhook"]
    return {"status": send(url, values, settings.webhook_secret, settings.private_host_names())}


def sign(secret: str, body: bytes, at_s: int) -> str:
    """Return the header's value: the time, and the HMAC-SHA-256 of the time, a dot and the body, in hex digits."""
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def send(url: str, values: Mapping[str, Any], secret: str, private_hosts: Collection[str]) -> int:
    """Send the values as JSON, signed if there is a secret, and return the HTTP status. Raises Unavailable."""
    body = json.dumps(values, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "shoal"}
    if secret:
        headers[SIGNATURE] = sign(secret, body, int(time.time()))
    try:
        status = _post(url, private_hosts, body, headers)
    except (OSError, HTTPException) as error:
        reason = str(error) if isinstance(error, OSError) else excerpt(str(error))  # has the receiver's bytes
        raise Unavailable(f"{without_query(url)} does not answer ({reason or type(error).__name__})") from error
    except FileError as error:  # a DNS server may not have answered
        raise Unavailable(error.message) from error
    if not 200 <= status < 300:
        raise Unavailable(f"{without_query(url)} answered {status}: a webhook takes an answer of 200 to 299")
    return status


def _post(url: str, private_hosts: Collection[str], body: bytes, headers: Mapping[str, str]) -> int:
    """Send one request to a checked address, and return the status. Follows no redirect and uses no proxy."""
    parts, addresses = split_url(url), check_address(url, private_hosts)
    has_tls, host = parts.scheme == "https", parts.hostname or ""
    connection: Any = (HTTPSConnection if has_tls else HTTPConnection)(host, parts.port)
    with closing(connection):
        connection.sock = _connected(addresses)  # not the name, which might have another address by now
        if has_tls:
            connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=host)
        target = quote(f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}", safe=_SENT_AS_IS)
        connection.request("POST", target, body, {"Connection": "close", **headers})
        return int(connection.getresponse().status)


def _connected(addresses: list[tuple[str, int]]) -> socket.socket:
    """Return a connection to the first address that accepts it."""
    for address in addresses[:-1]:
        with suppress(OSError):
            return socket.create_connection(address, WEBHOOK_TIMEOUT_S)
    return socket.create_connection(addresses[-1], WEBHOOK_TIMEOUT_S)
