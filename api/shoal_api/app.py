"""The application: Flask with all routes, error handlers and metrics."""

import asyncio
import re
import time
from collections.abc import Awaitable, Collection, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from threading import Event
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.info import Info
from flask_openapi3.models.path_item import PathItem
from werkzeug.exceptions import RequestTimeout

from shoal import __version__
from shoal.client.redis.async_client import AsyncClient
from shoal.contract import traceparent
from shoal.contract.checks import check_known
from shoal.errors import InvalidRequest
from shoal.process.tracing import open_tracer
from shoal.settings import Settings
from shoal_api import errors
from shoal_api.access import cors
from shoal_api.access.access_control import AccessControl
from shoal_api.answers.response import WholeResponse
from shoal_api.blueprint import refuse
from shoal_api.context import Context, attach
from shoal_api.long_jobs.upload_store import UploadStore
from shoal_api.metrics.metrics import Metrics
from shoal_api.protocol_paths import ProtocolPaths, joined_paths
from shoal_api.protocols import cohere, infinity, jina, ollama, openai, smaller_services, tei, voyage, weaviate
from shoal_api.request import JsonRequest, json_request
from shoal_api.routes import indexes, inference, jobs, pages, pool, service
from shoal_api.schema.errors import ErrorBody
from shoal_api.server.async_flask import AsyncFlask
from shoal_api.viewers.pool_state import PoolReader

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_ROUTES = (
    inference.embed_api,
    inference.api,
    jobs.api,
    jobs.long_jobs_api,
    pool.dead_letters_api,
    service.api,
    pool.api,
    indexes.api,
    pages.api,
)

#: The beginning of a path that names the pool that has to answer.
_POOL_PATH = re.compile(r"/pools/([^/]+)(?=/)")

#: The path of a job whose id begins with the name of its pool, because the API has chosen the pool.
_JOB_PATH = re.compile(r"/v1/jobs/([^/]+)\.[0-9a-f]{24}(?=/|$)")

#: The status that metrics note for a request whose client disconnected before the response.
_CLIENT_GONE = 499

#: Routes that supervisors and Prometheus request all the time. They get no spans.
_QUIET_ROUTES = ("/health", "/ready", "/metrics")

#: The routes of the compatible protocols, by the protocols' names in the settings.
PROTOCOL_APIS = {
    "openai": openai.api,
    "tei": tei.api,
    "infinity": infinity.api,
    "ollama": ollama.api,
    "cohere": cohere.api,
    "jina": jina.api,
    "voyage": voyage.api,
    "weaviate": weaviate.api,
    "similar": smaller_services.similar_api,
    "predict": smaller_services.predict_api,
    "wire_formats": smaller_services.wire_formats_api,
}


class _App(AsyncFlask):
    """The application. It admits requests by access control, receives their bodies, and counts the requests."""

    request_class = JsonRequest
    response_class = WholeResponse

    #: The OpenAPI descriptions of Shoal's own routes, by their paths.
    own_paths: Mapping[str, PathItem] = MappingProxyType({})

    def add_url_rule(self, rule: str, *args: Any, **options: Any) -> None:
        """Register a view. A path that ends with a slash also works without the slash, and without a redirect."""
        path = rule.rstrip("/") or "/"
        if path != rule:
            options["strict_slashes"] = False  # a redirect would lead to the host that the request names
        super().add_url_rule(path, *args, **options)

    def register_api(self, api: APIBlueprint, **options: Any) -> None:
        """Add the routes of a blueprint and their descriptions. Descriptions of Shoal's own routes stay as they are."""
        earlier = dict(self.paths)
        super().register_api(api, **options)
        for path, item in earlier.items():
            if (later := self.paths[path]) is not item:
                self.paths[path] = joined_paths(item, later, self.own_paths.get(path))

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        #: For the endpoint of each of Shoal's own views, the names of all query parameters that the view accepts.
        self.own_parameters: dict[str, Collection[str]] = {}

    async def respond(self, environ: "WSGIEnvironment") -> Response:
        """Return the response to a request. The request is counted as under way until the response is closed."""
        path, pool = environ["PATH_INFO"], ""
        pools = Context.all_of(self)
        if len(pools) > 1:
            if (named := _POOL_PATH.match(path)) and named[1] in pools:
                pool = named[1]
                environ |= {"SCRIPT_NAME": environ["SCRIPT_NAME"] + named[0], "PATH_INFO": path[named.end() :]}
            elif (of_job := _JOB_PATH.match(path)) and of_job[1] in pools:
                pool = of_job[1]
        context = self.request_context(environ)
        request, access = cast(JsonRequest, context.request), Context.of(self).access
        request.pool, request.may_move = pool, len(pools) > 1 and not pool
        try:
            response = await self.respond_in(context)
        except BaseException:
            self._count(request, _CLIENT_GONE)
            access.release(request)
            raise
        response.call_on_close(partial(access.release, request))
        return response

    async def full_dispatch(self) -> Response:
        """Return the response to the request as part of the request's trace, with a span if tracing is on."""
        request, tracer = json_request(), Context.of(self).tracer
        given = traceparent.valid(request.environ.get("HTTP_TRACEPARENT"))
        method, route = (request.method, request.url_rule.rule) if request.url_rule else ("HTTP", "unmatched")
        if tracer is None or route in _QUIET_ROUTES:
            if given is None:
                return await super().full_dispatch()
            with traceparent.continued(given):
                return await super().full_dispatch()
        start_ns = time.time_ns() - int(1e9 * (time.perf_counter() - request.started_s))
        attributes = {"http.request.method": method, "http.route": route}
        span = tracer.begin(f"{method} {route}", "SERVER", given, start_ns, attributes)
        try:
            with traceparent.continued(traceparent.format_traceparent(span.get_span_context())):
                response = await super().full_dispatch()
            span.set_attribute("http.response.status_code", response.status_code)
            span.set_attribute("shoal.client", request.client_name)
            if response.status_code >= 500:
                tracer.fail(span, str(response.status_code))
            return response
        finally:
            span.end()

    async def dispatch(self) -> Any:
        """Return the view's answer. Before that, drop a small body that nothing has read."""
        request = json_request()
        try:
            answer = await self._answer(request)
        except Exception:
            await self._drop_body(request)
            raise
        await self._drop_body(request)
        return answer

    async def _answer(self, request: JsonRequest) -> Any:
        """Admit the request, receive its body, and return the view's answer."""
        context = Context.of(self)
        context.paths.fall_back(request)
        await context.access.admit(request)
        if request.routing_exception is not None:
            self.raise_routing_exception(request)
        if request.is_counted and request.declared_bytes != 0:
            await self._in_time(request.receive(partial(context.access.hold, request)))
        context.paths.choose(request)
        if (known := self.own_parameters.get(request.endpoint or "")) is not None and request.query_string:
            check_known("query parameter", request.args, known)
        if not request.is_upload:
            return await super().dispatch()
        release = context.access.count_lasting(request)
        try:
            return await super().dispatch()
        finally:
            release()

    async def _drop_body(self, request: JsonRequest) -> None:
        if num_bytes := request.num_unread_bytes():
            with suppress(RequestTimeout, InvalidRequest):
                await self._in_time(request.drop(num_bytes))

    async def _in_time(self, reading: Awaitable[None]) -> None:
        """Raise RequestTimeout if reading the body takes too long."""
        most_s = Context.of(self).settings.receive_timeout_s
        try:
            async with asyncio.timeout(most_s):
                await reading
        except TimeoutError:
            raise RequestTimeout(f"the body did not arrive within {most_s:g} s: send it faster, or less") from None

    async def close(self) -> None:
        """Close the clients of all pools."""
        for context in Context.all_of(self).values():
            await context.client.close()

    def process_response(self, response: Response) -> Response:
        """Run the hooks, count the request, and add headers."""
        response, request = super().process_response(response), json_request()
        if request.is_negotiated:
            varies = response.headers.get("Vary")
            response.headers["Vary"] = f"{varies}, Accept" if varies else "Accept"
        if request.rate_headers:
            response.headers.update(request.rate_headers)
        self._count(request, response.status_code)
        if Context.of(self).stopping.is_set():
            response.headers["Connection"] = "close"
        return response

    def _count(self, request: JsonRequest, status: int) -> None:
        route, method = (request.url_rule.rule, request.method) if request.url_rule else ("unmatched", "")
        seconds = time.perf_counter() - request.started_s
        Context.of(self).metrics.observe(route, method, status, seconds)


def create_app(settings: Settings) -> AsyncFlask:
    """Return the application, with a client for each pool; Redis may start later. Raises BadSetting."""
    app = _App(
        __name__,
        info=Info(title="Shoal", version=__version__, description="Embeds text and searches it by meaning."),
        validation_error_model=ErrorBody,
        validation_error_status="4XX",
        validation_error_callback=refuse,
        doc_ui=False,
        static_folder=None,
    )
    # A path with an empty part (//) is unknown, and is not redirected. Of several leading slashes, werkzeug keeps one.
    app.url_map.merge_slashes = app.url_map.redirect_defaults = False
    app.config["MAX_CONTENT_LENGTH"] = settings.max_request_bytes
    errors.install(app)
    for routes in _ROUTES:
        app.register_api(routes)
    app.own_paths = dict(app.paths)
    prefixes = settings.protocol_prefixes()
    for name, prefix in prefixes.items():
        api = copy(PROTOCOL_APIS[name])  # register_api writes the prefix into the object
        app.register_api(api, url_prefix=prefix or None)
    _attach_contexts(app, settings, ProtocolPaths(app, prefixes))
    pages.install(app)
    own = {routes.name for routes in (*_ROUTES, pages.docs_api)}
    for endpoint, view in app.view_functions.items():
        if endpoint.partition(".")[0] in own:
            query = view.__annotations__.get("query")
            app.own_parameters[endpoint] = query.model_fields if query else ()
    if settings.cors_origins:
        cors.install(app, settings.cors_origins)
    return app


def _attach_contexts(app: _App, settings: Settings, paths: ProtocolPaths) -> None:
    """Create the contexts of all pools that the application serves, and attach them to it."""
    others = [replace(settings, pool=name, pools="", indexes="", model_aliases=name) for name in settings.pool_names()]
    if others:  # the name of each pool is an alias of its model
        settings = replace(settings, model_aliases=f"{settings.model_aliases},{settings.pool}")
    clients = {each.pool: AsyncClient.from_settings(each) for each in (settings, *others)}
    metrics, access, stopping = Metrics(clients), AccessControl(settings), Event()
    tracer = open_tracer(settings, "api")
    contexts = {
        each.pool: Context(
            settings=each,
            client=clients[each.pool],
            metrics=metrics,
            access=access,
            pool=PoolReader(clients[each.pool], partial(metrics.num_cache_hits, each.pool)),
            paths=paths,
            long_jobs=clients[each.pool].long_jobs,
            uploads=UploadStore(each, clients[each.pool].long_jobs.status),
            stopping=stopping,
            threads=app.threads,
            tracer=tracer,
        )
        for each in (settings, *others)
    }
    attach(app, contexts)


def from_environment() -> AsyncFlask:
    """Return the application with settings from the environment, for any WSGI server."""
    return create_app(Settings.from_environment())
