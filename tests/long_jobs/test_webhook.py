"""Webhooks, which report the end of a long job: signed, tried again, and never sent to a forbidden address."""

import hashlib
import hmac
import json
import socket
import ssl
from pathlib import Path

import pytest
from certificates import certificate, has_openssl
from conftest import RedisServer, wait_until
from http_servers import Canned, CannedServer
from test_runner import Place

from shoal.errors import AddressNotAllowed, Unavailable
from shoal.long_jobs.long_jobs import LongJobs
from shoal.settings import Settings
from shoal_workers.long_jobs.webhook import SIGNATURE, send, send_webhook

SECRET = "s3cret-of-webhooks"

LOOPBACK = frozenset({"127.0.0.1"})

pytest_plugins = ["http_fixtures"]


def test_a_runner_reports_the_end_of_each_job(own_redis: RedisServer, tmp_path: Path, canned: CannedServer) -> None:
    place, url = Place(own_redis, tmp_path), f"{canned.url}/reports?a=b"
    canned.answers = [Canned(503), Canned(302, headers={"Location": url}), Canned()]
    arguments = {"folder": str(tmp_path), "times": 0, "dies": False}
    ids = [place.jobs.submit(kind, arguments, webhook=url) for kind in ("recover", "refuse", "count")]
    places = [f"http://{host}:1/reports" for host in ("127.0.0.2", "127.0.0.1")]  # one is forbidden, one has no server
    lost = [place.jobs.submit("recover", arguments, webhook=f"{where}?a=b") for where in places]
    pending = {"url": places[0], "status": "pending", "answer": None, "error": None}
    assert place.jobs.status(lost[0]).webhook == pending
    assert {listed.webhook for listed in place.jobs.list()} == {None}
    place.jobs.cancel(ids[2])
    place.start(webhook_secret=SECRET, private_hosts="127.0.0.1")
    wait_until(lambda: len(canned.requests) == 5)
    for (_, headers), (_, body) in zip(canned.requests, canned.bodies, strict=True):
        at_s, signature = (part.partition("=")[2] for part in headers[SIGNATURE].split(","))
        assert signature == hmac.new(SECRET.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    reports = [json.loads(body) for _, body in canned.bodies]
    states = {values["id"]: (values["status"], values["result"]) for values in reports}
    assert states == {ids[0]: ("done", "done"), ids[1]: ("failed", None), ids[2]: ("cancelled", None)}
    assert all("webhook" not in values for values in reports)
    sent = {"url": f"{canned.url}/reports", "status": "sent", "answer": 200, "error": None}
    wait_until(lambda: all(place.jobs.status(job_id).webhook == sent for job_id in ids))
    wait_until(lambda: all((place.jobs.status(job_id).webhook or {})["status"] == "failed" for job_id in lost))
    found = [place.jobs.status(job_id).webhook or {} for job_id in lost]
    assert [webhook["error"]["code"] for webhook in found] == ["address_not_allowed", "unavailable"]
    assert "a=b" not in str(found)
    place.close()
    assert not any(secret in place.log for secret in (SECRET, "a=b"))


def test_without_a_secret_it_is_unsigned_and_unproxied(canned: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert send(f"{canned.url}/a b?q=ü&x=%20", {"a": 1}, "", LOOPBACK) == 200
    ((path, headers),) = canned.requests
    assert (path, headers["Host"]) == ("/a%20b?q=%C3%BC&x=%20", f"127.0.0.1:{canned.server_port}")
    assert (SIGNATURE in headers, headers["Content-Type"]) == (False, "application/json")
    assert canned.bodies == [("POST", b'{"a":1}')]


def test_an_answer_other_than_success_is_an_error_that_shows_no_query(canned: CannedServer) -> None:
    canned.answers = [Canned(302, headers={"Location": canned.url}), Canned(500), Canned(0), Canned(99_999)]
    for words in ("answered 302: a webhook takes", "answered 500", "does not answer", "does not answer"):
        with pytest.raises(Unavailable, match=words) as caught:
            send(f"{canned.url}/a?key=secret", {}, "", LOOPBACK)
        assert "secret" not in caught.value.message
        assert caught.value.message.isprintable()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match=r"/a does not answer \(.*refused"):
            send(f"http://127.0.0.1:{taken.getsockname()[1]}/a", {}, "", LOOPBACK)
    with pytest.raises(AddressNotAllowed):
        send(canned.url, {}, "", set())
    assert len(canned.requests) == 4


@pytest.mark.skipif(not has_openssl(), reason="needs openssl 3")
def test_the_certificate_is_checked(canned: CannedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate(tmp_path, "authority")
    certificate(tmp_path, "server", "authority", "DNS:localhost")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    canned.socket = tls.wrap_socket(canned.socket, server_side=True)
    hosts, port = {"localhost", "127.0.0.1"}, canned.server_port
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        send(f"https://localhost:{port}/", {}, "", hosts)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    assert send(f"https://localhost:{port}/", {}, "", hosts) == 200
    with pytest.raises(Unavailable, match="IP address mismatch"):
        send(f"https://127.0.0.1:{port}/", {}, "", hosts)


def test_only_the_end_of_a_job_is_reported(own_redis: RedisServer, canned: CannedServer) -> None:
    settings = Settings(redis_url=own_redis.url, private_hosts="127.0.0.1")
    with LongJobs(settings) as jobs:
        arguments = {"url": canned.url, "id": jobs.submit("embed_file", {"source": "a.csv", "out": "a"})}
        assert send_webhook(settings, arguments, "webhook", print) == {"status": None}
        jobs.cancel(arguments["id"])
        assert send_webhook(settings, arguments, "webhook", print) == {"status": 200}
        jobs.delete(arguments["id"])
        assert send_webhook(settings, arguments, "webhook", print) == {"status": None}
    assert [json.loads(body)["status"] for _, body in canned.bodies] == ["cancelled"]
