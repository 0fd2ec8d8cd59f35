"""Flask whose views may be coroutines: hooks, contexts and error handlers run as usual."""

import asyncio
import threading

import pytest
from api_stub import MakeApp
from flask import Flask, request
from werkzeug.test import EnvironBuilder

from shoal_api.server.async_flask import NUM_THREADS, AsyncFlask

pytest_plugins = ["api_fixtures"]


@pytest.fixture
def app(make_app: MakeApp) -> AsyncFlask:
    """Return an application that has answered no request yet."""
    return make_app()


def test_coroutines_run_in_the_loop_and_other_views_in_threads(app: Flask) -> None:
    async def waits() -> str:
        await asyncio.sleep(0)
        return blocks()

    def blocks() -> str:
        return f"{request.args['name']} in {threading.current_thread().name}"

    app.add_url_rule("/waits", view_func=waits)
    app.add_url_rule("/blocks", view_func=blocks)
    api = app.test_client()
    assert api.get("/waits?name=a").text == "a in shoal-loop"
    assert api.get("/blocks?name=a").text.startswith("a in shoal-view_")


def test_as_many_bodies_are_read_at_the_same_time_as_there_are_threads_for_views(app: AsyncFlask) -> None:
    all_read = threading.Barrier(NUM_THREADS)

    async def read() -> list[int]:
        return await asyncio.gather(*(asyncio.to_thread(all_read.wait, 60) for _ in range(NUM_THREADS)))

    assert sorted(app.loop.run(read)) == list(range(NUM_THREADS))


def test_uploads_which_take_minutes_have_threads_of_their_own(app: Flask) -> None:
    app.view_functions["bulk.submit_bulk"] = lambda **_: threading.current_thread().name
    api = app.test_client()
    assert api.post("/v1/bulk?name=news.csv", data=b"text").text.startswith("shoal-upload")
    assert api.post("/v1/bulk", json={"source": "news.csv"}).text.startswith("shoal-view")


def test_a_request_whose_client_disconnects_counts_no_longer(app: AsyncFlask) -> None:
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
