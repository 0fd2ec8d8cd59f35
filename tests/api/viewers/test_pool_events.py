"""The pool over HTTP: what a key may see, and streams of events whose viewers come, go, or do not read."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from http.client import HTTPResponse
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from api_process import ApiProcess, StartApi
from api_stub import MakeApp, StubWorker, error_of
from conftest import PATIENCE_S, RedisServer, free_port, wait_until
from flask import Flask
from long_job_callers import Rq
from queues import Queue
from test_access_control import Keys as KeysFile
from test_dead_letters import bury
from test_pool_history import recent
from werkzeug.test import TestResponse

from shoal import AsyncClient
from shoal.errors import Unavailable
from shoal.long_jobs.long_jobs import LongJobs
from shoal.operations import Embed
from shoal.settings import Settings
from shoal.viewers.pool_history import PoolHistory
from shoal_api.access.access_control import MAX_VIEWERS
from shoal_api.context import Context
from shoal_api.viewers.pool_details import MAX_SHOWN
from shoal_api.viewers.pool_watch import MAX_RECENT, Details, PoolWatch

pytest_plugins = ["api_fixtures", "long_job_fixtures"]

#: A script that a browser would run if a page took it for HTML.
SCRIPT = "<script>alert(1)</script>"

#: A request for the events.
EVENTS = b"GET /v1/pool/events HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def keys_file(tmp_path: Path) -> KeysFile:
    """Return a file with keys of a user and an admin."""
    return KeysFile(tmp_path / "keys")


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    """Return an application that samples its pool all the time."""
    return quick(make_app())


def quick(app: Flask) -> Flask:
    """Return the application, whose watch is to sample all the time."""
    Context.of(app).pool_watch.every_s = 0.02
    return app


def events_of(response: TestResponse) -> Iterator[dict[str, Any]]:
    """Yield the data of each event of a stream, and its id."""
    assert response.status_code == 200, response.get_data(as_text=True)
    pieces = iter(response.response)
    assert next(pieces) == b"retry: 1000\n\n"
    for piece in pieces:
        assert isinstance(piece, bytes)
        event_id, name, data, *end = piece.decode().split("\n")
        assert (name, end) == ("event: pool", ["", ""])
        yield json.loads(data.removeprefix("data: ")) | {"id": event_id.removeprefix("id: ")}


def watch_pool(app: Flask, **headers: str) -> Iterator[dict[str, Any]]:
    """Return the events of the pool."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return events_of(app.test_client().get("/v1/pool/events", headers=named))


async def seen_by_all(watch: PoolWatch) -> dict[str, Any]:
    """Return what is seen by a viewer who may see everything."""
    return await watch.view(None)


async def after(watch: PoolWatch, number: int) -> None:
    """Wait until there were more samples than that."""
    while watch.number <= number:
        await asyncio.sleep(0.005)


def seen(stream: Iterator[dict[str, Any]], field: str, wanted: object) -> dict[str, Any]:
    """Return the first event whose field has the value that is wanted."""
    for found in stream:
        if found[field] == wanted:
            return found
    raise AssertionError("the stream ended")


@asynccontextmanager
async def watch_of(
    settings: Settings, read: Callable[[str | None], Details], every_s: float, num_cached: Any = lambda: 0
) -> AsyncIterator[PoolWatch]:
    """Start a watch over the pool of the settings."""

    async def read_details(client: str | None) -> Details:
        return read(client)

    async with AsyncClient.from_settings(settings) as client:
        watch = PoolWatch(PoolHistory(num_cached), client, read_details, Event(), every_s)
        watch.start()
        watch.start()
        yield watch
        await watch.close()


class TestWhatIsSeen:
    def test_the_pool_now(self, app: Flask, queue: Queue, stub: StubWorker) -> None:
        stub.pause()
        bury(queue, Embed([SCRIPT]).pack(), reason=SCRIPT)
        queue.put("bulk", [Embed(["storm", "rain"], reply_to="me")])
        found = app.test_client().get("/v1/pool").get_json()
        assert [(lane["lane"], lane["num_jobs"], lane["num_texts"]) for lane in found["lanes"]] == [
            ("interactive", 0, 0),
            ("bulk", 1, 2),
        ]
        assert [(worker["id"], worker["state"], worker["model"]) for worker in found["workers"]] == [
            ("stub", "ready", "stub")
        ]
        assert (found["is_admin"], found["error"], found["num_dead"]) == (True, None, 1)
        assert [(letter["reason"], letter["worker"]) for letter in found["dead"]] == [(SCRIPT, "w1")]
        assert (found["long_jobs"], found["recent"]) == ([], [])
        assert len(found["history"]["time"]) >= 1

    def test_readings_can_be_left_out_but_for_the_last(self, app: Flask) -> None:
        api = app.test_client()
        wait_until(lambda: len(api.get("/v1/pool").get_json()["history"]["time"]) > 3)
        time_s = api.get("/v1/pool").get_json()["time"]
        found = api.get(f"/v1/pool?since={time_s}").get_json()["history"]["time"]
        assert [at for at in found if at < time_s - 0.001] == []
        assert error_of(api.get("/v1/pool?since=then"), 422)[0] == "invalid_request"

    def test_no_text_is_told(self, app: Flask, queue: Queue) -> None:
        bury(queue, Embed(["a secret text"]).pack())
        queue.put("bulk", [Embed(["a secret text"], reply_to="me")])
        assert "secret" not in app.test_client().get("/v1/pool").get_data(as_text=True)

    def test_a_user_sees_its_own_jobs(self, make_app: MakeApp, keys_file: KeysFile, stub: StubWorker) -> None:
        stub.pause()
        stub.announce(recent=[recent("1", 3.0, client="user"), recent("2", 2.0, client="other")])
        bury(stub.queue, b"no job")
        app = quick(make_app(api_keys_file=str(keys_file.path)))
        own = app.test_client().get("/v1/pool", headers=keys_file.user).get_json()
        everything = app.test_client().get("/v1/pool", headers=keys_file.admin).get_json()
        assert [job["id"] for job in own["recent"]] == ["1"]
        assert (own["is_admin"], own["dead"], own["num_dead"]) == (False, None, 1)
        assert [job["id"] for job in everything["recent"]] == ["1", "2"]
        assert (everything["is_admin"], len(everything["dead"])) == (True, 1)
        stream = watch_pool(app, **keys_file.user)
        assert {"recent": own["recent"], "dead": None}.items() <= next(stream).items()
        assert app.test_client().get("/v1/pool/events").status_code == 401

    def test_a_user_whose_jobs_are_few_and_old_sees_them(
        self, make_app: MakeApp, keys_file: KeysFile, stub: StubWorker, rq: Rq, settings: Settings
    ) -> None:
        with LongJobs(settings) as jobs:
            own_job = jobs.submit("embed_file", {"source": "a", "out": "b"}, client="user")
            for _ in range(MAX_SHOWN + 1):
                jobs.submit("embed_file", {"source": "a", "out": "b"}, client="other")
        stub.pause()
        for n in range(MAX_RECENT // 8 + 1):
            stub.pool.announce(f"w{n}", {"recent": [recent(f"{n}-{k}", 8.0 + n, client="other") for k in range(8)]})
        stub.announce(recent=[recent("own", 1.0, client="user")])
        app = quick(make_app(api_keys_file=str(keys_file.path)))
        own = app.test_client().get("/v1/pool", headers=keys_file.user).get_json()
        assert [job["id"] for job in own["long_jobs"]] == [own_job]
        assert [job["id"] for job in own["recent"]] == ["own"]
        everything = app.test_client().get("/v1/pool", headers=keys_file.admin).get_json()
        assert (len(everything["long_jobs"]), len(everything["recent"])) == (MAX_SHOWN, MAX_RECENT)

    def test_a_page_of_another_site_can_neither_retry_nor_drop_a_dead_letter(
        self, make_app: MakeApp, keys_file: KeysFile, queue: Queue
    ) -> None:
        letter = f"/v1/dead/{bury(queue, Embed(['storm']).pack())}"
        foreign = [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
        for api, status in ((make_app(), 403), (make_app(api_keys_file=str(keys_file.path)), 401)):
            for headers in foreign:
                for method, path in (("POST", f"{letter}/retry"), ("DELETE", letter)):
                    response = api.test_client().open(path, method=method, headers=headers)
                    assert response.status_code == status
        assert make_app().test_client().get(letter).status_code == 200


class TestEvents:
    def test_the_first_has_all_samples_and_the_others_the_new_ones(self, app: Flask, queue: Queue) -> None:
        queue.put("bulk", [Embed(["storm"], reply_to="me")])
        wait_until(lambda: len(app.test_client().get("/v1/pool").get_json()["history"]["time"]) > 5)
        stream = watch_pool(app)
        first = next(stream)
        assert len(first["history"]["time"]) > 5
        times = first["history"]["time"]
        for found in (next(stream) for _ in range(5)):
            new = found["history"]["time"]
            assert new == sorted(new)
            assert (new[0] > times[-1], float(found["id"])) == (True, found["time"])
            assert found["history"]["lanes"]["bulk"]["num_jobs"] == [1.0] * len(new)
            times += new

    def test_a_viewer_who_comes_back_gets_what_it_missed(self, app: Flask) -> None:
        stream = watch_pool(app)
        last = [next(stream) for _ in range(3)][-1]
        again = next(watch_pool(app, Last_Event_ID=last["id"]))
        assert again["history"]["time"][0] >= last["history"]["time"][-1]
        for wrong in ("", "yesterday", "nan", "1e999", "9" * 1_000):
            assert len(next(watch_pool(app, Last_Event_ID=wrong))["history"]["time"]) >= 1

    def test_a_change_is_seen(self, app: Flask, queue: Queue, stub: StubWorker) -> None:
        stub.pause()
        stream = watch_pool(app)
        assert next(stream)["num_dead"] == 0
        bury(queue, b"no job", reason="it was no job")
        assert seen(stream, "num_dead", 1)["dead"][0]["reason"] == "it was no job"
        stub.announce(recent=[recent("7", 1.0)])
        assert seen(stream, "recent", [recent("7", 1.0, worker="stub")])

    def test_it_goes_on_when_redis_is_back(self, make_app: MakeApp, own_redis: RedisServer) -> None:
        app = quick(make_app(redis_url=own_redis.url))
        stream = watch_pool(app)
        before = next(stream)
        own_redis.stop()
        away = next(found for found in stream if found["error"])
        assert away["error"]["code"] == "unavailable"
        assert (away["time"] >= before["time"], len(away["history"]["time"])) == (True, 1)
        own_redis.start()
        assert seen(stream, "error", None)["time"] > away["time"]

    def test_without_redis_at_first(self, make_app: MakeApp) -> None:
        app = quick(make_app(redis_url=f"redis://127.0.0.1:{free_port()}/0"))
        found = next(watch_pool(app))
        assert (found["error"]["code"], found["time"], found["workers"]) == ("unavailable", 0.0, [])

    def test_it_ends_when_the_server_stops(self, app: Flask) -> None:
        stream = watch_pool(app)
        next(stream)
        Context.of(app).stopping.set()
        assert len(list(stream)) <= 1

    def test_a_look_at_its_headers_ends_at_once(self, app: Flask) -> None:
        response = app.test_client().head("/v1/pool/events")
        assert (response.status_code, response.mimetype) == (200, "text/event-stream")
        assert app.test_client().get("/v1/pool/events?a=1").status_code == 422

    @pytest.mark.parametrize("new_role", ["", "user"])
    def test_it_ends_when_its_key_is_dropped_or_gets_another_role(
        self, make_app: MakeApp, keys_file: KeysFile, new_role: str
    ) -> None:
        app = quick(make_app(api_keys_file=str(keys_file.path)))
        stream = watch_pool(app, **keys_file.admin)
        assert next(stream)["is_admin"]
        lines = keys_file.path.read_text().splitlines()
        changed = [line.replace(" admin ", f" {new_role} ") for line in lines if new_role or " admin " not in line]
        keys_file.path.write_text("\n".join(changed))
        assert all(found["is_admin"] for found in stream)


class TestViewers:
    def test_a_client_has_some_at_a_time(self, app: Flask) -> None:
        api = app.test_client()
        streams = [api.get("/v1/pool/events") for _ in range(MAX_VIEWERS)]
        refused = [response for response in streams if response.status_code == 429]
        assert len(refused) == MAX_VIEWERS // 2
        assert "viewers of the pool" in error_of(refused[0], 429)[1]
        other = api.get("/v1/pool/events", environ_base={"REMOTE_ADDR": "203.0.113.7"})
        assert other.status_code == 200
        for stream in streams:
            stream.close()
        assert api.get("/v1/pool/events").status_code == 200

    def test_they_share_one_reading(self, settings: Settings) -> None:
        num_reads = [0]

        def read(client: str | None) -> Details:
            num_reads[0] += 1
            return Details()

        async def look() -> None:
            async with watch_of(settings, read, PATIENCE_S) as watch:
                await after(watch, 0)
                views = await asyncio.gather(*(watch.view(None) for _ in range(16)))
                assert (watch.number, num_reads) == (1, [1])
                assert views == [views[0]] * 16
                assert (await watch.view("a client"))["is_admin"] is False

        asyncio.run(look())

    def test_what_cannot_be_read_stays_as_it_was(self, settings: Settings) -> None:
        answers: list[Details | Unavailable] = [Details(dead=[{"id": "1-1"}]), Unavailable("away")]

        def read(client: str | None) -> Details:
            if isinstance(answer := answers.pop(0), Unavailable):
                raise answer
            return answer

        async def look() -> None:
            async with watch_of(settings, read, 0.02) as watch:
                await after(watch, 0)
                number = watch.number
                assert (await seen_by_all(watch))["dead"] == [{"id": "1-1"}]
                await after(watch, number)
                assert (await seen_by_all(watch))["dead"] == [{"id": "1-1"}]
                assert answers == []

        asyncio.run(look())

    def test_an_unforeseen_error_does_not_end_it(self, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
        numbers = [1.0]  # the second sample finds none

        async def look() -> None:
            async with watch_of(settings, lambda client: Details(), 0.02, numbers.pop) as watch:
                await after(watch, 2)
                assert (await seen_by_all(watch))["error"]["code"] == "internal"

        asyncio.run(look())
        assert "goes on after an error: IndexError" in caplog.text


@pytest.fixture
def live(start_api: StartApi) -> ApiProcess:
    """Return an API that is a process, and cuts off who does not read for a second."""
    return start_api(receive_timeout_s=1.0)


def open_stream(live: ApiProcess) -> HTTPResponse:
    """Return a stream of the pool whose headers were read."""
    connection = live.connect()
    connection.request("GET", "/v1/pool/events")
    response = connection.getresponse()
    connection.close()  # the response keeps the socket
    return response


@pytest.mark.usefixtures("stub")
class TestLive:
    def test_several_viewers_get_the_same_events(self, live: ApiProcess) -> None:
        with ExitStack() as stack:
            streams = [stack.enter_context(closing(open_stream(live))) for _ in range(5)]
            events = [read_event(stream) for stream in streams]
            while len(times := {event["time"] for event in events}) > 1:
                events = [
                    event if event["time"] == max(times) else read_event(stream)
                    for event, stream in zip(events, streams, strict=True)
                ]
            assert events == [events[0]] * 5
            assert events[0]["workers"][0]["id"] == "stub"
            assert live.ask("POST", "/embed", b'{"inputs": "storm"}')[0] == 200
        assert live.process.terminate() == 0

    def test_a_stop_does_not_wait_for_viewers(self, live: ApiProcess) -> None:
        with closing(open_stream(live)) as stream:
            read_event(stream)
            assert live.process.terminate() == 0
            assert stream.read() is not None

    def test_viewers_who_do_not_read_or_have_gone_make_room(self, live: ApiProcess, stub: StubWorker) -> None:
        for n in range(20):  # so that an event fills the buffers of a connection soon
            stub.pool.announce(f"w{n}", {"state": "ready", "model": "m" * 50_000})
        with ExitStack() as stack:
            for _ in range(MAX_VIEWERS):
                stack.enter_context(closing(live.send_to_slow_reader(EVENTS)))
            assert live.ask("POST", "/embed", b'{"inputs": "storm"}')[0] == 200
            while not is_refused(live):  # some were cut off before all had come
                stack.enter_context(closing(live.send_to_slow_reader(EVENTS)))
            wait_until(lambda: not is_refused(live))
        assert live.process.terminate() == 0


def read_event(stream: HTTPResponse) -> dict[str, Any]:
    """Return the data of the next event."""
    while not (line := stream.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return found


def is_refused(live: ApiProcess) -> bool:
    """Return True if there is no room for another viewer."""
    with closing(open_stream(live)) as stream:
        return stream.status == 429
