"""The application: Flask with every route, error and metric in place."""

import time
from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import partial, wraps
from threading import Event
from types import MappingProxyType
from typing import Any, cast

from flask import Flask, Response
from flask.globals import request_ctx
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.info import Info
from flask_openapi3.models.path_item import PathItem

from shoal import __version__
from shoal.checks import check_known
from shoal.client.redis.client import Client
from shoal.queue.pool_history import PoolHistory
from shoal.settings import Settings
from shoal.tracing import open_tracer
from shoal_api import errors, validation
from shoal_api.access import cors
from shoal_api.access.access_control import AccessControl
from shoal_api.context import Context
from shoal_api.description import joined
from shoal_api.pool_details import read_details
from shoal_api.pool_state import PoolReader
from shoal_api.pool_watch import PoolWatch
from shoal_api.protocol_paths import ProtocolPaths
from shoal_api.protocols import (
    cohere,
    infinity,
    jina,
    ollama,
    openai,
    predict,
    similar,
    tei,
    voyage,
    weaviate,
    wire_formats,
)
from shoal_api.request import JsonRequest
from shoal_api.response import WholeResponse
from shoal_api.routes import (
    bulk,
    dead_letters,
    docs,
    embed,
    health,
    indexes,
    info,
    jobs,
    map,
    metrics,
    page,
    pool,
    score,
    search,
)
from shoal_api.schema.responses import ErrorBody
from shoal_api.server.disconnects import Disconnects
from shoal_api.server.fast_flask import FastFlask
from shoal_api.server.metrics import Metrics
from shoal_api.server.request_span import answer_traced
from shoal_api.upload_store import UploadStore

_ROUTES = (embed, search, score, map, jobs, bulk, dead_letters, health, info, pool, indexes, metrics, page)

#: The modules of the compatible protocols, by the names that the settings have for them.
PROTOCOL_MODULES = {
    "openai": openai,
    "tei": tei,
    "infinity": infinity,
    "ollama": ollama,
    "cohere": cohere,
    "jina": jina,
    "voyage": voyage,
    "weaviate": weaviate,
    "similar": similar,
    "predict": predict,
    "wire_formats": wire_formats,
}


class _App(FastFlask):
    """An application that lets requests in by access control and counts them."""

    request_class = JsonRequest
    response_class = WholeResponse

    #: The description of Shoal's own routes, by their paths.
    own_paths: Mapping[str, PathItem] = MappingProxyType({})

    def add_url_rule(self, rule: str, *args: Any, **options: Any) -> None:
        """Register a view; one whose path ends with a slash answers without the slash too, instead of a redirect."""
        path = rule.rstrip("/") or "/"
        if path != rule:
            options["strict_slashes"] = False  # a redirect would lead to the host that the request names
        super().add_url_rule(path, *args, **options)

    def register_api(self, api: APIBlueprint, **options: Any) -> None:
        """Add the routes of a blueprint, and describe them; an own route that is there already stays as it was."""
        earlier = dict(self.paths)
        super().register_api(api, **options)
        for path, item in earlier.items():
            if (later := self.paths[path]) is not item:
                self.paths[path] = joined(item, later, self.own_paths.get(path))

    def full_dispatch_request(self) -> Response:
        """Return the response to the request, as a part of the trace that the request belongs to."""
        request = cast(JsonRequest, request_ctx.request)
        return answer_traced(Context.of(self).tracer, request, super().full_dispatch_request)

    def dispatch_request(self) -> Any:
        """Return what the view answers, if access control lets the request in."""
        request = cast(JsonRequest, request_ctx.request)
        Context.of(self).paths.fall_back(request)
        return Context.of(self).access.answer(request, partial(self._answer, request))

    def _answer(self, request: JsonRequest) -> Any:
        """Return what the view of the protocol answers that the request is meant for."""
        Context.of(self).paths.choose(request)
        return super().dispatch_request()

    def process_response(self, response: Response) -> Response:
        """Run the hooks, count the request and a large response, add headers, and drop a body that was not read."""
        response, request = super().process_response(response), cast(JsonRequest, request_ctx.request)
        if request.is_negotiated:
            response.headers["Vary"] = ", ".join([*response.headers.getlist("Vary"), "Accept"])
        if request.rate_headers:
            response.headers.update(request.rate_headers)
        route, method = (request.url_rule.rule, request.method) if request.url_rule else ("unmatched", "")
        seconds, context = time.perf_counter() - request.started_s, Context.of(self)
        context.metrics.observe(route, method, response.status_code, seconds, request.num_texts)
        if context.stopping.is_set():
            response.headers["Connection"] = "close"
        if cast(WholeResponse, response).keeps_thread:
            response.call_on_close(context.access.hold(request))
        context.access.drop_body(request)
        return response


def create_app(settings: Settings, client: Client | None = None) -> Flask:
    """Return the application, connected to the queue by `client` or, without one, by a client of its own.

    Redis may start later. Raises BadSetting for a key file or an origin that cannot be used, and for two protocols with
    the same route.
    """
    client = client or Client.from_settings(settings)
    access = AccessControl(settings, client.broker)
    app = _App(
        __name__,
        info=Info(title="Shoal", version=__version__, description="Embeds text and searches it by meaning."),
        validation_error_model=ErrorBody,
        validation_error_status="4XX",
        validation_error_callback=validation.refuse,
        doc_ui=False,
        static_folder=None,
    )
    # A path with an empty part is unknown, and is not redirected; at its beginning werkzeug drops all slashes but one.
    app.url_map.merge_slashes = app.url_map.redirect_defaults = False
    app.config["MAX_CONTENT_LENGTH"] = settings.max_request_bytes
    errors.install(app)
    for routes in _ROUTES:
        app.register_api(routes.api)
    app.own_paths = dict(app.paths)
    prefixes = settings.protocol_prefixes()
    for name, prefix in prefixes.items():
        api = copy(PROTOCOL_MODULES[name].api)  # register_api writes the prefix into the object
        app.register_api(api, url_prefix=prefix or None)
    paths, disconnects = ProtocolPaths(app, prefixes), Disconnects(settings.port, settings.api_threads)
    uploads = UploadStore(settings, client.long_jobs.status)
    reader, counters, stopping = PoolReader(client), Metrics(client), Event()
    history = PoolHistory(counters.num_cache_hits)
    watch = PoolWatch(
        lambda: client.run(lambda own: history.sample(own.queue)),
        history,
        lambda owner: read_details(Context.of(app), owner),
        stopping,
    )
    parts = (counters, access, reader, disconnects, paths, client.long_jobs, uploads, watch, stopping)
    Context(settings, client, *parts, open_tracer(settings, "api")).attach(app)
    docs.install(app)
    _refuse_unknown_parameters(app)
    if settings.cors_origins:
        cors.install(app, settings.cors_origins)
    return app


def _refuse_unknown_parameters(app: Flask) -> None:
    """Let Shoal's own routes refuse query parameters that they do not have."""
    own = {routes.api.name for routes in (*_ROUTES, docs)}
    for endpoint, view in app.view_functions.items():
        if endpoint.partition(".")[0] in own:
            query = view.__annotations__.get("query")
            app.view_functions[endpoint] = _with_known_parameters(view, query.model_fields if query else ())


def _with_known_parameters(view: Callable[..., Any], known: Collection[str]) -> Callable[..., Any]:
    @wraps(view)
    def checked(**path: str) -> Any:
        request = request_ctx.request
        if request.environ.get("QUERY_STRING"):
            check_known("query parameter", request.args, known)
        return view(**path)

    return checked


def from_environment() -> Flask:
    """Return the application as the environment sets it, for any WSGI server."""
    return create_app(Settings.from_environment())
