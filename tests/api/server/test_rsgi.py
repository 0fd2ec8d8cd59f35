"""The application in Granian's event loop or its own: how requests reach it, are counted, and end."""

import asyncio
import json
import os
import socket
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote

import flask
import pytest
from api_process import ApiProcess, StartApi
from api_stub import MakeApp, StubWorker, vector_of
from awaiting import in_loop
from conftest import PATIENCE_S, wait_until
from granian.rsgi import HTTPProtocol, Scope  # type: ignore[attr-defined]
from werkzeug.test import EnvironBuilder

from shoal_api.access import api_keys
from shoal_api.access.access_control import MAX_TRANSFERS
from shoal_api.server import rsgi
from shoal_api.server.rsgi import BlockingBody, RsgiServer

pytest_plugins = ["api_fixtures"]
pytestmark = pytest.mark.usefixtures("stub")

#: Texts whose vectors of four numbers make an answer of over 1 MiB.
MANY = ["a"] * 25_000


def send(server: ApiProcess, body: dict[str, Any]) -> socket.socket:
    """Return a connection that has sent a request to embed, and that buffers little of an answer."""
    data = json.dumps(body).encode()
    head = f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return server.send_to_slow_reader(head.encode() + data)


@in_loop
async def test_a_body_that_trickles_is_late_and_not_waited_for_again() -> None:
    class Trickling:
        num_waits = 0

        def __aiter__(self) -> "Trickling":
            return self

        async def __anext__(self) -> bytes:
            self.num_waits += 1
            if self.num_waits > 2:
                await asyncio.Event().wait()
            return b"x"

    trickling = Trickling()
    body = BlockingBody(cast(HTTPProtocol, trickling), asyncio.get_running_loop(), timeout_s=0.2)
    assert [await asyncio.to_thread(body.read, 10) for _ in range(3)] == [b"", b"", b""]
    assert trickling.num_waits <= 3


def test_no_other_header_passes_for_a_key_and_no_refused_body_is_kept(start_api: StartApi, tmp_path: Path) -> None:
    key = api_keys.add(tmp_path / "keys", "web", "user", "")
    guarded = start_api(api_keys_file=tmp_path / "keys")
    for name, status in (("X-API-Key", b"200"), ("X_API_Key", b"401")):
        head = f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n{name}: {key}\r\n\r\n"
        with closing(guarded.send(head.encode() + b'{"inputs": "a"}')) as connection:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 " + status)
    head = "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n"
    for method, path in (("OPTIONS", "/embed"), ("GET", "/health"), ("POST", "/embed")):
        with closing(guarded.send(head.format(method=method, path=path).encode())) as connection:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 ")  # at once, because it waits for no body


def test_paths_queries_and_bodies_are_read_as_they_are_sent(shared_api: ApiProcess) -> None:
    for path in ("/v1/jobs/%C3%A9", "/v1/jobs/%FF%FE", "/v1/jobs/%00", "//v1/jobs/a", "/v1/jobs/a%2Fb"):
        status, body, _ = shared_api.ask("GET", path)
        assert (status, list(body)) == (404, ["error"]), path
    for index in ("%C3%BCbersicht", "übersicht", "€"):  # curl sends the path as it is typed
        head = f"GET /ready?index={index} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        with closing(shared_api.send(head.encode())) as connection, connection.makefile("rb") as answer:
            assert unquote(index).encode() in answer.read(), index
    for path in ("/v1/embeddings?api-version=2024-10-21", "/v1/embeddings?name=a.jsonl"):  # Azure's clients send this
        assert shared_api.ask("POST", path, {"input": "a", "model": "stub"}).status == 200
    status, body, _ = shared_api.ask("POST", "/embed?x=1", {"inputs": "a"})
    assert (status, body["error"]["code"]) == (422, "invalid_request")
    status, body, _ = shared_api.ask("POST", "/embed", {"inputs": MANY}, accept="application/octet-stream")
    assert (status, body) == (200, vector_of("a").tobytes() * len(MANY))


def test_large_answers_that_are_not_read_count_until_their_clients_go(start_api: StartApi, stub: StubWorker) -> None:
    """For the announced numbers, each answer counts for 225 MB of 1,140 MB: a client may have two."""
    server = start_api(receive_timeout_s=3_600)
    stub.announce(dimension=900)
    large = {"inputs": MANY}
    with ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(closing(send(server, large)))
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        time.sleep(0.3)  # a client that reads would no longer count
        files = [
            c.fd
            for c in server.server.net_connections("tcp")
            if (c.laddr.port, c.status) == (server.port, "ESTABLISHED")
        ]
        flags = [Path(f"/proc/{server.server.pid}/fdinfo/{file}").read_text().split()[3] for file in files]
        assert len(flags) >= 2
        assert all(int(each, 8) & os.O_NONBLOCK for each in flags), "a slow reader would hold up all clients"
        assert server.ask("POST", "/embed", large)[0] == 429
        assert server.ask("POST", "/embed", {"inputs": "a"})[0] == 200
    wait_until(lambda: server.ask("POST", "/embed", large)[0] == 200)


def test_slow_uploads_delay_no_other_view(start_api: StartApi) -> None:
    server = start_api(receive_timeout_s=3_600)
    with ExitStack() as stack:
        for _ in range(MAX_TRANSFERS):
            upload = stack.enter_context(closing(server.begin(path="/v1/bulk?name=a.txt")))
            upload.sendall(b"x")
        for path in ("/v1/jobs", "/metrics", "/info", "/", "/v1/pool"):
            assert server.ask("GET", path)[0] == 200, path
        assert server.ask("POST", "/v1/bulk?name=a.txt", {})[0] == 429


EMBED, JOB = ("/embed", {"inputs": "a"}), ("/v1/jobs", {"op": "embed", "inputs": ["a"]})


def test_a_header_that_is_not_ascii_or_comes_twice_still_counts_as_sent(shared_api: ApiProcess) -> None:
    for (path, body), headers, status in (
        (JOB, "Idempotency-Key: k\xfc", 422),
        (JOB, "Idempotency-Key: \xfc\r\nA: b\r\nA: c", 422),
        (EMBED, "Accept: application/msgpack\r\nAccept: text/csv;q=0.5", 200),
        (EMBED, "Accept: text/html\r\nAccept: text/csv;q=0.5", 406),
    ):
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{headers}\r\n\r\n"
        with closing(shared_api.send(head.encode("latin-1") + data)) as connection:
            assert connection.recv(65_536).startswith(f"HTTP/1.1 {status} ".encode()), headers


class Protocol:
    """Granian's protocol of a request whose client stays. It counts the waits for the client's disconnect."""

    def __init__(self) -> None:
        self.status = 0
        self.is_watched = asyncio.Event()
        self.num_watches = 0

    async def client_disconnect(self) -> None:
        """Wait for ever."""
        self.num_watches += 1
        self.is_watched.set()
        await asyncio.Event().wait()

    def response_bytes(self, status: int, *_: Any) -> None:
        """Note the status."""
        self.status = status


@pytest.mark.parametrize(("path", "num_watches"), [("/health", 0), ("/waits", 1)])
@in_loop
async def test_a_client_is_watched_until_its_answer(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, path: str, num_watches: int
) -> None:
    monkeypatch.setattr(rsgi, "WATCH_AFTER_S", 0.0)
    app, protocol, addresses = make_app(), Protocol(), list[str | None]()

    async def waits() -> str:
        addresses.append(flask.request.remote_addr)
        await protocol.is_watched.wait()
        return "answered"

    app.add_url_rule("/waits", view_func=waits)
    request = {"method": "GET", "path": path, "query_string": "", "http_version": "1.1", "scheme": "http"}
    scope = SimpleNamespace(**request, headers={"host": "localhost"}, client="[::1]:1", server="127.0.0.1:2")
    before, server, read = asyncio.all_tasks(), RsgiServer(app, 2, 1.0), asyncio.Event()
    server._sending[scope.client] = read
    await server.__rsgi__(cast(Scope, scope), cast(HTTPProtocol, protocol))
    assert (read.is_set(), len(server._sending)) == (True, 0), "the client has read its response before"
    await asyncio.sleep(0.01)  # by now, a watch would have begun
    assert (protocol.status, protocol.num_watches) == (200, num_watches)
    assert addresses == ["::1"] * num_watches
    assert asyncio.all_tasks() == before


@in_loop
async def test_a_file_whose_client_has_closed_its_connection_is_sent(make_app: MakeApp) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, port = listener.getsockname()
        with socket.create_connection(("127.0.0.1", port)) as client:
            host, number = client.getsockname()
            accepted, _ = listener.accept()
        with accepted:
            accepted.shutdown(socket.SHUT_WR)  # as Granian does once the client has closed
            scope = cast(Scope, SimpleNamespace(client=f"{host}:{number}"))
            await asyncio.wait_for(RsgiServer(make_app(), port, 1.0)._wait_until_read(scope, 10**9), PATIENCE_S)


def test_views_run_in_the_loop_or_in_threads_and_uploads_in_their_own(
    make_app: MakeApp,
) -> None:
    app = make_app()

    async def waits() -> str:
        await asyncio.sleep(0)
        return blocks()

    def blocks(**_: object) -> str:
        return f"{flask.request.args.get('name')} in {threading.current_thread().name}"

    app.add_url_rule("/waits", view_func=waits)
    app.add_url_rule("/blocks", view_func=blocks)
    app.view_functions["bulk.submit_bulk"] = blocks
    api = app.test_client()
    assert api.get("/waits?name=a").text == "a in shoal-loop"
    assert api.get("/blocks?name=a").text.startswith("a in shoal-view_")
    assert api.post("/v1/bulk?name=news.csv", data=b"text").text.startswith("news.csv in shoal-upload")
    assert api.post("/v1/bulk", json={"source": "news.csv"}).text.startswith("None in shoal-view")


def test_a_request_whose_client_disconnects_counts_no_longer(make_app: MakeApp) -> None:
    app = make_app()

    async def waits() -> str:
        await asyncio.Event().wait()
        return "never"

    async def disconnect() -> None:
        task = asyncio.create_task(app.respond(EnvironBuilder("/waits").get_environ()))
        while not app.own.access._requests.held(""):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    app.add_url_rule("/waits", view_func=waits)
    app.loop.run(disconnect)
    assert app.own.access._requests.held("") == 0
    line = 'shoal_http_request_seconds_count{method="GET",route="/waits",status="499"} 1.0'
    assert line in app.test_client().get("/metrics").text
