"""The application: Flask with every route, error and metric in place."""

import time
from collections.abc import Callable
from typing import Any, cast

from flask import Flask, Request, Response
from flask.globals import request_ctx
from flask.sessions import NullSession, SessionInterface
from flask_openapi3.models.info import Info
from flask_openapi3.openapi import OpenAPI
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.routing import MapAdapter

from shoal import __version__
from shoal.client import Client
from shoal.settings import Settings
from shoal_api import errors, validation
from shoal_api.access import cors
from shoal_api.access.access_control import AccessControl
from shoal_api.context import Context
from shoal_api.request import JsonRequest
from shoal_api.response import WholeResponse
from shoal_api.routes import dead_letters, docs, embed, jobs, service
from shoal_api.schema import ErrorBody
from shoal_api.server.disconnects import Disconnects
from shoal_api.server.metrics import Metrics


class _NoSessions(SessionInterface):
    """One empty session for all requests: nothing here reads cookies."""

    _empty = NullSession()

    def open_session(self, app: Flask, request: Request) -> NullSession:
        """The empty session."""
        return self._empty


class _App(OpenAPI):
    """An application with our requests, and without what Flask does for each request that nothing here uses.

    That is half of Flask's time for a request: host names, sessions, signals, async views and teardown hooks.
    """

    request_class = JsonRequest
    response_class = WholeResponse
    session_interface = _NoSessions()

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Routes by path and method alone; Flask would check and encode the host name for each request."""
        if request is None:
            return None
        host, path = request.environ.get("HTTP_HOST", ""), request.path
        return MapAdapter(self.url_map, host, request.root_path, "", request.scheme, path, request.method)

    def full_dispatch_request(self) -> Response:
        """The response of the view, if the gate lets the request in, or of its error's handler, after the hooks."""
        try:
            answer = Context.of(self).gate.answer(cast(JsonRequest, request_ctx.request), self.dispatch_request)
        except Exception as error:
            answer = self.handle_user_exception(error)
        return self.process_response(self.make_response(answer))

    def process_response(self, response: Response) -> Response:
        """The response after the hooks, and counted."""
        response, request = super().process_response(response), cast(JsonRequest, request_ctx.request)
        if request.rate_headers:
            response.headers.update(request.rate_headers)
        route, method = (request.url_rule.rule, request.method) if request.url_rule else ("unmatched", "")
        seconds, context = time.perf_counter() - request.started_s, Context.of(self)
        context.metrics.observe(route, method, response.status_code, seconds)
        if context.stopping.is_set():
            response.headers["Connection"] = "close"
        return response

    def do_teardown_request(self, exc: BaseException | None = None) -> None:
        """Nothing: there are no hooks for the end of a request."""

    def do_teardown_appcontext(self, exc: BaseException | None = None) -> None:
        """Nothing: there are no hooks for the end of a context."""

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Views, hooks and handlers as they are: none is async."""
        return func


def create_app(settings: Settings, client: Client | None = None) -> Flask:
    """The application, connected to the queue; without a `client` it makes one from the settings.

    Redis need not be there yet. Raises BadSetting for a key file or an origin that cannot be used.
    """
    gate, client = AccessControl(settings), client or Client.from_settings(settings)
    client.connect()
    app = _App(
        __name__,
        info=Info(title="Shoal", version=__version__, description="Embeds text and searches it by meaning."),
        validation_error_model=ErrorBody,
        validation_error_status="4XX",
        validation_error_callback=validation.refuse,
        doc_ui=False,
        static_folder=None,
    )
    app.url_map.merge_slashes = False  # a path with an empty part is unknown: nobody is sent elsewhere
    app.config["MAX_CONTENT_LENGTH"] = settings.max_request_bytes
    Context(settings, client, Metrics(client), gate, Disconnects(settings.port, settings.api_threads)).attach(app)
    errors.install(app)
    for part in (embed.api, jobs.api, dead_letters.api, service.api):
        app.register_api(part)
    docs.install(app)
    if settings.cors_origins:
        cors.install(app, settings.cors_origins)
    if settings.trusted_proxies:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=settings.trusted_proxies, x_proto=0)  # type: ignore[method-assign]
    return app


def from_environment() -> Flask:
    """The application as the environment sets it, for any WSGI server."""
    return create_app(Settings.from_environment())
