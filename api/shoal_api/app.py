"""The application: Flask with every route, error and metric in place."""

import time
from copy import copy
from typing import Any, cast

from flask import Flask, Response
from flask.globals import request_ctx
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.info import Info
from werkzeug.middleware.proxy_fix import ProxyFix

from shoal import __version__
from shoal.client.client import Client
from shoal.errors import BadSetting
from shoal.settings import Settings
from shoal_api import errors, validation
from shoal_api.access import cors
from shoal_api.access.access_control import AccessControl
from shoal_api.context import Context
from shoal_api.pool_state import PoolReader
from shoal_api.protocols import cohere, infinity, ollama, openai, tei, weaviate
from shoal_api.request import JsonRequest
from shoal_api.response import WholeResponse
from shoal_api.routes import dead_letters, docs, embed, health, indexes, info, jobs, metrics, search
from shoal_api.schema.responses import ErrorBody
from shoal_api.server.disconnects import Disconnects
from shoal_api.server.fast_flask import FastFlask
from shoal_api.server.metrics import Metrics

_ROUTES = (embed, search, jobs, dead_letters, health, info, indexes, metrics)

#: The modules of the compatible protocols, by the names that the settings have for them.
PROTOCOL_MODULES = {
    "openai": openai,
    "tei": tei,
    "infinity": infinity,
    "ollama": ollama,
    "cohere": cohere,
    "weaviate": weaviate,
}


class _App(FastFlask):
    """An application that lets requests in by access control and counts them."""

    request_class = JsonRequest
    response_class = WholeResponse

    def register_api(self, api: APIBlueprint, **options: Any) -> None:
        """Add the routes of a blueprint, and describe them; a route that is there already stays as it was."""
        earlier = dict(self.paths)
        super().register_api(api, **options)
        for path, item in earlier.items():
            if self.paths[path] is not item:
                kept = {method: getattr(item, method) for method in item.model_fields_set}
                self.paths[path] = self.paths[path].model_copy(update=kept)

    def dispatch_request(self) -> Any:
        """Return what the view answers, if access control lets the request in."""
        return Context.of(self).access.answer(cast(JsonRequest, request_ctx.request), super().dispatch_request)

    def process_response(self, response: Response) -> Response:
        """Run the hooks, count the request, and add the headers of its rate and of a server that stops."""
        response, request = super().process_response(response), cast(JsonRequest, request_ctx.request)
        if request.rate_headers:
            response.headers.update(request.rate_headers)
        route, method = (request.url_rule.rule, request.method) if request.url_rule else ("unmatched", "")
        seconds, context = time.perf_counter() - request.started_s, Context.of(self)
        context.metrics.observe(route, method, response.status_code, seconds)
        if context.stopping.is_set():
            response.headers["Connection"] = "close"
        return response


def create_app(settings: Settings, client: Client | None = None) -> Flask:
    """Return the application, connected to the queue by `client` or, without one, by a client of its own.

    Redis may start later. Raises BadSetting for a key file or an origin that cannot be used, and for two protocols with
    the same route.
    """
    client = client or Client.from_settings(settings)
    access = AccessControl(settings, client.queue.broker)
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
    app.url_map.merge_slashes = False  # a path with an empty part is unknown, and is not redirected
    app.config["MAX_CONTENT_LENGTH"] = settings.max_request_bytes
    disconnects = Disconnects(settings.port, settings.api_threads)
    Context(settings, client, Metrics(client), access, PoolReader(client.pool), disconnects).attach(app)
    errors.install(app)
    for routes in _ROUTES:
        app.register_api(routes.api)
    for name, prefix in settings.protocol_prefixes().items():
        api = copy(PROTOCOL_MODULES[name].api)  # register_api writes the prefix into the object
        app.register_api(api, url_prefix=prefix or None)
    _refuse_shared_routes(app)
    docs.install(app)
    if settings.cors_origins:
        cors.install(app, settings.cors_origins)
    if settings.trusted_proxies:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=settings.trusted_proxies, x_proto=0)  # type: ignore[method-assign]
    return app


def _refuse_shared_routes(app: Flask) -> None:
    """Raise BadSetting if two protocols have the same route, of which only the first would answer."""
    owners: dict[tuple[str, str], str] = {}
    for rule in app.url_map.iter_rules():
        protocol = rule.endpoint.partition(".")[0]
        if protocol not in PROTOCOL_MODULES:
            continue
        for method in sorted((rule.methods or set()) - {"OPTIONS"}):
            other = owners.setdefault((rule.rule, method), protocol)
            if other != protocol:
                raise BadSetting(
                    f"protocols has {other} and {protocol}, which both answer {method} {rule.rule}: mount one of them "
                    "below another path"
                )


def from_environment() -> Flask:
    """Return the application as the environment sets it, for any WSGI server."""
    return create_app(Settings.from_environment())
