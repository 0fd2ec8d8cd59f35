"""Webhooks: the end of a long job, told to a URL: signed, tried again, and never to an address that is not allowed."""

import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, RedisServer, wait_until
from test_runner import Place

from shoal.errors import AddressNotAllowed, Unavailable
from shoal.long_jobs.long_jobs import LongJobs
from shoal.settings import Settings
from shoal_workers.long_jobs.tasks import send_webhook
from shoal_workers.long_jobs.webhook import SIGNATURE, send, sign

SECRET = "s3cret-of-webhooks"


class Receiver(HTTPServer):
    """A server that keeps what it was told, and answers with the statuses that it is given, then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_port}/told?a=b"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        """Keep the request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((dict(self.headers), body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("Location", self.server.url)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that answers."""
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()


def is_signed(headers: dict[str, str], body: bytes) -> bool:
    """Check the signature as docs/long-jobs.md tells a receiver to."""
    at_s, signature = (part.partition("=")[2] for part in headers[SIGNATURE].split(","))
    wanted = hmac.new(SECRET.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(wanted, signature)


def test_a_runner_tells_of_the_end_of_each_job(own_redis: RedisServer, tmp_path: Path) -> None:
    place = Place(own_redis, tmp_path)
    with receiving() as receiver:
        receiver.statuses = [503, 302]
        ids = [
            place.jobs.submit(kind, {"folder": str(tmp_path), "times": 0, "dies": False}, webhook=receiver.url)
            for kind in ("recover", "refuse", "count")
        ]
        place.jobs.cancel(ids[2])
        place.start(webhook_secret=SECRET, private_hosts="127.0.0.1")
        wait_until(lambda: len(receiver.received) == 5)
        told = [json.loads(body) for headers, body in receiver.received if is_signed(headers, body)]
        assert len(told) == 5
        states = {values["id"]: (values["status"], values["result"]) for values in told}
        assert states == {ids[0]: ("done", "done"), ids[1]: ("failed", None), ids[2]: ("cancelled", None)}
        assert all("webhook" not in values for values in told)
        sent = {"url": receiver.url.removesuffix("?a=b"), "status": "sent", "answer": 200, "error": None}
        wait_until(lambda: all(place.jobs.status(job_id).webhook == sent for job_id in ids))
    place.close()
    assert SECRET not in place.log
    assert "a=b" not in place.log


def test_a_webhook_that_is_not_sent_is_shown_with_the_reason(own_redis: RedisServer, tmp_path: Path) -> None:
    place = Place(own_redis, tmp_path)
    arguments = {"folder": str(tmp_path), "times": 0, "dies": False}
    job_id = place.jobs.submit("recover", arguments, webhook="http://127.0.0.1:1/told?a=b")
    told = {"url": "http://127.0.0.1:1/told", "status": "pending", "answer": None, "error": None}
    assert place.jobs.status(job_id).webhook == told
    (listed,) = place.jobs.list()
    assert listed.webhook is None
    place.start()
    wait_until(lambda: (place.jobs.status(job_id).webhook or told)["status"] == "failed")
    webhook = place.jobs.status(job_id).webhook
    assert webhook
    assert webhook["error"]["code"] == "address_not_allowed"
    assert "a=b" not in str(webhook)
    place.close()


def test_a_webhook_is_pending_while_it_is_tried_again(own_redis: RedisServer, tmp_path: Path) -> None:
    place = Place(own_redis, tmp_path)
    arguments = {"folder": str(tmp_path), "times": 0, "dies": False}
    job_id = place.jobs.submit("recover", arguments, webhook="http://127.0.0.1:1/told")
    place.start(private_hosts="127.0.0.1")
    wait_until(lambda: (place.jobs.status(job_id).webhook or {}).get("error"))
    webhook = place.jobs.status(job_id).webhook
    assert webhook
    assert (webhook["status"], webhook["error"]["code"]) == ("pending", "unavailable")
    place.close()


def test_a_signature_is_of_the_time_and_the_body() -> None:
    digest = hmac.new(b"key", b"12.{}", hashlib.sha256).hexdigest()
    assert sign("key", b"{}", 12) == f"t=12,v1={digest}"


def test_without_a_secret_it_is_not_signed() -> None:
    with receiving() as receiver:
        assert send(receiver.url, {"a": 1}, "", {"127.0.0.1"}) == 200
        ((headers, body),) = receiver.received
    assert SIGNATURE not in headers
    assert (json.loads(body), headers["Content-Type"]) == ({"a": 1}, "application/json")


@pytest.mark.parametrize("status", [302, 404, 500])
def test_another_answer_than_success_is_an_error(status: int) -> None:
    with receiving() as receiver:
        receiver.statuses = [status]
        with pytest.raises(Unavailable, match=f"answered {status}: a webhook takes"):
            send(receiver.url, {}, "", {"127.0.0.1"})
        assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "answer",
    [b"", b"no HTTP\r\n\r\n", b"HTTP/1.1 99999999999999999999 OK\r\n\r\n"],
)
def test_a_receiver_that_breaks_off_is_told_again(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        sending = threads.submit(send, f"http://127.0.0.1:{server.getsockname()[1]}/", {}, "", {"127.0.0.1"})
        with server.accept()[0] as connection:
            connection.recv(65_536)
            connection.sendall(answer)
        with pytest.raises(Unavailable):
            sending.result(PATIENCE_S)


def test_a_private_address_is_refused_unless_it_is_named() -> None:
    with receiving() as receiver, pytest.raises(AddressNotAllowed):
        send(receiver.url, {}, "", set())
    assert receiver.received == []
    with pytest.raises(Unavailable):
        send("http://127.0.0.1:1/", {}, "", {"127.0.0.1"})


def test_a_job_that_goes_on_meanwhile_is_not_told_of(own_redis: RedisServer) -> None:
    settings = Settings(redis_url=own_redis.url, private_hosts="127.0.0.1")
    with LongJobs(settings) as jobs, receiving() as receiver:
        arguments = {"url": receiver.url, "id": jobs.submit("embed_file", {"source": "a.csv", "out": "a"})}
        assert send_webhook(settings, arguments, "webhook", print) == {"status": None}
        jobs.cancel(arguments["id"])
        assert send_webhook(settings, arguments, "webhook", print) == {"status": 200}
    assert [json.loads(body)["status"] for _, body in receiver.received] == ["cancelled"]
