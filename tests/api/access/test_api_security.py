"""`shoal api` as a process of its own, against hostile clients."""

import hashlib
import http.client
import io
import json
import re
import resource
import select
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import psutil
import pytest
from api_process import Answer, ApiProcess, StartApi, is_closed, serving_api
from api_stub import MakeApp, StubWorker, error_of
from conftest import PATIENCE_S, RedisServer, free_port, wait_until
from process import FewFiles, run
from service import service

from shoal.contract.keys import Keys
from shoal.operations import MAX_VALUES
from shoal.process.system_limits import raise_file_limit
from shoal_api.access import api_keys
from shoal_api.access.access_control import MAX_CONNECTIONS
from shoal_api.request import MAX_DISCARDED
from shoal_api.server.server import MAX_HEADER_BYTES

pytest_plugins = ["api_fixtures"]

#: Time in which a server that does not wait for a body answers, except on a busy machine.
SOON_S = 0.1

GOOD = {"inputs": "storm"}

#: A server that waits briefly for its clients, and the stub worker behind it.
Impatient = tuple[ApiProcess, StubWorker]


@pytest.fixture(scope="module")
def impatient(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Impatient]:
    """Return a server that waits 0.4 s for each part of a request, and its stub worker."""
    with serving_api(redis_server, tmp_path_factory.mktemp("impatient"), receive_timeout_s=0.4) as both:
        yield both


def num_connections(api: ApiProcess) -> int:
    """Return the number of the server's connections."""
    connections = api.server.net_connections("tcp")
    return len([c for c in connections if c.status == "ESTABLISHED" and c.laddr.port == api.port])


def is_refused_more(connection: socket.socket) -> bool:
    """Send one more byte; return True if the server has answered or closed the connection."""
    connection.settimeout(0.05)
    try:
        connection.send(b"x")
        return not connection.recv(65_536).startswith(b"HTTP/1.1 429 ")
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def being_answered(pool: ThreadPoolExecutor, api: ApiProcess, stub: StubWorker) -> "Future[Answer]":
    """Return a request that the server has received whole. If it came too slowly and was cut off, send it again."""
    for _ in range(100):
        asking = pool.submit(api.ask, "POST", "/embed", GOOD)
        wait_until(lambda: asking.done() or stub.queue.backlog()["interactive"])  # noqa: B023 - it is called here
        if not asking.done():
            return asking
    pytest.fail("every request is cut off")


class TestSlowCallers:
    @pytest.mark.usefixtures("stub")
    def test_bodies_that_are_late_hold_up_no_other_client(self, start_api: StartApi) -> None:
        api = start_api(receive_timeout_s=3_600)
        with ExitStack() as stack:
            for _ in range(400):
                stack.enter_context(closing(api.begin())).sendall(b"{")
            answers = [api.ask("POST", "/embed", GOOD, source="127.0.0.2").status for _ in range(50)]
            assert (answers, api.ask("GET", "/health").status) == ([200] * 50, 200)
            api.server.suspend()  # the server notices the next request and the end of the others together
        wait_until(lambda: num_connections(api) == 0)
        body = json.dumps(GOOD).encode()
        with closing(api.begin(len(body))) as connection:
            connection.sendall(body)
            api.server.resume()
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")

    def test_a_body_that_trickles_or_headers_that_stop_are_cut_off(self, impatient: Impatient) -> None:
        with closing(impatient[0].begin()) as connection:
            wait_until(lambda: is_refused_more(connection))
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: loc", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            with closing(impatient[0].send(sent)) as connection:
                wait_until(partial(is_closed, connection))
        api, _ = impatient
        asked = b"GET /docs/swagger/js/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20
        with closing(api.send_to_slow_reader(asked)):
            wait_until(lambda: num_connections(api) == 1)
            wait_until(lambda: num_connections(api) == 0)

    def test_a_body_that_stops_is_cut_off_while_others_wait_for_their_answers(self, impatient: Impatient) -> None:
        api, stub = impatient
        stub.pause()
        with ThreadPoolExecutor(1) as pool:
            waiting = being_answered(pool, api, stub)
            with closing(api.begin()) as silent:
                silent.sendall(b"{")
                assert silent.recv(65_536).startswith(b"HTTP/1.1 408 ")
                assert is_closed(silent)
            for _ in range(3):  # three more times as long as the server waits for a client
                with closing(api.send(b"GET /")) as connection:
                    wait_until(partial(is_closed, connection))
            stub.resume()
            assert waiting.result().status == 200

    def test_the_server_raises_its_limit_of_open_files_for_its_connections(self, start_api: StartApi) -> None:
        _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise_file_limit(1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits, "it lowers no limit"
        api = start_api(FewFiles)
        allowed = api.server.rlimit(psutil.RLIMIT_NOFILE)[0]
        assert allowed > MAX_CONNECTIONS or allowed == hard


class TestSizes:
    def test_headers_and_bodies_have_a_limit_and_end_as_declared(
        self, shared_api: ApiProcess, start_api: StartApi
    ) -> None:
        assert shared_api.ask("GET", "/health", x="y" * (MAX_HEADER_BYTES // 2)).status == 200
        assert shared_api.ask("GET", "/health", x="y" * 4 * MAX_HEADER_BYTES).status == 431
        assert shared_api.ask("GET", "/health", **{f"x{n}": "y" for n in range(200)}).status == 431
        with closing(shared_api.begin(15)) as connection:
            connection.sendall(b'{"inputs": "a"')
            connection.shutdown(socket.SHUT_WR)
            assert is_closed(connection) or connection.recv(65_536) == b""
        api, chunk = start_api(max_request_bytes=10_000), b"1000\r\n" + b"x" * 4_096 + b"\r\n"
        head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        with closing(api.send(head + 25 * chunk)) as connection:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 413 ")


class TestStarting:
    @pytest.mark.parametrize("command", ["api", "serve"])
    def test_it_refuses_to_answer_all_hosts_without_keys_unless_told_to(self, command: str, tmp_path: Path) -> None:
        port = free_port()
        done = run(command, "--host", "0.0.0.0", "--port", port, home=tmp_path)
        assert (done.returncode, done.stderr.splitlines()[-1][-13:]) == (1, "[bad_setting]")
        for words in (f"0.0.0.0:{port}", "--api-keys-file", "--allow-anonymous anywhere", "shoal key new"):
            assert words in done.stderr

    def test_it_starts_with_keys_or_when_told_to(self, start_api: StartApi, tmp_path: Path) -> None:
        secret = api_keys.add(tmp_path / "keys", "web", "user", "")
        guarded = start_api(host="0.0.0.0", api_keys_file=tmp_path / "keys")
        assert guarded.ask("GET", "/info").status == 401
        assert guarded.ask("GET", "/info", authorization=f"Bearer {secret}").status == 200
        assert start_api(host="0.0.0.0", allow_anonymous="anywhere").ask("GET", "/info", host="a.b").status == 200
        done = run("api", "--port", free_port(), api_keys_file=tmp_path / "none")
        assert done.returncode == 1
        assert f"cannot be read from {tmp_path / 'none'} (No such file" in done.stderr


def test_every_answer_has_the_headers_that_restrict_browsers(shared_api: ApiProcess) -> None:
    for method, path in (("GET", "/"), ("GET", "/nowhere"), ("PUT", "/embed"), ("POST", "/embed"), ("GET", "/metrics")):
        headers = shared_api.ask(method, path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert not re.search(r"\d|[Pp]ython", headers["Server"])


class TestOtherSites:
    """A page of another site, for which a browser first asks whether the page may send a key."""

    PREFLIGHT: ClassVar = {
        "origin": "https://app.example",
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,content-type,x-stainless-os",  # what OpenAI's client sends
    }

    def test_a_named_site_may_send_a_key_and_read_costs(
        self, start_api: StartApi, stub: StubWorker, tmp_path: Path
    ) -> None:
        secret = api_keys.add(tmp_path / "keys", "web", "user", "")
        origins = "https://App.example, https://[2001:db8::1]:8443"
        api = start_api(api_keys_file=tmp_path / "keys", cors_origins=origins)
        preflight = api.ask("OPTIONS", "/embed", **self.PREFLIGHT)
        assert preflight.status == 200
        assert preflight.headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
        assert preflight.headers["Access-Control-Allow-Headers"] == "authorization, content-type, x-stainless-os"
        assert "Access-Control-Allow-Credentials" not in preflight.headers
        sent = {"origin": "https://app.example", "sec_fetch_site": "cross-site"}
        answer = api.ask("POST", "/embed", GOOD, **sent, authorization=f"Bearer {secret}")
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, "https://app.example")
        assert {"X-Tokens", "Server-Timing", "RateLimit", "Retry-After", "Location"} <= set(
            answer.headers["Access-Control-Expose-Headers"].split(", ")
        )
        refused = api.ask("POST", "/embed", GOOD, **sent)
        assert (refused.status, refused.headers["Access-Control-Allow-Origin"]) == (401, "https://app.example")
        other = api.ask("GET", "/health", origin="https://[2001:db8::1]:8443")
        assert other.headers["Access-Control-Allow-Origin"] == "https://[2001:db8::1]:8443"

    def test_other_sites_need_the_settings(self, make_app: MakeApp) -> None:
        app = "https://app.example"
        for origins, origin, allowed in (
            *((app, other, None) for other in ("https://evil.example", "http://app.example", "null", f"{app}.evil")),
            ("", app, None),
            ("*", "https://any.example", "*"),
        ):
            api = make_app(cors_origins=origins).test_client()
            preflight = {name.replace("_", "-"): value for name, value in self.PREFLIGHT.items()} | {"origin": origin}
            for method in ("OPTIONS", "POST"):
                headers = api.open("/embed", method=method, headers=preflight).headers
                assert headers.get("Access-Control-Allow-Origin") == allowed
                assert allowed or not [name for name, _ in headers if name.startswith("Access-Control")]


def test_a_body_of_many_values_is_refused_unread(make_app: MakeApp) -> None:
    api = make_app().test_client()
    for values in (b"{}," * (MAX_VALUES // 2), b"[]," * (MAX_VALUES // 2), b"1," * MAX_VALUES):
        for data in (b'{"inputs":["a"],"x":[' + values + b"1]}", b'{"inputs":["a"],"x":[' + values + b"no JSON"):
            code, message = error_of(api.post("/embed", data=data), 413)
            assert code == "too_large"
            assert "1,048,580 opening brackets, braces and commas, those in texts included, and may have" in message
    fitting = b'{"inputs":"","x":["' + b"[" * (MAX_VALUES - 4) + b'"],"pooling":5}'
    assert error_of(api.post("/embed", data=fitting), 422)[0] == "invalid_request"


def test_logs_contain_no_key_and_no_text(
    redis_url: str, keys: Keys, tiny_source: Path, tiny_model: Path, home: Path, index_folder: Path, tmp_path: Path
) -> None:
    secret, text = api_keys.add(tmp_path / "keys", "web", "user", "1000/second"), "a marker 7Kq2 that nobody may log"
    settings: dict[str, Any] = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool}
    settings |= {"log_level": "debug"}
    settings |= {"model": tiny_source, "home": home, "precision": "f32", "threads": 1, "indexes": index_folder}
    with service(tmp_path, **settings, api_keys_file=tmp_path / "keys", cors_origins="https://a.example") as running:
        wait_until(running.is_ready)
        for key in (secret, f"{secret}x"):
            headers = {"Authorization": f"Bearer {key}", "X-API-Key": key, "Origin": "https://a.example"}
            for path, body in (
                ("/embed", {"inputs": text}),
                ("/search", {"queries": [text], "k": 3}),
                ("/v1/jobs", {"op": "embed", "inputs": [text]}),
                ("/embed", {"inputs": [text, 5]}),
                ("/embed", {"inputs": text, "prompt_name": text}),
                ("/search", {"queries": text, "index": text}),
                (f"/v1/jobs?{quote(text)}", {"op": text}),
                (f"/{quote(text)}", {}),
                ("/embed", text.encode()),
                ("/embed", b"{" + text.encode()),
            ):
                assert running.ask("POST", path, body, headers).status != 500
        logs = running.api.output + running.worker.output
    logs += running.api.output + running.worker.output
    assert "listening" in logs
    for marker in (text, "7Kq2", secret, secret[-20:], hashlib.sha256(secret.encode()).hexdigest()):
        assert marker not in logs


def test_bodies_that_no_route_reads_are_read_and_dropped(make_app: MakeApp) -> None:
    api, most = make_app(max_request_bytes=2**20).test_client(), MAX_DISCARDED * 2**20
    for size, headers, num_read in (
        (most, {}, most),
        (most + 1, {}, most),
        (20, {"Expect": "100-continue"}, 20),  # a WSGI server may have asked for the body already
        (20, {"Transfer-Encoding": "chunked"}, 20),
        (most + 1, {"Transfer-Encoding": "chunked"}, most),
    ):
        body = io.BytesIO(b"x" * size)
        response = api.post("/nowhere", input_stream=body, content_length=size, headers=headers)
        assert (response.status_code, body.tell()) == (404, num_read)


def exchange(connection: socket.socket, method: str, path: str, key: str) -> int:
    """Send a request whose body comes later than an answer would; return the answer's status."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\nContent-Length: 20\r\n\r\n"
    connection.sendall(head.encode())
    select.select([connection], [], [], SOON_S)
    connection.sendall(b"x" * 20)
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    response.read()
    return response.status


def test_a_late_body_costs_neither_the_response_nor_the_connection(start_api: StartApi, tmp_path: Path) -> None:
    key = api_keys.add(tmp_path / "keys", "web", "user", "")
    api = start_api(api_keys_file=tmp_path / "keys")
    with socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE_S) as connection:
        for method, path, secret, status in (
            ("GET", "/health", "", 200),
            ("GET", "/openapi.json", "", 200),
            ("POST", "/embed", "wrong", 401),
            ("OPTIONS", "/embed", "", 200),
            ("DELETE", "/v1/jobs/none", key, 404),
            ("POST", "/nowhere", key, 404),
            ("GET", "/embed", key, 405),
            ("GET", "/v1/dead", key, 403),
            ("GET", "/health", "", 200),
        ):
            assert exchange(connection, method, path, secret) == status, (method, path)
    assert api.process.terminate() == 0
