"""Webhooks, which report the end of a long job: signed, tried again, and never sent to a forbidden address."""

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
from shoal_workers.long_jobs.webhook import SIGNATURE, send, send_webhook

SECRET = "s3cret-of-webhooks"


class Receiver(HTTPServer):
    """A server that keeps the requests it receives, and answers with `statuses`, and then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_port}/reports?a=b"


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
    """Yield a receiver that answers requests."""
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()


def is_signed(headers: dict[str, str], body: bytes) -> bool:
    """Return True if the signature is right, checked as docs/long-jobs.md describes."""
    at_s, signature = (part.partition("=")[2] for part in headers[SIGNATURE].split(","))
    wanted = hmac.new(SECRET.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(wanted, signature)


def test_a_runner_reports_the_end_of_each_job(own_redis: RedisServer, tmp_path: Path) -> None:
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
        reports = [json.loads(body) for headers, body in receiver.received if is_signed(headers, body)]
        assert len(reports) == 5
        states = {values["id"]: (values["status"], values["result"]) for values in reports}
        assert states == {ids[0]: ("done", "done"), ids[1]: ("failed", None), ids[2]: ("cancelled", None)}
        assert all("webhook" not in values for values in reports)
        sent = {"url": receiver.url.removesuffix("?a=b"), "status": "sent", "answer": 200, "error": None}
        wait_until(lambda: all(place.jobs.status(job_id).webhook == sent for job_id in ids))
    place.close()
    assert SECRET not in place.log
    assert "a=b" not in place.log


def test_a_webhook_that_is_not_sent_is_shown_with_the_reason(own_redis: RedisServer, tmp_path: Path) -> None:
    place = Place(own_redis, tmp_path)
    arguments = {"folder": str(tmp_path), "times": 0, "dies": False}
    refused, unanswered = (
        place.jobs.submit("recover", arguments, webhook=f"http://{host}:1/reports?a=b")
        for host in ("127.0.0.2", "127.0.0.1")
    )
    pending = {"url": "http://127.0.0.2:1/reports", "status": "pending", "answer": None, "error": None}
    assert place.jobs.status(refused).webhook == pending
    assert [listed.webhook for listed in place.jobs.list()] == [None, None]
    place.start(private_hosts="127.0.0.1")

    def webhook_of(job_id: str) -> Any:
        return place.jobs.status(job_id).webhook

    wait_until(lambda: webhook_of(refused)["error"] and webhook_of(unanswered)["error"])
    found = [webhook_of(job_id) for job_id in (refused, unanswered)]  # the second is sent again later
    assert [webhook["status"] for webhook in found] == ["failed", "pending"]
    assert [webhook["error"]["code"] for webhook in found] == ["address_not_allowed", "unavailable"]
    assert "a=b" not in str(found)
    place.close()


def test_a_webhook_without_a_secret_is_not_signed() -> None:
    with receiving() as receiver:
        assert send(receiver.url, {"a": 1}, "", {"127.0.0.1"}) == 200
        ((headers, body),) = receiver.received
    assert SIGNATURE not in headers
    assert (json.loads(body), headers["Content-Type"]) == ({"a": 1}, "application/json")


def test_an_answer_other_than_success_is_an_error() -> None:
    with receiving() as receiver:
        receiver.statuses = [302, 500]
        for status in (302, 500):
            with pytest.raises(Unavailable, match=f"answered {status}: a webhook takes"):
                send(receiver.url, {}, "", {"127.0.0.1"})
        assert len(receiver.received) == 2
        with pytest.raises(AddressNotAllowed):
            send(receiver.url, {}, "", set())
        assert len(receiver.received) == 2


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 99999999999999999999 OK\r\n\r\n"])
def test_a_webhook_whose_connection_breaks_is_sent_again(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        sending = threads.submit(send, f"http://127.0.0.1:{server.getsockname()[1]}/", {}, "", {"127.0.0.1"})
        with server.accept()[0] as connection:
            connection.recv(65_536)
            connection.sendall(answer)
        with pytest.raises(Unavailable):
            sending.result(PATIENCE_S)


def test_only_the_end_of_a_job_is_reported(own_redis: RedisServer) -> None:
    settings = Settings(redis_url=own_redis.url, private_hosts="127.0.0.1")
    with LongJobs(settings) as jobs, receiving() as receiver:
        arguments = {"url": receiver.url, "id": jobs.submit("embed_file", {"source": "a.csv", "out": "a"})}
        assert send_webhook(settings, arguments, "webhook", print) == {"status": None}
        jobs.cancel(arguments["id"])
        assert send_webhook(settings, arguments, "webhook", print) == {"status": 200}
        jobs.delete(arguments["id"])
        assert send_webhook(settings, arguments, "webhook", print) == {"status": None}
    assert [json.loads(body)["status"] for _, body in receiver.received] == ["cancelled"]
