"""Flask's shorter dispatch: a hook that it would skip is refused when it is registered, and the others run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from api_stub import MakeApp
from flask import Blueprint, Flask, Response, signals
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]

Register = Callable[[Any, Callable[..., Any]], Any]

#: Registers a hook, on an application or on a blueprint.
ON_BOTH: dict[str, Register] = {
    "before_request": lambda target, hook: target.before_request(hook),
    "teardown_request": lambda target, hook: target.teardown_request(hook),
    "url_value_preprocessor": lambda target, hook: target.url_value_preprocessor(hook),
}
ON_APP: dict[str, Register] = {"teardown_appcontext": lambda app, hook: app.teardown_appcontext(hook)}
ON_BLUEPRINT: dict[str, Register] = {
    "before_app_request": lambda blueprint, hook: blueprint.before_app_request(hook),
    "teardown_app_request": lambda blueprint, hook: blueprint.teardown_app_request(hook),
    "app_url_value_preprocessor": lambda blueprint, hook: blueprint.app_url_value_preprocessor(hook),
}


def hook(*_: Any) -> None:
    """Do nothing."""


async def view() -> str:
    """Answer asynchronously."""
    return "answer"


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    """Return an application on which nothing was asked."""
    return make_app()


@pytest.fixture
def blueprint() -> Blueprint:
    """Return a blueprint with one route."""
    blueprint = Blueprint("more", __name__)
    blueprint.add_url_rule("/more", view_func=lambda: "answer")
    return blueprint


class TestRefused:
    @pytest.mark.parametrize("name", [*ON_BOTH, *ON_APP])
    def test_a_hook_of_the_application(self, app: Flask, name: str) -> None:
        with pytest.raises(NotImplementedError, match=f"{name} would never run: .*after_request"):
            (ON_BOTH | ON_APP)[name](app, hook)

    @pytest.mark.parametrize("name", [*ON_BOTH, *ON_BLUEPRINT])
    def test_a_hook_of_a_blueprint(self, app: Flask, blueprint: Blueprint, name: str) -> None:
        (ON_BOTH | ON_BLUEPRINT)[name](blueprint, hook)
        with pytest.raises(NotImplementedError, match="would never run"):
            app.register_blueprint(blueprint)

    @pytest.mark.parametrize("name", ON_BOTH)
    def test_a_hook_of_a_blueprint_within_a_blueprint(self, app: Flask, blueprint: Blueprint, name: str) -> None:
        ON_BOTH[name](blueprint, hook)
        outer = Blueprint("outer", __name__)
        outer.register_blueprint(blueprint)
        with pytest.raises(NotImplementedError, match="would never run"):
            app.register_blueprint(outer)

    def test_an_async_view_of_the_application(self, app: Flask) -> None:
        with pytest.raises(NotImplementedError, match="the async view of /async would never run"):
            app.add_url_rule("/async", view_func=view)
        with pytest.raises(NotImplementedError, match="the async view of /async"):
            app.get("/async")(view)

    def test_an_async_view_of_a_blueprint(self, app: Flask, blueprint: Blueprint) -> None:
        blueprint.add_url_rule("/async", view_func=view)
        with pytest.raises(NotImplementedError, match="the async view of /async"):
            app.register_blueprint(blueprint)

    def test_a_view_after_the_first_request(self, app: Flask) -> None:
        app.test_client().get("/health")
        with pytest.raises(AssertionError, match="has already handled its first request"):
            app.add_url_rule("/late", view_func=lambda: "answer")


class TestRun:
    def test_hooks_after_a_request(self, app: Flask, blueprint: Blueprint) -> None:
        def mark(response: Response) -> Response:
            response.headers["X-Marks"] = response.headers.get("X-Marks", "") + "m"
            return response

        app.after_request(mark)
        blueprint.after_request(mark)
        app.register_blueprint(blueprint)
        client = app.test_client()
        assert client.get("/more").headers["X-Marks"] == "mm"
        assert client.get("/nowhere").headers["X-Marks"] == "m"

    def test_error_handlers(self, app: Flask) -> None:
        def fail() -> str:
            raise KeyError("a")

        app.add_url_rule("/fail", view_func=fail)
        app.register_error_handler(KeyError, lambda _: ("handled", 418))
        response = app.test_client().get("/fail")
        assert (response.status_code, response.get_data()) == (418, b"handled")

    @pytest.mark.parametrize(
        "name", ["request_started", "request_finished", "request_tearing_down", "appcontext_tearing_down"]
    )
    def test_signals(self, app: Flask, api: FlaskClient, name: str) -> None:
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
