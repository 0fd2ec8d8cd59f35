"""Webhooks, which report the end of a long job: signed, tried again, and never sent to a forbidden address."""

import hashlib
import hmac
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate, has_openssl
from conftest import RedisServer, wait_until
from http_servers import Canned, CannedServer, running
from test_runner import Place

from shoal.errors import AddressNotAllowed, Unavailable
from shoal.long_jobs.long_jobs import LongJobs
from shoal.settings import Settings
from shoal_workers.long_jobs.webhook import SIGNATURE, send, send_webhook

SECRET = "s3cret-of-webhooks"

LOOPBACK = frozenset({"127.0.0.1"})


@pytest.fixture
def receiver() -> Iterator[CannedServer]:
    """Return a server that keeps the requests it receives. It answers with 200 if a test names no other answer."""
    server = CannedServer()
    server.answers = [Canned()]
    with running(server):
        yield server


def is_signed(headers: dict[str, str], body: bytes) -> bool:
    """Return True if the signature is right, checked as docs/long-jobs.md describes."""
    at_s, signature = (part.partition("=")[2] for part in headers[SIGNATURE].split(","))
    wanted = hmac.new(SECRET.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(wanted, signature)


def test_a_runner_reports_the_end_of_each_job(own_redis: RedisServer, tmp_path: Path, receiver: CannedServer) -> None:
    place, url = Place(own_redis, tmp_path), f"{receiver.url}/reports?a=b"
    receiver.answers = [Canned(503), Canned(302, headers={"Location": url}), Canned()]
    ids = [
        place.jobs.submit(kind, {"folder": str(tmp_path), "times": 0, "dies": False}, webhook=url)
        for kind in ("recover", "refuse", "count")
    ]
    place.jobs.cancel(ids[2])
    place.start(webhook_secret=SECRET, private_hosts="127.0.0.1")
    wait_until(lambda: len(receiver.requests) == 5)
    told = zip(receiver.requests, receiver.bodies, strict=True)
    assert all(is_signed(headers, body) for (_, headers), (_, body) in told)
    reports = [json.loads(body) for _, body in receiver.bodies]
    states = {values["id"]: (values["status"], values["result"]) for values in reports}
    assert states == {ids[0]: ("done", "done"), ids[1]: ("failed", None), ids[2]: ("cancelled", None)}
    assert all("webhook" not in values for values in reports)
    sent = {"url": f"{receiver.url}/reports", "status": "sent", "answer": 200, "error": None}
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


def test_without_a_secret_it_is_not_signed_and_no_proxy_is_used(
    receiver: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert send(f"{receiver.url}/a b?q=ü&x=%20", {"a": 1}, "", LOOPBACK) == 200
    ((path, headers),) = receiver.requests
    assert (path, headers["Host"]) == ("/a%20b?q=%C3%BC&x=%20", f"127.0.0.1:{receiver.server_port}")
    assert (SIGNATURE in headers, headers["Content-Type"]) == (False, "application/json")
    assert receiver.bodies == [("POST", b'{"a":1}')]


def test_an_answer_other_than_success_is_an_error_that_shows_no_query(receiver: CannedServer) -> None:
    receiver.answers = [Canned(302, headers={"Location": receiver.url}), Canned(500), Canned(0), Canned(99_999)]
    for words in ("answered 302: a webhook takes", "answered 500", "does not answer", "does not answer"):
        with pytest.raises(Unavailable, match=words) as caught:
            send(f"{receiver.url}/a?key=secret", {}, "", LOOPBACK)
        assert "secret" not in caught.value.message
        assert caught.value.message.isprintable()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match=r"/a does not answer \(.*refused"):
            send(f"http://127.0.0.1:{taken.getsockname()[1]}/a", {}, "", LOOPBACK)
    with pytest.raises(AddressNotAllowed):
        send(receiver.url, {}, "", set())
    assert len(receiver.requests) == 4


@pytest.mark.skipif(not has_openssl(), reason="needs openssl 3")
def test_the_certificate_is_checked_against_the_name(
    receiver: CannedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate(tmp_path, "authority")
    certificate(tmp_path, "server", "authority", "DNS:localhost")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    receiver.socket = tls.wrap_socket(receiver.socket, server_side=True)
    hosts, port = {"localhost", "127.0.0.1"}, receiver.server_port
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        send(f"https://localhost:{port}/", {}, "", hosts)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    assert send(f"https://localhost:{port}/", {}, "", hosts) == 200
    with pytest.raises(Unavailable, match="IP address mismatch"):
        send(f"https://127.0.0.1:{port}/", {}, "", hosts)


def test_only_the_end_of_a_job_is_reported(own_redis: RedisServer, receiver: CannedServer) -> None:
    settings = Settings(redis_url=own_redis.url, private_hosts="127.0.0.1")
    with LongJobs(settings) as jobs:
        arguments = {"url": receiver.url, "id": jobs.submit("embed_file", {"source": "a.csv", "out": "a"})}
        assert send_webhook(settings, arguments, "webhook", print) == {"status": None}
        jobs.cancel(arguments["id"])
        assert send_webhook(settings, arguments, "webhook", print) == {"status": 200}
        jobs.delete(arguments["id"])
        assert send_webhook(settings, arguments, "webhook", print) == {"status": None}
    assert [json.loads(body)["status"] for _, body in receiver.bodies] == ["cancelled"]
