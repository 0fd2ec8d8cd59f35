"""Flask whose views may be coroutines: all that Flask runs around a view runs as usual."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from api_stub import MakeApp
from flask import Blueprint, Flask, Response, g, request, signals
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    """Return an application on which nothing was asked."""
    return make_app()


@pytest.fixture
def blueprint() -> Blueprint:
    """Return a blueprint with a view that is a coroutine, and one that is not."""
    blueprint = Blueprint("more", __name__)

    async def waits() -> str:
        await asyncio.sleep(0)
        return f"{request.args['name']} in {threading.current_thread().name}"

    def blocks() -> str:
        return f"{request.args['name']} in {threading.current_thread().name}"

    blueprint.add_url_rule("/waits", view_func=waits)
    blueprint.add_url_rule("/blocks", view_func=blocks)
    return blueprint


def test_coroutines_run_in_the_loop_and_other_views_in_threads(app: Flask, blueprint: Blueprint) -> None:
    app.register_blueprint(blueprint)
    api = app.test_client()
    assert api.get("/waits?name=a").text == "a in shoal-loop"
    assert api.get("/blocks?name=a").text.startswith("a in shoal-view_")


def test_views_that_wait_at_the_same_time_have_their_own_requests(app: Flask) -> None:
    both_wait = threading.Barrier(2)

    async def waits() -> str:
        g.name = request.args["name"]
        await asyncio.to_thread(both_wait.wait)
        return str(g.name == request.args["name"])

    app.add_url_rule("/waits", view_func=waits)
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda name=name: answers.append(app.test_client().get(f"/waits?name={name}").text))
        for name in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["True", "True"]


@pytest.mark.parametrize("path", ["/waits", "/blocks"])
def test_hooks_run_before_and_after(app: Flask, blueprint: Blueprint, path: str) -> None:
    marks = []
    app.before_request(lambda: marks.append("before"))
    blueprint.before_request(lambda: marks.append("before of its blueprint"))
    app.teardown_request(lambda _: marks.append("teardown"))
    app.teardown_appcontext(lambda _: marks.append("teardown of the application"))

    def mark(response: Response) -> Response:
        marks.append("after")
        return response

    app.after_request(mark)
    app.register_blueprint(blueprint)
    assert app.test_client().get(f"{path}?name=a").status_code == 200
    expected = ["before", "before of its blueprint", "after", "teardown", "teardown of the application"]
    assert marks == expected


def test_a_hook_may_answer(app: Flask) -> None:
    app.before_request(lambda: ("busy", 503))
    assert (app.test_client().get("/health").status_code, app.test_client().get("/health").text) == (503, "busy")


@pytest.mark.parametrize("kind", ["waits", "blocks"])
def test_errors_reach_their_handlers(app: Flask, kind: str) -> None:
    def blocks() -> str:
        raise KeyError("a")

    async def waits() -> str:
        await asyncio.sleep(0)
        raise KeyError("a")

    app.add_url_rule("/fail", view_func=waits if kind == "waits" else blocks)
    app.register_error_handler(KeyError, lambda _: (f"handled at {request.path}", 418))
    response = app.test_client().get("/fail")
    assert (response.status_code, response.text) == (418, "handled at /fail")


@pytest.mark.parametrize(
    "name", ["request_started", "request_finished", "request_tearing_down", "appcontext_tearing_down"]
)
def test_signals(app: Flask, api: FlaskClient, name: str) -> None:
    sent: list[Any] = []
    with received(name, sent, app):
        api.get("/health")
        assert sent == []
        app.test_client().get("/health")
    assert sent == [app]


@contextmanager
def received(name: str, senders: list[Any], app: Flask) -> Iterator[None]:
    """Note each signal of that name that the application sends."""

    def receive(sender: Flask, **_: Any) -> None:
        senders.append(sender)

    with getattr(signals, name).connected_to(receive, app):
        yield
