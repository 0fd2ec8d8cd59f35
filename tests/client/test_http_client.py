"""The client over HTTP, compared with the client over Redis, and with a running API. See also `test_clients.py`."""

import math
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, vector_of
from conftest import PATIENCE_S, free_port, wait_until
from http_servers import Canned, CannedServer, Listen
from process import Process
from tcp_proxy import Proxy

from shoal import Client, HttpClient
from shoal.client.http.answer import RequestLimits
from shoal.client.http.session import HttpSession
from shoal.contract.keys import Keys
from shoal.contract.options import Options
from shoal.errors import (
    InvalidRequest,
    ShoalError,
    TooLarge,
    Unavailable,
)
from shoal.operations import Embed, Search
from shoal.settings import DEFAULTS

pytest_plugins = ["api_fixtures", "http_fixtures"]

#: A key that no message may contain.
KEY = "a-secret-key"

#: An answer to `submit`.
SUBMITTED = Canned(202, b'{"id": "a1"}', {"Content-Type": "application/json"})


def test_the_errors_equal_the_errors_of_the_client_over_redis(http: HttpClient, client: Client) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda c: c.embed([]),
        lambda c: c.embed(["storm", 5]),
        lambda c: c.embed("storm", pooling="last"),
        lambda c: c.embed("storm", prompt_name="poem"),
        lambda c: c.embed(["storm", "storm " * 50], truncate=False),
        lambda c: c.embed(["storm", "\ud800"]),
        lambda c: c.search(" "),
        lambda c: c.search(["storm", "rain"], cursor=""),
        lambda c: c.search("storm", cursor="nonsense"),
        lambda c: c.search("storm", index="other"),
        lambda c: c.search("storm", output="tokens"),
        lambda c: list(c.embed_stream(["storm"], lane="fast")),
        lambda c: list(c.embed_stream(["storm"], window=0)),
        lambda c: c.submit("train", "storm"),
        lambda c: c.rerank("storm", ["rain"]),
        lambda c: c.submit("rerank", ["rain"], query="storm", raw_scores=1),
        lambda c: c.submit("embed", "storm", idempotency_key=""),
        lambda c: c.submit("search", ["storm"] * 11, k=1_000),
        lambda c: c.job("unknown").status(),
        lambda c: c.job("unknown").result(),
        lambda c: c.job("unknown").cancel(),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(ShoalError) as expected:
            call(client)
        with pytest.raises(type(expected.value)) as found:
            call(http)
        assert found.value.message == expected.value.message, number


class TestLimits:
    def test_a_list_is_split_by_the_limits_of_the_api(
        self, listen: Listen, make_app: MakeApp, stub: StubWorker
    ) -> None:
        texts = [f"text {n}" for n in range(600)]
        with HttpClient(listen(make_app()), timeout_s=math.inf) as http:
            assert np.array_equal(http.embed(texts), [vector_of(text) for text in texts])
        texts = ["a" * 20_000, "b" * 30_000, "c" * 40_000]
        with HttpClient(listen(make_app(max_request_bytes=60_000)), timeout_s=PATIENCE_S) as http:
            assert np.array_equal(http.embed(texts), [vector_of(text) for text in texts])
            with pytest.raises(TooLarge, match="the body is larger than 60,000 bytes"):
                http.embed("a" * 60_000)

    def test_limits_come_from_the_api(self) -> None:
        usual: dict[str, Any] = {"max_request_bytes": DEFAULTS.max_request_bytes}
        usual |= {name: getattr(DEFAULTS, name) for name in ("max_backlog_texts", "max_response_mb")}
        rows: list[tuple[dict[str, int], int | None, int, int]] = [
            ({}, None, 256, 4 * 2**20),
            ({"max_backlog_texts": 5}, 4, 5, 4 * 2**20),
            ({"max_response_mb": 1}, 4_096, 64, 4 * 2**20),
            ({"max_request_bytes": 10_000}, 4, 256, 5_904),
        ]
        for limits, dimension, max_texts, max_bytes in rows:
            found = RequestLimits.from_info({"limits": usual | limits, "dimension": dimension})
            assert found == RequestLimits(max_texts, max_bytes)
        most = RequestLimits(256, 2**20)  # a request has few hits and token vectors
        jobs = [Search(["a"] * 9, k=1_000), Embed(["a"] * 9, Options(output="tokens")), Embed(["a"] * 9)]
        assert [[len(part.texts) for part in most.split(job)] for job in jobs] == [[5, 4], [4, 4, 1], [9]]


def test_closing_ends_waits_at_once_and_a_later_request_connects(canned: CannedServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        session = HttpSession(f"http://127.0.0.1:{listener.getsockname()[1]}", "")
        asking = threads.submit(session.ask, "GET", "/info", time.monotonic() + PATIENCE_S)
        with listener.accept()[0] as connection:
            assert connection.recv(1)
            (reader,) = (thread.ident or 0 for thread in threads._threads)
            wait_until(lambda: sys._current_frames()[reader].f_code.co_name == "read")  # the thread waits for an answer
            begun_s = time.monotonic()
            session.close()
            with pytest.raises(Unavailable):
                asking.result(PATIENCE_S / 2)
            assert time.monotonic() - begun_s < PATIENCE_S / 2

        def interrupt() -> None:
            with listener.accept()[0] as connection:
                assert connection.recv(1)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                while connection.recv(4_096):
                    pass

        earlier = signal.signal(signal.SIGUSR1, lambda *_: session.close())
        interrupting = threads.submit(interrupt)
        with pytest.raises(Unavailable):  # the thread that waits closes its own connection
            session.ask("GET", "/info", time.monotonic() + PATIENCE_S)
        interrupting.result()
        signal.signal(signal.SIGUSR1, earlier)
    session = HttpSession(canned.url, "")
    session._client().close()
    canned.answers = [SUBMITTED]
    assert session.ask("GET", "/info", time.monotonic() + PATIENCE_S, pause=lambda _: session.close()).status == 202
    session.close()


def test_connections_stay_open_and_broken_ones_are_replaced(
    redis_url: str, keys: Keys, stub: StubWorker, tmp_path: Path
) -> None:
    port, settings = free_port(), {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool}
    with Process(tmp_path / "log", "api", "--port", port, **settings) as process, Proxy(port) as proxy:
        wait_until(lambda: "http" in process.output)
        with HttpClient(f"http://127.0.0.1:{proxy.port}", timeout_s=PATIENCE_S) as http:
            for text in ("a", "b", "c"):
                http.embed(text)
            assert proxy.num_open() == 2
            proxy.cut()
            assert np.array_equal(http.embed("d"), vector_of("d"))


class TestSettings:
    def test_a_wrong_url_is_refused_and_secrets_are_in_no_message(self) -> None:
        for url in ("localhost:8080", "ftp://host", "http://", "", "http://host?q=1", "http://[::1"):
            with pytest.raises(InvalidRequest, match="it takes one such as http://localhost:8080"):
                HttpClient(url)
        for url, key in (("http://user:password@host", ""), ("http://host", f"{KEY}\n")):
            with pytest.raises(InvalidRequest) as found:
                HttpClient(url, key)
            assert "password@" not in found.value.message
            assert KEY not in found.value.message
        with HttpClient(key=KEY) as http:
            assert KEY not in f"{vars(http)} {vars(http._session)} {vars(http._session._client())}"

    def test_a_url_may_have_a_path(self, canned: CannedServer) -> None:
        canned.answers = [SUBMITTED]
        with HttpClient(f"{canned.url}/shoal/", timeout_s=PATIENCE_S) as http:
            http.submit("embed", "a")
        assert canned.requests[0][0] == "/shoal/v1/jobs"

    @pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl, to make a certificate")
    def test_a_server_needs_a_trusted_certificate(self, canned: CannedServer, tmp_path: Path) -> None:
        key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
        command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
        command += f" -keyout {key} -out {certificate}"
        subprocess.run(command.split(), check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        canned.socket = context.wrap_socket(canned.socket, server_side=True)
        canned.answers = [SUBMITTED]
        url = canned.url.replace("http:", "https:")
        for verify in (ssl.create_default_context(cafile=certificate), False):
            with HttpClient(url, verify=verify, timeout_s=PATIENCE_S) as http:
                assert http.submit("embed", "a").id == "a1"
        with (
            HttpClient(url, timeout_s=PATIENCE_S) as http,
            pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            http.submit("embed", "a")

    def test_the_error_of_a_missing_library_has_the_command_to_install_it(self) -> None:
        script = "import sys; sys.modules['httpx2'] = None\nfrom shoal import *\nHttpClient()"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert "MissingExtra: HttpClient needs 'httpx2', which is not installed: " in done.stderr
        assert "pip install" in done.stderr
        assert "[http]" in done.stderr
